"""``python -m prnn``: the command line."""

import sys

from prnn.cli import main

sys.exit(main())
