"""Tokens made outside the jail: one call for all, expiry, rotation kept before it is used, and what a crash leaves."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import keyring.backend
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from credgate.paths import Places
from credgate.secretvalue import SecretUnavailable
from credgate.vault import store
from rules.correlate import tag_of
from tests.credgate.gateway_rig import resetting, server_tls
from tests.credgate.minting_rig import HOST, POLICY, Minting, minting
from tests.targets.idp import Idp, Provider
from tests.targets.pki import Authority as TargetCa

ROOT = Path(__file__).parents[2]
AT = "2026-01-01T00:00:00Z"
KEY = rsa.generate_private_key(65537, 2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode().strip()
ACCOUNT = json.dumps(
    {"client_email": "bot@x.test", "private_key_id": "k1", "private_key": PEM, "token_uri": "https://evil/"}
)


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring.backend, "get_all_keyring", list)


@dataclass
class Site:
    home: Path
    idp: Idp
    ca: Path

    @property
    def provider(self) -> Provider:
        return self.idp.provider

    @contextmanager
    def minting(self, policy: str = POLICY, timeout: float = 5.0) -> Iterator[Minting]:
        with minting(self.home, self.idp.port, self.ca, policy, timeout) as made:
            yield made

    def keep(self, name: str, value: str) -> None:
        store(Places.from_env({"HOME": str(self.home)}), {}, name, value, AT)

    def once(self) -> str:
        """Mint once, as a daemon does that was started anew; the token, or what is wrong."""
        with self.minting() as rig:
            try:
                return asyncio.run(rig.token())
            except SecretUnavailable as error:
                return f"{error.code}: {error.hint}"

    def crash(self, point: str) -> subprocess.CompletedProcess[str]:
        """Mint in a process of its own, which may kill itself on the way."""
        argv = [
            sys.executable,
            "-m",
            "tests.credgate.minting_rig",
            str(self.home),
            str(self.idp.port),
            str(self.ca),
            point,
        ]
        return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    ca = TargetCa(tmp_path, "targets")
    idp = Idp(server_tls(ca, HOST), Provider(key=KEY.public_key()))
    made = Site(tmp_path, idp, ca.ca)
    for name, value in (("refresh", "refresh-0"), ("client", "hush"), ("key", PEM), ("account", ACCOUNT)):
        made.keep(name, value)
    yield made
    idp.stop()


# --- one call for all, and when there is a new one


def test_one_call_for_all_who_wait_and_one_for_each_expiry(site: Site) -> None:
    async def main(rig: Minting) -> None:
        runs = [rig.run(f"r{n}") for n in range(5)]
        for expiry in range(3):
            found = await asyncio.gather(*(rig.token(run=run) for run in runs for _ in range(4)))
            assert len(set(found)) == 1
            assert len(site.provider.minted()) == expiry + 1
            rig.clock.now += 1.79  # the margin of two seconds is a tenth of them
            assert await rig.token(run=runs[0]) == found[0]
            held = rig.minter.kept(runs[0], rig.policy.secrets["oauth"])
            assert held is not None
            assert held.reveal() == found[0]
            rig.clock.now += 0.02
            assert rig.minter.kept(runs[0], rig.policy.secrets["oauth"]) is None
        assert not site.provider.chain_over
        assert await rig.kept() == site.provider.refresh

    site.provider.lifetime = 2
    with site.minting() as rig:
        asyncio.run(main(rig))


def test_a_client_that_leaves_breaks_nothing_off(site: Site) -> None:
    async def main(rig: Minting) -> None:
        asking = asyncio.create_task(rig.token())
        await asyncio.sleep(0.15)
        asking.cancel()
        token = await rig.token()
        assert token in site.provider.living
        assert len(site.provider.minted()) == 1
        assert await rig.kept() == site.provider.refresh

    site.provider.hang = 0.4
    with site.minting() as rig:
        asyncio.run(main(rig))


def test_the_end_of_the_daemon_waits_for_what_is_on_its_way(site: Site) -> None:
    async def main(rig: Minting) -> None:
        asking = asyncio.create_task(rig.token())
        await asyncio.sleep(0.15)
        asking.cancel()
        await rig.minter.drain()
        assert await rig.kept() == site.provider.refresh != "refresh-0"

    site.provider.hang = 0.4
    with site.minting() as rig:
        asyncio.run(main(rig))


def test_a_token_that_does_not_rotate_is_left_where_it_is(site: Site) -> None:
    async def main(rig: Minting) -> None:
        await rig.token()
        assert await rig.kept() == "refresh-0"
        assert site.provider.seen[0].body == {
            "grant_type": "refresh_token",
            "refresh_token": "refresh-0",
            "client_id": "me",
        }

    site.provider.rotates = False
    with site.minting() as rig:
        asyncio.run(main(rig))


def test_a_call_of_our_own_is_marked_as_the_jails_are(site: Site) -> None:
    with site.minting() as rig:
        asyncio.run(rig.token())
        intent = next(record for record in rig.records() if record["verdict"] == "allow")
        assert intent["ua_tag"] == site.provider.seen[0].agent == f"credgate/{tag_of('r1', intent['seq'])}"


def test_an_answer_may_be_compressed(site: Site) -> None:
    site.provider.gzip = True
    with site.minting() as rig:
        assert asyncio.run(rig.token()) in site.provider.living


def test_the_client_shows_its_secret_as_the_policy_says(site: Site) -> None:
    basic = POLICY.replace('client_id = "me"', 'client_id = "a:b"\nclient_secret = "client"\nauth = "basic"')
    posted = POLICY.replace(
        'client_id = "me"', 'client_id = "me"\nclient_secret = "client"\nform = "json"\nscopes = ["a", "b"]'
    )
    with site.minting(basic) as rig:
        asyncio.run(rig.token())
    assert site.provider.seen[-1].authorization == "Basic YSUzQWI6aHVzaA=="  # a%3Ab:hush
    assert "client_id" not in site.provider.seen[-1].body
    with site.minting(posted) as rig:
        asyncio.run(rig.token())
    said = site.provider.seen[-1].body
    assert (said["client_id"], said["client_secret"], said["scope"]) == ("me", "hush", "a b")


def test_each_call_is_in_the_ledger_before_and_after_and_no_value_is(site: Site) -> None:
    with site.minting() as rig:
        token = asyncio.run(rig.token())
        before, after = rig.records()
        assert {k: before[k] for k in ("run", "rule", "secret", "host", "method", "path", "verdict", "pin")} == {
            "run": "r1",
            "rule": "mint.oauth",
            "secret": "refresh",
            "host": HOST,
            "method": "POST",
            "path": "/oauth/token",
            "verdict": "allow",
            "pin": "127.0.0.1",
        }
        assert (after["intent_seq"], after["status"]) == (before["seq"], 200)
        assert after["ids"]["x-request-id"] == "idp-1"
        assert after["cred_fp"].startswith("hmac:")
        assert "host" not in after
        text = repr(rig.records())
        assert not any(value in text for value in (token, "refresh-0", site.provider.refresh))
        table = rig.known.table()
        assert table is not None


# --- faults of the provider


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        ((400, {"error": "invalid_grant", "error_description": "secret words"}), "status 400, invalid_grant"),
        ((401, {"error": {"type": "bad_client"}}), "status 401, bad_client"),
        ((503, {}), "status 503"),
        ((400, {"error": "<script>"}), "status 400"),
    ],
)
def test_a_refusal_is_named_and_the_chain_goes_on(site: Site, reply: tuple[int, None], word: str) -> None:
    async def main(rig: Minting) -> None:
        for _ in range(3):  # a failure is kept for a moment: nobody hammers the provider
            with pytest.raises(SecretUnavailable) as caught:
                await rig.token()
            assert caught.value.detail.endswith(word)
            assert "secret words" not in str(caught.value)
        assert len(site.provider.seen) == 1
        site.provider.fault = lambda: None
        rig.clock.now += 1.01
        assert await rig.token() in site.provider.living

    site.provider.fault = lambda: reply
    with site.minting() as rig:
        asyncio.run(main(rig))


@pytest.mark.parametrize(
    "document", [{}, {"access_token": 7}, {"access_token": "a b"}, {"access_token": "x", "token_type": "mac"}]
)
def test_an_answer_that_is_not_understood_stops_the_chain(site: Site, document: dict[str, object]) -> None:
    """It may hold the next refresh token: the old one is not sent again by itself."""

    async def main(rig: Minting) -> None:
        with pytest.raises(SecretUnavailable, match="no bearer token"):
            await rig.token()
        site.provider.fault = lambda: None
        rig.clock.now += 2
        with pytest.raises(SecretUnavailable) as caught:
            await rig.token()
        assert caught.value.code == "refresh_uncertain"

    site.provider.fault = lambda: (200, document)
    with site.minting() as rig:
        asyncio.run(main(rig))


def test_no_answer_stops_the_chain_and_no_connection_does_not(site: Site) -> None:
    async def lost(rig: Minting) -> None:
        with pytest.raises(SecretUnavailable, match="upstream_timeout"):
            await rig.token()
        rig.clock.now += 2
        with pytest.raises(SecretUnavailable) as caught:
            await rig.token()
        assert caught.value.code == "refresh_uncertain"
        assert "credgate secret set refresh" in caught.value.hint
        assert [line.get("reason") for line in rig.records()][-2:] == [None, "upstream_timeout"]

    async def unreached(rig: Minting) -> None:
        with pytest.raises(SecretUnavailable, match="upstream_unreachable"):
            await rig.token()

    with minting(site.home, 1, site.ca) as rig:
        asyncio.run(unreached(rig))
    with site.minting() as rig:
        asyncio.run(rig.token())
    site.provider.hang = 1.5
    with site.minting(timeout=0.5) as rig:
        asyncio.run(lost(rig))
    site.provider.hang = 0
    site.keep("refresh", site.provider.refresh)  # signed in anew
    with site.minting() as rig:
        assert asyncio.run(rig.token()) in site.provider.living


def test_a_target_that_resets_as_it_stands_is_named_and_the_chain_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time that we look there is no peer any more. Nothing was sent, so nothing is uncertain."""

    async def slammed(rig: Minting) -> None:
        async with resetting(monkeypatch) as port:
            object.__setattr__(rig.policy.endpoints["idp"], "dial_port", port)
            with pytest.raises(SecretUnavailable, match="upstream_reset"):
                await rig.token()
        assert rig.records()[-1]["reason"] == "upstream_reset"

    with site.minting() as rig:
        asyncio.run(slammed(rig))
    with site.minting() as rig:
        assert asyncio.run(rig.token()) in site.provider.living


def test_a_certificate_of_another_name_gets_no_token(site: Site) -> None:
    other = POLICY.replace("idp.good.test", "other.good.test")
    with site.minting(other) as rig, pytest.raises(SecretUnavailable, match="upstream_tls"):
        asyncio.run(rig.token())
    assert site.provider.seen == []


def test_an_address_that_is_closed_is_not_dialled(site: Site) -> None:
    closed = POLICY.replace('address = ["127.0.0.1"]', "")
    with site.minting(closed) as rig, pytest.raises(SecretUnavailable, match="address_blocked"):
        asyncio.run(rig.token())
    assert site.provider.seen == []


# --- crashes


@pytest.mark.parametrize("point", ["begin", "sent", "answered"])
def test_a_crash_before_the_next_token_is_kept_stops_and_says_so(site: Site, point: str) -> None:
    died = site.crash(point)
    assert died.returncode == -9, died.stdout + died.stderr
    asked = len(site.provider.minted())
    assert asked == (0 if point == "begin" else 1)
    after = site.once()
    assert after.startswith("refresh_uncertain: sign in anew, then: credgate secret set refresh")
    assert len(site.provider.minted()) == asked
    assert not site.provider.chain_over
    site.keep("refresh", site.provider.refresh)
    assert site.once().startswith("access-")


def test_a_crash_once_it_is_kept_loses_nothing(site: Site) -> None:
    died = site.crash("kept")
    assert died.returncode == -9, died.stdout + died.stderr
    assert site.once().startswith("access-")
    assert len(site.provider.minted()) == 2
    assert not site.provider.chain_over


def test_a_token_that_a_person_set_meanwhile_counts(site: Site) -> None:
    async def main(rig: Minting) -> None:
        asking = asyncio.create_task(rig.token())
        await asyncio.sleep(0.2)
        await asyncio.to_thread(site.keep, "refresh", "of-a-new-sign-in")
        await asking
        assert await rig.kept() == "of-a-new-sign-in"

    site.provider.hang = 0.6
    with site.minting() as rig:
        asyncio.run(main(rig))


def test_a_write_that_fails_is_done_before_anything_else(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the access token is not used, and the next refresh token is still here."""

    async def main(rig: Minting) -> None:
        real = rig.vault._swapped

        def full(*_: object) -> None:
            raise SecretUnavailable("place_unusable", "no space left on device")

        monkeypatch.setattr(rig.vault, "_swapped", full)
        with pytest.raises(SecretUnavailable, match="no space left"):
            await rig.token()
        assert await rig.kept() == "refresh-0"
        monkeypatch.setattr(rig.vault, "_swapped", real)
        rig.clock.now += 2
        assert await rig.token() in site.provider.living
        assert await rig.kept() == site.provider.refresh
        assert not site.provider.chain_over

    with site.minting() as rig:
        asyncio.run(main(rig))


# --- GitHub and Google


def test_a_github_token_is_narrow_and_its_runs_own(site: Site) -> None:
    async def main(rig: Minting) -> None:
        one, other = rig.run("r1"), rig.run("r2")
        first, second = await rig.token("github", one), await rig.token("github", other)
        assert first != second
        assert await rig.token("github", one) == first
        said = site.provider.seen[0].body
        assert (said["permissions"], said["repositories"]) == ({"issues": "write"}, ["app"])
        assert said["claims"]["iss"] == "Iv1"
        assert said["claims"]["exp"] - said["claims"]["iat"] == 600
        await rig.minter.end("r1")
        assert first not in site.provider.living
        assert second in site.provider.living
        assert [(a.method, a.path, a.status) for a in site.provider.seen[2:]] == [
            ("DELETE", "/installation/token", 204)
        ]
        assert rig.records()[-2]["rule"] == "revoke.github"
        assert rig.records()[-1]["status"] == 204

    with site.minting() as rig:
        asyncio.run(main(rig))


def test_a_token_that_comes_after_its_run_ended_is_taken_back(site: Site) -> None:
    async def main(rig: Minting) -> None:
        run = rig.run("r1")
        asking = asyncio.create_task(rig.token("github", run))
        await asyncio.sleep(0.15)
        run.revoked = True
        asking.cancel()
        await rig.minter.drain()
        assert [a.method for a in site.provider.seen] == ["POST", "DELETE"]
        assert site.provider.living == {}

    site.provider.hang = 0.4
    with site.minting() as rig:
        asyncio.run(main(rig))


def test_a_github_token_that_may_do_more_is_taken_back(site: Site) -> None:
    async def main(rig: Minting) -> None:
        with pytest.raises(SecretUnavailable, match="more than was asked: contents, issues"):
            await rig.token("github")
        assert site.provider.living == {}

    site.provider.permissions = {"contents": "read", "issues": "admin"}
    with site.minting() as rig:
        asyncio.run(main(rig))


def test_a_run_ends_though_its_token_is_not_taken_back(site: Site) -> None:
    async def main(rig: Minting) -> None:
        await rig.token("github")
        site.idp.stop()
        await rig.minter.end("r1")
        assert "upstream_unreachable" in rig.records()[-1]["reason"]

    with site.minting() as rig:
        asyncio.run(main(rig))


def test_google(site: Site) -> None:
    async def main(rig: Minting) -> None:
        token = await rig.token("google")
        said = site.provider.seen[0].body
        assert said["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
        assert said["head"] == {"alg": "RS256", "typ": "JWT", "kid": "k1"}
        claims = said["claims"]
        assert (claims["iss"], claims["scope"]) == ("bot@x.test", "s.read s.list")
        assert claims["aud"] == f"https://{HOST}/token"  # not the key file's token_uri
        await rig.minter.end("r1")
        assert token not in site.provider.living
        signed = await rig.token("self")
        from tests.targets.idp import unsigned

        assert unsigned(signed, KEY.public_key())[1]["aud"] == "https://pubsub.googleapis.com/"
        assert len(site.provider.seen) == 2  # the call and its revocation: nobody was asked for that one

    with site.minting() as rig:
        asyncio.run(main(rig))


@pytest.mark.parametrize(("name", "secret"), [("key", "github"), ("account", "google"), ("account", "self")])
def test_a_value_that_is_no_key_is_named_without_it(site: Site, name: str, secret: str) -> None:
    site.keep(name, "canary-value")
    with site.minting() as rig, pytest.raises(SecretUnavailable) as caught:
        asyncio.run(rig.token(secret))
    assert caught.value.code == "secret_invalid"
    assert "canary" not in f"{caught.value!r} {caught.value.detail} {caught.value.hint}"
    assert site.provider.seen == []
