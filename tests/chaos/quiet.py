"""The undisturbed run: the launcher with its own roles, without the work of an evaluator."""

from __future__ import annotations

import sys

from tests.chaos.launcher import main

if __name__ == "__main__":
    sys.exit(main({}))
