"""`python -m worldsize`: `explain` says why a job of your own hangs, `audit` why it trains and is wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from worldsize import audit_command
from worldsize.explain import explain


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; return 0 unless a file cannot be read or an audit finds something wrong."""
    parser = argparse.ArgumentParser("python -m worldsize", description="Tools for jobs outside notebooks.")
    commands = parser.add_subparsers(dest="command", required=True)
    explained = commands.add_parser(
        "explain", help="Say why a job hangs, from dumps of torch's flight recorder and stacks of py-spy."
    )
    explained.add_argument("files", nargs="+", help="One for each rank, whose number ends its name.")
    audit_command.add_to(commands)
    given = parser.parse_args(words)
    try:
        if given.command == "audit":
            return audit_command.main(given)
        print(explain(given.files))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
