"""A secret's value as a type that can't be printed, formatted, copied, pickled or put into the ledger."""

import re
from typing import NoReturn

from credgate.errors import CredgateError

MAX_VALUE = 64 * 1024  # bytes of UTF-8; longer than any header block a server takes
_BLOCK = re.compile(r"(?:-----BEGIN [A-Z0-9 ]+-----\n|\{)[^\r\0]*[-}]\s*")  # PEM, or a JSON object: in no header
_FORBIDDEN = {"\r": "CR", "\n": "LF", "\0": "NUL"}  # RFC 9110 5.5: each ends or splits a header field


class SecretUnavailable(CredgateError):
    """The value of a secret can't be had, or isn't one that can be injected."""


class Secret:
    """A name and a hidden value. Only `reveal()` gives the value away."""

    __slots__ = ("_value", "name")

    def __init__(self, name: str, value: str) -> None:
        """Raise SecretUnavailable when `value` is empty, too long or holds CR, LF, NUL or a lone surrogate.

        LF may stand in PEM and in a JSON object: keys that are signed with. Where one is put into a header after all,
        the rewrite refuses it.
        """
        check_value(name, value)
        self.name = name
        self._value = value

    def reveal(self) -> str:
        """Return the value itself: for the header rewrite and for nothing else."""
        return self._value

    def __repr__(self) -> str:
        return f"<Secret {self.name}>"

    __str__ = __repr__

    def __format__(self, spec: str, /) -> NoReturn:
        raise TypeError(f"secret {self.name}: can't be formatted")

    def __reduce_ex__(self, protocol: object, /) -> NoReturn:
        # pickle, copy and deepcopy all come through here
        raise TypeError(f"secret {self.name}: can't be copied or pickled")

    def __getstate__(self) -> NoReturn:
        raise TypeError(f"secret {self.name}: can't be copied or pickled")


def check_value(name: str, value: str) -> None:
    """Raise SecretUnavailable unless `value` may be injected. The message never holds a part of it."""
    for char, word in _FORBIDDEN.items():
        if char in value and not _BLOCK.fullmatch(value):
            raise _invalid(name, f"value holds {word}, which would split a header")
    if not value:
        raise _invalid(name, "value is empty")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise _invalid(name, "value is not UTF-8 text")
    size = len(value.encode())
    if size > MAX_VALUE:
        raise _invalid(name, f"value has {size} bytes, at most {MAX_VALUE} are taken")


def _invalid(name: str, why: str) -> SecretUnavailable:
    return SecretUnavailable("secret_invalid", f"secret {name!r}: {why}", f"set it anew: credgate secret set {name}")
