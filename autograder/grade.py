"""`nbgrader autograde` through the judge: student code runs in the sandbox, and no kernel is asked for a score.

nbgrader reads a score out of a cell's outputs. Here those outputs are written by this process, from the judge's report.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.exporters import NotebookExporter
from nbformat import NotebookNode
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution
from traitlets import Bool, Float
from traitlets.config import Configurable

from autograder import feedback
from autograder.extract import Malformed, given_imports, read_submission, student_cells
from autograder.judge import judge
from autograder.verdict import Outcome, Report

RECORD = "worldsize"  # notebook metadata: why a file is malformed, or how it was graded


class GraderFault(RuntimeError):
    """The grader broke on a submission; no score is recorded for it."""


def prepare(assignment: str, student: str, notebooks: list[str]) -> None:
    """Leaves only plain files in a submission and names the notebook that is due; run before nbgrader copies any."""
    folder = Path(notebooks[0]).parent
    for inside, folders, files in os.walk(folder):
        for path in (Path(inside, name) for name in (*folders, *files)):
            # nbgrader would copy what a link points to into the feedback, and stop at a pipe
            if not (stat.S_ISREG(mode := path.lstat().st_mode) or stat.S_ISDIR(mode)):
                path.unlink()
    due = os.path.join(folder, f"{assignment}.ipynb")
    if due not in notebooks:
        notebooks.append(due)  # so that its absence is a verdict like any other


class SubmissionExporter(NotebookExporter):
    """Reads a submitted file strictly; a damaged one becomes the untouched release, marked with the reason."""

    def from_filename(self, filename: str, resources: Any = None, **kw: Any) -> Any:
        coursedir, names = _coursedir(self), resources["nbgrader"]
        ours = coursedir.format_path(coursedir.autograded_directory, names["student"], names["assignment"])
        if Path(filename).parent == Path(ours):  # nbgrader comes twice: now with what this gave it the first time
            return super().from_filename(filename, resources=resources, **kw)
        release = nbformat.read(_release_path(coursedir, resources), as_version=4)
        try:
            notebook = read_submission(Path(filename), release)
        except Malformed as reason:
            notebook = release
            notebook.metadata[RECORD] = {"malformed": str(reason)}
        return self.from_notebook_node(notebook, resources=resources, **kw)


class Grade(NbGraderPreprocessor):
    """Puts the judge's report on a submission into its grade cells, in place of executing it."""

    call_s = Float(15, help="Seconds that one run of student code may take.").tag(config=True)
    total_s = Float(120, help="Seconds that all runs of one submission may take together.").tag(config=True)
    allow_untrusted = Bool(False, help="Grade also on a machine that gives no sandbox.").tag(config=True)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        names = resources["nbgrader"]
        if reason := nb.metadata.get(RECORD, {}).get("malformed"):
            self.log.warning("%s: malformed submission: %s", names["student"], reason)
            _fill(nb, lambda cell: (0.0, feedback.of_malformed(reason)))
            return nb, resources
        report = self._judge(nb, resources)
        self.log.info(
            "%s: %g of %g points, in %.1f s, sandbox: %s",
            names["student"],
            report.score,
            report.max_score,
            report.duration_s,
            report.tier,
        )
        _fill(nb, lambda cell: _score_of(report, cell))
        nb.metadata[RECORD] = report.model_dump(mode="json")
        return nb, resources

    def _judge(self, nb: NotebookNode, resources: dict) -> Report:
        coursedir = _coursedir(self)
        release = nbformat.read(_release_path(coursedir, resources), as_version=4)
        checks = Path(_source_folder(coursedir, resources), "checks.py")
        try:
            report = judge(
                checks,
                student_cells(nb, release),
                preload=given_imports(release),
                call_s=self.call_s,
                total_s=self.total_s,
                allow_untrusted=self.allow_untrusted,
            )
        except Exception as error:
            raise GraderFault(f"The grader broke; this is not the student's zero. {error}") from error
        if report.is_fault:
            faults = [f"{check.name}: {check.message}" for check in report.checks if check.outcome is Outcome.FAULT]
            raise GraderFault(
                f"The grader broke; this is not the student's zero. {'; '.join(faults) or 'No check ran.'}"
            )
        return report


def _fill(nb: NotebookNode, score_of: Any) -> None:
    """Gives every automatically graded cell one output: its score for nbgrader, and the explanation for people."""
    for cell in nb.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs, cell.execution_count = [], None
        if is_grade(cell) and not is_solution(cell):
            earned, html = score_of(cell)
            cell.outputs = [
                nbformat.v4.new_output(
                    "execute_result", data={"text/plain": repr(float(earned)), "text/html": html}, execution_count=None
                )
            ]


def _score_of(report: Report, cell: NotebookNode) -> tuple[float, str]:
    results = report.of(cell.metadata.nbgrader.grade_id)
    if not results:
        raise GraderFault(f"No hidden check is for the cell {cell.metadata.nbgrader.grade_id}.")
    earned = sum(result.earned for result in results)
    return min(earned, float(cell.metadata.nbgrader.points)), feedback.of_checks(results)


def _coursedir(part: Configurable) -> CourseDirectory:
    """The course folder of the nbgrader command that this part belongs to."""
    while not hasattr(part, "coursedir"):
        assert part.parent, "made outside an nbgrader command"
        part = part.parent
    return getattr(part, "coursedir")  # noqa: B009


def _release_path(coursedir: CourseDirectory, resources: dict) -> str:
    names = resources["nbgrader"]
    folder = coursedir.format_path(coursedir.release_directory, ".", names["assignment"])
    return str(Path(folder, names["notebook"] + ".ipynb"))


def _source_folder(coursedir: CourseDirectory, resources: dict) -> str:
    return coursedir.format_path(coursedir.source_directory, ".", resources["nbgrader"]["assignment"])
