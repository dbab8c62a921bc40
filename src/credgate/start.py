"""The installed command's way to `credgate run`: `python -I -S start.py run ...`, with next to no imports.

Without `site`, which reads the .pth files of every installed package (4 ms of CPU): a run needs the standard library
alone. Any other command begins as `python -I -m credgate` does. This file is compiled at each start, so it is short.
"""

import sys

if __name__ == "__main__":
    sys.path.append(__file__.rpartition("/credgate/")[0])  # behind the standard library: nothing there shadows that
    name, _, told = sys.argv[1].partition(":")  # told by a front that leaves the rest to us
    if name != "run":
        import site

        site.main()
    if told:
        from credgate.commands.resumed import main as resumed

        status = resumed(told, sys.argv[2:])
    else:
        from credgate.cli import main

        status = main(sys.argv[1:])
    if name == "run":  # it has written through no buffer, and taking an interpreter down takes its time
        import os

        os._exit(status)
    sys.exit(status)
