"""A lab: it reads and judges the submissions of one assignment, and keeps each judgement, so nothing is judged twice.

A judgement is written to a file as soon as it is made, with a fingerprint of everything that it depends on: a run that
was interrupted resumes where it stopped, and the same submission gets the same score again.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from pydantic import BaseModel, ValidationError

from autograder.authoring import programs
from autograder.authoring.extra_packages import needs_of, refuse_absent
from autograder.course import beside, handed_in, hidden, notebook_of, solution_script, submitted_folder
from autograder.files import file_sha256, shown, write_whole
from autograder.grading.audit_log import RecordedLimits, engine_sha256
from autograder.grading.engines import Engine, LocalPool
from autograder.grading.markers import marker_for
from autograder.judging.report import Report
from autograder.judging.request import JudgeRequest
from autograder.submissions import Malformed
from autograder.submissions.class_folders import class_folders
from autograder.submissions.student_code import given_imports
from autograder.submissions.submission import Submission, read_submission
from autograder.submissions.team_work import submitter_of

_USUAL = RecordedLimits(call_s=15, total_s=120, allow_untrusted=False)
KEPT = Path("build", "judged")  # below the course's folder


class Judged(BaseModel):
    """How one submission was judged, and the fingerprint of what that depends on; `fault` where the grader broke.

    `is_entered` is True once the score is in the gradebook. `look_at` says, cell by cell, which names in the source an
    instructor should see; no points depend on it.
    """

    fingerprint: str
    report: Report | None = None
    malformed: str = ""
    fault: str = ""
    is_entered: bool = False
    look_at: list[str] = []

    @property
    def verdict(self) -> str:
        """The outcome in a few words."""
        if self.fault:
            return f"not graded: {self.fault}"
        if self.malformed:
            return f"malformed: {self.malformed}"
        notes = self.report.notes if self.report else []
        return ". ".join([f"{self.score:g} points", *notes])

    @property
    def may_be_external(self) -> bool:
        """True if another submission on the same machine may have affected the outcome of a check."""
        return any(check.may_be_external for check in self.report.checks) if self.report else False

    @property
    def score(self) -> float:
        """The points that were earned."""
        return self.report.score if self.report else 0.0


@dataclass(frozen=True)
class Lab:
    """One assignment of a course: what was handed out, the hidden checks, and the submissions to judge.

    The submissions may be in a folder `outside` the course, as STUDENT/ASSIGNMENT or STUDENT.
    """

    coursedir: CourseDirectory
    name: str
    limits: RecordedLimits = _USUAL
    outside: Path | None = None

    @functools.cached_property
    def release(self) -> NotebookNode:
        """The notebook that students got."""
        return nbformat.read(self._release_path, as_version=4)

    @property
    def checks(self) -> Path:
        """The hidden checks, or the key of a quiz."""
        return hidden(self._folder(self.coursedir.source_directory))

    @property
    def _release_path(self) -> Path:
        return self._folder(self.coursedir.release_directory) / f"{notebook_of(self.name)}.ipynb"

    @property
    def released_folder(self) -> Path:
        """The folder that students got, with its programs."""
        return self._release_path.parent

    def submitted_file(self, student: str) -> Path:
        """The file that a student handed in; it may be absent, have a different name, or be anything else."""
        folder = submitted_folder(self.coursedir, self.name, student, self.outside)
        return handed_in(folder, notebook_of(self.name))

    def named(self, students: Sequence[str]) -> list[str]:
        """List these students, or everybody who submitted; team members are replaced by the one whose work counts.

        Raises:
            ValueError: there is no such lab, or no submission of one of them.
        """
        self.refuse_missing()
        known, refused = class_folders(self.coursedir, self.name, self.outside)
        if not known and not refused:
            raise ValueError(f"Nobody has handed in {self.name}: no file matches {self.submitted_file('STUDENT')}.")
        others = submitter_of(self.coursedir, self.name, self.outside)
        students = [others.get(student, student) for student in students]
        if missing := sorted(set(students) - {*known, *refused}):
            raise ValueError(
                f"There is no submission of {self.name} from {', '.join(map(shown, missing))}. "
                f"Submissions exist from {', '.join(map(shown, sorted({*known, *refused})))}."
            )
        return [student for student in known if not students or student in students]

    def refused(self, students: Sequence[str]) -> dict[str, Judged]:
        """Return why folders of these students, or of all, cannot be graded, by student."""
        refused = class_folders(self.coursedir, self.name, self.outside).refused
        return {
            student: Judged(fingerprint="", fault=reason)
            for student, reason in refused.items()
            if not students or student in students
        }

    def refuse_missing(self) -> None:
        """Raise ValueError unless the lab is built and released."""
        for path in (self._release_path, self.checks):
            if not path.is_file():
                raise ValueError(f"There is no {self.name}: {path} is missing. Build and release it first.")
        self.refuse_absent_packages()

    def refuse_absent_packages(self) -> None:
        """Refuse to judge without the packages that the head of the lab names.

        Raises:
            ValueError: one is absent, so that nothing can be judged.
        """
        refuse_absent(needs_of(self.release), self.name)

    def _folder(self, directory: str) -> Path:
        return Path(self.coursedir.format_path(directory, ".", self.name))

    def fingerprint(self, student: str) -> str:
        """A hash of the submission, of the lab and of the grader's own code."""
        path = self.submitted_file(student)
        own, solved = self._programs_beside(path), self._programs_beside(self.checks)
        ours = (self._release_path, self.checks, solution_script(self.checks.parent), *solved.values())
        files = [file_sha256(file) for file in (path, *own.values(), *ours)]
        return hashlib.sha256(repr([*files, self.limits, engine_sha256()]).encode()).hexdigest()

    def read(self, student: str) -> Submission:
        """Read what a student handed in.

        Raises:
            Malformed: it cannot be graded.
        """
        path = self.submitted_file(student)
        return read_submission(path, self.release, student, self._programs_beside(path))

    def kept(self, student: str) -> Judged | None:
        """The kept judgement of a student's current files; None if there is none."""
        try:
            judged = Judged.model_validate_json(self._kept_path(student).read_bytes())
        except (OSError, ValidationError):
            return None
        return judged if not judged.fault and judged.fingerprint == self.fingerprint(student) else None

    def waiting(self, student: str) -> Judged | None:
        """The kept judgement, if it has not been entered into the gradebook yet."""
        judged = self.kept(student)
        return judged if judged and not judged.is_entered else None

    def judge(self, student: str, engine: Engine | None = None, is_alone: bool = True) -> Judged:
        """Judge a student's submission, and keep the judgement; a fault of the grader is recorded in it, never raised.

        The submission is read and the judgement kept by this process, wherever the engine judges. Unless `is_alone`, a
        judgement that other submissions may have affected is not kept.
        """
        judged = Judged(fingerprint=self.fingerprint(student))
        try:
            submission = self.read(student)
            judged.look_at = submission.code.look_at
            judged.report = self._report(student, submission, engine or LocalPool())
            judged.report.notes += self._notes(submission)
            if judged.report.is_fault:
                judged.fault = judged.report.fault
        except Malformed as reason:
            judged.malformed = str(reason)
        except Exception as error:
            judged.fault = f"{type(error).__name__}: {error}"
        if is_alone or not judged.may_be_external:
            self.keep(student, judged)
        return judged

    def keep(self, student: str, judged: Judged) -> None:
        """Replace the kept judgement."""
        write_whole(self._kept_path(student), judged.model_dump_json())

    def _programs_beside(self, file: Path) -> dict[str, Path]:
        """The assignment's programs next to a file, by name."""
        return {name: file.with_name(name) for name in beside(self.released_folder)}

    def _notes(self, submission: Submission) -> list[str]:
        """What the student should know about the file that was read."""
        due, name = f"{notebook_of(self.name)}.ipynb", submission.path.name
        if name == due:
            return []
        return [f"Graded from {shown(name)}, the only notebook in the folder: next time, name it {due}."]

    def _report(self, student: str, submission: Submission, engine: Engine) -> Report:
        if marker := marker_for(self.checks):
            return marker(self.checks, Path(self.coursedir.root), student, submission.notebook)
        request = JudgeRequest(
            checks=self.checks,
            cells=submission.code.cells,
            preload=given_imports(self.release),
            programs=submission.programs,
            references={name: programs.solved(path) for name, path in self._programs_beside(self.checks).items()},
            hidden=[self.coursedir.root],
            **self.limits.model_dump(),
        )
        return engine.judge(request).with_unwritten(submission.code.unwritten)

    def _kept_path(self, student: str) -> Path:
        return Path(
            self.coursedir.root, KEPT, self.name, f"{hashlib.sha256(os.fsencode(student)).hexdigest()[:32]}.json"
        )
