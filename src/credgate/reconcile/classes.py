"""The classes of records, what each means and how bad it is. Names are stable: reports and scripts hold them."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Severity(IntEnum):
    """How bad; the worst one is the exit status."""

    FINE = 0
    WARNING = 1
    FAIL = 3
    CRITICAL = 4


class Class(StrEnum):
    """What became of a record."""

    MATCHED = "matched"
    MATCHED_GROUP = "matched-group"
    EXPECTED_ABSENT = "expected-absent"
    PENDING = "pending"
    DENIED = "denied"
    UNCHECKED = "unchecked"
    OUTSIDE = "outside"
    SERVICE = "service"
    OTHER_CREDENTIAL = "other-credential"
    FIELD_MISMATCH = "field-mismatch"
    DUPLICATE = "duplicate"
    OUT_OF_WINDOW = "out-of-window"
    CLOCK = "clock"
    AMBIGUOUS = "ambiguous"
    UNREADABLE = "unreadable"
    UNKNOWN_OUTCOME = "unknown-outcome"
    NOT_LOGGED = "not-logged"
    TARGET_ONLY = "target-only"
    GATEWAY_ONLY = "gateway-only"
    COVERAGE_GAP = "coverage-gap"
    DENY_BUT_SEEN = "deny-but-seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """How bad a class is, and what it says."""

    severity: Severity
    words: str


_F, _W, _X, _C = Severity.FINE, Severity.WARNING, Severity.FAIL, Severity.CRITICAL
MEANINGS: dict[Class, Meaning] = {
    Class.DENY_BUT_SEEN: Meaning(
        severity=_C, words="the gateway refused this request, and the target has a record of one like it"
    ),
    Class.TARGET_ONLY: Meaning(
        severity=_X, words="the target has a record that no request of the ledger explains: made outside the gateway"
    ),
    Class.GATEWAY_ONLY: Meaning(
        severity=_X, words="the ledger says that the target answered this request, and the target has no record of it"
    ),
    Class.COVERAGE_GAP: Meaning(
        severity=_X, words="a stretch of time in which the ledger has requests and the export no record at all"
    ),
    Class.CLOCK: Meaning(severity=_W, words="the target's clock and ours are more than a minute apart"),
    Class.OUT_OF_WINDOW: Meaning(severity=_W, words="an id pairs these two, and their times are too far apart"),
    Class.FIELD_MISMATCH: Meaning(severity=_W, words="the two records are a pair, and differ"),
    Class.AMBIGUOUS: Meaning(
        severity=_W, words="one of several requests that look alike, more than the target has records"
    ),
    Class.DUPLICATE: Meaning(severity=_W, words="the export holds this record more than once; it is counted once"),
    Class.UNREADABLE: Meaning(severity=_W, words="a part of an export could not be read"),
    Class.UNKNOWN_OUTCOME: Meaning(
        severity=_W, words="the ledger has no answer for this request, and the target no record of it"
    ),
    Class.NOT_LOGGED: Meaning(
        severity=_W, words="the target has no record of it; it does not promise to log every request"
    ),
    Class.MATCHED: Meaning(severity=_F, words="request and record are a pair"),
    Class.MATCHED_GROUP: Meaning(
        severity=_F, words="as many requests as records that look alike: which is which can't be said"
    ),
    Class.EXPECTED_ABSENT: Meaning(severity=_F, words="the target would not have logged it"),
    Class.PENDING: Meaning(severity=_F, words="too new: the target may not have delivered it yet"),
    Class.DENIED: Meaning(severity=_F, words="refused by the gateway, and the target has no record of it"),
    Class.UNCHECKED: Meaning(severity=_F, words="no export was given of the target of this request"),
    Class.OUTSIDE: Meaning(severity=_F, words="outside the time that is checked"),
    Class.SERVICE: Meaning(severity=_F, words="made by the target itself"),
    Class.OTHER_CREDENTIAL: Meaning(severity=_F, words="about a credential that the ledger does not hold"),
}
# What counts as checked: the target could have shown a difference.
CHECKED = frozenset(
    {
        Class.MATCHED, Class.MATCHED_GROUP, Class.FIELD_MISMATCH, Class.OUT_OF_WINDOW, Class.AMBIGUOUS,
        Class.UNKNOWN_OUTCOME, Class.NOT_LOGGED, Class.GATEWAY_ONLY,
    }
)  # fmt: skip


def severity(class_: str) -> Severity:
    """How bad a class is."""
    return MEANINGS[Class(class_)].severity
