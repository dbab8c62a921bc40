"""Entry of `python -I -m credgate`."""

import sys

from credgate.cli import main

sys.exit(main(sys.argv[1:]))
