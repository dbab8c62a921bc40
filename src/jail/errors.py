"""The error base of the jail package. Imports nothing: launcher and pid 1 pay for every module."""


class JailError(Exception):
    """A step of the jail failed. `code` is stable and machine-read; `detail` and `hint` are for people.

    `errno` is the kernel's own answer where there was one, 0 otherwise.
    """

    def __init__(self, code: str, detail: str, hint: str = "", errno: int = 0) -> None:
        super().__init__(code, detail, hint, errno)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.errno = errno

    def to_json(self) -> dict[str, object]:
        """The error as one process tells it to another; `from_json` reads it."""
        unsupported = isinstance(self, Unsupported)
        fields = {"code": self.code, "detail": self.detail, "hint": self.hint, "errno": self.errno}
        return {"ok": False, "unsupported": unsupported, **fields}

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class Unsupported(JailError):
    """This host can't enforce what was asked: nothing was started, nothing weaker is offered."""


def from_json(body: dict[str, object]) -> JailError:
    """Build the error that another process told; fields that are missing are empty."""
    kind = Unsupported if body.get("unsupported") is True else JailError
    number = body.get("errno")
    code, detail, hint = (str(body.get(key, "")) for key in ("code", "detail", "hint"))
    return kind(code or "unknown", detail, hint, number if isinstance(number, int) else 0)
