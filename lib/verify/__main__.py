"""``python -m lib.verify module:function``."""

import sys

from lib.verify.command_line import main

if __name__ == "__main__":
    sys.exit(main())
