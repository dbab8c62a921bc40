"""Colour for people at a terminal, and for nobody else."""

import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TextIO


class Colour(StrEnum):
    """SGR parameters of ECMA-48; the colours themselves are the terminal's own."""

    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    DIM = "2"


type Paint = Callable[[Colour | None, str], str]


def plain(_colour: Colour | None, text: str) -> str:
    """The text alone."""
    return text


def _painted(colour: Colour | None, text: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def paint_for(stream: TextIO, env: Mapping[str, str] = os.environ) -> Paint:
    """Colours where the stream is a terminal that has them and the user did not say no (NO_COLOR of no-color.org)."""
    wanted = not env.get("NO_COLOR") and env.get("TERM", "dumb") not in ("", "dumb")
    return _painted if wanted and stream.isatty() else plain
