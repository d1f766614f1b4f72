"""A team's project: one hand-in counts for all members, in gradebook exports, status, feedback, and late penalties."""

import csv
import json
import shutil
from copy import deepcopy
from datetime import timedelta

import nbformat
import pytest
import stand_in_judge
from commands import run
from nbgrader.api import Gradebook
from tiny_lab import CHECKS, LAB, MEAN, ROOT, TOTAL, answered

from autograder.authoring.notebooks import build
from autograder.course import open_course
from autograder.grading.reports import feedback_pages, status
from autograder.submissions.class_folders import class_folders
from autograder.submissions.team_work import handed_in_by, submitter_of
from autograder.tables.teams import team_extensions, teams

PROJECT = "project9"
WHY = '\n# %% why [markdown] points=2 tags=["solution"]\n# Because every rank adds its part.\n'
ROSTER = """\
id,name,team
ada,Ada Lovelace,red
ben,Ben Odd,Red
cy,Cy Young,blue
dan,Dan Ott,blue
eve,Eve Adams,
fay,Fay Lee,alone
gus,Gus Kay,green
hal,Hal Orr,green
"""
DUE = "2020-11-20 12:00:00 UTC"
# cy's, the earlier, is right and does not count; ada is a day late, with ben's extension of a day she is not
TIMES = {"ada": "2020-11-21 11:00:00 UTC", "cy": "2020-11-19 11:00:00 UTC", "dan": "2020-11-20 13:00:00 UTC"}


def do(root, *command):
    done = run(root, *command)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Red: ada handed in. Blue: cy and dan did. Eve alone is right. Nobody of green did."""
    root = tmp_path_factory.mktemp("course")
    folder = root / "solutions" / PROJECT
    folder.mkdir(parents=True)
    (folder / "report.py").write_text(LAB + WHY)
    (folder / "checks.py").write_text(CHECKS)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write("c.Policy.percent_per_day = 10\n")
    build(root)
    release = nbformat.read(root / "labs" / PROJECT / "report.ipynb", as_version=4)
    wrong = "def mean(tensor):\n    return tensor"
    for student, mean in {"ada": MEAN, "cy": MEAN, "dan": wrong, "eve": MEAN}.items():
        place = root / "submitted" / student / PROJECT
        place.mkdir(parents=True)
        cells = {"total": TOTAL, "mean": mean, "why": f"Because, says {student}."}
        (place / "report.ipynb").write_text(json.dumps(answered(deepcopy(release), cells)))
    rows = "".join(f"{PROJECT},{student},{time}\n" for student, time in TIMES.items())
    (root / "collected.csv").write_text("assignment,student,submitted\n" + rows)
    (root / "class.csv").write_text(ROSTER)
    do(root, "autograder", "roster", "import", "class.csv")
    do(root, "nbgrader", "generate_assignment", PROJECT, "--force")
    do(root, "nbgrader", "db", "assignment", "add", PROJECT, f"--duedate={DUE}")
    code, text, _ = stand_in_judge.run(root, "autograder", "grade", PROJECT)
    assert code == 0, text
    with Gradebook(f"sqlite:///{root}/gradebook.db", "worldsize") as book:
        for student, points in {"ada": 1, "dan": 2, "eve": 2}.items():
            grade = book.find_grade("why", "report", PROJECT, student)
            grade.manual_score, grade.needs_manual_grade = points, False
        book.db.commit()
    said = do(root, "autograder", "extend", "ben", PROJECT, "--days", "1")
    assert "ada and ben, as a team, may hand in project9 until 2020-11-21 12:00 UTC, 1 day after the class." in said
    assert "Late penalty: 0.5 points before, 0 now." in said
    do(root, "autograder", "late", PROJECT)
    return root


SCORES = {"ada": 6, "ben": 6, "cy": 5 - 0.5, "dan": 5 - 0.5, "eve": 7, "fay": 0, "gus": 0, "hal": 0}


@pytest.mark.parametrize("command", [("autograder", "export", "csv"), ("nbgrader", "export", "--to", "grades-csv.csv")])
def test_everybodys_exported_score_is_the_teams(course, command):
    do(course, *command)
    with open(course / "grades-csv.csv", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    assert {student: float(row["score"]) for student, row in rows.items()} == SCORES
    assert rows["ben"]["last_name"] == "Odd" and rows["ben"]["timestamp"] == rows["ada"]["timestamp"]
    assert rows["cy"]["late_submission_penalty"] == rows["dan"]["late_submission_penalty"] == "0.5"
    assert rows["hal"]["status"] == "not submitted"


def test_other_systems_and_checklists_have_the_same(course):
    do(course, "autograder", "export", "canvas")
    with open(course / "grades-canvas.csv", newline="") as file:
        canvas = {row["SIS Login ID"]: row[PROJECT] for row in csv.DictReader(file)}
    assert {student: float(canvas[student]) for student in SCORES if SCORES[student]} == {
        student: points for student, points in SCORES.items() if points
    }
    do(course, "autograder", "progress", "--all", "--to", "progress.csv")
    with open(course / "progress.csv", newline="") as file:
        progress = {row["student"]: float(row["score"]) for row in csv.DictReader(file)}
    assert progress == SCORES


def test_the_status_says_whose_work_counts_and_who_handed_in_twice(course):
    said = do(course, "autograder", "status")
    assert "project9, handed in by several members of a team: dan, cy; dan's counts" in said
    assert "5 of 8" in said
    (project,) = status.read(open_course(course)).assignments
    remarks = {standing.student: standing.remarks for standing in project.standings}
    assert remarks["ben"] == "handed in by ada; extended to 2020-11-21 12:00 UTC" and "handed" not in remarks["ada"]
    assert remarks["cy"] == "handed in by dan; late, 0.5 points taken"


def test_a_damaged_file_is_the_whole_teams(course, monkeypatch):
    latest = status.audit_log.latest

    def damaged(entries):
        verdict = status.audit_log.Verdict.MALFORMED
        return {
            key: entry.model_copy(update={"verdict": verdict}) if "ada" in key else entry
            for key, entry in latest(entries).items()
        }

    monkeypatch.setattr(status.audit_log, "latest", damaged)
    (project,) = status.read(open_course(course)).assignments
    found = {standing.student for standing in project.standings if standing.state is status.State.DAMAGED}
    assert found == {"ada", "ben"}


def test_every_member_gets_the_teams_page(course):
    do(course, "autograder", "feedback", PROJECT)
    pages = {path.parts[-3]: path.read_text() for path in course.glob(f"feedback/*/{PROJECT}/report.html")}
    assert sorted(pages) == ["ada", "ben", "cy", "dan", "eve"]
    assert pages["ada"] == pages["ben"] and "Feedback for ada, ben" in pages["ben"]
    assert pages["cy"] == pages["dan"] and "Because, says dan." in pages["cy"]
    assert "Pages written: 0. Up to date: 5." in do(course, "autograder", "feedback", PROJECT)
    with Gradebook(f"sqlite:///{course}/gradebook.db", "worldsize") as book:
        book.find_grade("why", "report", PROJECT, "ada").manual_score = 1.5
        book.db.commit()
    try:
        said = do(course, "autograder", "feedback", PROJECT, "ben")
        assert "Pages written: 1." in said
    finally:
        with Gradebook(f"sqlite:///{course}/gradebook.db", "worldsize") as book:
            book.find_grade("why", "report", PROJECT, "ada").manual_score = 1
            book.db.commit()


def test_a_page_is_out_of_date_when_its_team_has_changed(course):
    coursedir, roster = open_course(course), course / "roster.csv"
    before, text = feedback_pages._fingerprint(coursedir, PROJECT, "ada"), roster.read_text()
    assert feedback_pages._fingerprint(coursedir, PROJECT, "ada") == before
    roster.write_text(text.replace("alone", "red"))
    try:
        assert feedback_pages._fingerprint(coursedir, PROJECT, "ada") != before
    finally:
        roster.write_text(text)


def test_a_member_asks_for_a_regrade_of_the_teams_work(course):
    folder = course / "submitted/ben" / PROJECT
    folder.mkdir(parents=True)
    (folder / "regrade.md").write_text("# why\nWe meant sums.\n")
    try:
        assert submitter_of(open_course(course), PROJECT)["ben"] == "ada", "a request alone is no hand-in"
        assert "ben, why (1 of 2), open" in do(course, "autograder", "regrade", PROJECT)
        said = do(course, "autograder", "regrade", PROJECT, "ben", "why", "--answer", "Yes.", "--points", "2")
        assert "1 points before, 2 now" in said
        do(course, "autograder", "export", "csv")
        with open(course / "grades-csv.csv", newline="") as file:
            scores = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
        assert scores["ada"] == scores["ben"] == 7
        do(course, "autograder", "feedback", PROJECT)
        assert "We meant sums." in (course / "feedback/ada" / PROJECT / "report.html").read_text()
    finally:
        shutil.rmtree(folder.parent)
        with Gradebook(f"sqlite:///{course}/gradebook.db", "worldsize") as book:
            book.find_grade("why", "report", PROJECT, "ada").manual_score = 1
            book.db.commit()


def test_who_counts_and_who_is_graded(course):
    coursedir = open_course(course)
    assert submitter_of(coursedir, PROJECT) == {"ben": "ada", "cy": "dan"}
    assert class_folders(coursedir, PROJECT).students == ["ada", "dan", "eve"]
    assert sorted(map(sorted, handed_in_by(coursedir, PROJECT).values())) == [[], ["ada"], ["cy", "dan"]]
    code, text, _ = stand_in_judge.run(course, "autograder", "grade", PROJECT, "ben")
    assert code == 0 and " ada " in text


def test_teams_are_for_projects_and_have_the_longest_extension(tmp_path):
    (tmp_path / "roster.csv").write_text(ROSTER)
    assert teams(tmp_path, PROJECT)["ben"] == ("ada", "ben") and "fay" not in teams(tmp_path, PROJECT)
    assert teams(tmp_path, "lab01") == {}
    rows = "project9,cy,1\nproject9,dan,3\nproject9,dan,2\nlab01,ada,1\nproject9,eve,5\n"
    (tmp_path / "extensions.csv").write_text(f"assignment,student,days\n{rows}")
    assert team_extensions(tmp_path) == {
        ("project9", "cy"): timedelta(days=2),
        ("project9", "dan"): timedelta(days=2),
        ("lab01", "ada"): timedelta(days=1),
        ("project9", "eve"): timedelta(days=5),
    }
