"""A form's body (application/x-www-form-urlencoded), read in one way or not at all. Pure.

Refused is what parsers differ in: a bare ";", which some take for "&", escapes that are none or are not UTF-8, a byte
that belongs escaped, a NUL.
"""

import re
from urllib.parse import unquote_to_bytes

from rules.credentials import fold_name
from rules.queries import Parameter, parameters
from rules.request import Request

__all__ = ["MAX_FIELDS", "read_form"]

MAX_FIELDS = 10_000
_TYPE = re.compile(rb"application/x-www-form-urlencoded[ \t]*(?:;[ \t]*charset=\"?utf-8\"?[ \t]*)?", re.IGNORECASE)
# Visible ASCII without ";", "#" and "%" that is no escape; browsers and libraries leave less of it bare
_BODY = re.compile(rb"(?:[\x21\x22\x24\x26-\x3a\x3c-\x7e]++|%[0-9A-Fa-f]{2})*+")


def read_form(request: Request) -> tuple[Parameter, ...] | str:
    """The fields of a request's form, in order; a text where it has no one reading: why."""
    return request.once("form", lambda: _read(request))


def _read(request: Request) -> tuple[Parameter, ...] | str:
    body = request.body or b""
    types = [value for name, value in request.headers if fold_name(name) == "content-type"]
    if len(types) != 1 or not _TYPE.fullmatch(types[0].strip(b" \t")):
        return "content-type is not application/x-www-form-urlencoded"
    if body.count(b"&") >= MAX_FIELDS:
        return f"more than {MAX_FIELDS} fields"
    if not _BODY.fullmatch(body):
        return "not a form: a byte or an escape that it does not have"
    try:
        plain = unquote_to_bytes(body)
        plain.decode("utf-8")
    except UnicodeDecodeError:
        return "not a form in UTF-8"
    if b"\0" in plain:
        return "a form that holds a NUL"
    return parameters(body.decode("ascii"))
