"""Why a record has its class, in a sentence for people."""

from credgate.reconcile.classes import MEANINGS, Class
from credgate.reconcile.times import show

_DIFFERS = {
    "method": "the method",
    "path": "the path",
    "status": "the status",
    "success": "success or failure",
    "bytes": "the size of the answer",
    "address": "the source address, which is none of ours",
    "credential": "the credential",
    "time": "the time",
}
_NOTES = {
    "after-ledger": "it is later than the ledger's last line: the ledger may have been cut, or ends before the export",
    "own-tunnel": "the proxy was asked for a tunnel for it; one logs a tunnel when it ends: was it still open?",
    "unsettled": "a tunnel that began as a request was made of which the ledger has no outcome: perhaps for that",
    "replayed": "it carries an id or tag of a request that has its record already: copied from there",
    "twin": "the export has it elsewhere too, the same in all: kept twice as a log was rotated, or made twice",
    "our-address": "it came from an address of ours",
    "other-address": "it came from an address that is none of ours",
    "not-billed": "the target counts no such call",
    "no-bucket": "the export has no bucket for its time",
    "counted": "the target gives counts alone, and they are equal",
    "presence": "the target gives no counts of calls: only whether there were any",
}
_RESENT = "the target closed its connection as the request came, and it was sent once more"


def reason(class_: str, note: str, rules: dict[str, str]) -> str:
    """The sentence. `rules`: what each rule of expected absence says."""
    parts = [MEANINGS[Class(class_)].words]
    differs = [_DIFFERS[word] for word in note.split(";") if word in _DIFFERS]
    if differs:
        parts = [f"{parts[0]} in {', '.join(differs)}"] if class_ == Class.FIELD_MISMATCH else parts
    parts += [said for word in note.split(";") if (said := _note(word, rules))]
    return "; ".join(parts)


def _note(word: str, rules: dict[str, str]) -> str:
    name, _, rest = word.partition(":")
    first, _, second = rest.partition(":")
    match name:
        case "group":
            return f"of a group that can't be told apart, {first} in the ledger and {second} at the target"
        case "gap":
            return f"nothing of the target's between {show(int(first))} and {show(int(second))}"
        case "begins":
            return _begins(int(first))
        case "rule":
            return rules.get(rest, rest)
        case "not-reached":
            return _RESENT if rest == "upstream_resent" else f"the gateway never reached the target: {rest}"
        case "count":
            return f"{first} in the ledger and {second} at the target in this bucket"
    if name == "presence" and rest:
        return f"{rest} in the ledger, and the target says the opposite for this bucket"
    return _NOTES.get(word, "")


def _begins(late: int) -> str:
    side = "after" if late > 0 else "before"
    return (
        f"a tunnel that begins {abs(late) / 1e6:.1f} s {side} the gateway asked for one, by the proxy's clock: "
        "it may be another one"
    )
