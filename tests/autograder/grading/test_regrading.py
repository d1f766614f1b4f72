"""A class graded, read by hand, and graded again after a check, an answer and a due date changed."""

import csv
import shutil
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from commands import run
from nbgrader.api import Gradebook
from tiny_lab import LAB, MEAN, NAME, TOTAL, answered, make_course, needs_jail, release

pytestmark = needs_jail
ESSAY = """
# %% why [markdown] points=2 tags=["solution"]
# Because every rank adds its part.
"""
CONFIG = "c.Policy.percent_per_day = 10\n"


@dataclass
class Course:
    """A course, and what its commands printed and its files held at each stage."""

    root: Path
    said: dict[str, str] = field(default_factory=dict)
    rows: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    pages: dict[str, dict[str, str]] = field(default_factory=dict)

    def do(self, *command: str, stage: str = "") -> None:
        """Run a command that ends well."""
        done = run(self.root, *command)
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        self.said[stage] = done.stdout

    def look(self, stage: str) -> None:
        """Note what the feedback and the exports are at this stage."""
        self.do("autograder", "feedback", NAME, stage=f"{stage}, feedback")
        self.do("nbgrader", "export", "--to", "grades.csv", stage=f"{stage}, export")
        with open(self.root / "grades.csv", newline="") as file:
            self.rows[stage] = {row["student_id"]: row for row in csv.DictReader(file)}
        found = sorted(self.root.glob(f"feedback/*/{NAME}/{NAME}.html"))
        self.pages[stage] = {path.parts[-3]: path.read_text() for path in found}

    def hand_in(self, student: str, words: str) -> None:
        folder = self.root / "submitted" / student / NAME
        folder.mkdir(parents=True, exist_ok=True)
        cells = {"total": TOTAL, "mean": MEAN, "why": words}
        (folder / f"{NAME}.ipynb").write_text(nbformat.writes(answered(deepcopy(release(self.root)), cells)))

    def read(self, **points: float) -> None:
        """Give students points by hand, as the formgrader does."""
        with Gradebook(f"sqlite:///{self.root}/gradebook.db", "worldsize") as book:
            for student, score in points.items():
                grade = book.find_grade("why", NAME, NAME, student)
                grade.manual_score, grade.needs_manual_grade = score, False
            book.db.commit()

    def due(self, date: str) -> None:
        self.do("nbgrader", "db", "assignment", "add", NAME, f"--duedate={date}")


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """The course at its end; ada is two days late, at first, and bob hands in another answer later."""
    root = tmp_path_factory.mktemp("course")
    make_course(root, LAB + ESSAY)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write(CONFIG)
    (root / "collected.csv").write_text(f"assignment,student,submitted\n{NAME},ada,2020-11-22 12:00:00 UTC\n")
    course = Course(root)
    course.do("nbgrader", "generate_assignment", NAME, "--force")
    course.due("2020-11-20 12:00:00 UTC")
    course.hand_in("ada", "It is the sum.")
    course.hand_in("bob", "I think so.")
    course.do("autograder", "grade", NAME, stage="grade")
    course.look("graded")
    course.read(ada=1, bob=2)
    course.look("read")
    course.look("nothing new")

    checks = root / "solutions" / NAME / "checks.py"
    checks.write_text(checks.read_text().replace("Every rank holds the mean", "Each rank holds the mean"))
    course.hand_in("bob", "I know so.")
    course.look("changed")
    course.do("nbgrader", "autograde", NAME, "--force", "--student", "ada", stage="autograde")
    course.do("autograder", "grade", NAME, "bob", stage="grade again")
    course.look("graded again")

    course.due("2020-11-21 12:00:00 UTC")
    course.look("moved")
    course.do("autograder", "late", NAME, stage="late")
    course.look("late")
    rows = f"{NAME},adda,2020-11-22 12:00:00 UTC\nother,zoe,2020-11-22 12:00:00 UTC\n"
    (root / "collected.csv").write_text(f"assignment,student,submitted\n{rows}")
    course.do("autograder", "late", NAME, stage="not late after all")
    course.look("not late after all")

    course.read(bob=1.5)
    course.look("read again")
    shutil.rmtree(root / "autograded" / "bob")
    course.look("gone")
    return course


def scores(course, stage):
    return {student: (row["score"], row["status"]) for student, row in course.rows[stage].items()}


def test_a_class_that_waits_to_be_read_has_no_scores(course):
    assert scores(course, "graded") == dict.fromkeys(("ada", "bob"), ("", "needs manual grading"))
    assert "Answers to grade by hand, in the Formgrader: 2." in course.said["grade"]
    assert "Pages written: 2. Up to date: 0." in course.said["graded, feedback"]
    assert "1 answer is still to be read" in course.pages["graded"]["bob"]


def test_points_by_hand_are_on_the_page_and_count_at_once(course):
    assert scores(course, "read")["bob"] == ("7.0", "graded")
    assert "Pages written: 2. Up to date: 0." in course.said["read, feedback"]
    assert "<strong>7</strong> of 7 points" in course.pages["read"]["bob"]


def test_a_page_is_written_only_where_something_has_changed(course):
    assert "Pages written: 0. Up to date: 2." in course.said["nothing new, feedback"]
    assert course.pages["nothing new"] == course.pages["read"]


def test_what_was_graded_by_other_files_is_named(course):
    said = course.said["changed, feedback"]
    assert "ada: changed since this was graded: checks." in said
    assert "bob: changed since this was graded: submission, checks." in said
    assert scores(course, "changed")["bob"] == ("", "waiting to be graded")


@pytest.mark.parametrize("stage", ["graded again", "moved", "late", "read again"])
def test_points_by_hand_outlive_another_grading(course, stage):
    score, status = scores(course, stage)["ada"]
    assert status == "graded" and float(score) > 0
    assert "1 by your instructor" in course.pages[stage]["ada"]


def test_the_page_is_by_the_check_as_it_is_now(course):
    for student in ("ada", "bob"):
        assert "Every rank holds the mean" in course.pages["changed"][student]
        assert "Each rank holds the mean" in course.pages["graded again"][student]


def test_an_answer_that_changed_is_to_be_read_again_and_has_no_number_until_then(course):
    assert scores(course, "graded again")["bob"] == ("", "needs manual grading")
    assert "bob: why has changed since it was graded by hand." in course.said["grade again"]
    page = course.pages["graded again"]["bob"]
    assert "1 answer is still to be read" in page and "<strong>5</strong> of 7 points" in page
    assert scores(course, "read again")["bob"] == ("6.5", "graded")


def test_penalties_follow_points_by_hand_and_the_due_date_without_grading(course):
    penalties = {stage: rows["ada"]["late_submission_penalty"] for stage, rows in course.rows.items()}
    assert [penalties[stage] for stage in ("graded", "read", "graded again", "moved", "late")] == [
        "1.0", "1.0", "1.2", "1.2", "0.6",
    ]  # fmt: skip
    for stage in ("read", "moved"):
        for command in ("feedback", "export"):
            said = course.said[f"{stage}, {command}"]
            assert f"Late penalties are out of date for ada: `autograder late {NAME}`" in said, (stage, command)
    assert "out of date" not in course.said["late, feedback"] + course.said["late, export"]
    assert "Penalties changed: 1." in course.said["late"]
    assert "Pages written: 1. Up to date: 1." in course.said["late, feedback"]
    assert "−0.6 because it came late" in course.pages["late"]["ada"]


def test_a_time_that_is_taken_out_of_the_record_counts_no_more(course):
    row = course.rows["not late after all"]["ada"]
    assert (float(row["late_submission_penalty"]), row["timestamp"]) == (0, "")
    assert f"has times of {NAME} for students who have no graded work: adda\n" in course.said["not late after all"]


def test_a_page_with_no_grading_behind_it_goes(course):
    assert "bob: removed" in course.said["gone, feedback"]
    assert set(course.pages["gone"]) == {"ada"}


def test_who_has_no_grading_is_named_and_no_page_is_removed_where_nobody_has(course):
    done = run(course.root, "autograder", "feedback", NAME, "eve")
    assert done.returncode == 1 and f"eve has no graded {NAME}" in done.stdout
    (course.root / "autograded").rename(course.root / "elsewhere")
    done = run(course.root, "autograder", "feedback", NAME)
    (course.root / "elsewhere").rename(course.root / "autograded")
    assert done.returncode == 1 and f"No submission of {NAME} is graded yet" in done.stdout
    assert (course.root / "feedback" / "ada" / NAME / f"{NAME}.html").exists()


def test_nbgraders_own_command_writes_every_page_whatever_is_there(course):
    page = course.root / "feedback" / "ada" / NAME / f"{NAME}.html"
    before = page.read_text()
    page.write_text("stale")
    course.do("nbgrader", "generate_feedback", NAME)
    assert page.read_text() == before
