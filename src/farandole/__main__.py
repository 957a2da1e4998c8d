"""`python -m farandole`: the same as the `farandole` command."""

import sys

from farandole.launch.cli import main

sys.exit(main())
