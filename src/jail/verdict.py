"""Whether a guard is shown: from the read-back, the attempt inside and the control outside. Pure.

Three words. "shown": the kernel shows it as planned, the attempt was refused inside by an errno that the guard lists,
and the same attempt succeeded outside. "closed by host": refused inside, and outside too, by an errno listed for that.
"not shown": everything else, so also a probe that crashed, a control that did not run, a field that was not readable.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from jail.guards import GROUPS, Guard
from jail.probes import DONE

AS_PLANNED, NONE = "as planned", "none"
NOT_TRIED = "not tried"


class State(StrEnum):
    """The word of one guard."""

    SHOWN = "shown"
    CLOSED = "closed by host"
    NOT_SHOWN = "not shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One guard with what was seen of it. `why` is "" unless "not shown"; `tried_why`: its part about the attempts."""

    guard: str
    mechanism: str
    readback: str
    inside: str
    control: str
    state: State
    why: str
    tried_why: str


def judge(
    guards: Sequence[Guard],
    differences: Mapping[str, Sequence[str]],
    inside: Mapping[str, str],
    control: Mapping[str, str],
) -> tuple[Row, ...]:
    """A row for each guard.

    differences: by group of the read-back, every group a key, as planned where its list is empty. inside and control:
    words by guard; one that is missing was not tried.
    """
    return tuple(_row(g, differences, inside.get(g.id, NOT_TRIED), control.get(g.id, NOT_TRIED)) for g in guards)


def against(rows: Sequence[Row], differences: Mapping[str, Sequence[str]]) -> list[str]:
    """What speaks against going on, in sentences: each difference once, then each guard by what its attempts said.

    Empty when every guard is shown or closed by host, and every group of the read-back is there and as planned.
    """
    read = [f"{name}: not read" for name in GROUPS if name not in differences]
    read += [sentence for group in differences.values() for sentence in group]
    tried = [f"{row.guard}: {row.tried_why}" for row in rows if row.tried_why]
    found = [*read, *tried]
    if not found and any(row.state is State.NOT_SHOWN for row in rows):
        found = [f"{row.guard}: {row.why}" for row in rows if row.state is State.NOT_SHOWN]
    return found


def _row(guard: Guard, differences: Mapping[str, Sequence[str]], inside: str, control: str) -> Row:
    readback = _readback(guard, differences)
    tried = _tried(guard, inside, control)
    read = "" if readback in (AS_PLANNED, NONE) else f"read-back: {readback}"
    why = "; ".join(reason for reason in (read, tried) if reason)
    return Row(
        guard=guard.id,
        mechanism=guard.mechanism,
        readback=readback,
        inside=inside,
        control=control,
        state=State.NOT_SHOWN if why else State.SHOWN if control == DONE else State.CLOSED,
        why=why,
        tried_why=tried,
    )


def _readback(guard: Guard, differences: Mapping[str, Sequence[str]]) -> str:
    for group in guard.readback:
        if group not in GROUPS or group not in differences:
            return f"{group}: not read"
        if differences[group]:
            return f"{group}: {differences[group][0]}"
    return AS_PLANNED if guard.readback else NONE


def _tried(guard: Guard, inside: str, control: str) -> str:
    if inside == DONE:
        return "the attempt succeeded inside"
    if inside not in guard.refused:
        return f"inside: got {inside}, expected {' or '.join(sorted(guard.refused))}"
    if control != DONE and control not in guard.closed:
        return f"control: got {control}, expected {' or '.join([DONE, *sorted(guard.closed)])}"
    return ""
