"""Completion checklists, read from a gradebook with students of every standing, and from plain nbgrader's own."""

import csv
import os
import sys
from datetime import UTC, datetime

import pytest
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from typer.testing import CliRunner

from autograder.cli import app
from autograder.grading import audit_log
from autograder.grading.reports import progress

ODD = "Lovelace <script>"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Ada has a graded lab, a late project, an essay to read and a quiz; nobody has the exam; bob handed in nothing."""
    root = tmp_path_factory.mktemp("course")
    (root / "nbgrader_config.py").write_text('c = get_config()\nc.CourseDirectory.course_id = "worldsize"\n')
    (root / "solutions" / "lab02").mkdir(parents=True)
    (root / "solutions" / "lab02" / "lab02.py").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)  # alembic, for a new gradebook
        with Gradebook(f"sqlite:///{root}/gradebook.db", "worldsize") as book:
            past, future = "2020-11-20 12:00:00 UTC", "2999-11-20 12:00:00 UTC"
            dues = {"lab01": past, "project1": past, "quiz_module": past, "final_exam": future, "capstone": past}
            for name, due in {**dues, "report": past}.items():
                book.add_assignment(name, duedate=due)
                book.add_notebook(name, name)
                book.add_grade_cell("auto", name, name, max_score=3, cell_type="code")
            book.add_grade_cell("essay", "report", "report", max_score=2, cell_type="markdown")
            book.add_solution_cell("essay", "report", "report")
            book.add_student("ada", last_name=ODD, first_name="Ada")
            book.add_student("bob")
            for name in ("lab01", "project1", "quiz_module", "report"):
                book.add_submission(name, "ada", timestamp="2020-11-20 11:00:00 UTC")
                note(root, name)
                for grade in book.find_submission_notebook(name, name, "ada").grades:
                    grade.auto_score, grade.needs_manual_grade = (3, False) if grade.name == "auto" else (None, True)
            book.find_submission_notebook("project1", "project1", "ada").late_submission_penalty = 0.5
            book.db.commit()
    handed_in = root / "submitted" / "ada" / "capstone" / "capstone.ipynb"
    handed_in.parent.mkdir(parents=True)
    handed_in.write_text("{}")
    return root


def note(root, assignment):
    audit_log.append(
        root / audit_log.LOG,
        time=datetime.now(UTC),
        assignment=assignment,
        student="ada",
        notebook=assignment,
        verdict=audit_log.Verdict.GRADED,
        reason="",
        score=3.0,
        checks=[],
        inputs={"submission": None, "release": None, "checks": None, "engine": ""},
        versions=audit_log.versions(),
        limits={"call_s": 1, "total_s": 1, "allow_untrusted": False},
        tier=None,
        seed=None,
        duration_s=1,
    )


def opened(root):
    return CourseDirectory(root=str(root), db_url=f"sqlite:///{root}/gradebook.db", course_id="worldsize")


EXPECTED = {
    "lab01": ("lab", "done", "3 / 3"),
    "lab02": ("lab", "not handed out yet", ""),
    "project1": ("project", "done, late: 0.5 points taken", "2.5 / 3"),
    "quiz_module": ("quiz", "done", "3 / 3"),
    "final_exam": ("exam", "not handed in yet", "– / 3"),
    "capstone": ("capstone", "waits to be graded", "– / 3"),
    "report": ("report", "waits for points by hand: 1 of 2", "– / 5"),
}


def test_a_checklist_says_what_is_done_and_what_is_missing(course):
    (ada,) = progress.read(opened(course), ["ada"])
    assert {item.assignment: (item.kind, item.state, item.score_text) for item in ada.items} == EXPECTED
    assert [item.assignment for item in ada.items] == [*EXPECTED]
    assert ada.summary == ("3 of 7 done, 8.5 of 9 points that are final; 1 to be read by hand, 0 missing, 1 late.")


def test_work_that_is_absent_and_due_is_missing(course):
    (bob,) = progress.read(opened(course), ["bob"])
    states = {item.assignment: item.state for item in bob.items}
    assert states["lab01"] == states["report"] == "missing" and states["final_exam"] == "not handed in yet"
    assert "5 missing" in bob.summary and "0 of 7 done, 0 of 17 points" in bob.summary


def test_an_unknown_student_is_named_with_those_that_there_are(course):
    with pytest.raises(ValueError, match=r"is called eve: there are ada, bob\. `nbgrader db student add ID` adds one"):
        progress.read(opened(course), ["eve"])


def test_everybody_in_a_table_and_on_a_page(course, tmp_path):
    everybody = progress.read(opened(course))
    progress.write(everybody, tmp_path / "all.csv")
    with open(tmp_path / "all.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert {line["student"] for line in lines} == {"ada", "bob"} and len(lines) == 14
    late = next(line for line in lines if line["late_points"])
    assert (late["assignment"], late["score"], late["max_score"], late["late_points"]) == (
        "project1",
        "2.5",
        "3.0",
        "0.5",
    )
    progress.write(everybody, tmp_path / "all.html")
    html = (tmp_path / "all.html").read_text()
    assert "Lovelace &lt;script&gt;" in html and "<script" not in html
    assert html.count("<section>") == 2 and "waits for points by hand: 1 of 2" in html
    with pytest.raises(ValueError, match=r"must end in \.html, for a page, or in \.csv"):
        progress.write(everybody, tmp_path / "all.pdf")


def test_the_command(course, tmp_path, monkeypatch):
    monkeypatch.chdir(course)
    runner = CliRunner()
    shown = runner.invoke(app, ["progress", "ada"])
    assert shown.exit_code == 0 and "3 of 7 done" in shown.output
    assert runner.invoke(app, ["progress", "--all", "--to", str(tmp_path / "all.html")]).exit_code == 0
    unknown = runner.invoke(app, ["progress", "eve"])
    assert unknown.exit_code == 1
    assert runner.invoke(app, ["progress"]).exit_code == 1
