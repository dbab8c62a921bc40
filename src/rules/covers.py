"""Whether everything that one pattern or rule lets through is let through by another one too. Sound, not complete:
a True is certain, a False may be a spelling that this comparison doesn't see through.
"""

from rules.hosts import HostPattern
from rules.paths import PathPattern, is_verb
from rules.policy import Address, AllowRule, BodyTerm, FieldTest, Foreign, Network

__all__ = [
    "covers_address",
    "covers_host",
    "covers_path",
    "covers_rule",
    "covers_tree",
    "overlaps",
    "paths_meet",
    "strictness",
]

_STRICTNESS = {Foreign.DENY: 0, Foreign.STRIP: 1, Foreign.ALLOW: 2}


def strictness(foreign: Foreign) -> int:
    """Order the treatments of a client's own credentials, the strictest first."""
    return _STRICTNESS[foreign]


def covers_host(outer: HostPattern, inner: HostPattern) -> bool:
    """Tell whether each host of `inner` is one of `outer`."""
    if inner.exact:
        return outer.matches_labels(inner.labels)
    if outer.wild == "**":
        return inner.labels[-len(outer.labels) :] == outer.labels
    return outer.wild == inner.wild and outer.labels == inner.labels


def overlaps(one: HostPattern, other: HostPattern) -> bool:
    """Tell whether a host exists that both mean. Of two patterns that share one, one covers the other."""
    return covers_host(one, other) or covers_host(other, one)


def covers_path(outer: PathPattern, inner: PathPattern) -> bool:
    """Tell whether each path of `inner` is one of `outer`.

    A table from the ends backwards: cell [i][j] says whether outer from i on covers inner from j on.
    """
    wide, narrow = outer.segments, inner.segments
    below = [False] * len(narrow) + [True]
    for part in reversed(wide):
        row = [False] * len(narrow) + [part == "**" and below[-1]]
        for j in range(len(narrow) - 1, -1, -1):
            if part == "**":
                row[j] = below[j] or row[j + 1]
            else:
                row[j] = _covers_segment(part, narrow[j]) and below[j + 1]
        below = row
    return below[0]


def paths_meet(one: PathPattern, other: PathPattern) -> bool:
    """Tell whether some path is one of both. True may be a spelling of no real path; a False is certain.

    A table as in covers_path: cell [i][j] says whether one from i on and other from j on have a path in common.
    """
    first, second = one.segments, other.segments
    below = [all(part == "**" for part in second[j:]) for j in range(len(second) + 1)]
    for part in reversed(first):
        row = [False] * len(second) + [part == "**" and below[-1]]
        for j in range(len(second) - 1, -1, -1):
            if part == "**" or second[j] == "**":
                row[j] = below[j] or row[j + 1]
            else:
                row[j] = _segments_meet(part, second[j]) and below[j + 1]
        below = row
    return below[0]


def _segments_meet(one: str, other: str) -> bool:
    return _covers_segment(one, other) or _covers_segment(other, one) or (is_verb(one) and is_verb(other))


def _covers_segment(outer: str, inner: str) -> bool:
    if outer == inner or (outer == "*" and inner not in ("", "**")):
        return True
    return is_verb(outer) and "*" not in inner and inner.endswith(outer[1:]) and len(inner) >= len(outer)


def covers_rule(outer: AllowRule, inner: AllowRule) -> bool:
    """Tell whether each request that `inner` allows is allowed by `outer`."""
    paths = all(any(covers_path(o, i) for o in outer.paths) for i in inner.paths)
    query = outer.query is None or (inner.query is not None and inner.query <= outer.query)
    switches = (outer.encoded_slash or not inner.encoded_slash) and (outer.upgrade or not inner.upgrade)
    body = outer.body is None or (inner.body is not None and _covers_body(outer.body, inner.body))
    return paths and query and inner.methods <= outer.methods and switches and body


def _covers_body(outer: BodyTerm, inner: BodyTerm) -> bool:
    keys = outer.keys is None or (inner.keys is not None and inner.keys <= outer.keys)
    operations = all(outer.operations & {name, name.partition(".")[0] + ".*"} for name in inner.operations)
    tests = all(any(_implies(mine, theirs) for mine in inner.tests) for theirs in outer.tests)
    return outer.type is inner.type and inner.max <= outer.max and keys and operations and tests


def _implies(inner: FieldTest, outer: FieldTest) -> bool:
    """Tell whether a body that holds to `inner` holds to `outer`: the same field, and no other value of it."""
    if inner.path.steps != outer.path.steps or bool(inner.values) != bool(outer.values):
        return False
    typed = {(type(value), value) for value in outer.values}
    return (outer.path.optional or not inner.path.optional) and all((type(v), v) in typed for v in inner.values)


def covers_address(networks: tuple[Network, ...], pins: tuple[Address, ...], value: Network | Address) -> bool:
    """Tell whether an address or a prefix lies inside one of `networks`, or is one of `pins`."""
    if value in pins:
        return True
    text = str(value)
    return any(_inside(text, network) for network in networks)


def _inside(text: str, network: Network) -> bool:
    inner = type(network)
    try:
        return inner(text).subnet_of(network)  # type: ignore[arg-type]  # of one version
    except ValueError:  # the other family
        return False


def covers_tree(outer: str, inner: str) -> bool:
    """Tell whether the path `inner` is `outer` or lies below it, by their spelling."""
    base = outer.rstrip("/")
    return inner.rstrip("/") == base or inner.startswith(base + "/")
