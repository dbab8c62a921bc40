"""Add accepted proposals to the text of a policy, every other byte of which stays.

New tables go to the end. A new endpoint must also stand in the list of the role, in the middle of the text: each place
that looks like it is tried, and what counts is the TOML parser: the one edit is taken that gives exactly the policy
that is wanted. No edit that changes anything else can pass for it.
"""

import os
import re
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from credgate.errors import CredgateError
from rules.asked import Proposal
from rules.learn_toml import document, quoted

TRIES = 200  # places that are tried; a policy has a handful
_LIST = re.compile(r"endpoints[ \t]*=[ \t]*\[")
_REACH = 20_000  # characters in which a list ends

type Toml = dict[str, Any]


class PolicyNotEdited(CredgateError):
    """The text can't be edited so that it says what is wanted, and nothing else."""


def edited(text: str, role: str, proposals: Sequence[Proposal]) -> str:
    """The text with the proposals in it. Raises PolicyNotEdited; tomllib.TOMLDecodeError for a text that is no TOML."""
    old = tomllib.loads(text)
    new = tuple(dict.fromkeys(p.endpoint for p in proposals if p.new))
    listed = _listed(text, old, role, new) if new else text
    end = "" if not listed or listed.endswith("\n") else "\n"
    result = listed + end + "\n".join(document(proposals)) + "\n"
    try:
        same = tomllib.loads(result) == _wanted(_with_list(old, role, new), proposals)
    except tomllib.TOMLDecodeError:
        same = False
    if not same:
        hint = "write each endpoint as [endpoint.NAME] and its rules as [[endpoint.NAME.allow]], or paste them by hand"
        raise PolicyNotEdited("policy_not_edited", "rules can't be appended to this policy as it is written", hint)
    return result


def _with_list(data: Toml, role: str, new: Sequence[str]) -> Toml:
    changed = deepcopy(data)
    if new:
        table = changed["role"][role]
        table["endpoints"] = [*table.get("endpoints", []), *new]
    return changed


def _wanted(data: Toml, proposals: Sequence[Proposal]) -> Toml:
    """What the text has to say in the end: by the values, not by the text that was made of them."""
    for proposal in proposals:
        table = data.setdefault("endpoint", {}).setdefault(proposal.endpoint, {})
        if proposal.new and "host" not in table:
            table["host"] = proposal.host
            if proposal.port != (443 if proposal.scheme == "https" else 80):
                table["port"] = proposal.port
            if proposal.scheme == "http":
                table["tls"] = False
        rule: Toml = {"id": proposal.id, "methods": list(proposal.methods), "paths": [proposal.path]}
        rule |= {"query": {"allow": list(proposal.query)}}
        rule |= {"encoded_slash": True} if proposal.encoded_slash else {}
        table.setdefault("allow", []).append(rule)
    return data


def _listed(text: str, old: Toml, role: str, new: Sequence[str]) -> str:
    wanted = _with_list(old, role, new)
    names = ", ".join(quoted(name) for name in new)
    for number, candidate in enumerate(_candidates(text, role, names)):
        if number == TRIES:
            break
        try:
            if tomllib.loads(candidate) == wanted:
                return candidate
        except tomllib.TOMLDecodeError:
            continue
    raise PolicyNotEdited(
        "policy_not_edited",
        f"the endpoints of role {role} can't be found in the text",
        f"add by hand, in [role.{role}]: endpoints = [{names}]; then again",
    )


def _candidates(text: str, role: str, names: str) -> Iterator[str]:
    """Texts with the names in a list that is there, or in one below the role's header."""
    for found in _LIST.finditer(text):
        for close in re.finditer(r"\]", text[found.end() : found.end() + _REACH]):
            at = found.end() + close.start()
            for between in (", ", "", " "):
                yield text[:at] + between + names + text[at:]
    header = re.compile(rf"^[ \t]*\[[ \t]*role[ \t]*\.[ \t]*[\"']?{re.escape(role)}[\"']?[ \t]*\][^\n]*", re.MULTILINE)
    for found in header.finditer(text):
        yield f"{text[: found.end()]}\nendpoints = [{names}]{text[found.end() :]}"


def replace_policy(path: Path, old: bytes, new: bytes) -> None:
    """Put `new` in the place of `old`, whole or not at all, mode kept. Raises CredgateError where it has changed."""
    real = Path(os.path.realpath(path))
    made = ""
    try:
        mode = stat.S_IMODE(real.stat().st_mode)
        descriptor, made = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.")
        with os.fdopen(descriptor, "wb") as file:
            file.write(new)
            os.fchmod(descriptor, mode)
            file.flush()
            os.fsync(descriptor)
        if real.read_bytes() != old:
            raise PolicyNotEdited("policy_changed", f"{path} was changed meanwhile", "look at it, and try again")
        Path(made).replace(real)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise PolicyNotEdited("policy_unwritable", f"{path}: {why}", "name a file that you may write", 2) from error
    finally:
        if made:
            Path(made).unlink(missing_ok=True)
