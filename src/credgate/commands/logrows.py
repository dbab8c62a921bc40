"""Records of the ledger as lines for people."""

from collections.abc import Mapping

from credgate.ledger.read import Damaged, Record
from credgate.paint import Colour, Paint, plain
from credgate.text import escape

HEADER = f"{'SEQ':>6}  {'TIME (UTC)':19}  {'RUN':13}  {'EVENT':9}  {'VERDICT':7}  WHAT"
_COLOURS = {"allow": Colour.GREEN, "deny": Colour.RED}
_LOUD = frozenset({"alarm", "off_route", "recovered"})


def row(item: Record | Damaged, paint: Paint = plain) -> str:
    """One record as a line for people; nothing in it moves a terminal."""
    if isinstance(item, Damaged):
        return paint(Colour.RED, f"{'?':>6}  damaged line in {item.segment}: {escape(item.detail)}")
    when = _text(item, "ts")[:19].replace("T", " ")
    event, verdict = _text(item, "ev"), _text(item, "verdict")
    colour = Colour.YELLOW if event in _LOUD else _COLOURS.get(verdict)
    head = paint(Colour.DIM, f"{_text(item, 'seq'):>6}  {when:19}  {_text(item, 'run'):13}")
    return f"{head}  {paint(colour, f'{event:9}  {verdict:7}')}  {_what(item)}".rstrip()


def _what(record: Record) -> str:
    parts = [_text(record, "method"), _target(record), _text(record, "program"), _arrow(record)]
    for name, before in (
        ("rule", "rule "),
        ("binding", "binding "),
        ("secret", "secret "),
        ("pin", "at "),
        ("count", "count "),
        ("ms", "ms "),
        ("intent_seq", "of "),
    ):
        value = _text(record, name)
        if value:
            parts.append(f"[{before}{value}]")
    parts.append(_text(record, "detail"))
    return " ".join(part for part in parts if part)


def _target(record: Record) -> str:
    host = _text(record, "host")
    if not host:
        return ""
    scheme, port = _text(record, "scheme"), _text(record, "port")
    return f"{scheme}://{host}:{port}{_text(record, 'path')}" if scheme else f"{host}{_text(record, 'path')}"


def _arrow(record: Record) -> str:
    said = " ".join(part for part in (_text(record, "status"), _text(record, "reason")) if part)
    return f"-> {said}" if said else ""


def _text(record: Mapping[str, object], name: str) -> str:
    value = record.get(name)
    return "" if value is None else escape(str(value))
