"""Bring feedback pages up to date: rewrite those that have changed, and remove those without a grading."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory

from autograder.course import CONFIG_FILE, notebook_of
from autograder.files import file_sha256, write_whole
from autograder.grading import audit_log
from autograder.submissions.class_folders import course_glob
from autograder.submissions.regrade_requests import requests
from autograder.submissions.team_work import submitter_of
from autograder.tables.teams import teams

RECORDS = Path("build", "feedback")  # below the course's folder


class Page(StrEnum):
    """What was done to a student's page."""

    WRITTEN = "written"
    UNCHANGED = "up to date"
    REMOVED = "removed: there is no grading behind it"
    FAILED = "not written; `nbgrader generate_feedback` says why"


def renew(coursedir: CourseDirectory, assignment: str, students: Sequence[str] = ()) -> Iterator[tuple[str, Page]]:
    """Bring the pages of these students, or of everybody, up to date; yield what was done to each.

    Raises:
        ValueError: nobody, or one of the students, has no graded submission of this assignment.
    """
    graded = _students(coursedir, coursedir.autograded_directory, assignment)
    paged = _students(coursedir, coursedir.feedback_directory, assignment)
    authors = {member: author for member, author in submitter_of(coursedir, assignment).items() if author in graded}
    known = graded | paged | authors.keys()
    if missing := sorted({*students} - known):
        raise ValueError(f"{', '.join(missing)} has no graded {assignment}: grade it first.")
    if not graded:  # rather than remove every page because, say, autograded/ is on another machine
        raise ValueError(f"No submission of {assignment} is graded yet: run `autograder grade {assignment}` first.")
    return (
        (one, _copied(coursedir, assignment, one, authors[one]))
        if one in authors
        else (one, _renewed(coursedir, assignment, one, one in graded))
        for one in sorted({*students} or known)
    )


def graded_otherwise(coursedir: CourseDirectory, assignment: str) -> dict[str, list[str]]:
    """The students whose files have changed since they were graded, each with the kinds of these files."""
    entries, _ = audit_log.read(Path(coursedir.root, audit_log.LOG))
    last = {entry.student: entry for entry in entries if entry.assignment == assignment}
    changed = {student: audit_log.changed_inputs(coursedir, entry) for student, entry in sorted(last.items())}
    return {student: kinds for student, kinds in changed.items() if kinds}


def _renewed(coursedir: CourseDirectory, assignment: str, student: str, is_graded: bool) -> Page:
    folder = Path(coursedir.format_path(coursedir.feedback_directory, student, assignment))
    if not is_graded:
        shutil.rmtree(folder)
        return Page.REMOVED
    page = folder / f"{notebook_of(assignment)}.html"
    record = _record_of(coursedir, assignment, student)
    made_of = _fingerprint(coursedir, assignment, student)
    with suppress(OSError, ValueError):
        if json.loads(record.read_bytes()) == {"made_of": made_of, "page": file_sha256(page)}:
            return Page.UNCHANGED
    shutil.rmtree(folder, ignore_errors=True)  # a page that cannot be written must not stay as it was
    api = NbGraderAPI(coursedir=coursedir, config=coursedir.config)
    api.generate_feedback(assignment, glob.escape(student), force=True)
    if not page.is_file():
        return Page.FAILED
    write_whole(record, json.dumps({"made_of": made_of, "page": file_sha256(page)}))
    return Page.WRITTEN


def _copied(coursedir: CourseDirectory, assignment: str, student: str, author: str) -> Page:
    """Update a page that is a copy of a teammate's; return what was done to it."""
    if _renewed(coursedir, assignment, author, is_graded=True) is Page.FAILED:
        return Page.FAILED
    source, copy = (
        Path(coursedir.format_path(coursedir.feedback_directory, member, assignment)) for member in (author, student)
    )
    name = f"{notebook_of(assignment)}.html"
    if file_sha256(source / name) == file_sha256(copy / name):
        return Page.UNCHANGED
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    return Page.WRITTEN


def _students(coursedir: CourseDirectory, directory: str, assignment: str) -> set[str]:
    """Return everybody with a folder for the assignment in this directory."""
    pattern = coursedir.format_path(directory, "*", glob.escape(assignment))
    return {folder.parent.name for folder in course_glob(coursedir, pattern) if folder.is_dir()}


def _record_of(coursedir: CourseDirectory, assignment: str, student: str) -> Path:
    name = hashlib.sha256(os.fsencode(student)).hexdigest()[:32]
    return Path(coursedir.root, RECORDS, assignment, f"{name}.json")


def _fingerprint(coursedir: CourseDirectory, assignment: str, student: str) -> str:
    """A hash of all that a page depends on: the graded files, the gradebook, the settings and the engine."""
    graded = Path(coursedir.format_path(coursedir.autograded_directory, student, assignment))
    files = {str(path.relative_to(graded)): file_sha256(path) for path in sorted(graded.rglob("*"))}
    settings = file_sha256(Path(coursedir.root, CONFIG_FILE))
    team = teams(Path(coursedir.root), assignment).get(student, (student,))
    asked = [
        [member, request.id, request.answer] for member in team for request in requests(coursedir, assignment, member)
    ]
    marks = [*_marks(coursedir, assignment, student), team, *asked]
    return hashlib.sha256(json.dumps([files, marks, settings, audit_log.engine_sha256()]).encode()).hexdigest()


def _marks(coursedir: CourseDirectory, assignment: str, student: str) -> list[list[object]]:
    """Everything in the gradebook that a page shows."""
    with Gradebook(coursedir.db_url, coursedir.course_id) as book, suppress(MissingEntry):
        submission: Any = book.find_submission(assignment, student)
        marks = []
        for notebook in submission.notebooks:
            marks.append([notebook.name, notebook.late_submission_penalty])
            for grade in notebook.grades:
                points = [
                    grade.auto_score,
                    grade.manual_score,
                    grade.extra_credit,
                    grade.max_score,
                    grade.needs_manual_grade,
                ]
                marks.append(["grade", grade.name, *points])
            marks += [["comment", comment.name, comment.comment] for comment in notebook.comments]
        return sorted(marks, key=repr)
    return []
