"""Proving a lab's bank: every known answer must get exactly the score that it declares."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from pydantic import BaseModel, ValidationError

from autograder.authoring import programs
from autograder.authoring.known_answers import compose, read_known_answers, solved_cells
from autograder.authoring.needs import needs_of, refuse_absent
from autograder.course import has_real_jobs, is_project, notebook_of, open_course
from autograder.files import file_sha256, write_whole
from autograder.grading import proven
from autograder.grading.audit_log import engine_sha256
from autograder.grading.engines import LocalPool
from autograder.grading.preprocessor import Grade
from autograder.grading.reach import reach
from autograder.judging.report import Outcome, Report
from autograder.submissions.student_code import given_imports, student_cells

KEPT = Path("build", "verified")  # below the course's folder


@dataclass(frozen=True)
class Case:
    """One known answer to a lab: its cells by title, the score that it must get, and words its feedback must hold.

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

    @property
    def is_solution(self) -> bool:
        """True for the lab's own solution."""
        return self.name == "solution"

    @property
    def is_judged_whole(self) -> bool:
        """True where every check is run, whatever it can reach: the solution, the untouched notebook, and cheating."""
        return self.name in ("solution", "untouched") or self.name.startswith("wrong/cheat")


@dataclass(frozen=True)
class Finding:
    """How a case was graded, and what is wrong with that, if anything.

    `num_judged` of its checks were tried on it; the others have the solution's results.
    """

    case: Case
    report: Report
    problems: list[str]
    num_judged: int
    is_kept: bool = False

    def describe(self) -> str:
        """Its problems, and the message of every check that was not passed: all that is needed to fix it from a log."""
        lost = [f"  {check.name}: {check.message}" for check in self.report.checks if check.earned < check.points]
        head = f"{self.case.lab} {self.case.name}, inputs drawn with --seed {self.report.seed}:"
        return "\n".join([head, *(f"  {problem}" for problem in self.problems), *lost])


def unlike_draws(findings: Sequence[Finding]) -> list[str]:
    """A description of each answer to which some check gave other points on another draw of its inputs.

    Answers that declare a range are left out: theirs depends on the machine's speed.
    """
    described = []
    drawn = [one for one in findings if one.case.most_score in (None, one.case.score)]
    for answer in dict.fromkeys((one.case.lab, one.case.name) for one in drawn):
        reports = [one.report for one in drawn if (one.case.lab, one.case.name) == answer]
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
    having = {one: [seed for seed, own in zip(seeds, earned, strict=True) if own == one] for one in earned}
    return "; ".join(f"{one:g} with --seed {', '.join(map(str, its))}" for one, its in having.items())


def cases(root: Path, lab: str) -> list[Case]:
    """The known answers to a lab: its solution, the untouched notebook, and all in `right/` and `wrong/`."""
    solution = solution_of(root, lab)
    known = [
        Case(lab, one.name, solution.cells | one.cells, one.score, tuple(one.hints), one.most_score)
        for one in read_known_answers(root / "solutions" / lab)
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
    root: Path,
    cases: list[Case],
    jobs: int | None = None,
    seed: int | None = None,
    *,
    by_reach: bool = False,
    use_kept: bool = False,
) -> Iterator[Finding]:
    """A finding for every case, as they arrive: those of labs side by side, then those with real jobs one at a time.

    Inputs are drawn from `seed`; by default from a fresh one for each case, as for a submission. With `by_reach` an
    answer is judged by the checks that can tell it from the solution; the others count as for the solution, judged on
    the same inputs. That is enough only where the lab's checks are proven as they are now. With `use_kept` a case of
    which a good finding is kept is not judged again.
    """
    proven = {lab for lab in {case.lab for case in cases} if by_reach and is_proven(root, lab)}
    kept = [found for case in cases if use_kept and (found := _kept(root, case, case.lab in proven))]
    yield from kept
    known = [found.case for found in kept]
    left = [case for case in cases if case not in known]
    timed = [case for case in left if has_real_jobs(case.lab)]
    others = sorted((case for case in left if case not in timed), key=lambda case: case.is_judged_whole, reverse=True)
    for these, num_at_once in ((others, jobs or os.cpu_count()), (timed, 1)):
        with ThreadPoolExecutor(num_at_once) as pool:
            labs = sorted({case.lab for case in these if case.lab in proven and not case.is_judged_whole})
            solutions = {lab: pool.submit(try_case, root, solution_of(root, lab), seed) for lab in labs}
            asked = [
                solutions[case.lab]
                if case.is_solution and case.lab in solutions
                else pool.submit(_try, root, case, solutions.get(case.lab), seed)
                for case in these
            ]
            try:
                for done in as_completed(asked):
                    yield _keep(root, done.result())
            finally:  # an interrupt would otherwise wait for all of them
                for one in (*asked, *solutions.values()):
                    one.cancel()


def _try(root: Path, case: Case, solution: Future[Finding] | None, seed: int | None) -> Finding:
    if solution is None or case.is_judged_whole:
        return try_case(root, case, seed)
    return _try_by_reach(root, case, solution.result())


def try_case(root: Path, case: Case, seed: int | None = None) -> Finding:
    """The finding for one case, graded as a submission would be, on inputs drawn from `seed` or a fresh one."""
    report = _judge(root, case, seed)
    return Finding(case, report, list(_problems(case, report)), len(report.checks))


def _try_by_reach(root: Path, case: Case, solution: Finding) -> Finding:
    """The finding for one case, with the solution's results for checks that cannot tell it from the solution."""
    seed, proven = solution.report.seed, {check.name: check for check in solution.report.checks}
    reached = None if solution.problems else _reached(root, case, solution.case, set(proven))
    if reached is None or reached == proven.keys():
        return try_case(root, case, seed)
    report = _judge(root, case, seed, reached) if reached else solution.report.model_copy(update={"duration_s": 0.0})
    own = {check.name: check for check in report.checks} if reached else {}
    if own.keys() != reached or _has_cost_others(report, solution.report, _limits(root, case.lab)["total_s"]):
        return try_case(root, case, seed)
    whole = report.model_copy(update={"checks": [own.get(name, check) for name, check in proven.items()]})
    return Finding(case, whole, list(_problems(case, whole)), len(own))


def _has_cost_others(report: Report, solution: Report, total_s: float) -> bool:
    """True where a check took so long, or ended so badly, that those tried after it may have had too little time."""
    if any(check.outcome in (Outcome.HUNG, Outcome.TIME_LIMIT) for check in report.checks):
        return True
    return report.duration_s + solution.duration_s > total_s


def _reached(root: Path, case: Case, solution: Case, checks: set[str]) -> set[str] | None:
    """The checks that can tell a case from the solution; None for all."""
    before, after = (_submitted(root, one) for one in (solution, case))
    if before.programs != after.programs:
        return None
    source = (root / "solutions" / case.lab / "checks.py").read_text(encoding="utf-8")
    return reach(source, checks, before.cells, after.cells)


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
    given = _submitted(root, case)
    return _place(root, case.lab).judge(
        root / "solutions" / case.lab / "checks.py",
        given.cells,
        preload=given.preload,
        programs=given.programs,
        references=given.references,
        seed=seed,
        only=only,
        **_limits(root, case.lab),
    )


class _Kept(BaseModel):
    """A kept finding without problems, under the fingerprint of everything that it rests on except the inputs' seed."""

    fingerprint: str
    report: Report
    num_judged: int


def _kept(root: Path, case: Case, by_reach: bool) -> Finding | None:
    try:
        found = _Kept.model_validate_json(_kept_path(root, case).read_bytes())
    except (OSError, ValidationError):
        return None
    is_enough = by_reach or found.num_judged == len(found.report.checks)
    if not is_enough or found.fingerprint != _fingerprint(root, case):
        return None
    return Finding(case, found.report, [], found.num_judged, is_kept=True)


def _keep(root: Path, finding: Finding) -> Finding:
    """The finding, kept where it has no problems and does not depend on this machine's speed."""
    if not finding.problems and not is_project(finding.case.lab):
        fingerprint = _fingerprint(root, finding.case)
        kept = _Kept(fingerprint=fingerprint, report=finding.report, num_judged=finding.num_judged)
        write_whole(_kept_path(root, finding.case), kept.model_dump_json())
    return finding


def _kept_path(root: Path, case: Case) -> Path:
    return root / KEPT / case.lab / f"{case.name}.json"


def _fingerprint(root: Path, case: Case) -> str:
    """A hash of the checks, of the answer and what it must get, of its limits, and of the grader's own code."""
    checks = file_sha256(root / "solutions" / case.lab / "checks.py")
    machine = [engine_sha256(), version("torch"), platform.python_version()]
    basis = [checks, case, _submitted(root, case), _limits(root, case.lab), *machine]
    return hashlib.sha256(repr(basis).encode()).hexdigest()


def is_proven(root: Path, lab: str) -> bool:
    """True where every known answer of the lab was once judged by all checks, written as they are now."""
    proof = proven.read(root).get(lab)
    return proof is not None and proof.checks == _checks_sha256(root, lab)


def sample(root: Path, cases: Sequence[Case]) -> list[Case]:
    """The cases without most of those that can only show a change of the grader, not of a lab.

    Of a lab whose checks and known answers are as they were proven there remain its solution, the untouched notebook
    and a fifth of the answers that say most, another fifth for another commit: the right ones, the cheating ones, and
    those that fail a check and the fewest others.
    """
    proofs = {lab: proof for lab, proof in proven.read(root).items() if is_proven(root, lab)}
    narrowest = {lab: proof.narrowest for lab, proof in proofs.items() if proof.answers == _answers_sha256(root, lab)}
    known = [case for case in cases if case.lab in narrowest and case.name not in ("solution", "untouched")]
    telling = [one for one in known if one.is_judged_whole or one.score is None or one.name in narrowest[one.lab]]
    fifth = telling[commit_seed(root) % 5 :: 5]
    return [case for case in cases if case not in known or case in fifth]


def note_proven(root: Path, findings: Sequence[Finding]) -> None:
    """Record the labs of which these findings show every known answer as declared, by all checks or by proven ones."""
    proofs = proven.read(root)
    for lab in {one.case.lab for one in findings}:
        own = [one for one in findings if one.case.lab == lab]
        is_whole = all(one.num_judged == len(one.report.checks) for one in own)
        are_all = {one.case.name for one in own} == {case.name for case in cases(root, lab)}
        if are_all and not any(one.problems for one in own) and (is_whole or is_proven(root, lab)):
            proofs[lab] = _proof(root, lab, own)
    if proofs != proven.read(root):
        proven.write(root, proofs)


def _proof(root: Path, lab: str, findings: Sequence[Finding]) -> proven.Proof:
    failed = {
        one.case.name: {check.name for check in one.report.checks if check.earned < check.points}
        for one in findings
        if one.case.score is not None and one.case.name != "untouched"
    }
    checks, answers = _checks_sha256(root, lab) or "", _answers_sha256(root, lab)
    return proven.Proof(checks=checks, answers=answers, narrowest=proven.narrowest(failed))


def _answers_sha256(root: Path, lab: str) -> str:
    """A hash of the lab's known answers as the judge receives them, and of what each must get."""
    basis = [(case, _submitted(root, case)) for case in cases(root, lab)]
    return hashlib.sha256(repr(basis).encode()).hexdigest()


def _checks_sha256(root: Path, lab: str) -> str | None:
    return file_sha256(root / "solutions" / lab / "checks.py")


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
    return Grade(config=open_course(root).config).limits(lab).model_dump()


@functools.cache
def _place(root: Path, lab: str) -> LocalPool:
    return LocalPool(num_gpus=Grade(config=open_course(root).config).num_gpus.get(lab, 0))


def _program(path: Path, cells: dict[str, str]) -> str:
    """The program as this case has it: the released one where the case answers nothing of it."""
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
