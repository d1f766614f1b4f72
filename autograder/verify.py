"""Proving a lab's bank: every known answer must get exactly the score that it declares."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import nbformat

from autograder.answers import compose, read_answer, solution_cells
from autograder.extract import given_imports, student_cells
from autograder.judge import judge
from autograder.verdict import Outcome, Report


@dataclass(frozen=True)
class Case:
    """One known answer to a lab: its cells by title, the score that it must get, and words its feedback must hold."""

    lab: str
    name: str
    cells: dict[str, str]
    score: float | None  # None: full marks
    hints: tuple[str, ...] = ()


@dataclass(frozen=True)
class Finding:
    """How a case was graded, and what is wrong with that, if anything."""

    case: Case
    report: Report
    problems: list[str]


def cases(root: Path, lab: str) -> list[Case]:
    """The known answers to a lab: its solution, the untouched notebook, and all in `right/` and `wrong/`."""
    folder = root / "solutions" / lab
    solution = solution_cells(folder / f"{lab}.py")
    right = [read_answer(path) for path in sorted(folder.glob("right/*.py"))]
    wrong = [read_answer(path) for path in sorted(folder.glob("wrong/*.py"))]
    return [
        Case(lab, "solution", solution, None),
        Case(lab, "untouched", {}, 0.0),
        *(Case(lab, f"right/{answer.name}", solution | answer.cells, None) for answer in right),
        *(
            Case(lab, f"wrong/{answer.name}", solution | answer.cells, answer.score, tuple(answer.hints))
            for answer in wrong
        ),
    ]


def verify(root: Path, cases: list[Case], jobs: int | None = None) -> Iterator[Finding]:
    """A finding for every case, as they come; cases run side by side, each in a judge of its own."""
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        for done in as_completed([pool.submit(try_case, root, case) for case in cases]):
            yield done.result()


def try_case(root: Path, case: Case) -> Finding:
    """The finding for one case, graded as a submission would be."""
    release = nbformat.read(root / "labs" / case.lab / f"{case.lab}.ipynb", as_version=4)
    submission = compose(release, case.cells)
    report = judge(
        root / "solutions" / case.lab / "checks.py", student_cells(submission, release), preload=given_imports(release)
    )
    return Finding(case, report, list(_problems(case, report)))


def _problems(case: Case, report: Report) -> Iterator[str]:
    expected = report.max_score if case.score is None else case.score
    for check in report.checks:
        if check.outcome is Outcome.FAULT:
            yield f"{check.name} broke: {check.message}"
    if report.score != expected or not report.checks:
        lost = [f"{check.name} ({check.outcome})" for check in report.checks if not check.earned]
        shown = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
        yield f"got {report.score:g} instead of {expected:g}; not passed: {shown or 'none'}"
    feedback = "\n".join(check.message for check in report.checks).lower()
    for hint in case.hints:
        if hint.lower() not in feedback:
            yield f"its feedback does not say {hint!r}"
