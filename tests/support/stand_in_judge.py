"""Grading commands whose judge runs nothing: a check of the tiny lab holds where its function calls `all_reduce`.

A line `# mean needs get_rank` in the hidden checks asks for another word.

Run as a script, with a command of nbgrader or the autograder, it prints the peak memory of this process as the last
line, in kB.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

from autograder.grading import engines
from autograder.judging.report import CheckResult, Outcome, Report

POINTS = {"total": 3, "mean": 2}


def judge(request, granted):
    """The report on cells whose text alone decides."""
    sources = dict(request.cells)
    words = dict(re.findall(r"^# (\w+) needs (\w+)$", request.checks.read_text(), re.MULTILINE))
    results = [
        CheckResult(
            name=f"check_{name}_holds",
            cell=f"check_{name}",
            promise=f"The {name} is right.",
            points=points,
            outcome=Outcome.PASSED if words.get(name, "all_reduce") in sources[name] else Outcome.CRASHED,
        )
        for name, points in POINTS.items()
    ]
    return Report(checks=results, tier="these walls", seed=1, duration_s=0)


def run(root: Path, *command: str, patience_s: float = 280) -> tuple[int, str, int]:
    """The exit code of a command, what it printed, and the peak of its memory in bytes."""
    done = subprocess.run(
        [sys.executable, __file__, *command],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=patience_s,
        env={**os.environ, "COLUMNS": "300"},
    )
    text, _, last = done.stdout.decode(errors="replace").rstrip("\n").rpartition("\n")
    return done.returncode, text, int(last) << 10


def main(command: list[str]) -> None:
    """Run the command in this process."""
    engines.judge = judge
    try:
        if command[0] == "autograder":
            from autograder.cli import app

            app(command[1:])
        else:
            from nbgrader.apps.nbgraderapp import NbGraderApp

            NbGraderApp.launch_instance(command[1:])
    finally:
        sys.stderr.flush()
        print(f"\n{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
