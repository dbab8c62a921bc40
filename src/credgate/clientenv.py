"""The environment of the command: empty, but for what clients need to find the gateway and what the role names.

Sources: the measured matrix of clients (which variable each one reads for its CA and its proxy).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from credgate.errors import CredgateError
from credgate.trust import INSIDE_BUNDLE, INSIDE_CA
from jail.plan import IGNORE_AT

SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
# They hold no secret, and clients look wrong without. Not LC_* as such: people pass values of any kind by such names.
ALWAYS = ("TERM", "COLORTERM", "LANG", "LANGUAGE", "TZ", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES")
LOCALE = ("LC_MONETARY", "LC_NUMERIC", "LC_TIME", "LC_ADDRESS", "LC_IDENTIFICATION", "LC_MEASUREMENT", "LC_NAME")
LOCALE_MORE = ("LC_PAPER", "LC_TELEPHONE")
BUNDLE_NAMES = [
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_CERT",
    "AWS_CA_BUNDLE",
    "NPM_CONFIG_CAFILE",
    "CARGO_HTTP_CAINFO",
    "CODEX_CA_CERTIFICATE",
    "HTTPLIB2_CA_CERTS",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
    "PERL_LWP_SSL_CA_FILE",
    "NIX_SSL_CERT_FILE",
]
CA_NAMES = ("NODE_EXTRA_CA_CERTS", "DENO_CERT")
PROXY_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
# No `[::1]`: httpx 0.28 crashes on it; no `*` and no suffix: they would switch the proxy off.
NO_PROXY = "localhost,127.0.0.1,::1"
DENIED_NAME = "credgate-denied.invalid"
FIXED = {
    "UV_SYSTEM_CERTS": "1",
    "NODE_USE_ENV_PROXY": "1",
    "NODE_USE_SYSTEM_CA": "1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "GCE_METADATA_HOST": DENIED_NAME,  # gcloud asks its metadata server every time
    "NO_GCE_CHECK": "true",
    "DISABLE_AUTOUPDATER": "1",
    "COPILOT_AUTO_UPDATE": "false",
    "NPM_CONFIG_UPDATE_NOTIFIER": "false",
}
# Of an ssh URL that no insteadOf covers git's user would hear "connection refused". The variant: git asks for none.
NO_SSH = {
    "GIT_SSH_COMMAND": "sh -c 'for word do case $word in *@*) host=${word#*@} ;; esac; done; "
    'echo "credgate: ssh has no way out of this jail. To pass: an endpoint with host = \\"${host:-HOST}\\" in the '
    "role, by which git goes over https.\" >&2; exit 255' ssh",
    "GIT_SSH_VARIANT": "ssh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Facts of the jail that the environment speaks of."""

    gateway: str
    proxy_port: int
    user: str
    home: str
    cwd: str
    path: tuple[str, ...]  # before the system's
    shell: str
    git: tuple[tuple[str, str], ...]  # more of git's configuration
    git_hosts: tuple[str, ...]  # endpoints on 443: git@HOST: becomes https://HOST/
    ssh: bool  # whether the role has a way out for ssh


def build_environment(
    caller: Mapping[str, str],
    allowed: Sequence[str],
    named: Sequence[str],
    decoys: Mapping[str, str],
    inside: Inside,
) -> dict[str, str]:
    """The whole environment. `allowed`: the role's names; `named`: those of --env, which narrow them.

    Raises CredgateError for a name of --env that the role does not list.
    """
    unlisted = [name for name in named if name not in allowed]
    if unlisted:
        raise CredgateError(
            "env_not_listed",
            f"--env {unlisted[0]}: the role does not list it",
            f'add "{unlisted[0]}" to its `env`',
            125,
        )
    wanted = [*ALWAYS, *LOCALE, *LOCALE_MORE, *(named or allowed)]
    env = {name: caller[name] for name in wanted if name in caller}
    proxy = f"http://{inside.gateway}:{inside.proxy_port}"  # with scheme: node, npm and ruby fail without
    return {
        **env,
        **dict.fromkeys(BUNDLE_NAMES, INSIDE_BUNDLE),
        **dict.fromkeys(CA_NAMES, INSIDE_CA),
        **dict.fromkeys(PROXY_NAMES, proxy),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), NO_PROXY),
        **FIXED,
        **_git(inside.git_hosts, inside.git),
        **({} if inside.ssh else NO_SSH),
        "PATH": ":".join(dict.fromkeys((*inside.path, *SYSTEM_PATH))),
        "HOME": inside.home,
        "USER": inside.user,
        "LOGNAME": inside.user,
        "SHELL": inside.shell,
        "PWD": inside.cwd,
        "TMPDIR": _temporary(inside.cwd),
        **decoys,
    }


def _temporary(cwd: str) -> str:
    """One of the jail's own trees that no work tree lies in: around one no socket can be made (prepare._landlock)."""
    return "/var/tmp" if cwd == "/tmp" or cwd.startswith("/tmp/") else "/tmp"  # noqa: S108 - the jail's own


def git_beside(*, hidden: bool, held: bool) -> tuple[tuple[str, str], ...]:
    """What git is told where files are hidden, or its configuration is held read-only.

    A hidden file's cover has size and time of what it covers, and by nothing else may git judge that it is unchanged;
    untracked ones are ignored. A new branch's upstream can't be written into a configuration that is read-only.
    """
    pairs = [("core.checkStat", "minimal"), ("core.trustctime", "false"), ("core.excludesFile", IGNORE_AT)]
    return (*(pairs if hidden else ()), *([("branch.autoSetupMerge", "false")] if held else ()))


def _git(hosts: Sequence[str], more: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Ssh has no way out of the jail: forges are reached over HTTPS. An empty helper resets inherited ones."""
    pairs = [("credential.helper", ""), *more]
    for host in hosts:
        pairs.append((f"url.https://{host}/.insteadOf", f"git@{host}:"))
        pairs.append((f"url.https://{host}/.insteadOf", f"ssh://git@{host}/"))
    env = {"GIT_CONFIG_COUNT": str(len(pairs))}
    for number, (key, value) in enumerate(pairs):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env
