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

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


class Unsupported(JailError):
    """This host can't enforce what was asked: nothing was started, nothing weaker is offered."""
