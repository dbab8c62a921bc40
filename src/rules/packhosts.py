"""Hosts that the shipped packs know: where credentials are made, a rule is written with its pack and not without it."""

from collections.abc import Mapping
from functools import lru_cache

from rules.asked import Known
from rules.hosts import labels_of
from rules.pack_rules import Packs, denies_of, read_pack

__all__ = ["find_known", "known_hosts"]

type Labels = tuple[str, ...]


def known_hosts(packs: Packs) -> Mapping[Labels, Known]:
    """By labels, "*" for one: each host of a pack that denies something, or that a rule of one names. PackError."""
    return _known(tuple(sorted(packs.items())))


@lru_cache(maxsize=4)
def _known(texts: tuple[tuple[str, str], ...]) -> Mapping[Labels, Known]:
    packs, found = dict(texts), dict[Labels, Known]()
    for name, text in packs.items():
        denies = denies_of(name, packs)
        host = read_pack(name, text).host
        named = [labels_of(host)] if host and denies else []
        for labels in (*named, *(labels for rule in denies for labels in rule.hosts)):
            old = found.get(labels, Known(packs=()))
            found[labels] = Known(
                packs=tuple(dict.fromkeys((*old.packs, name))), deny=tuple(dict.fromkeys((*old.deny, *denies)))
            )
    return found


def find_known(hosts: Mapping[Labels, Known], host: str) -> Known | None:
    """What is known of one host, in normal form; None: nothing."""
    labels = labels_of(host)
    for pattern, known in hosts.items():
        alike = len(pattern) == len(labels)
        if alike and all(p in ("*", label) for p, label in zip(pattern, labels, strict=True)):
            return known
    return None
