"""`python -m worldsize explain FILE ...`: say why a job of your own hangs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from worldsize.explain import explain


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; return 0 unless a file cannot be read."""
    parser = argparse.ArgumentParser("python -m worldsize", description="Tools for jobs outside notebooks.")
    commands = parser.add_subparsers(dest="command", required=True)
    explained = commands.add_parser(
        "explain", help="Say why a job hangs, from dumps of torch's flight recorder and stacks of py-spy."
    )
    explained.add_argument("files", nargs="+", help="One for each rank, whose number ends its name.")
    try:
        print(explain(parser.parse_args(words).files))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
