"""Grades as other systems read them, from gradebooks with every kind of student and of name."""

import csv
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.plugins import ExportPlugin

from autograder.grading import audit_log
from autograder.grading.reports import exports
from autograder.grading.standing import Standing, State, standings

ODD = 'O"Neill, Zoë\nvan der Berg 李'
FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "＝1"]


def entry(log, student, verdict, assignment="lab01"):
    """Adds an entry to the audit log, as a grading does."""
    audit_log.append(
        log,
        time=datetime.now(UTC),
        assignment=assignment,
        student=student,
        notebook=assignment,
        verdict=verdict,
        reason="",
        score=None,
        checks=[],
        inputs={"submission": None, "release": None, "checks": None, "engine": ""},
        versions=audit_log.versions(),
        limits={"call_s": 1, "total_s": 1, "allow_untrusted": False},
        tier=None,
        seed=None,
        duration_s=2.5,
    )


@pytest.fixture(scope="module", autouse=True)
def alembic():
    """nbgrader looks for it on the PATH when it makes a gradebook."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def course(tmp_path_factory, alembic):
    """Students of every standing; lab01 has an automatic cell of 3 points and one of 2 that people grade.

    lab01 is due, lab02 is not, and lab03 has no date.
    """
    tmp_path = tmp_path_factory.mktemp("course")
    log = tmp_path / audit_log.LOG
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db", "worldsize") as book:
        for lab, due in {"lab01": "2020-11-20 12:00:00 UTC", "lab02": "2999-11-20 12:00:00 UTC", "lab03": None}.items():
            book.add_assignment(lab, duedate=due)
            book.add_notebook(lab, lab)
            book.add_grade_cell("auto", lab, lab, max_score=3, cell_type="code")
        book.add_grade_cell("essay", "lab01", "lab01", max_score=2, cell_type="markdown")
        book.add_solution_cell("essay", "lab01", "lab01")
        people = {"ada": {"last_name": ODD, "first_name": "Ada", "email": "ada@example.org", "lms_user_id": "4711"}}
        for student in ("ada", "absent", "broke", "regraded", "fixed", "torn", "manual", "late", "again", "waits"):
            book.add_student(student, **people.get(student, {}))
            if student in ("again", "waits"):
                hand_in(tmp_path, student)
            if student not in ("absent", "waits"):
                book.add_submission("lab01", student, timestamp="2020-11-20 11:00:00 UTC")
                entry(log, student, audit_log.Verdict.GRADED)
        for student in ("ada", "regraded", "fixed", "manual", "late", "again"):
            auto, essay = grades(book, student)
            auto.auto_score, auto.needs_manual_grade = 3, False
            essay.manual_score, essay.needs_manual_grade = (None, True) if student == "manual" else (1.5, False)
        grades(book, "ada")[0].extra_credit = 0.25
        grades(book, "ada")[0].manual_score = 2
        book.find_submission_notebook("lab01", "lab01", "late").late_submission_penalty = 10
        book.db.commit()
    for student in ("broke", "regraded", "fixed"):
        entry(log, student, audit_log.Verdict.FAULT)
    entry(log, "fixed", audit_log.Verdict.GRADED)
    for name in ("stranger", os.fsdecode(b"\xff")):
        hand_in(tmp_path, name)
    return CourseDirectory(root=str(tmp_path), db_url=f"sqlite:///{tmp_path}/gradebook.db", course_id="worldsize")


def hand_in(root, student, lab="lab01"):
    path = root / "submitted" / student / lab / f"{lab}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text("{}")


def grades(book, student):
    notebook = book.find_submission_notebook("lab01", "lab01", student)
    return sorted(notebook.grades, key=lambda grade: grade.name)


def table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


STANDINGS = {
    "ada": (State.DONE, 3.75),
    "absent": (State.MISSING, 0),
    "broke": (State.BROKE, None),
    "regraded": (State.BROKE, None),
    "fixed": (State.DONE, 4.5),
    "torn": (State.BROKE, None),
    "manual": (State.BY_HAND, None),
    "late": (State.DONE, 0),
    "again": (State.WAITING, None),  # handed in another file after the one that was graded
    "waits": (State.WAITING, None),
    "stranger": (State.WAITING, None),  # not in the gradebook yet
    "\\xff": (State.WAITING, None),
}


def test_every_student_stands_where_they_stand(course):
    entries, _ = audit_log.read(Path(course.root, audit_log.LOG))
    with Gradebook(course.db_url) as book:
        rows = standings(course, book, entries, ["lab01"])
    assert {row.student: (row.state, row.score) for row in rows} == STANDINGS


@pytest.mark.parametrize(("lab", "standing"), [("lab02", State.NOT_DUE), ("lab03", State.NOT_DUE)])
def test_what_is_absent_and_not_due_has_no_score(course, lab, standing):
    with Gradebook(course.db_url) as book:
        rows = standings(course, book, [], [lab])
    assert {(row.state, row.score) for row in rows} == {(standing, None)}


def test_csv(course, tmp_path):
    left_out = exports.export(course, "csv", tmp_path / "grades.csv", ["lab01"])
    header, *lines = table(tmp_path / "grades.csv")
    assert header[-5:] == ["raw_score", "late_submission_penalty", "score", "max_score", "status"]
    got = {line[3]: line[-5:] for line in lines}
    assert got["ada"] == ["3.75", "0.0", "3.75", "5.0", "graded"]
    assert got["absent"] == ["0.0", "0.0", "0.0", "5.0", "not submitted"]
    assert got["broke"] == got["regraded"] == got["torn"] == ["", "", "", "5.0", "not graded: the grader broke"]
    assert got["manual"] == ["3.0", "0.0", "", "5.0", "needs manual grading"]
    assert got["late"] == ["4.5", "10.0", "0.0", "5.0", "graded"]
    assert got["again"] == got["waits"] == got["stranger"] == ["", "", "", "5.0", "waiting to be graded"]
    assert next(line for line in lines if line[3] == "ada")[4] == ODD
    assert sorted(row.student for row, _ in left_out) == [
        "\\xff", "again", "broke", "manual", "regraded", "stranger", "torn", "waits",
    ]  # fmt: skip


def test_canvas(course, tmp_path):
    exports.export(course, "canvas", tmp_path / "out.csv", ["lab01", "lab02"], {"lab01": "Lab, 1 (99)"})
    header, possible, *lines = table(tmp_path / "out.csv")
    assert header == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Lab, 1 (99)", "lab02"]
    assert possible == ["    Points Possible", "", "", "", "", "5.0", "3.0"]
    assert {line[3]: line[5] for line in lines} == {
        student: f"{float(score)}" if standing is State.DONE else "" for student, (standing, score) in STANDINGS.items()
    }
    assert [line[:4] for line in lines if line[3] == "ada"] == [[f"{ODD}, Ada", "4711", "", "ada"]]
    assert {line[6] for line in lines} == {""}  # nobody handed in lab02


def test_moodle(course, tmp_path):
    left_out = exports.export(course, "moodle", tmp_path / "out.csv", ["lab01"], {"lab01": "Lab 1"})
    header, *lines = table(tmp_path / "out.csv")
    assert header == ["First name", "Last name", "Username", "ID number", "Email address", "Lab 1"]
    got = {line[2]: line for line in lines}
    assert got["ada"] == ["Ada", ODD, "ada", "4711", "ada@example.org", "3.75"]
    assert {student for student, line in got.items() if not line[5]} == {row.student for row, _ in left_out}
    assert "absent" in {row.student for row, _ in left_out}


def test_blackboard_gets_every_cell_in_quotes(course, tmp_path):
    column = "Lab 1 [Total Pts: 5 Score] |4711"
    left_out = exports.export(course, "blackboard", tmp_path / "out.csv", ["lab01"], {"lab01": column})
    header, *lines = table(tmp_path / "out.csv")
    assert header == ["Last Name", "First Name", "Username", "Student ID", column]
    got = {line[2]: line for line in lines}
    assert got["ada"] == [ODD, "Ada", "ada", "4711", "3.75"]
    assert {student for student, line in got.items() if not line[4]} == {row.student for row, _ in left_out}
    assert (tmp_path / "out.csv").read_text().startswith('"Last Name","First Name"')


@pytest.mark.parametrize(
    ("format", "is_left_out"), [("csv", False), ("canvas", True), ("moodle", True), ("blackboard", True)]
)
def test_who_is_no_longer_on_the_roster_is_on_no_class_list(course, tmp_path, format, is_left_out):
    (roster := Path(course.root, "roster.csv")).write_text("id,name\nada,Ada\nabsent,Ann\n")
    try:
        left_out = exports.export(course, format, tmp_path / "out.csv", ["lab01"])
    finally:
        roster.unlink()
    assert ("late" in (tmp_path / "out.csv").read_text()) != is_left_out
    assert (("late", "not in roster.csv") in {(row.student, reason) for row, reason in left_out}) == is_left_out
    assert "ada" in (tmp_path / "out.csv").read_text()


def test_gradescope_gets_a_file_for_every_final_score_and_no_other(course, tmp_path):
    for student in ("ada", "again"):  # from an earlier export
        (tmp_path / "out/lab01" / student).mkdir(parents=True)
        (tmp_path / "out/lab01" / student / "results.json").write_text("{}")
    exports.export(course, "gradescope", tmp_path / "out")
    files = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("out/lab01/*/results.json")}
    assert {student: results["score"] for student, results in files.items()} == {"ada": 3.75, "fixed": 4.5, "late": 0}
    ada, late = files["ada"], files["late"]
    assert ada["execution_time"] == 2.5 and late["output"] == "Late: 10 points taken."
    assert {test["name"]: (test["score"], test["max_score"], test["status"]) for test in ada["tests"]} == {
        "auto": (2.25, 3, "failed"),
        "essay": (1.5, 2, "failed"),
    }
    assert set(ada) == {
        "score", "execution_time", "output", "output_format", "visibility", "stdout_visibility", "tests",
    }  # fmt: skip


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("format", ["csv", "canvas", "moodle"])
def test_no_cell_is_a_formula(tmp_path, name, format):
    row = Standing("lab01", name, name, name, name, name, State.DONE, 5.0, raw_score=1.0)
    exports.FORMATS[format]([row], tmp_path / "out.csv")
    cells = [cell for line in table(tmp_path / "out.csv") for cell in line]
    assert not [cell for cell in cells if cell.strip(" ").startswith(tuple("=+-@\t\r\n＝"))]
    assert any(name in cell for cell in cells)


@pytest.mark.parametrize("name", ["..", ".", "a/b", "../../x", "C:\\x", "ä b", "\n"])
def test_a_student_id_is_one_folder_below(tmp_path, name):
    row = Standing("lab01", name, "", "", "", "", State.DONE, 5.0)
    exports.write_gradescope([row], tmp_path / "out")
    (path,) = tmp_path.rglob("results.json")
    assert path.parents[2] == tmp_path / "out"


def test_nbgrader_export_is_ours_and_keeps_its_options(course, tmp_path):
    class App(ExportPlugin):
        coursedir = course

    plugin = exports.Grades(parent=App(), to=str(tmp_path / "out.csv"), assignment=["lab01"], student=["ada", "broke"])
    with Gradebook(course.db_url) as book:
        plugin.export(book)
    assert {line[3]: line[9] for line in table(tmp_path / "out.csv")[1:]} == {"ada": "3.75", "broke": ""}


@pytest.mark.parametrize(
    ("format", "assignments", "said"),
    [
        ("excel", [], "no format 'excel': choose one of csv, canvas"),
        ("csv", ["lab9"], "no assignment lab9: it has lab0"),
    ],
)
def test_what_cannot_be_exported_is_told(course, tmp_path, format, assignments, said):
    with pytest.raises(ValueError, match=said):
        exports.export(course, format, tmp_path / "out", assignments)


def test_an_assignment_that_there_is_not_is_not_renamed(course, tmp_path):
    with pytest.raises(ValueError, match="no assignment lab1 to rename: the gradebook has lab0"):
        exports.export(course, "blackboard", tmp_path / "out.csv", names={"lab1": "Lab 1 |4711"})
    assert not (tmp_path / "out.csv").exists()


def test_an_empty_gradebook_is_told(tmp_path):
    url = f"sqlite:///{tmp_path}/gradebook.db"
    with pytest.raises(ValueError, match="no assignment yet"):
        exports.export(CourseDirectory(root=str(tmp_path), db_url=url), "csv", tmp_path / "out")


def test_a_name_elsewhere():
    assert exports.renamed("lab01=Lab 1 (4711)") == ("lab01", "Lab 1 (4711)")
    with pytest.raises(ValueError, match="renames nothing"):
        exports.renamed("lab01")
