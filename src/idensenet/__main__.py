"""python -m idensenet, which is what torchrun -m idensenet runs."""

import sys

from idensenet.cli import main

if __name__ == "__main__":
    sys.exit(main())
