"""`python -m worldsize`: tools for jobs of your own, and the update of the course."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from worldsize import audit_command
from worldsize.explain import explain
from worldsize.slow_steps import explain_steps
from worldsize.timeline.kineto import is_trace
from worldsize.update import update_course


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; return 0 unless a file cannot be read, or an audit or a check finds something wrong."""
    parser = argparse.ArgumentParser("python -m worldsize", description="Tools for jobs outside notebooks.")
    commands = parser.add_subparsers(dest="command", required=True)
    explained = commands.add_parser(
        "explain",
        help="Say why a job hangs, from dumps of torch's flight recorder and stacks of py-spy; "
        "or why its steps are slow, from traces of torch.profiler.",
    )
    explained.add_argument("files", nargs="+", help="One for each rank; the number of a dump's rank ends its name.")
    audit_command.add_to(commands)
    updated = commands.add_parser("update", help="Update the course from a newer zip; what you have changed stays.")
    updated.add_argument("zip", type=Path)
    updated.add_argument(
        "folder", type=Path, nargs="?", default=Path(), help="The course's folder; by default this one."
    )
    checked = commands.add_parser("cs336", help="Check the distributed adapters of Stanford CS336's assignment 2.")
    checked.add_argument("adapters", type=Path, help="The file, such as tests/adapters.py.")
    given = parser.parse_args(words)
    try:
        if given.command == "audit":
            return audit_command.main(given)
        if given.command == "cs336":
            return _show_results(given.adapters)
        if given.command == "update":
            print(update_course(given.zip, given.folder))
        else:
            print(explain_steps(given.files) if any(map(is_trace, given.files)) else explain(given.files))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _show_results(adapters: Path) -> int:
    """Print what becomes of each check; return 1 unless all pass."""
    from worldsize.course import cs336  # which imports torch

    is_wrong = False
    for result in cs336.check(adapters):
        print(result, flush=True)
        is_wrong |= bool(result.problem)
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
