"""How a class stands: from a gradebook with students of every standing, in the terminal and on a page."""

import os
import re
import sys
from datetime import UTC, datetime

import pytest
from nbgrader.api import Gradebook
from typer.testing import CliRunner

from autograder.cli import app
from autograder.course import open_course
from autograder.grading import audit_log
from autograder.grading.audit_log import Verdict
from autograder.grading.reports import status
from autograder.grading.standing import State
from autograder.terminal import console

ROSTER = """\
id,name,section
ada,Ada Lovelace,Mon
ben,<b>Ben</b> Odd,Mon
cy,Cy Young,Tue
dan,Dan Ott,Tue
eve,Eve Adams,Tue
fay,Fay Lee,
"""
PAST = "2020-11-20 12:00:00 UTC"


def note(root, student, verdict=Verdict.GRADED):
    audit_log.append(
        root / audit_log.LOG,
        time=datetime.now(UTC),
        assignment="lab01",
        student=student,
        notebook="lab01",
        verdict=verdict,
        reason="",
        score=None if verdict is Verdict.FAULT else 3.0,
        checks=[],
        inputs={"submission": None, "release": None, "checks": None, "engine": ""},
        versions=audit_log.versions(),
        limits={"call_s": 1, "total_s": 1, "allow_untrusted": False},
        tier=None,
        seed=None,
        duration_s=1,
    )


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Ada is late, ben is to be read, cy's file is damaged, the grader broke on dan, eve waits, fay is absent."""
    root = tmp_path_factory.mktemp("course")
    (root / "nbgrader_config.py").write_text('c = get_config()\nc.CourseDirectory.course_id = "worldsize"\n')
    (root / "class.csv").write_text(ROSTER)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)  # alembic, for a new gradebook
        patch.chdir(root)
        assert CliRunner().invoke(app, ["roster", "import", "class.csv"]).exit_code == 0
        with Gradebook(f"sqlite:///{root}/gradebook.db", "worldsize") as book:
            for name in ("lab01", "lab02"):
                book.add_assignment(name, duedate=PAST)
                book.add_notebook(name, name)
            book.add_grade_cell("auto", "lab01", "lab01", max_score=3, cell_type="code")
            for name in ("why", "how"):
                book.add_grade_cell(name, "lab01", "lab01", max_score=2, cell_type="markdown")
                book.add_solution_cell(name, "lab01", "lab01")
            for student in ("ada", "ben", "cy", "dan"):
                book.add_submission("lab01", student, timestamp="2020-11-20 11:00:00 UTC")
                note(root, student, {"cy": Verdict.MALFORMED, "dan": Verdict.FAULT}.get(student, Verdict.GRADED))
                for grade in book.find_submission_notebook("lab01", "lab01", student).grades:
                    grade.needs_manual_grade = student == "ben" and grade.name != "auto"
                    grade.auto_score = 0 if student == "cy" else 3 if grade.name == "auto" else None
                    grade.manual_score = 1 if student == "ada" and grade.name != "auto" else None
            book.find_submission_notebook("lab01", "lab01", "ada").late_submission_penalty = 0.5
            book.db.commit()
        handed_in = root / "submitted" / "eve" / "lab01" / "lab01.ipynb"
        handed_in.parent.mkdir(parents=True)
        handed_in.write_text("{}")
        assert CliRunner().invoke(app, ["extend", "fay", "lab02", "--days", "399"]).exit_code == 0
    return root


EXPECTED = {
    "ada": State.DONE,
    "ben": State.BY_HAND,
    "cy": State.DAMAGED,
    "dan": State.BROKE,
    "eve": State.WAITING,
    "fay": State.MISSING,
}


def test_everybody_stands_where_they_stand(course):
    lab01, lab02 = status.read(open_course(course)).assignments
    assert {standing.student: standing.state for standing in lab01.standings} == EXPECTED
    assert {standing.state for standing in lab02.standings} == {State.MISSING}
    assert lab01.figures == {
        "due (UTC)": "2020-11-20 12:00",
        "handed in": "5 of 6",
        "done": "1",
        "to be graded": "1",
        "to be read": "1 (2 answers)",
        "failed": "1",
        "damaged": "1",
        "late": "1",
        "missing": "1",
        "regrades": "0",
    }
    ada, ben = (standing for standing in lab01.standings if standing.student in ("ada", "ben"))
    assert (ada.score_text, ada.remarks) == ("4.5 / 7", "late, 0.5 points taken")
    assert (ben.score_text, ben.remarks) == ("– / 7", "2 answers to read")


def test_what_is_to_be_done_comes_with_the_command_that_does_it(course):
    (lab01,) = status.read(open_course(course), ["lab01"]).assignments
    assert lab01.to_do == [
        "lab01, the grader broke on: dan; `autograder grade lab01 --again` tries again.",
        "lab01, to be graded: eve; `autograder grade lab01`.",
        "lab01, answers to be read: ben; in the Formgrader.",
        "lab01, damaged files: cy; ask for them again, or leave 0 points.",
        "lab01, not handed in: fay; 0 points in `autograder export csv`, `autograder extend` gives more time.",
    ]


def test_a_long_list_of_names_is_cut(course):
    (lab01,) = status.read(open_course(course), ["lab01"]).assignments
    eve = next(standing for standing in lab01.standings if standing.student == "eve")
    (sentence,) = status.AssignmentStatus("lab01", "", [eve] * 15).to_do
    assert "eve, eve and 3 more; `autograder grade lab01`." in sentence and sentence.count("eve") == 12


def test_the_tables_in_the_terminal(course, monkeypatch):
    monkeypatch.chdir(course)
    monkeypatch.setattr(console, "_width", 200)  # one may have been made already, by COLUMNS as it was
    shown = CliRunner().invoke(app, ["status"])
    assert shown.exit_code == 0 and "lab01, to be graded: eve" in shown.output
    assert re.search(r"lab02 +2020-11-20 12:00 +0 of 6", shown.output)
    listed = CliRunner().invoke(app, ["status", "lab01"])
    assert re.search(r"ada +Lovelace, Ada +Mon +✓ +done +4\.5 / 7 +late, 0\.5 points taken", listed.output)
    assert "lab02" not in listed.output
    unknown = CliRunner().invoke(app, ["status", "lab99"])
    assert unknown.exit_code == 1 and "The gradebook holds no assignment lab99" in unknown.output
    assert CliRunner().invoke(app, ["status", "--to", "status.pdf"]).exit_code == 1


def test_a_course_without_students_has_a_table(tmp_path, monkeypatch):
    (tmp_path / "nbgrader_config.py").write_text('c = get_config()\nc.CourseDirectory.course_id = "worldsize"\n')
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db", "worldsize") as book:
        book.add_assignment("lab01")
    shown = CliRunner().invoke(app, ["status"])
    assert shown.exit_code == 0 and re.search(r"lab01 +0 of 0", shown.output), shown.output
    assert CliRunner().invoke(app, ["status", "lab01"]).exit_code == 0


def test_who_is_on_no_roster_is_named(course, monkeypatch):
    monkeypatch.chdir(course)
    before = (course / "extensions.csv").read_text()
    (course / "extensions.csv").write_text(before + "lab01,adda,2\n")
    (course / "submitted/zed/lab01").mkdir(parents=True)
    try:
        remarks = status.read(open_course(course)).remarks
    finally:
        (course / "extensions.csv").write_text(before)
        (course / "submitted/zed/lab01").rmdir()
        (course / "submitted/zed").rmdir()
    assert remarks == [
        "extensions.csv names students whom the gradebook does not know: adda.",
        "Not on the roster: zed.",
    ]


@pytest.fixture(scope="module")
def page(course):
    status.write_page(status.read(open_course(course)), course / "status.html")
    return (course / "status.html").read_text(encoding="utf-8")


def test_the_page_shows_everybody_by_section_and_runs_nothing(page):
    assert "<script" not in page and "&lt;b&gt;Ben&lt;/b&gt; Odd" not in page
    assert "Odd, &lt;b&gt;Ben&lt;/b&gt;" in page and "http" not in page
    order = [page.index(name) for name in ("Lee, Fay", "Lovelace, Ada", "Adams, Eve", "Young, Cy")]
    assert order == sorted(order)
    assert "✓ 4.5 / 7<small>late, 0.5 points taken</small>" in page and "… to be graded" in page


def test_the_page_can_be_read_without_sight_or_colour(page):
    assert '<html lang="en">' in page and page.count("<caption>") == 2 and page.count("<h1>") == 1
    assert not re.findall(r"<th(?![^>]*scope=)[ >]", page), "every head says what it is the head of"
    for state in State:
        assert f"{state.sign} {state.value}" in page, "the legend names every sign"


def luminance(colour):
    digits = colour * 2 if len(colour) == 3 else colour
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return sum(weight * one for weight, one in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_text_stands_out_in_both_themes(page):
    themes = [dict(re.findall(r"--(\w+): #(\w+)", block)) for block in re.findall(r":root \{([^}]*)\}", page)]
    assert len(themes) == 2 and themes[0]["paper"] != themes[1]["paper"]
    for theme in themes:
        for text in ("ink", "quiet", "warn"):
            for ground in ("paper", "tint"):
                dark, light = sorted(luminance(theme[one]) for one in (text, ground))
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, ground, theme)
