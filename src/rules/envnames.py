"""Which names and values of environment variables look like credentials, and which names a role may not pass.

A role passes variables of the caller into the jail. One that holds a credential would hand the agent what the gateway
exists to keep from it, so the name is a load error and the value is checked again when a run starts.
"""

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_WORDS = _words(
    "TOKEN TOKENS KEY KEYS APIKEY SECRET SECRETS PASSWORD PASSWORDS PASSWD PASSPHRASE PASS CREDENTIAL "
    "CREDENTIALS CREDS AUTH AUTHORIZATION BEARER COOKIE COOKIES PAT JWT DSN PRIVATE SIGNATURE"
)
_ENDINGS = ("TOKEN", "APIKEY", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "KEY")
_PLAIN = frozenset({"KEYBOARD", "COLORKEY", "MONKEY", "HOTKEY"})
# Shapes that targets document for their own credentials, and the two forms that carry one inside other text.
_VALUES = re.compile(
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|gl[a-z]{2,5}-[A-Za-z0-9_-]{16,}"
    r"|sk-[A-Za-z0-9_-]{16,}|xox[abeoprs]-[A-Za-z0-9-]{10,}|npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30,}|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|[A-Za-z][A-Za-z0-9+.-]*://[^/@\s:]*:[^/@\s]+@"
)
# The same as a word of its own: an argument may be prose, and "disk-usage-by-directory" is no key. Without URLs, whose
# passwords are often a local database's.
_TOKENS = re.compile(
    r"(?<![A-Za-z0-9_-])(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{50,}|glpat-[A-Za-z0-9_-]{20,}"
    r"|sk-(?:ant-|proj-|svcacct-)?[A-Za-z0-9_-]{32,}|xox[abeoprs]-[0-9A-Za-z-]{20,}|npm_[A-Za-z0-9]{36}"
    r"|pypi-[A-Za-z0-9_-]{50,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}|[sr]k_live_[A-Za-z0-9]{16,})"
)
_MIXED = re.compile(r"(?=.*[0-9])(?=.*[A-Z])")
# The loader and the interpreters obey these before a program's own first line.
_CODE = _words(
    "BASH_ENV ENV SHELLOPTS BASHOPTS PROMPT_COMMAND GCONV_PATH GETCONF_DIR HOSTALIASES LOCALDOMAIN LOCPATH "
    "MALLOC_TRACE NIS_PATH NLSPATH RESOLV_HOST_CONF RES_OPTIONS TZDIR NODE_OPTIONS BUN_OPTIONS PYTHONPATH PYTHONHOME "
    "PYTHONSTARTUP PERL5LIB PERL5OPT RUBYOPT RUBYLIB JAVA_TOOL_OPTIONS JDK_JAVA_OPTIONS _JAVA_OPTIONS "
    "GIT_CONFIG_GLOBAL GIT_CONFIG_SYSTEM GIT_SSL_NO_VERIFY NODE_TLS_REJECT_UNAUTHORIZED PYTHONHTTPSVERIFY"
)
# Sockets of the host; what they lead to is not bound, and the name alone makes programs wait for it.
_SOCKETS = _words("SSH_AUTH_SOCK GPG_AGENT_INFO DBUS_SESSION_BUS_ADDRESS DOCKER_HOST XDG_RUNTIME_DIR")
# Where a client finds its CAs and its proxy, by whatever prefix: files that the jail lacks, ways around the gateway.
_TRUST = re.compile(
    r"(?:^|_)(?:CA_?(?:BUNDLE|CERTS?|CERTIFICATE|FILE|INFO|PATH|STORE|DIR)(?:_(?:FILE|PATH))*|CERT_(?:FILE|DIR))$"
    r"|(?:^|_)(?:NO_?PROXY|(?:HTTPS?|ALL|FTP|SOCKS)_PROXY|STRICT_SSL)$|^NODE_USE_(?:SYSTEM_CA|ENV_PROXY)$"
)
# Set by Credgate itself for every jail.
_OURS = _words("PATH HOME PWD TMPDIR PIP_CERT DENO_CERT GRPC_DEFAULT_SSL_ROOTS_FILE_PATH UV_SYSTEM_CERTS")


def credential_name(name: str) -> bool:
    """Tell whether a variable's name says that it holds a credential (GITHUB_TOKEN, PGPASSWORD, APIKEY)."""
    upper = name.upper()
    if upper in _PLAIN:
        return False
    return upper.endswith(_ENDINGS) or any(part in _WORDS for part in upper.split("_"))


def credential_value(value: str) -> bool:
    """Tell whether a variable's value has the shape of a credential, or of a URL with a password in it."""
    return _VALUES.search(value) is not None


def credential_argument(word: str) -> bool:
    """Tell whether an argument of a command holds a credential: a token's prefix, and letters and digits by chance."""
    return any(_MIXED.search(found[0]) for found in _TOKENS.finditer(word))


def refused(name: str) -> str:
    """Return why a role may not pass this variable, or "" where it may."""
    upper = name.upper()
    if not ENV_NAME.fullmatch(name):
        return "not a name of an environment variable"
    if credential_name(name):
        return "the name looks like a credential"
    if upper in _OURS or _TRUST.search(upper):
        return "credgate sets it for every jail itself"
    if upper in _CODE or upper.startswith(("LD_", "DYLD_", "GLIBC_", "BASH_FUNC_", "GIT_CONFIG_", "CREDGATE_")):
        return "programs run code or drop checks because of it"
    if upper in _SOCKETS:
        return "it names a socket of the host, which the jail does not have"
    return ""
