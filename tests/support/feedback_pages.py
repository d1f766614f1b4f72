"""Small feedback pages, made from a few cells and checks, for tests that read or render one."""

from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from tiny_lab import ROOT
from traitlets.config.loader import PyFileConfigLoader

from autograder.feedback.page import FeedbackExporter
from autograder.judging.report import CheckResult, Report
from worldsize.pages import FormulasToMathML


def check(
    promise, outcome, message="", cell="check_total", points=2.0, picture=None, name="check_secret", blocked_by=""
):
    return CheckResult(
        name=name,
        cell=cell,
        promise=promise,
        points=points,
        outcome=outcome,
        message=message,
        picture=picture,
        blocked_by=blocked_by,
    )


def graded(cell, points=4.0, score=0.0, solution=False, **marks):
    marks = {"grade_id": cell, "grade": True, "solution": solution, "points": points, "score": score, **marks}
    new_cell = new_markdown_cell if solution else new_code_cell
    return new_cell("source", metadata={"nbgrader": marks})


def answer(source="def total(): pass", comment=""):
    marks = {"grade_id": "total", "grade": False, "solution": True, "comment": comment}
    return new_code_cell(source, metadata={"nbgrader": marks})


def html(cells, *checks, record=None, **names):
    """The text of the page of these cells and checks."""
    report = Report(checks=list(checks), tier="namespaces", seed=5, duration_s=1.0).model_dump(mode="json")
    notebook = new_notebook(cells=cells, metadata={"worldsize": report if record is None else record})
    names = {
        "notebook": "sums", "assignment": "sums", "student": "ada", "score": 2, "max_score": 4, "late_penalty": 0
    } | names  # fmt: skip
    exporter = FeedbackExporter(config=PyFileConfigLoader("nbgrader_config.py", path=str(ROOT)).load_config())
    exporter.register_preprocessor(FormulasToMathML)
    page, _ = exporter.from_notebook_node(notebook, resources={"nbgrader": names})
    return page
