import dataclasses

import pytest

from rules.decoys import holds_decoy, misplaced
from rules.policy import Binding, Mode, PlaceKind
from rules.request import Request, Via

DECOY = "ghp_decoydecoydecoydecoy"
BINDING = Binding(name="gh", secret="s", endpoint="e", rules=frozenset({"a"}), place=PlaceKind.HEADER)
IN_PLACE = dataclasses.replace(BINDING, mode=Mode.PLACEHOLDER)


def request(*headers: tuple[bytes, bytes], target: str = "/a") -> Request:
    return Request(
        via=Via.DIRECT,
        http_version="HTTP/1.1",
        method="GET",
        scheme="https",
        host="a.example",
        port=443,
        path="/a",
        target=target,
        query_names=(),
        headers=headers,
    )


BEARER = (b"Authorization", b"Bearer " + DECOY.encode())


def test_without_decoys_nothing_is_misplaced() -> None:
    assert not misplaced(request(BEARER), (), {})
    assert not misplaced(request(BEARER), (), {"gh": ""})


@pytest.mark.parametrize("binding", [BINDING, IN_PLACE])
def test_in_its_place_it_is_not(binding: Binding) -> None:
    assert not misplaced(request(BEARER), (binding,), {"gh": DECOY})
    assert holds_decoy(request(BEARER), binding, DECOY)


def test_a_binding_that_the_verdict_does_not_name_excuses_nothing() -> None:
    assert misplaced(request(BEARER), (), {"gh": DECOY})
    assert misplaced(request(BEARER), (dataclasses.replace(BINDING, name="other"),), {"gh": DECOY})


@pytest.mark.parametrize("target", [f"/a/{DECOY}", f"/a?x={DECOY}", "/a?x=ghp%5Fdecoydecoydecoydecoy"])
def test_in_the_target_it_always_is(target: str) -> None:
    assert misplaced(request(target=target), (BINDING,), {"gh": DECOY})


@pytest.mark.parametrize("binding", [BINDING, IN_PLACE])
def test_nothing_holds_an_empty_decoy(binding: Binding) -> None:
    assert not holds_decoy(request(BEARER), binding, "")
