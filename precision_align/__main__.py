"""``python -m precision_align``: the command line where the script is not on PATH."""

import sys

from precision_align.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
