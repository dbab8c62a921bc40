"""The one error of this package. Hostile bytes never raise it: a parser here answers with a value."""


class ResolverError(Exception):
    """The resolver process could not be started, asked or trusted. `code` is stable, `hint` says what to do."""

    def __init__(self, code: str, detail: str, hint: str = "") -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
        self.hint = hint
