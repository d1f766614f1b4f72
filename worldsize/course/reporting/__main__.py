"""For students: `python -m worldsize.course.reporting check report.ipynb`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from worldsize.course.reporting.notebook_check import check, read


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; return 0 if every number is computed or cited."""
    parser = argparse.ArgumentParser("python -m worldsize.course.reporting", description="Check a report's numbers.")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("check", help="Find numbers that are neither computed nor cited. Nothing is run.")
    command.add_argument("notebook", type=Path, help="The report, executed and saved.")
    try:
        checked = check(read(parser.parse_args(words).notebook))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(checked)
    return 0 if checked.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
