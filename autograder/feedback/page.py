"""The feedback page of a student: the score, what to do next, every check, then the student's own cells.

It is self-contained, runs no script, and is legible without colour. Its contents come from the gradebook and from the
judge's record in the graded notebook; outputs of cells are never shown. The template escapes all text except `Markup`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from nbformat import NotebookNode
from nbgrader.preprocessors import GetGrades
from nbgrader.utils import is_grade, is_solution, is_task
from pydantic import ValidationError
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from autograder.course import coursedir_of
from autograder.feedback import check_results
from autograder.judging.report import RECORD, CheckResult, Outcome, Report, format_points
from autograder.submissions.regrade_requests import requests
from autograder.tables.teams import teams
from worldsize.pages import OfflineHTMLExporter

_TEMPLATES = Path(__file__).parents[1] / "templates"
_STYLES = ("xcode", "github-dark")  # Pygments styles of code for light and dark pages
_HEADING = re.compile(r"<(/?)h([1-6])\b")


class GradesReader(GetGrades):
    """nbgrader's own reader of grades, which also records whose points they are, what is by hand, and what is to come.

    Points that were given for an earlier answer do not count until the new one has been read.
    """

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        self._outdated_points = 0.0
        nb, resources = super().preprocess(nb, resources)
        names = resources["nbgrader"]
        names["score"] = max(0, names["score"] - self._outdated_points)
        coursedir, assignment = coursedir_of(self), names["assignment"]
        names["team"] = teams(Path(coursedir.root), assignment).get(names["student"], ())
        members = names["team"] or (names["student"],)
        names["requests"] = [one for member in members for one in requests(coursedir, assignment, member)]
        return nb, resources

    def _get_score(self, cell: NotebookNode, resources: Any) -> None:
        super()._get_score(cell, resources)
        grade: Any = self.gradebook.find_grade(
            cell.metadata.nbgrader.grade_id, self.notebook_id, self.assignment_id, self.student_id
        )
        cell.metadata.nbgrader |= {
            "by_hand": grade.manual_score is not None,
            "extra_credit": grade.extra_credit or 0,
            "is_waiting": bool(grade.needs_manual_grade),
        }
        if grade.needs_manual_grade:
            self._outdated_points += grade.score
            cell.metadata.nbgrader["score"] = 0


@dataclass(frozen=True)
class Graded:
    """A cell with points: the points it earned, who gave them, and the checks behind them."""

    id: str
    earned: float
    possible: float
    extra_credit: float
    is_by_hand: bool
    is_waiting: bool
    is_unanswered: bool  # a text that the student did not change, which needs no grading by hand
    checks: Sequence[CheckResult]

    @classmethod
    def of(cls, cell: NotebookNode, report: Report | None) -> Graded:
        """What the gradebook, through `GradesReader`, and the judge say about a cell."""
        marks = cell.metadata.nbgrader
        is_read = is_solution(cell) or is_task(cell)
        return cls(
            id=marks.grade_id,
            earned=marks.get("score", 0),
            possible=marks.get("points", 0),
            extra_credit=marks.get("extra_credit", 0),
            is_by_hand=marks.get("by_hand", False) or is_read,
            is_waiting=marks.get("is_waiting", False),
            is_unanswered=is_read and not marks.get("by_hand", False) and not marks.get("is_waiting", False),
            checks=report.of(marks.grade_id) if report and not is_solution(cell) else [],
        )

    @property
    def details(self) -> Markup:
        """The HTML that explains the checks."""
        return Markup(check_results.of_checks(self.checks, self.id))


@dataclass(frozen=True)
class Summary:
    """The summary at the top of a page."""

    cells: Sequence[Graded]
    report: Report | None
    malformed: str

    @classmethod
    def of(cls, notebook: NotebookNode) -> Summary:
        """The summary of a graded notebook, without its report if the judge did not write it."""
        record = notebook.metadata.get(RECORD, {})
        malformed = record.get("malformed")
        try:
            report = None if malformed or not record else Report.model_validate(record)
        except ValidationError:
            report = None
        graded = [cell for cell in notebook.cells if is_grade(cell) or is_task(cell)]
        return cls([Graded.of(cell, report) for cell in graded], report, str(malformed or ""))

    def has(self, name: str) -> bool:
        """Whether the page has points for a cell of this name."""
        return not self.malformed and any(cell.id == name for cell in self.cells)

    def of_cell(self, cell: NotebookNode) -> Graded | None:
        """The results for a cell; None for a cell without points."""
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        return next((one for one in self.cells if one.id == name), None)

    @property
    def by_hand(self) -> float:
        """The points that a person gave, extra credit included."""
        return sum(cell.earned if cell.is_by_hand else cell.extra_credit for cell in self.cells)

    @property
    def by_checks(self) -> float:
        """The points that the checks gave."""
        return sum(cell.earned - cell.extra_credit for cell in self.cells if not cell.is_by_hand)

    @property
    def num_waiting(self) -> int:
        """The number of cells that still have to be graded by hand."""
        return sum(cell.is_waiting for cell in self.cells)

    @property
    def short_by_hand(self) -> list[Graded]:
        """The cells that were graded by hand with less than full points."""
        given = (one for one in self.cells if one.is_by_hand and not one.is_waiting and not one.is_unanswered)
        return [one for one in given if one.earned < one.possible]

    @property
    def unanswered(self) -> list[Graded]:
        """The text cells that the student did not change."""
        return [one for one in self.cells if one.is_unanswered and one.possible]

    @property
    def failed(self) -> list[tuple[str, CheckResult]]:
        """The checks that ran and earned less than full points, each with its anchor on the page."""
        return [
            (f"{cell.id}-{number}", check)
            for cell in self.cells
            for number, check in enumerate(cell.checks, start=1)
            if check.outcome not in (Outcome.PASSED, Outcome.SKIPPED, Outcome.FAULT, Outcome.BY_HAND)
        ]

    @property
    def first_to_fix(self) -> tuple[str, CheckResult, int] | None:
        """The first check to fix, with its anchor and the number of checks that were skipped because of it."""
        num_waiting = Counter(check.blocked_by for cell in self.cells for check in cell.checks if check.blocked_by)
        return next(((place, check, num_waiting[check.name]) for place, check in self.failed), None)


class FeedbackExporter(OfflineHTMLExporter):
    """Exporter of the feedback page from a notebook with a student's grades."""

    @property
    def default_config(self) -> Config:
        ours = {"template_name": "student_page", "extra_template_basedirs": [str(_TEMPLATES)]}
        config = Config(super().default_config)
        config.merge(Config({type(self).__name__: ours}))  # nbgrader names its own template for every HTMLExporter
        return config

    def _create_environment(self) -> Environment:
        environment = super()._create_environment()
        environment.autoescape = True
        environment.trim_blocks = environment.lstrip_blocks = True
        environment.globals |= {"checks_css": Markup(check_results.CSS), "code_css": _code_css()}
        environment.filters |= {
            "summary": Summary.of,
            "demoted": _demoted,
            "points": format_points,
            "mark": check_results.mark,
        }
        return environment


def _demoted(html: str) -> Markup:
    """Clean HTML with its headings two levels lower, below those of the page."""
    return Markup(_HEADING.sub(lambda tag: f"<{tag[1]}h{min(6, int(tag[2]) + 2)}", html))


def _code_css() -> Markup:
    light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in _STYLES)
    return Markup(f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}")
