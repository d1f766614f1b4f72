"""Proving a lab's bank: every known answer must get exactly the score that it declares."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from autograder.authoring import programs
from autograder.authoring.known_answers import compose, read_answer, solution_cells
from autograder.course import is_project, notebook_of, open_course
from autograder.grading.engines import LocalPool
from autograder.grading.preprocessor import Grade
from autograder.judging.report import Outcome, Report
from autograder.submissions.notebook import given_imports, student_cells


@dataclass(frozen=True)
class Case:
    """One known answer to a lab: its cells by title, the score that it must get, and words its feedback must hold.

    With `most_score` it must get no less than `score` and no more than that.
    """

    lab: str
    name: str
    cells: dict[str, str]
    score: float | None  # None: full marks
    hints: tuple[str, ...] = ()
    most_score: float | None = None

    def due(self, max_score: float) -> str:
        """The score that it must get, in words."""
        if self.score is None:
            return f"{max_score:g}"
        return f"{self.score:g}" if self.most_score in (None, self.score) else f"{self.score:g} to {self.most_score:g}"


@dataclass(frozen=True)
class Finding:
    """How a case was graded, and what is wrong with that, if anything."""

    case: Case
    report: Report
    problems: list[str]

    def told(self) -> str:
        """Its problems, and what every check that was not passed says: all that is needed to mend it from a log."""
        lost = [f"  {check.name}: {check.message}" for check in self.report.checks if check.earned < check.points]
        head = f"{self.case.lab} {self.case.name}, inputs drawn with --seed {self.report.seed}:"
        return "\n".join([head, *(f"  {problem}" for problem in self.problems), *lost])


def cases(root: Path, lab: str) -> list[Case]:
    """The known answers to a lab: its solution, the untouched notebook, and all in `right/` and `wrong/`."""
    folder = root / "solutions" / lab
    solution = solution_cells(folder / f"{notebook_of(lab)}.py")
    for program in programs.authored(folder):
        solution |= solution_cells(program)
    right = [read_answer(path) for path in sorted(folder.glob("right/*.py"))]
    wrong = [read_answer(path) for path in sorted(folder.glob("wrong/*.py"))]
    return [
        Case(lab, "solution", solution, None),
        Case(lab, "untouched", {}, 0.0),
        *(Case(lab, f"right/{answer.name}", solution | answer.cells, None) for answer in right),
        *(
            Case(
                lab,
                f"wrong/{answer.name}",
                solution | answer.cells,
                answer.score,
                tuple(answer.hints),
                answer.most_score,
            )
            for answer in wrong
        ),
    ]


def verify(root: Path, cases: list[Case], jobs: int | None = None, seed: int | None = None) -> Iterator[Finding]:
    """A finding for every case, as they come: those of labs side by side, then those of projects one at a time.

    Inputs are drawn from `seed`, for each case from a fresh one by default, as for a submission.
    """
    timed = [case for case in cases if is_project(case.lab)]
    others = [case for case in cases if case not in timed]
    for these, num_at_once in ((others, jobs or os.cpu_count()), (timed, 1)):
        with ThreadPoolExecutor(num_at_once) as pool:
            asked = [pool.submit(try_case, root, case, seed) for case in these]
            try:
                for done in as_completed(asked):
                    yield done.result()
            finally:  # an interrupt would else wait for all of them
                for one in asked:
                    one.cancel()


def try_case(root: Path, case: Case, seed: int | None = None) -> Finding:
    """The finding for one case, graded as a submission would be, on inputs drawn from `seed` or a fresh one."""
    folder, released = root / "solutions" / case.lab, root / "labs" / case.lab
    release = nbformat.read(released / f"{notebook_of(case.lab)}.ipynb", as_version=4)
    authored = programs.authored(folder)
    of_programs = {title for path in authored for title in programs.titles(path)}
    submission = compose(release, {name: case.cells[name] for name in case.cells.keys() - of_programs})
    report = _place(root, case.lab).judge(
        folder / "checks.py",
        student_cells(submission, release),
        preload=given_imports(release),
        programs={path.name: _program(path, case.cells) for path in authored},
        references={path.name: programs.solved(path) for path in authored},
        seed=seed,
        **_limits(root, case.lab),
    )
    return Finding(case, report, list(_problems(case, report)))


@functools.cache
def _limits(root: Path, lab: str) -> dict[str, Any]:
    return Grade(config=open_course(root).config).limits_of(lab).model_dump()


@functools.cache
def _place(root: Path, lab: str) -> LocalPool:
    return LocalPool(num_gpus=Grade(config=open_course(root).config).num_gpus.get(lab, 0))


def _program(path: Path, cells: dict[str, str]) -> str:
    """The program as this case has it: as it was released where the case answers nothing of it."""
    own = {title: cells[title] for title in programs.titles(path) if title in cells}
    return programs.solved(path, own) if own else programs.released(path)


def _problems(case: Case, report: Report) -> Iterator[str]:
    least = report.max_score if case.score is None else case.score
    most = least if case.most_score is None else case.most_score
    for check in report.checks:
        if check.outcome is Outcome.FAULT:
            yield f"{check.name} broke: {check.message}"
    if not least <= report.score <= most or not report.checks:
        lost = [f"{check.name} ({check.outcome})" for check in report.checks if not check.earned]
        shown = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
        yield f"got {report.score:g} instead of {case.due(report.max_score)}; not passed: {shown or 'none'}"
    feedback = "\n".join(check.message for check in report.checks).lower()
    for hint in case.hints:
        if hint.lower() not in feedback:
            yield f"its feedback does not say {hint!r}"
