"""The command ``leasehold``: one command a file. It needs click, the extra ``cli``."""

from __future__ import annotations

import sys
from importlib.util import find_spec

if find_spec("click") is None:

    def main(args: object = None, prog_name: str = "leasehold") -> None:
        """Print which package is missing, and exit with the code for it."""
        print(f"{prog_name}: click is not installed; install it with: pip install 'leasehold[cli]'", file=sys.stderr)
        sys.exit(3)

else:
    from leasehold.cli.group import main as main
