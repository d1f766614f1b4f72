"""Points given by hand, which later gradings keep for as long as the student's answer stays as it was read.

nbgrader marks every such answer as "needs manual grading" again whenever a submission is graded. Here the gradebook
also holds a hash of each answer as it was graded last, in its own table, so that both are restored together.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import sqlalchemy
from nbformat import NotebookNode
from nbgrader import preprocessors
from nbgrader.api import Gradebook, MissingEntry
from nbgrader.utils import is_locked, is_solution
from sqlalchemy import Column, MetaData, String, Table

from autograder.course import coursedir_of, programs_of
from autograder.files import file_sha256
from autograder.judging.report import RECORD

# `grade` is the id of nbgrader's own record of a cell's points
_ANSWERS = Table(
    "worldsize_answers", MetaData(), Column("grade", String(32), primary_key=True), Column("sha256", String(64))
)


class SaveAutoGrades(preprocessors.SaveAutoGrades):
    """nbgrader's own `SaveAutoGrades`, which asks for points by hand only where the answer is new or has changed."""

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        names = resources["nbgrader"]
        programs = programs_of(coursedir_of(self), names)
        self._submission = [cell for cell in nb.cells if not is_locked(cell)]
        self._programs = {name: file_sha256(path) for name, path in programs.items() if name.startswith("submitted/")}
        # nbgrader itself clears the marks if a file is missing
        self._is_malformed = bool(nb.metadata.get(RECORD, {}).get("malformed"))
        with Gradebook(names["db_url"]) as book:
            _ANSWERS.create(book.db.connection(), checkfirst=True)
            book.db.commit()
        return super().preprocess(nb, resources)

    def _add_score(self, cell: NotebookNode, resources: Any) -> None:
        name = cell.metadata.nbgrader.grade_id
        grade: Any = self.gradebook.find_grade(name, self.notebook_id, self.assignment_id, self.student_id)
        is_settled = grade.manual_score is not None and not grade.needs_manual_grade and not self._is_malformed
        answer = self._hash_of(cell)
        is_same = _replace(self.gradebook, grade.id, answer) == answer
        super()._add_score(cell, resources)  # which marks it, and commits both
        if grade.manual_score is None:
            return
        if is_settled and is_same:
            grade.needs_manual_grade = False
            self.gradebook.db.commit()
            return
        self.log.warning(
            "%s: %s has changed since it was graded by hand (%g points): it needs grading again",
            self.student_id,
            name,
            grade.manual_score,
        )

    def _hash_of(self, cell: NotebookNode) -> str:
        """The hash of what a person read: the answer, or for points of checks everything that was handed in."""
        read = [cell] if is_solution(cell) else self._submission
        content = [[one.cell_type, one.source, one.get("attachments", {})] for one in read]
        programs = {} if is_solution(cell) else self._programs
        return hashlib.sha256(json.dumps([content, programs], sort_keys=True).encode()).hexdigest()


def _replace(book: Gradebook, grade: str, answer: str) -> str | None:
    """The hash of the answer as it was graded before, which the new one replaces at the next commit."""
    same = _ANSWERS.c.grade == grade
    before = book.db.execute(sqlalchemy.select(_ANSWERS.c.sha256).where(same)).scalar()
    book.db.execute(_ANSWERS.delete().where(same))
    book.db.execute(_ANSWERS.insert().values(grade=grade, sha256=answer))
    return before


@dataclass(frozen=True)
class UnreadAnswer:
    """An answer that waits for points by hand; `has_changed` where it had some for an earlier text."""

    student: str
    cell: str
    has_changed: bool


def unread(gradebook: Gradebook, assignment: str) -> list[UnreadAnswer]:
    """The answers of an assignment that wait for points by hand, by student."""
    try:
        submissions: Any = gradebook.assignment_submissions(assignment)
    except MissingEntry:
        return []
    return [
        UnreadAnswer(submission.student.id, grade.name, grade.manual_score is not None)
        for submission in sorted(submissions, key=lambda one: one.student.id)
        for notebook in submission.notebooks
        for grade in notebook.grades
        if grade.needs_manual_grade
    ]
