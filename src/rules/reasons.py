"""Why something was refused: the string is the ledger's `reason` and the error code, stable for ever."""

from enum import StrEnum


class Reason(StrEnum):
    """Reason codes. A code is added, never renamed; docs/reasons.md lists them all (a test compares)."""

    MALFORMED = "malformed"  # not parseable as HTTP: 400
    HOST_INVALID = "host_invalid"  # not a host name: userinfo, a non-canonical address, none or several Host: 400
    ADDRESS_LITERAL = "address_literal"  # an address where a name belongs: 403
    HOST_UNLISTED = "host_unlisted"  # no endpoint of the role has this host
    PORT_UNLISTED = "port_unlisted"  # the host is listed, not with this port or scheme
    IDENTITY_MISMATCH = "identity_mismatch"  # CONNECT host, SNI, Host, :authority, port disagree
    METADATA = "metadata"  # a cloud metadata name or address: nothing opens it
    PATH_AMBIGUOUS = "path_ambiguous"  # wire form of the path is not its normal form
    METHOD_INVALID = "method_invalid"  # a method that is not an upper-case token of the table, or an override header
    DENY_RULE = "deny_rule"  # a deny rule or a pack matched
    NO_RULE = "no_rule"  # host listed, no allow rule for method and path
    QUERY_REFUSED = "query_refused"  # a query name that the rule does not list
    UPGRADE_REFUSED = "upgrade_refused"  # 426
    BODY_REFUSED = "body_refused"  # e.g. a body on GET
    SIGNATURE_REFUSED = "signature_refused"  # an AWS signature of a kind that is not made anew
    BINDING_AMBIGUOUS = "binding_ambiguous"  # two bindings would write one place
    PLACE_AMBIGUOUS = "place_ambiguous"  # where a secret goes has more than one reading, or stands there twice
    FOREIGN_CREDENTIAL = "foreign_credential"  # the client's own credential where the policy says deny
    PLACEHOLDER_MISPLACED = "placeholder_misplaced"  # a decoy in a credential place where it does not belong
    SECRET_MISPLACED = "secret_misplaced"  # a real secret on its way out, elsewhere than at its place
    SECRET_UNAVAILABLE = "secret_unavailable"
    ADDRESS_BLOCKED = "address_blocked"  # the name resolved to a closed range
    RESOLVE_FAILED = "resolve_failed"  # 502
    UPSTREAM_UNREACHABLE = "upstream_unreachable"  # 502
    UPSTREAM_TLS = "upstream_tls"  # 502: certificate wrong, no common protocol
    UPSTREAM_RESET = "upstream_reset"  # 502
    UPSTREAM_RESENT = "upstream_resent"  # of an outcome alone: the request was sent once more, with its own intent
    UPSTREAM_INVALID = "upstream_invalid"  # 502: not parseable, truncated
    UPSTREAM_TIMEOUT = "upstream_timeout"  # 504
    RESPONSE_UNREADABLE = "response_unreadable"  # 502: can't be searched for secrets
    NOT_HTTP = "not_http"  # bytes in a tunnel that are not TLS or HTTP
    PROOF_MISSING = "proof_missing"  # the jail has not been shown yet
    REVOKED = "revoked"
    PAUSED = "paused"  # an alarm of a role with on_alarm = "pause"
    EXPIRED = "expired"  # the role's deadline or the binding's ttl
    USES_EXHAUSTED = "uses_exhausted"  # the binding's max_uses
    RATE_EXCEEDED = "rate_exceeded"  # the binding's rate: 403, never 429, which clients retry
    BUDGET_EXHAUSTED = "budget_exhausted"  # the role's budget
    WORKER_DIED = "worker_died"  # of an outcome alone: the process that forwarded the request ended before it
    LEDGER_UNAVAILABLE = "ledger_unavailable"
    INTERNAL = "internal"  # our own fault: refused
