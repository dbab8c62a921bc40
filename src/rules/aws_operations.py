"""Which operation of AWS a request asks for, where neither method nor path tells: `operations` of a binding's `sign`.

Three spellings (Smithy specification, "AWS Protocols"): X-Amz-Target of the JSON protocols, Action of the query
protocol in a form or a query, the path of RPC v2. A request with none of them, or with more than one, is refused.
"""

import re
from collections.abc import Iterator
from urllib.parse import parse_qsl

from rules.credentials import fold_name
from rules.policy import Signing
from rules.request import Request

__all__ = ["PATTERN", "in_body", "missing"]

PATTERN = re.compile(r"[A-Za-z0-9_.]{1,128}\*?")
_RPC = re.compile(r"/service/([A-Za-z0-9_.]+)/operation/([A-Za-z0-9_]+)")
_MAX_FIELDS = 4096


def missing(request: Request, signing: Signing) -> str:
    """What would have to be there for the operation to be one of the binding's; "" where it is, or any may be."""
    if not signing.operations or (request.body is None and in_body(request, signing)):
        return ""
    found = tuple(_found(request))
    if len(found) != 1:
        return "one operation, in X-Amz-Target, in Action or in the path"
    fits = any(_matches(pattern, found[0]) for pattern in signing.operations)
    return "" if fits else f"{found[0][:128]!r} in operations of the binding's sign"


def in_body(request: Request, signing: Signing) -> bool:
    """Whether the body has to be read for it: a form, or what a service may take for one."""
    told = any(True for _ in _headers(request, "x-amz-target")) or _RPC.fullmatch(request.path)
    return bool(signing.operations) and request.has_body and (not told or _is_form(request))


def _found(request: Request) -> Iterator[str]:
    """Every operation that any reader could see."""
    targets = [value.strip().decode("latin-1") for value in _headers(request, "x-amz-target")]
    yield from targets
    if rpc := _RPC.fullmatch(request.path):
        yield f"{rpc[1]}.{rpc[2]}"
    yield from _actions(request.target.partition("?")[2])
    if request.body is not None and (_is_form(request) or not targets):
        yield from _actions(request.body.decode("latin-1"))


def _headers(request: Request, name: str) -> Iterator[bytes]:
    return (value for key, value in request.headers if fold_name(key) == name)


def _is_form(request: Request) -> bool:
    return any(b"x-www-form-urlencoded" in value.lower() for value in _headers(request, "content-type"))


def _actions(text: str) -> Iterator[str]:
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        return iter(("", ""))  # more fields than are looked through: no one operation
    return (value for name, value in pairs if name.lower() == "action")


def _matches(pattern: str, operation: str) -> bool:
    return operation.startswith(pattern[:-1]) if pattern.endswith("*") else operation == pattern
