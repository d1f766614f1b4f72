"""Extensions: who is late and what it costs, by nbgrader's own commands and ours, graded before or after."""

import csv
import json
import os
import sys
from copy import deepcopy
from datetime import UTC, datetime, timedelta

import pytest
import stand_in_judge
from commands import run
from nbgrader.api import Gradebook
from tiny_lab import MEAN, NAME, TOTAL, answered, make_course, release
from typer.testing import CliRunner

from autograder.cli import app
from autograder.tables.extensions import note_extension, read_extensions

DUE = "2020-11-20 12:00:00 UTC"
HANDED_IN = "2020-11-22 11:00:00 UTC"  # within two days of it
CONFIG = "c.Policy.percent_per_day, c.Policy.grace_minutes = 10, 30\n"


def do(root, *command):
    done = run(root, *command)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """Four who handed in two days late: ada, ben and cleo's extensions came before the grading; noor has none."""
    root = make_course(tmp_path_factory.mktemp("course"))
    with open(root / "nbgrader_config.py", "a") as file:
        file.write(CONFIG)
    students = ("ada", "ben", "cleo", "noor")
    text = json.dumps(answered(deepcopy(release(root)), {"total": TOTAL, "mean": MEAN}))
    for student in students:
        folder = root / "submitted" / student / NAME
        folder.mkdir(parents=True)
        (folder / f"{NAME}.ipynb").write_text(text)
    (root / "collected.csv").write_text(
        "assignment,student,submitted\n" + "".join(f"{NAME},{one},{HANDED_IN}\n" for one in students)
    )
    (root / "class.csv").write_text("id\n" + "".join(f"{one}\n" for one in (*students, "zoe")))
    do(root, "autograder", "roster", "import", "class.csv")
    do(root, "nbgrader", "generate_assignment", NAME, "--force")
    do(root, "nbgrader", "db", "assignment", "add", NAME, f"--duedate={DUE}")
    said = do(root, "autograder", "extend", "ada", NAME, "--days", "2")
    assert "ada may hand in sums until 2020-11-22 12:00 UTC, 2 days after the class." in said
    do(root, "autograder", "extend", "ben", NAME, "--days", "1")
    # 23.5 hours less than needed: within the half hour that costs nothing
    do(root, "autograder", "extend", "cleo", NAME, "--days", "1", "--hours", "22.6")
    code, text, _ = stand_in_judge.run(root, "nbgrader", "autograde", NAME)
    assert code == 0, text
    return root


def penalties(root):
    with Gradebook(f"sqlite:///{root}/gradebook.db", "worldsize") as book:
        return {one.student.id: one.late_submission_penalty for one in book.assignment_submissions(NAME)}


def test_plain_autograde_reads_the_extensions(graded):
    assert penalties(graded) == {"ada": 0, "ben": 0.5, "cleo": 0, "noor": 1.0}


def test_nbgraders_own_extension_says_the_same(graded):
    with Gradebook(f"sqlite:///{graded}/gradebook.db", "worldsize") as book:
        found = {one.student.id: one.extension for one in book.assignment_submissions(NAME)}
        late = {one.student.id: one.total_seconds_late for one in book.assignment_submissions(NAME)}
    assert found["ada"] == timedelta(days=2) and found["noor"] is None and late["ada"] == 0
    assert late["ben"] == 23 * 3600


def test_an_extension_that_comes_after_the_grading_counts_at_once(graded):
    said = do(graded, "autograder", "extend", "noor", NAME, "--days", "5")
    assert "until 2020-11-25 12:00 UTC" in said and "Late penalty: 1 points before, 0 now." in said
    assert penalties(graded)["noor"] == 0
    said = do(graded, "autograder", "extend", "noor", NAME, "--none")
    assert "until 2020-11-20 12:00 UTC, like the class." in said and "0 points before, 1 now." in said
    assert penalties(graded)["noor"] == 1
    assert penalties(graded)["ben"] == 0.5, "the others' stay"


def test_exports_give_everybody_their_own_due_date(graded):
    do(graded, "autograder", "export", "csv")
    with open(graded / "grades-csv.csv", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert rows["ada"]["duedate"] == "2020-11-22 12:00:00" and rows["noor"]["duedate"] == "2020-11-20 12:00:00"
    assert (rows["ada"]["score"], rows["ben"]["score"], rows["zoe"]["status"]) == ("5.0", "4.5", "not submitted")


def test_who_may_still_hand_in_is_not_missing(graded):
    yesterday = datetime.now(UTC) - timedelta(days=1)
    do(graded, "nbgrader", "db", "assignment", "add", "open", f"--duedate={yesterday:%Y-%m-%d %H:%M:%S} UTC")
    for _ in range(2):  # replaced, and not added up
        do(graded, "autograder", "extend", "zoe", "open", "--days", "5")
    assert read_extensions(graded)["open", "zoe"] == timedelta(days=5)
    do(graded, "autograder", "export", "csv", "--assignment", "open")
    with open(graded / "grades-csv.csv", newline="") as file:
        found = {row["student_id"]: (row["status"], row["score"]) for row in csv.DictReader(file)}
    assert found["zoe"] == ("not submitted, and not due yet", "") and found["noor"] == ("not submitted", "0.0")


def test_rows_written_by_hand_count_too(graded):
    before = (graded / "extensions.csv").read_text()
    (graded / "extensions.csv").write_text(before.rstrip("\n") + f"\n{NAME},ben,2.5")
    said = do(graded, "autograder", "late", NAME)
    assert "Penalties changed: 1." in said and penalties(graded)["ben"] == 0
    note_extension(graded, NAME, "ben", 1)
    assert (graded / "extensions.csv").read_text().endswith(f"\n{NAME},ben,2.5\n{NAME},ben,1\n")
    do(graded, "autograder", "late", NAME)
    assert penalties(graded)["ben"] == 0.5


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["eve", NAME, "--days", "2"],
            "The gradebook does not know the student eve: `autograder roster import` enters a class.",
        ),
        (["ada", "lab99", "--days", "2"], "The gradebook holds no assignment lab99: it has "),
        (["ada", NAME, "--days", "-2"], "An extension of -2 days is not possible: give 0 to 400."),
        (["ada", NAME, "--days", "nan"], "An extension of nan days is not possible"),
        (["ada", NAME], "Say for how long, with --days or --hours, or take an extension back with --none."),
        (["ada", NAME, "--days", "2", "--none"], "Say for how long"),
    ],
)
def test_what_cannot_be_granted_is_refused(graded, monkeypatch, words, reason):
    monkeypatch.chdir(graded)
    before = (graded / "extensions.csv").read_text()
    done = CliRunner().invoke(app, ["extend", *words])
    assert done.exit_code == 1 and reason in done.output
    assert (graded / "extensions.csv").read_text() == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("assignment,student,days\nlab01,ada,soon\n", "extensions.csv, line 2: 'soon' is not a number of days"),
        ("assignment,student,days\nlab01,ada,-1\n", "extensions.csv, line 2: '-1' is not a number of days"),
        ("assignment,student\nlab01,ada\n", "has no column 'days'"),
    ],
)
def test_a_record_that_cannot_be_read_is_reported_with_its_line(tmp_path, text, reason):
    (tmp_path / "extensions.csv").write_text(text)
    with pytest.raises(ValueError, match=reason):
        read_extensions(tmp_path)


def test_an_extension_before_there_is_a_due_date_stops_nothing(graded):
    do(graded, "nbgrader", "db", "assignment", "add", "later")
    said = do(graded, "autograder", "extend", "ada", "later", "--days", "2")
    assert "later has no due date yet. Once it has one, ada has 2 days more" in said
    do(graded, "autograder", "export", "csv")
    with Gradebook(f"sqlite:///{graded}/gradebook.db", "worldsize") as book:
        book.add_submission("later", "ada", timestamp=HANDED_IN)
    do(graded, "autograder", "late", "later")
    do(graded, "nbgrader", "db", "assignment", "remove", "later", "--force")


def test_penalties_of_an_assignment_that_there_is_not_are_refused(graded):
    done = run(graded, "autograder", "late", "sum")
    assert done.returncode == 1 and "The gradebook holds no assignment sum: it has" in done.stdout


def test_nothing_is_granted_beside_a_roster_that_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "nbgrader_config.py").write_text('c = get_config()\nc.CourseDirectory.course_id = "worldsize"\n')
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)  # alembic, for a new gradebook
    monkeypatch.chdir(tmp_path)
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db", "worldsize") as book:
        book.add_assignment("project1")
        book.add_student("ada")
    (tmp_path / "roster.csv").write_text("id,team\nada,red,x\n")
    done = CliRunner().invoke(app, ["extend", "ada", "project1", "--days", "2"])
    assert done.exit_code == 1 and "roster.csv, line 2" in done.output
    assert read_extensions(tmp_path) == {}
