"""``python -m lib.bench``."""

import sys

from lib.bench.command_line import main

if __name__ == "__main__":
    sys.exit(main())
