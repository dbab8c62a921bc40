"""python -I -m resolver FD: serve until the control socket FD closes. FD is a unix SOCK_SEQPACKET socket."""

import asyncio
import selectors
import socket
import sys

from resolver.confine import confine
from resolver.control import Control
from resolver.errors import ResolverError


def main(argv: list[str]) -> int:
    """The process. Status 0 when the daemon has gone, 1 after a failure, 2 for wrong arguments."""
    if len(argv) != 2 or not argv[1].isdecimal():
        print("error: got no control descriptor\nhint: this program is started by the daemon", file=sys.stderr)  # noqa: T201 - its log
        return 2
    try:
        control = socket.socket(fileno=int(argv[1]))
        confine()
        # poll(2): epoll's watches are counted per user of the host, and a jail can use them all up.
        asyncio.run(_serve(control), loop_factory=lambda: asyncio.SelectorEventLoop(selectors.PollSelector()))
    except ResolverError as error:
        print(f"error: resolver: {error.detail}\nhint: {error.hint or error.code}", file=sys.stderr)  # noqa: T201 - its log
        return 1
    return 0


class _Done(Exception):
    """No error: raised to end the tasks of a group."""


async def _serve(sock: socket.socket) -> None:
    failed: list[ResolverError] = []

    def fail(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        # A fault in a callback would otherwise be logged and come again for ever; a dead process is started anew.
        failed.append(ResolverError("callback", f"{context.get('message')}: {context.get('exception')!r}"))
        control.done.set()

    try:
        async with asyncio.TaskGroup() as tasks:
            control = Control(sock, tasks)
            asyncio.get_running_loop().set_exception_handler(fail)
            tasks.create_task(control.serve())
            await control.done.wait()
            raise _Done
    except* _Done:
        pass
    if failed:
        raise failed[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv))
