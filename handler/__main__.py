"""`python -m handler`: the command line."""

import sys

from handler.cli import main

if __name__ == "__main__":
    sys.exit(main())
