"""Requests for a regrade: read from a student's file, listed, answered in one place, shown, and not lost again."""

import json
from copy import deepcopy

import pytest
import stand_in_judge
from commands import run
from nbgrader.api import Gradebook
from tiny_lab import MEAN, NAME, TOTAL, answered, make_course, release

from autograder.course import open_course
from autograder.submissions.regrade_requests import MAX_BYTES, requests
from autograder.tables.regrades import note_answer, read_answers

REQUEST = """\
# `check_mean`
My mean divides by the *number of ranks*.
<script>alert(1)</script>

## check_total: why 0 of 3?
"""


def do(root, *command):
    done = run(root, *command)
    assert done.returncode == 0, done.stdout
    return done.stdout


def grade(root, *more):
    code, text, _ = stand_in_judge.run(root, "autograder", "grade", NAME, *more)
    assert code == 0, text


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """Ada's functions are wrong to the checks, ben's right; both are graded, and ada asks again."""
    root = make_course(tmp_path_factory.mktemp("course"))
    for student, cells in (("ada", {"mean": "def mean(tensor):\n    return tensor"}), ("ben", {"mean": MEAN})):
        folder = root / "submitted" / student / NAME
        folder.mkdir(parents=True)
        text = json.dumps(answered(deepcopy(release(root)), {"total": TOTAL, **cells}))
        (folder / f"{NAME}.ipynb").write_text(text)
    do(root, "nbgrader", "generate_assignment", NAME, "--force")
    grade(root)
    (root / "submitted/ada" / NAME / "regrade.md").write_text(REQUEST)
    return root


def score(root, student):
    with Gradebook(f"sqlite:///{root}/gradebook.db", "worldsize") as book:
        return book.find_submission(NAME, student).score


def test_requests_are_listed_with_their_points_and_by_the_status(course):
    said = do(course, "autograder", "regrade", NAME)
    assert "ada, check_mean (0 of 2), open\n    My mean divides by the *number of ranks*." in said
    assert "ada, check_total (3 of 3), open\n    why 0 of 3?" in said and "2 requests, 2 open." in said
    assert f"{NAME}, regrade requests: ada; `autograder regrade {NAME}`." in do(course, "autograder", "status")
    assert "asks for a regrade" in do(course, "autograder", "status", NAME)


def test_an_answer_is_shown_and_its_points_outlive_every_grading(course):
    do(course, "autograder", "feedback", NAME)
    page = course / "feedback/ada" / NAME / f"{NAME}.html"
    assert page.read_text().count("Not answered yet.") == 2 and "<script>alert" not in page.read_text()
    words = ("--answer", "You are right:\nthe check was <b>too</b> strict.", "--points", "1.5")
    said = do(course, "autograder", "regrade", NAME, "ada", "check_mean", *words)
    assert "ada, sums, check_mean: answered, 0 points before, 1.5 now, given by hand." in said
    assert score(course, "ada") == 4.5
    grade(course, "--again")
    code, text, _ = stand_in_judge.run(course, "nbgrader", "autograde", NAME, "--force")
    assert code == 0, text
    assert score(course, "ada") == 4.5
    assert "2 requests, 1 open." in do(course, "autograder", "regrade", NAME)
    assert "Pages written: 1." in do(course, "autograder", "feedback", NAME, "ada")
    shown = page.read_text()
    assert "You are right: the check was &lt;b&gt;too&lt;/b&gt; strict." in shown
    assert shown.count("Not answered yet.") == 1 and 'href="#check_mean"' in shown
    assert "What you asked" not in (course / "feedback/ben" / NAME / f"{NAME}.html").read_text()


def test_other_words_are_another_request(course):
    coursedir = open_course(course)
    (ada,) = (one for one in requests(coursedir, NAME, "ada") if one.cell == "check_mean")
    assert ada.answer
    file = course / "submitted/ada" / NAME / "regrade.md"
    file.write_text(REQUEST.replace("ranks*", "ranks*, always"))
    try:
        assert not any(one.answer for one in requests(coursedir, NAME, "ada"))
    finally:
        file.write_text(REQUEST)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ("ada", "mean", "--answer", "No."),
            "ada has not asked about mean of sums, only about check_mean, check_total.",
        ),
        (
            ("ben", "check_mean", "--answer", "No."),
            "ben has not asked for a regrade of sums; these students have: ada.",
        ),
        (("ad", "check_mean", "--answer", "No."), "ad has not asked for a regrade of sums; these students have: ada."),
        (("--answer", "No.", "--points", "0"), "Say whose request you answer: autograder regrade sums STUDENT CELL"),
        (("ada", "check_total"), "Give an answer in words"),
        (
            ("ada", "check_total", "--answer", "Yes.", "--points", "4"),
            "4 points are not possible: check_total takes 0",
        ),
    ],
)
def test_what_cannot_be_answered_changes_nothing(course, words, reason):
    before = (course / "regrades.csv").read_text() if (course / "regrades.csv").exists() else ""
    done = run(course, "autograder", "regrade", NAME, *words)
    assert done.returncode == 1 and reason in done.stdout
    assert ((course / "regrades.csv").read_text() if (course / "regrades.csv").exists() else "") == before


def test_an_assignment_that_does_not_exist_is_refused(course):
    done = run(course, "autograder", "regrade", "sum")
    assert done.returncode == 1 and f"The gradebook holds no assignment sum: it has {NAME}." in done.stdout


@pytest.mark.parametrize(
    ("content", "cell", "why"),
    [
        (b"just words", "", "just words"),
        (b"a" * (MAX_BYTES + 1), "", "(regrade.md has more than 64 kB, and was not read.)"),
        (b"# check_mean\n\xff\x1b[2Jx", "check_mean", "\ufffd\\x1b[2Jx"),
        (b"# check_mean\r\n\r\nbecause\r\n", "check_mean", "because"),
    ],
)
def test_any_file_becomes_requests(course, content, cell, why):
    folder = course / "submitted" / "zoe" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "regrade.md").write_bytes(content)
    try:
        (found,) = requests(open_course(course), NAME, "zoe")
    finally:
        (folder / "regrade.md").unlink()
        folder.rmdir()
        folder.parent.rmdir()
    assert (found.cell, found.why) == (cell, why)


def test_a_link_is_not_followed(course):
    link = course / "submitted/ben" / NAME / "regrade.md"
    link.symlink_to(course / "gradebook.db")
    try:
        (found,) = requests(open_course(course), NAME, "ben")
    finally:
        link.unlink()
    assert found.why == "(regrade.md is not a plain file.)"


def test_the_record_keeps_every_answer_and_needs_its_columns(tmp_path):
    note_answer(tmp_path, "lab01", "ada", "check_mean", "12", 'Yes, "so"')
    note_answer(tmp_path, "lab01", "ada", "check_mean", "12", "No")
    assert read_answers(tmp_path) == {("lab01", "ada", "check_mean", "12"): "No"}
    assert len((tmp_path / "regrades.csv").read_text().splitlines()) == 3
    (tmp_path / "regrades.csv").write_text("student,answer\nada,No\n")
    with pytest.raises(ValueError, match="has no column 'assignment'"):
        read_answers(tmp_path)
