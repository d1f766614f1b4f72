"""Proving a lab's bank: every known answer must get exactly the score that it declares."""

from __future__ import annotations

import functools
import hashlib
import math
import platform
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from pydantic import BaseModel, ValidationError

from autograder.authoring import programs
from autograder.authoring.extra_packages import needs_of, refuse_absent
from autograder.authoring.known_answers import compose, read_known_answers, solved_cells
from autograder.course import lab_settings, notebook_of, open_course, solution_script
from autograder.files import file_sha256, write_whole
from autograder.grading.audit_log import engine_sha256
from autograder.grading.engines import LocalPool
from autograder.grading.preprocessor import Grade
from autograder.judging.report import Outcome, Report
from autograder.judging.request import JudgeRequest
from autograder.submissions.student_code import given_imports, student_cells
from worldsize.cores import num_cores

KEPT = Path("build", "verified")  # below the course's folder


@dataclass(frozen=True)
class Case:
    """One known answer to a lab: its cells by title, the score it must get, and words that its feedback must contain.

    With `most_score` it must get at least `score` and at most `most_score`.
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
class GradedCase:
    """How a case was graded, and what is wrong with that, if anything."""

    case: Case
    report: Report
    problems: list[str]
    is_kept: bool = False

    def describe(self) -> str:
        """Its problems, and the message of every check that was not passed: all that is needed to fix it from a log."""
        lost = [f"  {check.name}: {check.message}" for check in self.report.checks if check.earned < check.points]
        head = f"{self.case.lab} {self.case.name}, inputs drawn with --seed {self.report.seed}:"
        return "\n".join([head, *(f"  {problem}" for problem in self.problems), *lost])


def unlike_draws(findings: Sequence[GradedCase]) -> list[str]:
    """Describe each answer whose points for a check differ between draws of its inputs.

    Answers that declare a range are left out: theirs depends on the machine's speed.
    """
    described = []
    drawn = [finding for finding in findings if finding.case.most_score in (None, finding.case.score)]
    for answer in dict.fromkeys((finding.case.lab, finding.case.name) for finding in drawn):
        reports = [finding.report for finding in drawn if (finding.case.lab, finding.case.name) == answer]
        names = dict.fromkeys(check.name for report in reports for check in report.checks)
        earned = {name: [_earned(report, name) for report in reports] for name in names}
        seeds = [report.seed for report in reports]
        differing = [f"  {name} {_by_seed(of, seeds)}" for name, of in earned.items() if len(set(of)) > 1]
        if differing:
            scores = _by_seed([report.score for report in reports], seeds)
            described.append("\n".join([f"{' '.join(answer)} got {scores}:", *differing]))
    return described


def _earned(report: Report, name: str) -> float:
    return sum(check.earned for check in report.checks if check.name == name)


def _by_seed(earned: Sequence[float], seeds: Sequence[int]) -> str:
    """The points by the seeds that gave them, such as `1 with --seed 5, 6; 0 with --seed 7`."""
    having = {points: [seed for seed, own in zip(seeds, earned, strict=True) if own == points] for points in earned}
    return "; ".join(f"{one:g} with --seed {', '.join(map(str, its))}" for one, its in having.items())


def cases(root: Path, lab: str) -> list[Case]:
    """The known answers to a lab: its solution, the untouched notebook, and all in `right/` and `wrong/`."""
    solution = solution_of(root, lab)
    known = [
        Case(lab, answer.name, solution.cells | answer.cells, answer.score, tuple(answer.hints), answer.most_score)
        for answer in read_known_answers(root / "solutions" / lab)
    ]
    return [solution, Case(lab, "untouched", {}, 0.0), *known]


def refuse_absent_packages(root: Path, lab: str) -> None:
    """Raise ValueError unless the packages that the lab's head names are installed.

    Raises:
        ValueError: one is absent.
    """
    refuse_absent(needs_of(_release(root, lab)), lab)


def solution_of(root: Path, lab: str) -> Case:
    """The lab's own solution."""
    return Case(lab, "solution", solved_cells(root / "solutions" / lab), None)


def verify(
    root: Path, cases: list[Case], jobs: int | None = None, seed: int | None = None, *, use_kept: bool = False
) -> Iterator[GradedCase]:
    """Yield a finding for every case as they arrive: most labs in parallel, then those with real jobs one at a time.

    Inputs are drawn from `seed`; by default from a fresh one for each case, as for a submission. With `use_kept` a case
    with a kept finding without problems is not judged again.
    """
    kept = [finding for case in cases if use_kept and (finding := _kept(root, case))]
    yield from kept
    known = [finding.case for finding in kept]
    left = [case for case in cases if case not in known]
    alone = [case for case in left if lab_settings(root / "solutions" / case.lab).has_real_jobs]
    others = [case for case in left if case not in alone]
    for these, num_at_once in ((others, jobs or num_cores()), (alone, 1)):
        with ThreadPoolExecutor(num_at_once) as pool:
            asked = [pool.submit(try_case, root, case, seed) for case in these]
            try:
                for done in as_completed(asked):
                    yield _keep(root, done.result())
            finally:  # an interrupt would otherwise wait for all of them
                for future in asked:
                    future.cancel()


def try_case(root: Path, case: Case, seed: int | None = None) -> GradedCase:
    """Grade one case as a submission would be, on inputs drawn from `seed` or a fresh one."""
    report = _judge(root, case, seed)
    return GradedCase(case, report, list(_problems(case, report)))


@dataclass(frozen=True)
class _Submitted:
    """What the judge receives for a case."""

    cells: list[tuple[str, str]]
    preload: list[str]
    programs: dict[str, str]
    references: dict[str, str]


def _submitted(root: Path, case: Case) -> _Submitted:
    authored = programs.authored(root / "solutions" / case.lab)
    of_programs = {title for path in authored for title in programs.titles(path)}
    release = _release(root, case.lab)
    submission = compose(release, {name: case.cells[name] for name in case.cells.keys() - of_programs})
    return _Submitted(
        student_cells(submission, release),
        given_imports(release),
        {path.name: _program(path, case.cells) for path in authored},
        {path.name: programs.solved(path) for path in authored},
    )


def _judge(root: Path, case: Case, seed: int | None, only: set[str] | None = None) -> Report:
    """Judge a case with these checks, or with all."""
    given = _submitted(root, case)
    request = JudgeRequest(
        checks=root / "solutions" / case.lab / "checks.py",
        cells=given.cells,
        preload=given.preload,
        programs=given.programs,
        references=given.references,
        seed=seed,
        only=only,
        **_limits(root, case.lab),
    )
    return _place(root, case.lab).judge(request)


class _Kept(BaseModel):
    """A cached clean finding, keyed by a fingerprint of all its inputs but the seed."""

    fingerprint: str
    report: Report


def _kept(root: Path, case: Case) -> GradedCase | None:
    try:
        kept = _Kept.model_validate_json(_kept_path(root, case).read_bytes())
    except (OSError, ValidationError):
        return None
    if kept.fingerprint != _fingerprint(root, case):
        return None
    return GradedCase(case, kept.report, [], is_kept=True)


def _keep(root: Path, finding: GradedCase) -> GradedCase:
    """The finding, kept where it has no problems and does not depend on this machine's speed."""
    if not finding.problems and not lab_settings(root / "solutions" / finding.case.lab).is_timed:
        kept = _Kept(fingerprint=_fingerprint(root, finding.case), report=finding.report)
        write_whole(_kept_path(root, finding.case), kept.model_dump_json())
    return finding


def _kept_path(root: Path, case: Case) -> Path:
    return root / KEPT / case.lab / f"{case.name}.json"


def _fingerprint(root: Path, case: Case) -> str:
    """Hash the checks and their solution, the answer and its required score, its limits, and the grader's own code."""
    folder = root / "solutions" / case.lab
    checks = [file_sha256(path) for path in (folder / "checks.py", solution_script(folder))]
    machine = [engine_sha256(), version("torch"), platform.python_version()]
    basis = [checks, case, _submitted(root, case), _limits(root, case.lab), *machine]
    return hashlib.sha256(repr(basis).encode()).hexdigest()


def sample(root: Path, cases: Sequence[Case], size: int) -> list[Case]:
    """The solution and the untouched notebook of each lab, and about `size` of its other answers.

    The others are a different part for a different commit, so that many commits cover the bank.
    """
    chosen, seed = [], commit_seed(root)
    for lab in dict.fromkeys(case.lab for case in cases):
        always, others = [], []
        for case in cases:
            if case.lab == lab:
                (always if case.name in ("solution", "untouched") else others).append(case)
        num_parts = max(math.ceil(len(others) / size), 1)
        chosen += always + others[seed % num_parts :: num_parts]
    return chosen


def commit_seed(root: Path) -> int:
    """A seed of the course's current commit; 0 outside a git checkout."""
    try:
        asked = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return int(asked.stdout[:12] or "0", 16)


@functools.cache
def _release(root: Path, lab: str) -> NotebookNode:
    return nbformat.read(root / "labs" / lab / f"{notebook_of(lab)}.ipynb", as_version=4)


@functools.cache
def _limits(root: Path, lab: str) -> dict[str, Any]:
    return Grade(config=open_course(root).config).limits(root / "solutions" / lab).model_dump()


@functools.cache
def _place(root: Path, lab: str) -> LocalPool:
    return LocalPool(num_gpus=Grade(config=open_course(root).config).gpus(root / "solutions" / lab))


def _program(path: Path, cells: dict[str, str]) -> str:
    """The program of this case: the released one if the case has no cells of it."""
    own = {title: cells[title] for title in programs.titles(path) if title in cells}
    return programs.solved(path, own) if own else programs.released(path)


def _problems(case: Case, report: Report) -> Iterator[str]:
    least = report.max_score if case.score is None else case.score
    most = least if case.most_score is None else case.most_score
    for check in report.checks:
        if check.outcome is Outcome.FAULT:
            yield f"{check.name} broke: {check.message}"
        if check.stopped_by:
            yield f"{check.name} cannot read what came back: {check.stopped_by}"
    if not least <= report.score <= most or not report.checks:
        lost = [f"{check.name} ({check.outcome})" for check in report.checks if not check.earned]
        shown = ", ".join(lost[:4]) + (f" and {len(lost) - 4} more" if len(lost) > 4 else "")
        yield f"got {report.score:g} instead of {case.due(report.max_score)}; not passed: {shown or 'none'}"
    feedback = "\n".join(check.message for check in report.checks).lower()
    for hint in case.hints:
        if hint.lower() not in feedback:
            yield f"its feedback does not say {hint!r}"
