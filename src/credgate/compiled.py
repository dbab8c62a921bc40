"""Compiled modules of ours: what they are made of, and which of them an interpreter may use.

Each is one file of native/modules, built at set-up (`buildmodules`) into the environment that Credgate is installed in,
as `_credgate_NAME`: beside every other package of it, written by its owner alone. Each stands for a module in Python
that does the same, which serves where the compiled one is missing or of other sources. `credgate doctor` says which.
"""

import hashlib
import importlib
import logging
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType

SOURCES = Path(__file__).parent / "native" / "modules"
FLAGS = (
    "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fstack-protector-strong",
    "-fstack-clash-protection", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2", "-Wl,-z,relro,-z,now",
)  # fmt: skip
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
_PROBE = bytes(range(200))  # three whole blocks of SHA-256, and the beginning of one

log = logging.getLogger(__name__)


def names() -> tuple[str, ...]:
    """Each module that there is a source of."""
    return tuple(sorted(path.stem for path in SOURCES.glob("*.c")))


def full_name(name: str) -> str:
    """What it is imported as."""
    return f"_credgate_{name}"


def stamp(name: str) -> str:
    """What a module that is current says of itself: its sources, how they are compiled, and for which interpreter."""
    digest = hashlib.sha256(f"{FLAGS}\0{SUFFIX}\0{sys.version}".encode())
    for path in (*sorted(SOURCES.glob("*.h")), SOURCES / f"{name}.c"):
        digest.update(b"%d\0" % path.stat().st_size)
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def load(name: str) -> ModuleType | None:
    """The compiled module; None where there is none of these sources, and the one in Python has to do."""
    try:
        module = importlib.import_module(full_name(name))
        current = getattr(module, "STAMP", "") == stamp(name)
    except (ImportError, OSError) as error:
        log.info("compiled: no %s: %s", full_name(name), error)
        return None
    if not current:
        log.info("compiled: %s is of other sources, the module in Python serves", full_name(name))
        return None
    if not _digests_well(module):
        log.error("compiled: %s makes other digests than hashlib, the module in Python serves", full_name(name))
        return None
    return module


def _digests_well(module: ModuleType) -> bool:
    """Whether its own SHA-256, by this processor's instructions, is hashlib's: with another one a ledger is lost."""
    digest = getattr(module, "sha256", None)
    return digest is None or digest(_PROBE, False) == hashlib.sha256(_PROBE).digest()
