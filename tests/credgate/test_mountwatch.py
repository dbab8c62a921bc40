"""A change of a mount table is seen; nothing else is."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from credgate.mountwatch import MountWatch

pytestmark = pytest.mark.needs("userns")

# A child in a mount namespace of its own that mounts, writes or ends as it is told by lines.
CHILD = """
import ctypes, os, sys
uid, gid = os.geteuid(), os.getegid()
os.unshare(os.CLONE_NEWUSER | os.CLONE_NEWNS)
for name, text in (('setgroups', 'deny'), ('uid_map', f'{uid} {uid} 1'), ('gid_map', f'{gid} {gid} 1')):
    open('/proc/self/' + name, 'w').write(text)
libc = ctypes.CDLL(None)
libc.mount(b'none', b'/', None, 0x44000, None)
print('ready', flush=True)
for line in sys.stdin:
    match line.strip():
        case 'mount': said = libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)
        case 'bind': said = libc.mount(sys.argv[1].encode(), sys.argv[2].encode(), None, 0x1000, None)
        case 'umount': said = libc.umount(b'/tmp')
        case 'write': said = os.system('touch /tmp/mountwatch-$$ && rm /tmp/mountwatch-$$')
    print(said, flush=True)
"""


class Child:
    def __init__(self, *paths: Path) -> None:
        """paths: what `bind` mounts, and where."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, "-I", "-c", CHILD, *paths], text=True, **pipes)
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        assert self.read() == "0"

    def end(self) -> None:
        self.process.communicate(timeout=60)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    for name in ("program", "place"):
        (tmp_path / name).touch()
    made = Child(tmp_path / "program", tmp_path / "place")
    yield made
    if made.process.poll() is None:
        made.end()


def changes(child: Child, *words: str, patience: float = 60.0) -> bool:
    """Whether a watch that is made first sees what the child does."""

    async def main() -> bool:
        watch = MountWatch.of(child.process.pid)
        try:
            for word in words:
                child.tell(word)
            async with asyncio.timeout(patience):
                await watch.changed()
        except TimeoutError:
            return False
        finally:
            watch.close()
        return True

    return asyncio.run(main())


def test_a_mount_is_seen(child: Child) -> None:
    assert changes(child, "mount")


def test_an_unmount_is_seen(child: Child) -> None:
    child.tell("mount")
    assert changes(child, "umount")


def test_what_happened_before_is_not(child: Child) -> None:
    child.tell("mount")
    assert not changes(child, patience=0.3)


def test_a_mount_that_was_undone_while_waiting_is_seen_too(child: Child) -> None:
    async def main() -> None:
        watch = MountWatch.of(child.process.pid)

        def there_and_back() -> None:
            child.tell("mount")
            child.tell("umount")

        asyncio.get_running_loop().call_later(0.1, there_and_back)
        async with asyncio.timeout(60):
            await watch.changed()
        watch.close()

    asyncio.run(main())


def test_a_program_that_is_updated_before_the_wait_is_no_change(child: Child, tmp_path: Path) -> None:
    """Its mount stays; only the path that the table shows is another. A place that is replaced takes its mount away."""
    child.tell("bind")

    async def replaced(name: str) -> bool:
        watch = MountWatch.of(child.process.pid)
        (tmp_path / "newer").touch()
        (tmp_path / "newer").rename(tmp_path / name)
        try:
            assert not watch.same()
            async with asyncio.timeout(0.3):
                await watch.changed()
        except TimeoutError:
            return False
        finally:
            watch.close()
        return True

    assert not asyncio.run(replaced("program"))
    assert asyncio.run(replaced("place"))


def test_writing_a_file_is_no_change(child: Child) -> None:
    assert not changes(child, "write", patience=0.3)


def test_a_change_is_seen_while_waiting(child: Child) -> None:
    async def main() -> None:
        watch = MountWatch.of(child.process.pid)
        asyncio.get_running_loop().call_later(0.1, child.tell, "mount")
        async with asyncio.timeout(60):
            await watch.changed()
        watch.close()

    asyncio.run(main())


def test_a_process_that_is_gone_has_no_table(child: Child) -> None:
    child.end()
    with pytest.raises(OSError, match="No such"):
        MountWatch.of(child.process.pid)


def test_both_descriptors_are_closed() -> None:
    before = set(os.listdir("/proc/self/fd"))
    MountWatch.of(os.getpid()).close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert Path("/proc/self/mountinfo").exists()
