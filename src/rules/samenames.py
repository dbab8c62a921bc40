"""Names that a file system takes for those the host executes by: of another case, and as HFS+ and NTFS read them. Pure.

A work tree may lie where case is not told apart (ext4 with casefold, vfat, a share of another system), and
`.GIT/hooks/x` is `.git/hooks/x` there. Sources: git's own checks (path.c, utf8.c: is_ntfs_dotgit, is_hfs_dotgit).
"""

import re

from rules.islands import GIT, ISLANDS, LINKED, PATTERNS

__all__ = ["folded"]

# What HFS+ leaves out of a name: joiners, marks of direction and of shape, the byte order mark.
_IGNORED = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_SHORT = re.compile(r"([^~]{1,6})~[0-9]")  # of NTFS: what a name of more than eight characters is called too
_NAMES = {
    part.casefold(): part
    for part in (*(part for island in ISLANDS for part in island.path.split("/")), *GIT, *LINKED, ".git", "HEAD")
}
_BY_SHORT = {name.replace(".", "")[:6]: part for name, part in _NAMES.items() if name[0] == "." or len(name) > 8}


def folded(path: str) -> str:
    """The relative path with each such name as our tables spell it; itself where there is none."""
    return "/".join(map(_one, path.split("/")))


def _one(name: str) -> str:
    key = name.casefold()
    if not name.isascii():
        key = _IGNORED.sub("", key)
    if ":" in key:  # a stream of NTFS: `.git::$INDEX_ALLOCATION` is the directory
        key = key.partition(":")[0]
    key = key.rstrip(" .") or key
    known = _NAMES.get(key, "")
    if not known and "~" in key and (short := _SHORT.fullmatch(key)):
        known = _BY_SHORT.get(short[1], "")
    if known:
        return known
    return key if key.endswith(tuple(suffix for suffix, _ in PATTERNS)) else name
