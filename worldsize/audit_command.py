"""`python -m worldsize audit`: run a script and say which silent faults it has, here or under one's own torchrun."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from worldsize.audit.notes import EVERY, FOLDER
from worldsize.audit.report import Audit, audit_of
from worldsize.launch import command
from worldsize.launch.protocol.call_log import CallLog
from worldsize.launch.reports.result import RunError
from worldsize.launch.worker import call_tracer, run_as_main
from worldsize.launch.worker.main import audited

_HELP = """Run a script and say which silent faults it has: what trains and is wrong.

On this machine:
    python -m worldsize audit train.py --nproc-per-node 4 --epochs 2
On a cluster of your own, with a folder that all nodes share:
    torchrun ... -m worldsize audit --notes FOLDER train.py --epochs 2
    python -m worldsize audit --notes FOLDER
The exit status is 1 if something is wrong."""
_NUM_RANKS = "--nproc-per-node"


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those of `python -m worldsize`."""
    parser = commands.add_parser(
        "audit",
        help="Name the silent faults of a script.",
        description=_HELP,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--cluster", help='Run on this emulated cluster, such as "dgx-h100".')
    parser.add_argument("--every", type=int, default=1, metavar="K", help="Look at every K-th optimizer step only.")
    parser.add_argument("--json", metavar="FILE", help="Write the audit to a file as JSON, too.")
    parser.add_argument(
        "--notes", metavar="FOLDER", help="Under torchrun, write the rank's notes here; without a script, read them."
    )
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="S", help="Seconds that the run may take.")
    parser.add_argument(
        _NUM_RANKS,
        metavar="N",
        default="2",
        help="The number of ranks, also among the script's arguments.",
    )
    parser.add_argument("script", nargs="?", help="The script.")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="Its arguments.")


def main(given: argparse.Namespace) -> int:
    """Run the command; return 1 if something is wrong, 2 if the run failed.

    Raises:
        ValueError: an argument is wrong, or there are no notes.
    """
    if given.every < 1:
        raise ValueError(f"--every is {given.every}; it must be at least 1")
    if "RANK" in os.environ and given.script:
        return _run_on_rank(given)
    if given.script is None:
        if given.notes is None:
            raise ValueError("name a script, or the folder of a run's notes after --notes")
        return _show(audit_of(given.notes), given.json)
    if given.notes is not None:
        raise ValueError("--notes goes with ranks that torchrun has started, or without a script; here, leave it out")
    num_ranks, args = _take_num_ranks(given.nproc_per_node, given.args)
    try:
        run = command.run_script(
            [f"{_NUM_RANKS}={num_ranks}"],
            given.script,
            args,
            timeout_s=given.timeout,
            stalled_s=20,
            env={},
            echo=True,
            cluster=given.cluster,
            audit=given.every,
        )
    except RunError as error:
        print(error, file=sys.stderr)
        if error.audit is not None:
            _show(error.audit, given.json)
        return 2
    return 2 if run.audit is None else _show(run.audit, given.json)


def _take_num_ranks(default: str, args: Sequence[str]) -> tuple[str, list[str]]:
    """Take the number of ranks out of what follows the script's name."""
    at = next((i for i, word in enumerate(args) if word.partition("=")[0] == _NUM_RANKS), None)
    if at is None:
        return default, list(args)
    value, rest = args[at].partition("=")[2], list(args[at + 1 :])
    if not value:
        value, rest = (rest[0] if rest else ""), rest[1:]
    return value, [*args[:at], *rest]


def _run_on_rank(given: argparse.Namespace) -> int:
    """Run the script on this rank of somebody else's torchrun."""
    if given.notes is None:
        raise ValueError("under torchrun, --notes FOLDER is needed: all ranks write their notes there")
    Path(given.notes).mkdir(parents=True, exist_ok=True)
    os.environ[FOLDER], os.environ[EVERY] = os.path.abspath(given.notes), str(given.every)
    call_tracer.install(CallLog.make())
    with audited():
        run_as_main.play(given.script, *given.args)
    return 0


def _show(audit: Audit, file: str | None) -> int:
    print(audit)
    if file:
        Path(file).write_text(audit.to_json() + "\n", encoding="utf-8")
    return int(audit.is_wrong)
