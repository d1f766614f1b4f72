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
from nbgrader.preprocessors import NbGraderPreprocessor
from nbgrader.utils import is_grade, is_solution
from traitlets import Bool, Dict, Float, Unicode

from autograder.course import SETTINGS, coursedir_of, handed_in, lab_settings, notebook_of, source_of
from autograder.feedback import check_results
from autograder.grading import audit_log, no_kernel
from autograder.grading.audit_log import RecordedLimits
from autograder.grading.engines import LocalPool
from autograder.grading.lab import Judged, Lab
from autograder.judging.report import RECORD, Report
from autograder.sandbox import refuse_unknown_limits
from autograder.submissions import Malformed

MAX_BESIDE_BYTES = 100 << 20  # of all files next to a notebook, which nbgrader copies twice


class GraderFault(RuntimeError):
    """The grader broke on a submission; no score is recorded for it."""


def prepare(assignment: str, student: str, notebooks: list[str]) -> None:
    """Leave only plain files of limited size next to the due notebook, and list it; run this before nbgrader copies."""
    folder = Path(notebooks[0]).parent
    due = os.path.join(folder, f"{notebook_of(assignment)}.ipynb")
    counted = os.fspath(handed_in(folder, notebook_of(assignment)))
    left_bytes = MAX_BESIDE_BYTES
    for inside, folders, files in os.walk(folder):
        for path in (Path(inside, name) for name in sorted((*folders, *files))):
            status = path.lstat()
            # nbgrader would copy what a link points to into the feedback, and stop at a pipe
            is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
            # a sparse file may claim to be larger than any disk, and is so once copied; the due one is never copied
            is_beside = stat.S_ISREG(status.st_mode) and os.fspath(path) != counted
            if not is_plain or (is_beside and status.st_size > left_bytes):
                path.unlink()
            elif is_beside:
                left_bytes -= status.st_size
    if due not in notebooks:
        notebooks.append(due)  # so that its absence is a verdict like any other


class SubmissionExporter(NotebookExporter):
    """A strict reader of submitted files; a damaged one becomes the untouched release, marked with the reason."""

    def from_filename(self, filename: str, resources: Any = None, **kw: Any) -> Any:
        coursedir, names = coursedir_of(self), resources["nbgrader"]
        ours = coursedir.format_path(coursedir.autograded_directory, names["student"], names["assignment"])
        if Path(filename).parent == Path(ours):  # nbgrader calls this twice: now with the result of the first call
            return super().from_filename(filename, resources=resources, **kw)
        lab = Lab(coursedir, names["assignment"])
        try:
            notebook = lab.read(names["student"]).notebook
        except Malformed as reason:
            notebook = lab.release
            notebook.metadata[RECORD] = {"malformed": str(reason)}
        return self.from_notebook_node(notebook, resources=resources, **kw)


class Grade(NbGraderPreprocessor):
    """A preprocessor that puts the judge's report on a submission into its grade cells, instead of executing it."""

    call_s = Float(15, help="Seconds that one run of student code may take.").tag(config=True)
    total_s = Float(120, help="Seconds that all runs of one submission may take together.").tag(config=True)
    call_s_of = Dict(
        key_trait=Unicode(), value_trait=Float(min=0), help="The same by lab, in place of what its lab.toml says."
    ).tag(config=True)
    total_s_of = Dict(
        key_trait=Unicode(), value_trait=Float(min=0), help="The same by lab, in place of what its lab.toml says."
    ).tag(config=True)
    limits_of = Dict(
        key_trait=Unicode(),
        value_trait=Dict(key_trait=Unicode()),
        help="The sandbox's own limits by lab, besides those in its lab.toml: {'labNN': {'num_processes': 4096}}.",
    ).tag(config=True)
    allow_untrusted = Bool(False, help="Grade even on a machine that offers no sandbox.").tag(config=True)
    num_gpus = Dict(
        key_trait=Unicode(),
        value_trait=Float(min=0),
        help="GPUs that judging one submission takes, by lab: {'labNN': 1}. Its sandbox shows these and no others.",
    ).tag(config=True)

    def limits(self, source: Path) -> RecordedLimits:
        """The limits for a submission to the lab whose solution is in this folder.

        Raises:
            ValueError: the lab's settings cannot be read, or they or `limits_of` set an impossible limit.
        """
        lab, own = source.name, lab_settings(source)
        changed = dict(self.limits_of.get(lab, {}))
        refuse_unknown_limits(own.limits, f"limits in {lab}/{SETTINGS}")
        refuse_unknown_limits(changed, f"c.Grade.limits_of[{lab!r}]")
        return RecordedLimits(
            call_s=self.call_s_of.get(lab, own.call_s or self.call_s),
            total_s=self.total_s_of.get(lab, own.total_s or self.total_s),
            allow_untrusted=self.allow_untrusted,
            sandbox=own.limits | changed,
        )

    def gpus(self, source: Path) -> float:
        """Return how many GPUs it takes to judge a submission to the lab in this source folder. Raises: ValueError."""
        return self.num_gpus.get(source.name, lab_settings(source).num_gpus)

    def preprocess(self, nb: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        no_kernel.name_no_kernel(resources["nbgrader"])
        limits = self.limits(source_of(coursedir_of(self), resources["nbgrader"]["assignment"]))
        with audit_log.grading(coursedir_of(self), resources["nbgrader"], limits) as grading:
            self._grade(nb, resources, grading)
        assert grading.entry
        nb.metadata[audit_log.MARK] = grading.entry.model_dump(include={"number", "sha256"})
        return nb, resources

    def _grade(self, nb: NotebookNode, resources: dict, grading: audit_log.Grading) -> None:
        student, assignment = resources["nbgrader"]["student"], resources["nbgrader"]["assignment"]
        reason = nb.metadata.get(RECORD, {}).get("malformed")
        judged = Judged(fingerprint="", malformed=reason) if reason else self._judged(student, assignment, grading)
        if judged.report is None:
            self.log.warning("%s: malformed submission: %s", student, judged.malformed)
            grading.malformed = judged.malformed
            nb.metadata[RECORD] = {"malformed": judged.malformed}
            _fill(nb, lambda cell: (0.0, check_results.of_malformed(judged.malformed)))
            return
        report = judged.report
        self._note(student, judged, report)
        _fill(nb, lambda cell: _score_of(report, cell))
        nb.metadata[RECORD] = report.model_dump(mode="json")

    def _note(self, student: str, judged: Judged, report: Report) -> None:
        """Write what an instructor should know to nbgrader's log."""
        self.log.info(
            "%s: %g of %g points, in %.1f s, sandbox: %s",
            student,
            report.score,
            report.max_score,
            report.duration_s,
            report.tier,
        )
        for note in report.notes:
            self.log.warning("%s: %s", student, note)
        for sight in judged.look_at:
            self.log.warning("%s: look at the cell %s", student, sight)

    def _judged(self, student: str, assignment: str, grading: audit_log.Grading) -> Judged:
        source = source_of(coursedir_of(self), assignment)
        lab = Lab(coursedir_of(self), assignment, self.limits(source))
        try:
            lab.refuse_absent_packages()
        except ValueError as error:
            raise GraderFault(str(error)) from None
        judged = lab.waiting(student) or lab.judge(student, LocalPool(1, self.gpus(source)))
        grading.report = judged.report
        if judged.fault:
            raise GraderFault(f"The grader broke on this submission; no score was recorded. {judged.fault}")
        lab.keep(student, judged.model_copy(update={"is_entered": True}))
        return judged


def _fill(nb: NotebookNode, score_of: Any) -> None:
    """Give every automatically graded cell one output: its score for nbgrader, and the explanation for people."""
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
        raise GraderFault(f"The cell {cell.metadata.nbgrader.grade_id} has no hidden check.")
    earned = sum(result.earned for result in results)
    html = check_results.styled(check_results.of_checks(results, cell.metadata.nbgrader.grade_id))
    return min(earned, float(cell.metadata.nbgrader.points)), html
