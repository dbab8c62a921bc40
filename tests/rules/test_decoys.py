"""A placeholder belongs to one place of one endpoint in one run: everywhere else it refuses, but in a body."""

import base64
import dataclasses

import pytest

from rules.decoys import holds_decoy, misplaced, strange
from rules.fieldpaths import FieldPath
from rules.hosts import HostPattern
from rules.paths import PathPattern
from rules.policy import AllowRule, Binding, Endpoint, Mode, PlaceKind
from rules.request import Request, Via
from rules.verdict import Allow

DECOY = "ghp_decoydecoydecoydecoy"
BINDING = Binding(name="gh", secret="s", endpoint="e", rules=frozenset({"a"}), place=PlaceKind.HEADER)
IN_PLACE = dataclasses.replace(BINDING, mode=Mode.PLACEHOLDER)
RULE = AllowRule(
    id="a", methods=frozenset({"GET", "POST"}), paths=(PathPattern.parse("/{token}/x"), PathPattern.parse("/a"))
)
ENDPOINT = Endpoint(name="e", host=HostPattern.parse("a.example"), port=443, dial_port=443, allow=(RULE,))
JSON = (b"Content-Type", b"application/json")
FORM = (b"Content-Type", b"application/x-www-form-urlencoded")


def request(*headers: tuple[bytes, bytes], target: str = "/a", body: bytes | None = None) -> Request:
    path, _, query = target.partition("?")
    return Request(
        via=Via.DIRECT,
        http_version="HTTP/1.1",
        method="GET",
        scheme="https",
        host="a.example",
        port=443,
        path=path,
        target=target,
        query_names=tuple(part.partition("=")[0] for part in query.split("&") if part),
        headers=headers,
        body=body,
    )


def allow(*bindings: Binding) -> Allow:
    return Allow(rule="e.a", endpoint=ENDPOINT, bindings=bindings)


def at(kind: PlaceKind, slot: str, **more: object) -> Binding:
    path = FieldPath.parse(slot) if kind is PlaceKind.JSON else None
    return dataclasses.replace(IN_PLACE, place=kind, slot=slot, json_path=path, **more)


BEARER = (b"Authorization", b"Bearer " + DECOY.encode())
PLACED = {
    "header": (IN_PLACE, request(BEARER)),
    "basic": (
        dataclasses.replace(IN_PLACE, place=PlaceKind.BASIC),
        request((b"Authorization", b"Basic " + base64.b64encode(f"x:{DECOY}".encode()))),
    ),
    "query": (at(PlaceKind.QUERY, "key"), request(target=f"/a?page=1&key={DECOY}")),
    "query escaped": (at(PlaceKind.QUERY, "key"), request(target="/a?key=ghp%5Fdecoydecoydecoydecoy")),
    "path": (at(PlaceKind.PATH, "token"), request(target=f"/{DECOY}/x")),
    "path prefix": (at(PlaceKind.PATH, "token", format="bot{secret}"), request(target=f"/bot{DECOY}/x")),
    "cookie": (at(PlaceKind.COOKIE, "sid"), request((b"Cookie", f"a=b; sid={DECOY}".encode()))),
    "json": (at(PlaceKind.JSON, "auth.token"), request(JSON, body=f'{{"auth":{{"token":"{DECOY}"}}}}'.encode())),
    "form": (at(PlaceKind.FORM, "token"), request(FORM, body=f"a=1&token={DECOY}".encode())),
}
OTHER = {
    **{name: dataclasses.replace(binding, name="gh") for name, (binding, _) in PLACED.items()},
    "other query": at(PlaceKind.QUERY, "other"),
    "other cookie": at(PlaceKind.COOKIE, "other"),
    "other header": dataclasses.replace(IN_PLACE, header="x-other"),
}
TWICE = {
    "header": request((b"Authorization", f"Bearer {DECOY}{DECOY}".encode())),
    "query": request(target=f"/a?key={DECOY}{DECOY}"),
    "path": request(target=f"/{DECOY}{DECOY}/x"),
    "cookie": request((b"Cookie", f"sid={DECOY}{DECOY}".encode())),
    "json": request(JSON, body=f'{{"auth":{{"token":"{DECOY}{DECOY}"}}}}'.encode()),
    "form": request(FORM, body=f"token={DECOY}-{DECOY}".encode()),
}
BODIES = {"json", "form"}


def test_without_decoys_nothing_is_misplaced() -> None:
    assert not misplaced(request(BEARER), allow(), {})
    assert not misplaced(request(BEARER), allow(), {"gh": ""})


@pytest.mark.parametrize("place", PLACED)
def test_in_its_place_it_is_not(place: str) -> None:
    binding, asked = PLACED[place]
    assert not misplaced(asked, allow(binding), {"gh": DECOY})
    assert holds_decoy(asked, binding, allow(binding), DECOY)


def test_overwrite_takes_it_in_any_form() -> None:
    twice = TWICE["header"]
    assert not misplaced(twice, allow(BINDING), {"gh": DECOY})
    assert misplaced(twice, allow(IN_PLACE), {"gh": DECOY})


@pytest.mark.parametrize("place", TWICE)
def test_more_than_once_in_its_place_it_is(place: str) -> None:
    binding, _ = PLACED[place]
    assert misplaced(TWICE[place], allow(binding), {"gh": DECOY})


@pytest.mark.parametrize("place", PLACED)
@pytest.mark.parametrize("other", OTHER)
def test_in_the_place_of_another_binding_it_is(place: str, other: str) -> None:
    """Each place against each other one; what stands in a body that no binding names is inert."""
    binding, asked = OTHER[other], PLACED[place][1]
    alike = {place.split(maxsplit=1)[0], other.split(maxsplit=1)[0]}
    if len(alike) == 1 and not other.startswith("other"):
        return
    assert misplaced(asked, allow(binding), {"gh": DECOY}) is (place not in BODIES)


@pytest.mark.parametrize("place", PLACED)
def test_a_binding_that_the_verdict_does_not_name_excuses_nothing(place: str) -> None:
    binding, asked = PLACED[place]
    assert misplaced(asked, allow(), {"gh": DECOY}) is (place not in BODIES)
    assert misplaced(asked, allow(dataclasses.replace(binding, name="other")), {"gh": DECOY})


@pytest.mark.parametrize("place", PLACED)
def test_that_of_another_run_is_strange_in_any_place(place: str) -> None:
    binding, asked = PLACED[place]
    assert strange(asked, allow(binding), {DECOY})
    assert not strange(asked, allow(binding), {"another"})
    assert not strange(asked, allow(binding), ())


@pytest.mark.parametrize(
    "target",
    [
        f"/a/{DECOY}",
        f"/a?x={DECOY}",
        "/a?x=ghp%5Fdecoydecoydecoydecoy",
        "/a?ghp_decoy%64ecoydecoydecoy",
        f"/a?{DECOY}=1",
    ],
)
def test_in_the_target_it_is_where_no_binding_writes(target: str) -> None:
    assert misplaced(request(target=target), allow(BINDING), {"gh": DECOY})


@pytest.mark.parametrize("decoy", ["abcd/efgh/ijkl/mnop", "abcdefgh=ijklmnop", "abcd+efgh"])
@pytest.mark.parametrize("form", ["/a/{}", "/a?x={}", "/a?{}"])
def test_one_with_separators_in_it_is_found(decoy: str, form: str) -> None:
    if decoy != "abcd+efgh":
        assert misplaced(request(target=form.format(decoy)), allow(), {"gh": decoy})
    escaped = decoy.replace("/", "%2F").replace("=", "%3D").replace("+", "%2B")
    assert misplaced(request(target=form.format(escaped)), allow(), {"gh": decoy})


def test_in_a_body_it_is_inert() -> None:
    body = f'{{"messages":[{{"content":"my token is {DECOY}"}}]}}'.encode()
    bound = at(PlaceKind.JSON, "auth.token")
    assert not misplaced(request(JSON, body=body), allow(bound), {"gh": DECOY})
    assert not misplaced(request(JSON, body=body), allow(), {"gh": DECOY})


@pytest.mark.parametrize("binding", [BINDING, IN_PLACE])
def test_nothing_holds_an_empty_decoy(binding: Binding) -> None:
    assert not holds_decoy(request(BEARER), binding, allow(binding), "")
