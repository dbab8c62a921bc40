"""Nothing that a policy says reaches above the ceiling; what fits below it comes through unchanged."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.ceiling import narrow
from rules.decide import decide
from rules.policy import Budget, OnAlarm, Policy, Rate, Unlisted
from rules.problems import PolicyError
from rules.verdict import Allow
from tests.rules.policies import load
from tests.rules.tunnelled import tunnelled

CEILING = """\
version = 1
default_role = "dev"
[secret.github]
source = "keyring:credgate/github"
[endpoint.api]
host = "api.example.org"
address = ["10.20.0.0/16"]
ca = "/etc/ca.pem"
alpn = ["http/1.1", "h2"]
[[endpoint.api.allow]]
id = "issues"
methods = ["GET", "POST"]
paths = ["/repos/acme/**"]
[[endpoint.api.allow]]
id = "open"
methods = ["GET"]
paths = ["/public/**"]
[[endpoint.api.deny]]
id = "keys"
paths = ["/repos/acme/*/keys"]
[endpoint.docs]
host = "**.docs.example.org"
[[endpoint.docs.allow]]
id = "read"
methods = ["GET"]
paths = ["/**"]
[endpoint.internal]
host = "unused.example.org"
[binding.github]
secret = "github"
endpoint = "api"
rules = ["issues"]
place = "header:authorization"
[role.dev]
bindings = ["github"]
endpoints = ["docs"]
workdir = "write"
tools = ["/opt/tools"]
read = ["~/.gitconfig"]
env = ["TERM", "LANG"]
deadline = "4h"
limits = { memory = "2GiB", processes = 100 }
[role.reader]
endpoints = ["docs"]
"""

POLICY = """\
version = 1
[secret.github]
source = "keyring:credgate/github"
[endpoint.mine]
host = "api.example.org"
address = ["10.20.3.0/24"]
[[endpoint.mine.allow]]
id = "one"
methods = ["GET"]
paths = ["/repos/acme/app/issues/*"]
[endpoint.site]
host = "a.docs.example.org"
[[endpoint.site.allow]]
id = "read"
methods = ["GET"]
paths = ["/guide/**"]
[binding.github]
secret = "github"
endpoint = "mine"
rules = ["one"]
place = "header:authorization"
mode = "placeholder"
placeholder = { env = "GITHUB_TOKEN", shape = "ghp_{36}" }
[role.dev]
bindings = ["github"]
endpoints = ["site"]
workdir = "write"
tools = ["/opt/tools/bin"]
read = ["~/.gitconfig"]
env = ["TERM"]
deadline = "8h"
limits = { memory = "4GiB", processes = 50 }
"""


def under(text: str, ceiling: str = CEILING) -> Policy:
    return narrow(load(text), load(ceiling))


def above(text: str, ceiling: str = CEILING) -> set[str]:
    """The places that reach above the ceiling."""
    with pytest.raises(PolicyError) as caught:
        under(text, ceiling)
    return {problem.where for problem in caught.value.problems}


def test_what_fits_comes_through() -> None:
    policy, alone = under(POLICY), load(POLICY)
    assert policy.endpoints["mine"].allow == alone.endpoints["mine"].allow
    assert policy.bindings == alone.bindings
    assert policy.sha256 == alone.sha256
    assert policy.ceiling_sha256 == load(CEILING).sha256


def test_the_ceiling_itself_fits() -> None:
    assert under(CEILING).endpoints["api"].allow == load(CEILING).endpoints["api"].allow


def test_limits_and_deadline_become_the_smaller_ones() -> None:
    role = under(POLICY).roles["dev"]
    assert (role.limits.memory, role.limits.processes, role.deadline) == (2 << 30, 50, 4 * 3600)


def test_grants_become_the_tighter_ones_and_both_rates_hold() -> None:
    mode = 'placeholder = { env = "GITHUB_TOKEN", shape = "ghp_{36}" }\n'
    policy = POLICY.replace(mode, mode + 'ttl = "1h"\nmax_uses = 9\nrate = "2/s"\n')
    ceiling = CEILING.replace("[role.dev]\n", 'ttl = "2h"\nmax_uses = 5\nrate = "60/m"\n[role.dev]\n')
    ceiling = ceiling.replace('deadline = "4h"\n', 'deadline = "4h"\nbudget = { requests = 7 }\non_alarm = "pause"\n')
    made = under(policy, ceiling)
    binding, role = made.bindings["github"], made.roles["dev"]
    assert (binding.ttl, binding.max_uses) == (3600, 5)
    assert binding.rates == (Rate(count=2, seconds=1), Rate(count=60, seconds=60))
    assert (role.budget, role.on_alarm) == (Budget(requests=7), OnAlarm.PAUSE)


def test_deny_rules_of_the_ceiling_are_added() -> None:
    assert [rule.id for rule in under(POLICY).endpoints["mine"].deny] == ["ceiling/api/keys"]
    assert under(POLICY).endpoints["site"].deny == ()


def test_deny_rules_reach_below_a_wildcard() -> None:
    denied = (
        CEILING
        + '[endpoint.secret]\nhost = "x.docs.example.org"\n[[endpoint.secret.deny]]\nid = "all"\npaths = ["/**"]\n'
    )
    wild = POLICY.replace('"a.docs.example.org"', '"*.docs.example.org"')
    assert [rule.id for rule in under(wild, denied).endpoints["site"].deny] == ["ceiling/secret/all"]


@pytest.mark.parametrize(("one", "other"), [("nxdomain", "gateway"), ("gateway", "nxdomain"), ("nxdomain", "nxdomain")])
def test_nxdomain_on_either_side_counts(one: str, other: str) -> None:
    dns = "version = 1\n[dns]\nunlisted = "
    policy = under(
        POLICY.replace("version = 1\n", f'{dns}"{one}"\n'),
        CEILING.replace("version = 1\n", f'version = 1\ndns.unlisted = "{other}"\n'),
    )
    assert policy.unlisted is Unlisted.NXDOMAIN


def test_gateway_on_both_sides_stays() -> None:
    assert under(POLICY).unlisted is Unlisted.GATEWAY


WIDER: dict[str, tuple[str, str, str]] = {
    "host": ('"api.example.org"', '"api2.example.org"', "endpoint.mine binding.github.endpoint"),
    "port": (
        'host = "api.example.org"',
        'host = "api.example.org"\nport = 8443\ndial_port = 443',
        "endpoint.mine binding.github.endpoint",
    ),
    "dial_port": ('host = "api.example.org"', 'host = "api.example.org"\ndial_port = 8443', "endpoint.mine.dial_port"),
    "ca": ('host = "api.example.org"', 'host = "api.example.org"\nca = "/etc/other.pem"', "endpoint.mine.ca"),
    "foreign": (
        'host = "a.docs.example.org"',
        'host = "a.docs.example.org"\nforeign = "allow"',
        "endpoint.site.foreign",
    ),
    "address": ('["10.20.3.0/24"]', '["10.21.0.0/24"]', "endpoint.mine.address"),
    "address wider": ('["10.20.3.0/24"]', '["10.0.0.0/8"]', "endpoint.mine.address"),
    "pin": ('["10.20.3.0/24"]', '["10.21.0.1"]', "endpoint.mine.address"),
    "address on another": (
        'host = "a.docs.example.org"',
        'host = "a.docs.example.org"\naddress = ["10.20.0.0/16"]',
        "endpoint.site.address",
    ),
    "alpn": ('host = "a.docs.example.org"', 'host = "a.docs.example.org"\nalpn = ["h2"]', "endpoint.site.alpn"),
    "method": (
        'methods = ["GET"]\npaths = ["/guide/**"]',
        'methods = ["POST"]\npaths = ["/guide/**"]',
        "endpoint.site.allow",
    ),
    "slash": ('paths = ["/guide/**"]', 'paths = ["/guide/**"]\nencoded_slash = true', "endpoint.site.allow"),
    "upgrade": ('paths = ["/guide/**"]', 'paths = ["/guide/**"]\nupgrade = true', "endpoint.site.allow"),
    "correlate": (
        'host = "a.docs.example.org"',
        'host = "a.docs.example.org"\ncorrelate = []',
        "endpoint.site.correlate",
    ),
    "proxy": (
        "[endpoint.site]",
        '[proxy.p]\nhost = "p.example.org"\nport = 1\n[endpoint.site]\nproxy = "p"',
        "endpoint.site.proxy",
    ),
    "show": ('env = ["TERM"]', 'env = ["TERM"]\nshow = [".env"]', "role.dev.show"),
    "publish": ('env = ["TERM"]', 'env = ["TERM"]\npublish = [3000]', "role.dev.publish"),
    "source": ('"keyring:credgate/github"', '"env:HOME"', "binding.github.secret"),
    "place": ('"header:authorization"', '"header:x-api-key"', "binding.github.place binding.github.format"),
    "format": (
        'place = "header:authorization"',
        'place = "header:authorization"\nformat = "token {secret}"',
        "binding.github.format",
    ),
    "scrub": (
        'place = "header:authorization"',
        'place = "header:authorization"\nresponse.scrub = false',
        "binding.github.response.scrub",
    ),
    "set_cookie": (
        'place = "header:authorization"',
        'place = "header:authorization"\nresponse.set_cookie = "keep"',
        "binding.github.response.set_cookie",
    ),
    "tools": ('"/opt/tools/bin"', '"/opt/tools2"', "role.dev.tools"),
    "read": ('"~/.gitconfig"', '"~/.ssh/config"', "role.dev.read"),
    "env": ('env = ["TERM"]', 'env = ["EDITOR"]', "role.dev.env"),
}


SPKI = 'spki = ["sha256/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="'
OTHER_PIN = SPKI.replace("AAA=", "AAE=").removeprefix("spki = [")
DOCS = 'host = "**.docs.example.org"'
SITE = 'host = "a.docs.example.org"'


@pytest.mark.parametrize(
    ("mine", "fits"),
    [("", False), (f"{SPKI}]", True), (f"{SPKI}, {OTHER_PIN}]", False), (f"spki = [{OTHER_PIN}]", False)],
)
def test_pinned_keys_stay_pinned(mine: str, fits: bool) -> None:
    ceiling = CEILING.replace(DOCS, f"{DOCS}\n{SPKI}]")
    policy = load(POLICY.replace(SITE, f"{SITE}\n{mine}"))
    if fits:
        narrow(policy, load(ceiling))
    else:
        with pytest.raises(PolicyError, match="spki"):
            narrow(policy, load(ceiling))


def test_more_may_be_correlated_than_the_ceiling_asks_for() -> None:
    more = 'correlate = ["user-agent", "x-request-id"]'
    narrow(load(POLICY.replace(SITE, f"{SITE}\n{more}")), load(CEILING))
    with pytest.raises(PolicyError, match="correlate"):
        narrow(load(POLICY), load(CEILING.replace(DOCS, f"{DOCS}\n{more}")))


def test_an_opaque_port_is_opened_only_under_a_ceiling_that_opens_it() -> None:
    table = '[endpoint.db]\nhost = "a.docs.example.org"\nprotocol = "tcp"\nlisten = 5432\n'
    mine = f'version = 1\n{table}[role.dev]\nendpoints = ["db"]\n'
    assert above(mine) == {"endpoint.db"}
    opened = CEILING.replace('endpoints = ["docs"]', 'endpoints = ["docs", "db"]').replace(
        "[endpoint.docs]", f"{table}[endpoint.docs]"
    )
    narrow(load(mine), load(opened))
    with pytest.raises(PolicyError, match="listen = 5433"):
        narrow(load(mine.replace("5432", "5433")), load(opened))


def test_the_ceilings_proxy_has_to_be_gone_through() -> None:
    proxy = '[proxy.p]\nhost = "p.example.org"\nport = 1\nsecret = "github"\nuser = "u"\n'
    through = [text.replace(host, f'{host}\nproxy = "p"') + proxy for text, host in ((CEILING, DOCS), (POLICY, SITE))]
    narrow(load(through[1]), load(through[0]))
    with pytest.raises(PolicyError, match="proxy"):
        narrow(load(POLICY), load(through[0]))
    with pytest.raises(PolicyError, match="proxy"):
        narrow(load(through[1].replace("port = 1", "port = 2")), load(through[0]))


@pytest.mark.parametrize("name", WIDER)
def test_what_reaches_above_is_named(name: str) -> None:
    old, new, where = WIDER[name]
    assert POLICY.count(old) == 1
    assert above(POLICY.replace(old, new)) == set(where.split())


def test_a_rule_wider_than_the_ceilings_is_named_for_endpoint_and_binding() -> None:
    wide = POLICY.replace('"/repos/acme/app/issues/*"', '"/repos/**"')
    assert above(wide) == {"endpoint.mine.allow", "binding.github.rules"}


def test_a_secret_on_a_rule_that_the_ceiling_does_not_bind_is_named() -> None:
    other = POLICY.replace('"/repos/acme/app/issues/*"', '"/public/x"')
    assert above(other) == {"binding.github.rules"}


def test_a_binding_of_another_name_is_named() -> None:
    assert above(POLICY.replace("[binding.github]", "[binding.gh]").replace('["github"]', '["gh"]')) == {"binding.gh"}


def test_overwrite_under_a_placeholder_is_named_and_the_reverse_fits() -> None:
    placed = 'place = "header:authorization"\nmode = "placeholder"\nplaceholder = { env = "T", shape = "x{36}" }'
    strict = CEILING.replace('place = "header:authorization"', placed)
    plain = POLICY[: POLICY.index('mode = "placeholder"')] + POLICY[POLICY.index("[role.dev]") :]
    assert above(plain, strict) == {"binding.github.mode"}
    assert under(POLICY, strict).bindings == load(POLICY).bindings


def test_a_role_is_measured_by_the_one_of_its_name_else_by_the_default() -> None:
    reader = POLICY[: POLICY.index("[binding.github]")] + '[role.reader]\nendpoints = ["mine"]\n'
    assert above(reader) == {"endpoint.mine"}  # the ceiling's reader reaches docs alone
    renamed = POLICY.replace("[role.dev]", "[role.other]")
    assert under(renamed).roles["other"].deadline == 4 * 3600
    assert above(renamed, CEILING.replace('default_role = "dev"\n', "")) == {"role.other"}


def test_writing_under_a_ceiling_that_reads_is_named() -> None:
    assert above(POLICY, CEILING.replace('workdir = "write"\n', "")) == {"role.dev.workdir"}
    kinds = ("read", "copy", "write")
    for number, mine in enumerate(kinds):
        for top, theirs in enumerate(kinds):
            text, ceiling = (
                t.replace('workdir = "write"', f'workdir = "{k}"') for t, k in ((POLICY, mine), (CEILING, theirs))
            )
            if number > top:
                assert above(text, ceiling) == {"role.dev.workdir"}
            else:
                assert under(text, ceiling).roles["dev"].workdir == mine


def test_a_pinned_endpoint_stays_pinned() -> None:
    pinned = CEILING.replace('["10.20.0.0/16"]', '["10.20.0.0/16", "10.20.0.5"]')
    assert above(POLICY, pinned) == {"endpoint.mine.address"}
    assert under(POLICY.replace('["10.20.3.0/24"]', '["10.20.0.5"]'), pinned).endpoints["mine"].pins


def test_all_comes_at_once() -> None:
    wide = (
        POLICY.replace('"~/.gitconfig"', '"~/.x"').replace('env = ["TERM"]', 'env = ["TZ"]').replace("/guide/**", "/**")
    )
    assert above(wide.replace('"a.docs.example.org"', '"evil.example.org"')) == {
        "endpoint.site",
        "role.dev.read",
        "role.dev.env",
    }


HOSTS = ["a.x.example.org", "b.a.x.example.org", "*.x.example.org", "**.x.example.org"]
SEGMENTS = st.lists(st.sampled_from(["a", "b", "*", "**"]), min_size=1, max_size=3).map(lambda p: "/" + "/".join(p))
METHODS = st.sets(st.sampled_from(["GET", "POST"]), min_size=1)
RULE = st.tuples(METHODS, st.lists(SEGMENTS, min_size=1, max_size=2, unique=True))
ENDPOINT = st.tuples(st.sampled_from(HOSTS), st.lists(RULE, max_size=2), st.lists(SEGMENTS, max_size=1, unique=True))
ENDPOINTS = st.lists(ENDPOINT, min_size=1, max_size=3)
PATHS = ["/" + "/".join(parts) for n in (1, 2, 3) for parts in product("ab", repeat=n)]
REQUESTS = list(product(HOSTS[:2], ["GET", "POST"], PATHS))


def _text(endpoints: "Endpoints") -> str:
    parts = ["version = 1"]
    for n, (host, rules, denied) in enumerate(endpoints):
        parts.append(f'[endpoint.e{n}]\nhost = "{host}"')
        for m, (methods, paths) in enumerate(rules):
            parts.append(f'[[endpoint.e{n}.allow]]\nid = "r{m}"\nmethods = {sorted(methods)}\npaths = {paths}')
        parts += [f'[[endpoint.e{n}.deny]]\nid = "d{m}"\npaths = ["{path}"]' for m, path in enumerate(denied)]
    return "\n".join([*parts, f"[role.dev]\nendpoints = {[f'e{n}' for n in range(len(endpoints))]}\n"])


def _passes(policy: Policy, host: str, method: str, path: str) -> bool:
    return isinstance(decide(policy, "dev", tunnelled(f"{method} {path}", host)), Allow)


type Endpoints = list[tuple[str, list[tuple[set[str], list[str]]], list[str]]]


@settings(max_examples=150, deadline=None)
@given(ENDPOINTS, ENDPOINTS)
def test_what_passes_below_the_ceiling_passes_the_ceiling(mine: Endpoints, theirs: Endpoints) -> None:
    ceiling = load(_text([*theirs, *mine[:1]]))  # one of them shared, so that some of the pairs fit
    try:
        policy = narrow(load(_text(mine)), ceiling)
    except PolicyError:
        return
    for request in REQUESTS:
        if _passes(policy, *request):
            assert _passes(ceiling, *request)


@pytest.mark.parametrize("switch", ["allow_debug", "allow_userns"])
def test_a_switch_is_opened_only_under_a_ceiling_that_opens_it(switch: str) -> None:
    opened = POLICY.replace('env = ["TERM"]', f'env = ["TERM"]\n{switch} = true')
    assert opened != POLICY
    assert above(opened) == {f"role.dev.{switch}"}
    assert (
        under(opened, CEILING.replace('env = ["TERM", "LANG"]', f'env = ["TERM", "LANG"]\n{switch} = true')) is not None
    )
    assert under(POLICY).roles["dev"].switches() == ()


def test_a_secret_in_the_path_stays_in_the_segment_that_the_ceiling_says() -> None:
    place = 'place = "header:authorization"'
    ceiling = CEILING.replace(place, 'place = "path:token"').replace('"/repos/acme/**"', '"/{token}/*"')
    policy = POLICY.replace(place, 'place = "path:token"')
    inside = policy.replace('"/repos/acme/app/issues/*"', '"/{token}/send"')
    assert under(inside, ceiling).bindings == load(inside).bindings
    moved = policy.replace('"/repos/acme/app/issues/*"', '"/send/{token}"')
    assert above(moved, ceiling) == {"binding.github.rules"}
    renamed = inside.replace("path:token", "path:key").replace("{token}", "{key}")
    assert above(renamed, ceiling) == {"binding.github.place", "binding.github.rules"}
    assert above(POLICY, ceiling) >= {"binding.github.place"}


def test_what_the_ceiling_protects_and_hides_is_added_and_what_it_shows_may_be_shown() -> None:
    more = 'env = ["TERM", "LANG"]\nreadonly = ["deploy/"]\nhide = ["*.sqlite"]\nshow = [".env", "a/.env"]'
    mine = 'env = ["TERM"]\nreadonly = ["infra/"]\nhide = ["*.p12x"]\nshow = [".env"]'
    role = under(POLICY.replace('env = ["TERM"]', mine), CEILING.replace('env = ["TERM", "LANG"]', more)).roles["dev"]
    assert role.readonly == ("infra/", "deploy/")
    assert role.hide == ("*.p12x", "*.sqlite")
    assert role.show == (".env",)
