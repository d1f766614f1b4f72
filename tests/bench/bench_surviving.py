"""A hundred disturbances of trainings by lab 12's solution: where they went on, and whether they end as undisturbed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import nbformat
import torch
from figures import Figure, scaled
from repository import ROOT

from autograder.authoring.known_answers import compose
from autograder.grading.verify import solution_of
from autograder.judging.checks.check import StudentFailed
from autograder.judging.judge.student import SandboxedStudent
from autograder.judging.request import CodeUnderTest
from autograder.submissions.student_code import given_imports, student_cells
from worldsize import bench
from worldsize.bench import Disturbance
from worldsize.check import CheckFailed

LAB, NUM_DISTURBANCES = "lab12", 100
KINDS = ("kill", "mid_save", "truncate", "corrupt", "full_disk", "stall", "worlds")
CALL_S, TOTAL_S = 60.0, 3600.0


def surviving(scale: float) -> Iterator[Figure]:
    """Of 100 disturbances, of seven kinds in turn, those that were not recovered from as they must be."""
    num = scaled(NUM_DISTURBANCES, scale, least=len(KINDS))
    checks, student = _checks(), _student()
    lost, others = [], []
    try:
        for number in range(num):
            kind, rng = KINDS[number % len(KINDS)], torch.Generator().manual_seed(number)
            try:
                trial = _disturbed(checks, student, rng, kind)
            except (CheckFailed, StudentFailed) as error:
                lost.append(f"{kind} {number}: {error}")
                continue
            if not bench.weights_error(trial, checks.seen["task"]) <= checks.TOLERANCE:
                others.append(f"{kind} {number}")
    finally:
        student.close()
    for one in (*lost, *others):
        print(one, file=sys.stderr)
    how = f"{num} trainings on 2 or 4 ranks in the sandbox, one disturbance each: {', '.join(KINDS)}"
    yield Figure("disturbed trainings that went on at another step or not at all", len(lost), "", "0", not lost, how)
    yield Figure("disturbed trainings with other weights at the end", len(others), "", "0", not others, how)


def _disturbed(checks: ModuleType, student: SandboxedStudent, rng: torch.Generator, kind: str) -> bench.Trial:
    """A training with one disturbance, after which it went on at the step at which it must."""
    own = ("share_of", *checks.STORE, "deadline", "train")
    if kind == "worlds":
        struck = [checks.killed(rng, 4, num_ranks=4), checks.killed(rng, 7)]
        trial = checks.job(student, rng, own, *struck, world_sizes=(4, 2, 4))
        due = 6
    elif kind == "full_disk":
        struck = [Disturbance("full_disk", 4, 0, free_step=7), checks.killed(rng, 7)]
        trial, due = checks.job(student, rng, own, *struck), 3
    elif kind == "stall":
        struck = [checks.killed(rng, 4, "stall")]
        struck[0].patience_s = 6 * checks.HASTY_S
        trial, due = checks.job(student, rng, own, *struck, timeout_s=checks.HASTY_S), 3
    else:
        struck = [checks.killed(rng, 4 if kind == "mid_save" else 7, kind)]
        trial, due = checks.job(student, rng, own, *struck), 6 if kind == "kill" else 3
    checks.expect_resumed(trial, struck[-1], due, "")
    return trial


def _checks() -> ModuleType:
    """The lab's hidden checks as a module."""
    spec = importlib.util.spec_from_file_location("checks_of_surviving", ROOT / "solutions" / LAB / "checks.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _student() -> Any:
    """The solution in a sandbox of its own."""
    release = nbformat.read(ROOT / "labs" / LAB / f"{LAB}.ipynb", as_version=4)
    cells = student_cells(compose(release, solution_of(ROOT, LAB).cells), release)
    return SandboxedStudent(CodeUnderTest(cells=cells, preload=given_imports(release), call_s=CALL_S, total_s=TOTAL_S))
