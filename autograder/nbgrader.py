"""The classes and functions that nbgrader_config.py names: a stable interface for nbgrader.

Each is imported when nbgrader first uses it, so that commands start fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from nbformat import NotebookNode

    from autograder.judging.report import Report

_PLACES = {
    # releasing
    "ReleasePrograms": "autograder.authoring.programs:ReleasePrograms",
    "SaveCells": "autograder.grading.no_kernel:SaveCells",
    # grading
    "Grade": "autograder.grading.preprocessor:Grade",
    "AssignLatePenalties": "autograder.grading.term.due_dates:AssignLatePenalties",
    "SaveAutoGrades": "autograder.grading.term.hand_grades:SaveAutoGrades",
    "SubmissionExporter": "autograder.grading.preprocessor:SubmissionExporter",
    "prepare": "autograder.grading.preprocessor:prepare",
    # collecting
    "Collect": "autograder.submissions.collecting.collectors:Collect",
    "CollectFromNgshare": "autograder.submissions.collecting.ngshare:CollectFromNgshare",
    "Extractor": "autograder.submissions.collecting.archives:Extractor",
    "Fetch": "autograder.submissions.collecting.exchange:Fetch",
    "FileNames": "autograder.submissions.collecting.lms_archives:FileNames",
    "Policy": "autograder.submissions.lateness:Policy",
    "Release": "autograder.submissions.collecting.exchange:Release",
    "ReleaseFeedback": "autograder.submissions.collecting.exchange:ReleaseFeedback",
    "Submit": "autograder.submissions.collecting.exchange:Submit",
    # exporting
    "ExportGrades": "autograder.grading.reports.exports:Grades",
    # students' text and feedback
    "FeedbackExporter": "autograder.feedback.page:FeedbackExporter",
    "FeedbackGrades": "autograder.feedback.page:GradesReader",
    "FormulasToMathML": "worldsize.pages:FormulasToMathML",
    "clean_html": "autograder.feedback.sanitize:clean",
    "highlight_code": "autograder.feedback.sanitize:highlight_code",
    "markdown_to_html": "autograder.feedback.sanitize:markdown_to_html",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, _, attribute = _PLACES[name].partition(":")
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return [*globals(), *_PLACES]


def install() -> None:
    """Make nbgrader's own commands follow the course's rules for which nbgrader has no settings.

    Lateness is computed from the collectors' record, requests for a regrade survive collecting the next archive, the
    formgrader shows no student text that can run, one folder cannot stop the grading of others, Validate prints errors
    whole, and a quiz is marked with its key.
    """
    from autograder.course import QUIZ_KEY
    from autograder.feedback import sanitize
    from autograder.grading import markers, selected_submissions
    from autograder.submissions import lateness, regrade_requests
    from autograder.submissions.collecting import lms_archives
    from worldsize.course import validating

    lateness.install()
    lms_archives.install()
    regrade_requests.install()
    sanitize.install()
    selected_submissions.install()
    validating.install()
    markers.register(QUIZ_KEY, _mark_quiz)


def _mark_quiz(key: Path, course: Path, student: str, submission: NotebookNode) -> Report:
    from autograder.quiz.assignment import report  # labs need not wait for it
    from worldsize.quiz.bank import FOLDER

    return report(key, course / FOLDER, student, submission)
