"""Requests that a binding signs: the one place where the keys of AWS are used. The rules sign, this says when."""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from credgate.gateway.refusal import deny
from credgate.gateway.waiting import refused
from credgate.known import KnownValues
from rules import sigv4
from rules.inject import injected
from rules.problems import InjectError
from rules.reasons import Reason
from rules.request import Outgoing, Request
from rules.verdict import Allow, Deny


class HashMismatch(InjectError):
    """The client's own hash of the body is not that of the body."""


def unfit(error: InjectError) -> Deny:
    """The refusal of a request whose secret can't stand in its place."""
    match error:
        case HashMismatch():
            return refused(error.detail)
        case _:
            return deny(Reason.SECRET_UNAVAILABLE, error.detail)


def signed(
    request: Request,
    allow: Allow,
    out: Outgoing,
    secrets: Mapping[str, str],
    decoys: Mapping[str, str],
    body: bytes | None,
    known: KnownValues,
) -> Outgoing:
    """`out`, with a signature of now where a binding of this request makes one; else as it is.

    `body` is the whole one as the client sent it, where it was read. Raises InjectError where the secret is no key
    pair, and HashMismatch.
    """
    for binding in injected(request, allow, decoys):
        if binding.sign is None:
            continue
        where = sigv4.scope(request, binding.sign)
        if isinstance(where, str):
            raise InjectError(where)  # decide lets none of these through
        keys = sigv4.parse_keys(binding.secret, secrets.get(binding.secret, ""))
        for value in filter(None, (keys.secret_access_key, keys.session_token)):
            known.add(binding.secret, value)
        body_hash = _hash(request, body if out.body is None else out.body)
        amz_date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())  # our clock: the jail's is the client's
        leaving = replace(request, target=out.target)
        return structs.replace(out, fields=sigv4.sign(leaving, out.fields, where, keys, body_hash, amz_date))
    return out


def _hash(request: Request, body: bytes | None) -> str:
    said = sigv4.payload(request)
    found = "" if body is None else hashlib.sha256(body).hexdigest()
    if len(said) == len(sigv4.EMPTY_HASH) and found and said != found:
        raise HashMismatch("x-amz-content-sha256 is not its hash")
    if not (said or found):
        raise RuntimeError("a body was not read that has to be signed")
    return said or found
