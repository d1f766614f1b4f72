"""Repeat a grading from the audit log, with the same files, seed and limits."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbgrader.coursedir import CourseDirectory

from autograder.authoring import programs
from autograder.course import graded_files, programs_of, solution_script, source_of
from autograder.files import file_sha256
from autograder.grading.audit_log import KEPT, AuditEntry, CheckScore, Verdict, engine_sha256, versions
from autograder.grading.engines import LocalPool
from autograder.grading.markers import marker_for
from autograder.grading.preprocessor import Grade
from autograder.judging.report import Report
from autograder.judging.request import JudgeRequest
from autograder.submissions import Malformed
from autograder.submissions.student_code import given_imports
from autograder.submissions.submission import read_submission

_PLACES = ("submitted/", "reference/")


@dataclass(frozen=True)
class Replay:
    """A repeated grading: its result, and what differed from the first time."""

    entry: AuditEntry
    verdict: Verdict
    score: float
    checks: list[CheckScore]
    differences: list[str]

    @property
    def is_same(self) -> bool:
        """True if every check gives what the log says."""
        return (self.verdict, self.score, self.checks) == (self.entry.verdict, self.entry.score, self.entry.checks)


def replay(coursedir: CourseDirectory, entry: AuditEntry) -> Replay:
    """Grade the files of an entry again, with the same seed and limits.

    Raises:
        ValueError: one of the files is gone, or the grading of the entry broke.
        RuntimeError: the judge broke.
    """
    if entry.verdict is Verdict.FAULT:
        raise ValueError(f"Entry {entry.number} has no score to reproduce: the grader broke. {entry.reason}")
    names = entry.model_dump(include={"assignment", "student", "notebook"})
    now = graded_files(coursedir, names) | programs_of(coursedir, names)
    script = f"reference/{solution_script(source_of(coursedir, entry.assignment)).name}"
    if entry.inputs.of(script) is None:  # graded before checks could use it
        now.pop(script, None)
    with tempfile.TemporaryDirectory(prefix="worldsize-replay-") as folder:
        files = {kind: _found(Path(coursedir.root), entry, kind, path, Path(folder)) for kind, path in now.items()}
        beside = files.pop(script, None)
        files["checks"] = _copied_together(Path(folder, "checks and solution"), files["checks"], beside)
        verdict, report = _judged_again(coursedir, files, entry)
    checks = [CheckScore.of(check) for check in report.checks] if report else []
    return Replay(entry, verdict, report.score if report else 0.0, checks, list(_differences(entry, now, report)))


def _judged_again(
    coursedir: CourseDirectory, files: dict[str, Path], entry: AuditEntry
) -> tuple[Verdict, Report | None]:
    release = nbformat.read(files["release"], as_version=4)
    handed_in, ours = ({path.name: path for kind, path in files.items() if kind.startswith(place)} for place in _PLACES)
    try:
        submission = read_submission(files["submission"], release, entry.student, handed_in)
    except Malformed:
        return Verdict.MALFORMED, None
    if marker := marker_for(files["checks"]):
        return Verdict.GRADED, marker(files["checks"], Path(coursedir.root), entry.student, submission.notebook)
    request = JudgeRequest(
        checks=files["checks"],
        cells=submission.code.cells,
        preload=given_imports(release),
        programs=submission.programs,
        references={name: programs.solved(path) for name, path in ours.items()},
        hidden=[coursedir.root],
        seed=entry.seed,
        **entry.limits.model_dump(),
    )
    num_gpus = Grade(config=coursedir.config).gpus(source_of(coursedir, entry.assignment))
    report = LocalPool(1, num_gpus).judge(request).with_unwritten(submission.code.unwritten)
    return Verdict.FAULT if report.is_fault else Verdict.GRADED, report


def _copied_together(folder: Path, checks: Path, script: Path | None) -> Path:
    """A copy of the checks, with the script beside it from which they may take parts of the solution."""
    folder.mkdir()
    if script:
        shutil.copy(script, folder)
    return Path(shutil.copy(checks, folder))


def _found(root: Path, entry: AuditEntry, kind: str, now: Path, folder: Path) -> Path:
    """A file with the content that was graded: the one in the course, or a copy of the kept one."""
    sha256 = entry.inputs.of(kind)
    if file_sha256(now) == sha256:
        return now
    kept = root / KEPT / str(sha256)
    if sha256 is None or file_sha256(kept) != sha256:
        raise ValueError(
            f"Entry {entry.number} cannot be graded again: {now} is not the {kind} that was graded, and the copy "
            f"{kept} is missing or changed."
        )
    copy = folder / kind / now.name
    copy.parent.mkdir(parents=True)
    shutil.copy(kept, copy)
    return copy


def _differences(entry: AuditEntry, files: dict[str, Path], report: Report | None) -> Iterator[str]:
    for kind, path in files.items():
        if file_sha256(path) != entry.inputs.of(kind):
            have, their = ("have", "their") if kind == "checks" else ("has", "its")
            yield f"The {kind} {have} changed since, so {their} kept copy was used."
    if engine_sha256() != entry.inputs.engine:
        yield "The files of autograder or worldsize have changed."
    then, now = entry.versions.model_dump(), versions().model_dump()
    yield from (f"{name}: {then[name]} then, {now[name]} now." for name in then if then[name] != now[name])
    if report and report.tier != entry.tier:
        yield f"The sandbox: {entry.tier} then, {report.tier} now."
