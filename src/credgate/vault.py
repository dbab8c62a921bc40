"""Where a secret's value comes from: a keyring, the caller's environment, a file, a command, a vault.

What costs something to get is kept as long as it says, or as the policy says. All else is read for each request, but
for our own files: those are read again once they are other files than they were, which is asked for each request.
"""

import asyncio
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from credgate.backends import Backend, BackendKind, backend_named, choose_backend, sealed_files
from credgate.commandsource import Fetched, run_command
from credgate.errors import CredgateError
from credgate.kept import Kept
from credgate.minting.journal import Journal
from credgate.paths import Places
from credgate.secretindex import SERVICE, Entry, check_name, locked_index, read_index, write_index
from credgate.secretvalue import MAX_VALUE, Secret, SecretUnavailable, check_value
from credgate.trees import written_before
from credgate.unchanged import Unchanged
from rules.sources import CommandTerms, SecretRule, SourceKind

if TYPE_CHECKING:
    from credgate.vaultserver import VaultServers

_TIMEOUT = 10.0  # seconds: a locked desktop keyring asks on a screen that may not be there
_MAX_THREADS = 8  # look-ups at a time, those that never came back among them


class Vault:
    """Fetches values. `environ` is this process's own environment, not the caller's."""

    def __init__(self, places: Places, environ: Mapping[str, str], timeout: float = _TIMEOUT) -> None:
        self._places = places
        self._environ = environ
        self._timeout = timeout
        self._hanging = 0  # look-ups that were given up, and have not ended
        self._room = asyncio.Semaphore(_MAX_THREADS)
        self._commands: Kept[Secret] = Kept()
        self.servers: VaultServers | None = None  # set by the gateway, through whose dialler they are asked
        # by name, "" for the best one: a desktop backend asks D-Bus each time when it is asked how good it is
        self._backends: dict[str, Backend] = {}
        self._files = (str(places.secrets), *map(str, sealed_files(places, environ)))
        self._sealed: Unchanged[Secret | None] = Unchanged()
        self._from_env: dict[str, Secret] = {}  # the last one of each name

    def kept(self, rule: SecretRule, env: Mapping[str, str]) -> Secret | None:
        """The secret where it is known, and nothing has to be read or waited for: as `fetch` would give it."""
        if rule.kind is SourceKind.KEYRING:
            return self._sealed.known((rule.name, rule.ref), self._files)
        if rule.kind is SourceKind.COMMAND:
            return self._commands.known((rule, _named(rule, env)))
        known = self._from_env.get(rule.name) if rule.kind is SourceKind.ENV else None
        return known if known is not None and env.get(rule.ref) == known.reveal() else None

    def asking(self, rule: SecretRule, env: Mapping[str, str]) -> Callable[[], Secret | None]:
        """What asks that again and again."""
        if rule.kind is SourceKind.KEYRING:  # the path of nearly each request, without the frames above
            return partial(self._sealed.known, (rule.name, rule.ref), self._files)
        return partial(self.kept, rule, env)

    async def fetch(self, rule: SecretRule, env: Mapping[str, str]) -> Secret:
        """Return the secret of `rule`; `env` is the environment of the run's caller.

        Raises SecretUnavailable: not set, locked, timed out, file open to others, or a value that can't be injected.
        """
        if rule.kind is SourceKind.KEYRING:  # the path of nearly each request, without the frames below
            known = self._sealed.known((rule.name, rule.ref), self._files)
            if known is not None:
                return known
        if rule.kind is SourceKind.COMMAND:
            return await self._commands.get((rule, _named(rule, env)), lambda: self._command(rule, env))
        if rule.kind is SourceKind.VAULT and self.servers is not None:
            return await self.servers.read(rule, env)
        secret, error = _outcome(rule.name, lambda: self._at_once(rule, env))
        if error is not None:
            raise error
        return secret or await self._in_thread(rule.name, lambda: self.read(rule, env))

    async def _command(self, rule: SecretRule, env: Mapping[str, str]) -> tuple[Secret, float]:
        """A command's value, and the seconds that it is kept. Its own time-out ends it, ours is the later one."""
        found: list[Fetched] = []

        def work() -> Secret:
            found.append(run_command(rule, env, written_before(self._places)))
            return Secret(rule.name, found[0].value)

        more = rule.terms.timeout if isinstance(rule.terms, CommandTerms) else 0
        secret = await self._in_thread(rule.name, work, more)
        return secret, found[0].seconds

    def _at_once(self, rule: SecretRule, env: Mapping[str, str]) -> Secret | None:
        """The secret where nothing can hang: the environment, and our own file, which lies where the ledger does.

        A thread costs more than the look-up itself. None: it takes one.
        """
        if rule.kind is SourceKind.ENV:
            return self._by_env(rule, env)
        if rule.kind is SourceKind.KEYRING:
            return self._sealed.get((rule.name, rule.ref), self._files, lambda: self._in_our_file(rule))
        return None

    def _by_env(self, rule: SecretRule, env: Mapping[str, str]) -> Secret:
        value, known = _from_env(rule, env), self._from_env.get(rule.name)
        if known is None or known.reveal() != value:
            known = self._from_env[rule.name] = Secret(rule.name, value)  # which checks each character
        return known

    def _in_our_file(self, rule: SecretRule) -> Secret | None:
        service, name = _keyring_ref(rule)
        backend = self._backends.get(self._wanted(service, name))
        if backend is not None and backend.kind is BackendKind.SEALED:
            return Secret(rule.name, _value_at(rule, backend))
        return None

    def read(self, rule: SecretRule, env: Mapping[str, str]) -> Secret:
        """As fetch, blocking and without a time-out: for commands."""
        match rule.kind:
            case SourceKind.KEYRING:
                value = _value_at(rule, self._backend_of(*_keyring_ref(rule)))
            case SourceKind.ENV:
                value = _from_env(rule, env)
            case SourceKind.FILE:
                value = _from_file(rule, env)
            case SourceKind.COMMAND:
                value = run_command(rule, env, written_before(self._places)).value
            case SourceKind.VAULT:
                raise SecretUnavailable(
                    "vault_by_daemon",
                    f"secret {rule.name!r}: a vault is asked by the gateway alone",
                    "see a run's ledger",
                )
            case SourceKind.MINT:
                hint = f"its own secret is that of [mint.{rule.ref}] in the policy"
                raise SecretUnavailable(
                    "secret_minted", f"secret {rule.name!r} is minted, when a request needs it", hint
                )
            case _:
                assert_never(rule.kind)
        return Secret(rule.name, value)

    @property
    def places(self) -> Places:
        """Where state lies."""
        return self._places

    async def swap(self, rule: SecretRule, old: Secret, new: str) -> None:
        """Put `new` where `old` is, before it returns; nothing is changed where another value was set meanwhile.

        For keyring sources alone. Raises SecretUnavailable; the old value then stays.
        """
        await self._in_thread(rule.name, lambda: self._swapped(rule, old, new))

    def _swapped(self, rule: SecretRule, old: Secret, new: str) -> Secret:
        service, name = _keyring_ref(rule)
        backend = self._backend_of(service, name)
        check_value(rule.name, new)
        with locked_index(self._places) as index:
            if _value_at(rule, backend) != old.reveal():
                return old
            _change(backend, lambda: backend.ring.set_password(service, name, new))
            entry = index.entries.get(name) if service == SERVICE else None
            if entry is not None:
                set_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                renewed = replace(entry, fingerprint=index.fingerprint(new), set_at=set_at)
                write_index(self._places, replace(index, entries={**index.entries, name: renewed}))
        return old

    def _wanted(self, service: str, name: str) -> str:
        """The backend that `secret set` used, as another one may have become the best since; "" for the best."""
        index = read_index(self._places) if service == SERVICE else None
        entry = index.entries.get(name) if index is not None else None
        return entry.backend if entry is not None else ""

    def _backend_of(self, service: str, name: str) -> Backend:
        wanted = self._wanted(service, name)
        if wanted not in self._backends:
            self._backends[wanted] = (
                backend_named(wanted, self._places, self._environ)
                if wanted
                else choose_backend(self._places, self._environ)
            )
        return self._backends[wanted]

    async def _in_thread(self, name: str, work: Callable[[], Secret], more: float = 0.0) -> Secret:
        """Run `work` in a daemon thread: one that hangs must keep neither the loop nor the process's end waiting.

        Of many at once some wait for their turn: to be many is no sign of a keyring that hangs.
        """
        if self._hanging >= _MAX_THREADS:
            detail = f"secret {name!r}: {self._hanging} look-ups hang already"
            raise SecretUnavailable("keyring_hangs", detail, "unlock the keyring")
        look = _LookUp()
        try:
            async with asyncio.timeout(self._timeout + more):
                await self._room.acquire()
                return await self._look(look, name, work)
        except TimeoutError as error:
            if look.began:
                look.hangs = True
                self._hanging += 1
            detail = f"secret {name!r}: no answer within {self._timeout:g} s"
            raise SecretUnavailable("keyring_timeout", detail, "unlock the keyring, then try again") from error

    def _look(self, look: "_LookUp", name: str, work: Callable[[], Secret]) -> asyncio.Future[Secret]:
        """Begin; the room that was taken is free again once the thread has ended, whoever waits for it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Secret] = loop.create_future()

        def deliver(secret: Secret | None, error: CredgateError | None) -> None:
            look.began = False
            self._room.release()
            self._hanging -= look.hangs
            if future.done():
                return
            if secret is not None:
                future.set_result(secret)
            elif error is not None:
                future.set_exception(error)

        def run() -> None:
            secret, error = _outcome(name, work)
            with suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits for the answer
                loop.call_soon_threadsafe(deliver, secret, error)

        try:
            threading.Thread(target=run, name="vault", daemon=True).start()
        except RuntimeError as error:  # a limit of the user's
            self._room.release()
            detail = f"secret {name!r}: this host starts no more threads"
            raise SecretUnavailable("secret_unavailable", detail, "end other programs of this user") from error
        look.began = True
        return future


@dataclass(slots=True)
class _LookUp:
    """One in a thread. `hangs`: nobody waits for it any more, and it has not ended."""

    began: bool = False
    hangs: bool = False


def _named(rule: SecretRule, env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What of the caller's environment a command gets by name: another value may give another secret."""
    names = rule.terms.env if isinstance(rule.terms, CommandTerms) else ()
    return tuple((name, env[name]) for name in ("HOME", *names) if name in env)


def _outcome(name: str, work: Callable[[], Secret | None]) -> tuple[Secret | None, CredgateError | None]:
    """The outermost frame of a look-up and of its thread: whatever a backend raises ends as "unavailable"."""
    try:
        return work(), None
    except SecretUnavailable as error:
        return None, error
    except CredgateError as error:
        return None, SecretUnavailable(error.code, f"secret {name!r}: {error.detail}", error.hint)
    except Exception as error:  # noqa: BLE001  backends are plug-ins: any class may come, and its text may hold a value
        return None, SecretUnavailable(
            "secret_unavailable", f"secret {name!r}: look-up failed with {type(error).__name__}", "credgate doctor"
        )


def _keyring_ref(rule: SecretRule) -> tuple[str, str]:
    service, _, name = rule.ref.partition("/")
    if not service or not name:
        detail = f"secret {rule.name!r}: source is keyring:{rule.ref}, expected keyring:SERVICE/NAME"
        raise SecretUnavailable("source_invalid", detail, "mend the policy")
    return service, name


def _value_at(rule: SecretRule, backend: Backend) -> str:
    service, name = _keyring_ref(rule)
    value = _ask(backend, service, name)
    if value is None:
        hint = f"credgate secret set {name}" if service == SERVICE else f"keyring set {service} {name}"
        raise SecretUnavailable("secret_not_set", f"secret {rule.name!r}: nothing at keyring:{rule.ref}", hint)
    return value


def _ask(backend: Backend, service: str, name: str) -> str | None:
    from keyring.errors import KeyringError, KeyringLocked  # noqa: PLC0415  slow import

    try:
        return backend.ring.get_password(service, name)
    except KeyringLocked as error:
        raise SecretUnavailable("keyring_locked", f"{backend.name} is locked", "unlock it, then try again") from error
    except KeyringError as error:
        detail = f"{backend.name} failed with {type(error).__name__}"
        raise SecretUnavailable("keyring_failed", detail, "credgate doctor") from error


def _from_env(rule: SecretRule, env: Mapping[str, str]) -> str:
    value = env.get(rule.ref)
    if value is None:
        detail = f"secret {rule.name!r}: {rule.ref} is not in the environment of the caller"
        raise SecretUnavailable("secret_not_set", detail, f"export {rule.ref}, then start the run again")
    return value


def _from_file(rule: SecretRule, env: Mapping[str, str]) -> str:
    path = _file_path(rule, env)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise SecretUnavailable("secret_not_set", f"secret {rule.name!r}: can't open {path}: {why}") from error
    try:
        _check_file(rule, path, os.fstat(fd))
        with os.fdopen(fd, "rb", closefd=False) as file:
            data = file.read(MAX_VALUE + 2)  # one byte more for the newline, one to see that it is too long
    finally:
        os.close(fd)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        # not "from error": its text and its object attribute hold the bytes
        raise SecretUnavailable("secret_invalid", f"secret {rule.name!r}: {path} is not UTF-8 text") from None
    return text.removesuffix("\n")


def _file_path(rule: SecretRule, env: Mapping[str, str]) -> Path:
    path = Path(rule.ref)
    if rule.ref.startswith("~/"):
        path = Path(env.get("HOME", "")) / rule.ref[2:]
    if not path.is_absolute():
        detail = f"secret {rule.name!r}: file is {rule.ref!r}, expected an absolute path or ~/..."
        raise SecretUnavailable("source_invalid", detail, "mend the policy")
    return path


def _check_file(rule: SecretRule, path: Path, facts: os.stat_result) -> None:
    uid = os.geteuid()
    if not stat.S_ISREG(facts.st_mode):
        raise SecretUnavailable("file_refused", f"secret {rule.name!r}: {path} is not a regular file")
    if facts.st_uid != uid:
        detail = f"secret {rule.name!r}: {path} has owner uid {facts.st_uid}, expected uid {uid}"
        raise SecretUnavailable("file_refused", detail, f"chown {uid} {path}")
    if facts.st_mode & 0o077:
        detail = f"secret {rule.name!r}: {path} has mode {stat.S_IMODE(facts.st_mode):04o}, expected 0600 or less"
        raise SecretUnavailable("file_refused", detail, f"chmod 0600 {path}, and think of the value as seen")


def store(places: Places, environ: Mapping[str, str], name: str, value: str, set_at: str) -> Entry:
    """Keep a value in the best backend and note it in the index; `set_at` is RFC 3339 UTC.

    Raises SecretUnavailable and PlaceError.
    """
    check_value(check_name(name), value)
    with locked_index(places) as index:
        backend = choose_backend(places, environ)
        _change(backend, lambda: backend.ring.set_password(SERVICE, name, value))
        entry = Entry(
            name=name,
            backend=backend.name,
            fingerprint=index.fingerprint(value),
            set_at=set_at,
        )
        write_index(places, replace(index, entries={**index.entries, name: entry}))
        Journal(places=places, ref=f"{SERVICE}/{name}").settle()  # set by a person: it may be used, whatever it is
    return entry


def forget(places: Places, environ: Mapping[str, str], name: str) -> None:
    """Remove a value and its entry. Raises SecretUnavailable where it was never set, and PlaceError."""
    from keyring.errors import PasswordDeleteError  # noqa: PLC0415  slow import

    with locked_index(places) as index:
        entry = index.entries.get(check_name(name))
        if entry is None:
            raise SecretUnavailable("secret_not_set", f"secret {name!r}: never set here", "credgate secret list")
        backend = backend_named(entry.backend, places, environ)
        try:
            backend.ring.delete_password(SERVICE, name)
        except PasswordDeleteError:
            # gone already is what was asked for; still there is not
            if _ask(backend, SERVICE, name) is not None:
                raise SecretUnavailable("keyring_failed", f"{backend.name} did not delete {name!r}") from None
        write_index(places, replace(index, entries={k: v for k, v in index.entries.items() if k != name}))


def _change(backend: Backend, change: Callable[[], None]) -> None:
    from keyring.errors import KeyringError  # noqa: PLC0415  slow import

    try:
        change()
    except KeyringError as error:
        detail = f"{backend.name} failed with {type(error).__name__}"
        raise SecretUnavailable("keyring_failed", detail, "unlock it, or see: credgate doctor") from error
