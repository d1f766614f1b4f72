"""How a class of spoilt notebooks is graded, from the files to the gradebook and the feedback, by the commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
from figures import Figure, scaled
from fuzzed import submissions
from hypothesis import HealthCheck, given, settings
from nbgrader.api import Gradebook
from tiny_lab import MEAN, NAME, TOTAL, answered, make_course, release

from autograder.grading.lab import KEPT, Judged

NUM_CASES = 1000
BIN = Path(sys.executable).parent
ENV = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}  # nbgrader looks for alembic there
CONFIG = "c.Grade.call_s, c.Grade.total_s = 4, 20\n"


def fuzzing(scale: float) -> Iterator[Figure]:
    """What becomes of spoilt notebooks: every one must have a verdict, and none may break the grader."""
    num_cases = scaled(NUM_CASES, scale, least=10)
    num_pages = num_cases // 10  # a page takes half a second
    with tempfile.TemporaryDirectory(prefix="worldsize-") as folder:
        root = make_course(Path(folder))
        with open(root / "nbgrader_config.py", "a") as file:
            file.write(CONFIG)
        _hand_in(root, num_cases)
        said = _run(root, "nbgrader", "generate_assignment", NAME, "--force")
        said += _run(root, "autograder", "grade", NAME)
        said += _run(root, "nbgrader", "generate_feedback", NAME, "--student", "student*0")
        kept = [Judged.model_validate_json(path.read_bytes()) for path in (root / KEPT / NAME).glob("*.json")]
        pages = len(list(root.glob("feedback/*/*/*.html")))
        with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as gradebook:
            entered = len(gradebook.assignment_submissions(NAME))
    verdicts, tracebacks = sum(not one.fault and one.is_entered for one in kept), said.count("Traceback")
    judged = sum(one.report is not None for one in kept)
    how = f"{judged} by the judge in its sandbox, {len(kept) - judged} malformed; all entered by nbgrader"
    is_met = verdicts == entered == num_cases
    yield Figure("spoilt notebooks with a verdict", verdicts, "", f"{num_cases}", is_met, how)
    yield Figure("tracebacks about them", tracebacks, "", "0", tracebacks == 0, "in what the commands print")
    yield Figure("and pages of feedback", pages, "", f"{num_pages}", pages == num_pages, "every tenth")


def _hand_in(root: Path, num_cases: int) -> None:
    right = json.loads(nbformat.writes(answered(release(root), {"total": TOTAL, "mean": MEAN})))
    files: list[bytes] = []

    @settings(
        deadline=None, derandomize=True, max_examples=num_cases, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(submissions(right))
    def draw(content: bytes) -> None:
        files.append(content)

    draw()
    for number in range(num_cases):
        folder = root / "submitted" / f"student{number:04}" / NAME
        folder.mkdir(parents=True)
        (folder / f"{NAME}.ipynb").write_bytes(files[number % len(files)])


def _run(root: Path, *words: str) -> str:
    """What a command prints, errors included."""
    return subprocess.run(
        [str(BIN / words[0]), *words[1:]], cwd=root, env=ENV, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", timeout=3000,
    ).stdout  # fmt: skip
