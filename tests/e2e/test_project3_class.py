"""A class that hands in project 3, graded by plain nbgrader commands: scores, feedback, and what waits for a person."""

import re
import shutil

import nbformat
import pytest
from commands import run
from nbgrader.api import Gradebook
from repository import ROOT
from tiny_lab import needs_jail, once

from autograder.authoring import programs
from autograder.authoring.known_answers import compose
from autograder.authoring.notebooks import build
from autograder.grading import verify

pytestmark = [pytest.mark.slow, pytest.mark.nightly("three submissions, two minutes of processor time"), needs_jail]

NAME, PROGRAM = "project3", "programs.py"
WORDS = "1. 160 nodes: 37 days for 2.37 million dollars."
CASES = {case.name: case for case in verify.cases(ROOT, NAME)}


def hand_in(root, student, case, source):
    """Put a known answer's report, and this program beside it, into a student's folder."""
    folder = root / "submitted" / student / NAME
    folder.mkdir(parents=True)
    release = nbformat.read(root / "labs" / NAME / "report.ipynb", as_version=4)
    nbformat.write(compose(release, {"design": case.cells["design"], "words": WORDS}), folder / "report.ipynb")
    (folder / PROGRAM).write_text(source)


def grade_class(root):
    """Ada is right; Bo's design is late, and his cost is a constant; Cy's program cannot be read."""
    shutil.copytree(ROOT / "solutions" / NAME, root / "solutions" / NAME)
    shutil.copy(ROOT / "nbgrader_config.py", root)
    build(root)
    program = root / "solutions" / NAME / PROGRAM
    constant = CASES["wrong/cost_of_one_constant"].cells["seconds_of_a_step"]
    hand_in(root, "ada", CASES["solution"], programs.solved(program))
    hand_in(root, "bo", CASES["wrong/design_that_is_late"], programs.solved(program, {"seconds_of_a_step": constant}))
    hand_in(root, "cy", CASES["solution"], programs.solved(program).replace("def policy(", "def policy"))
    commands = (["generate_assignment", NAME, "--force"], ["autograde", NAME], ["generate_feedback", NAME])
    done = [run(root, "nbgrader", *words) for words in commands]
    (root / "commands.log").write_text("\n".join(f"{one.returncode}\n{one.stdout}" for one in done))
    assert [one.returncode for one in done] == [0, 0, 0], (root / "commands.log").read_text()


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return once(tmp_path_factory.getbasetemp(), "project3-class", grade_class)


def points(course, student):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        grades = gradebook.find_submission_notebook("report", NAME, student).grades
        return {one.name: (round(one.auto_score or 0, 1), one.max_score, one.needs_manual_grade) for one in grades}


def lost(case):
    return 86 - CASES[case].score


@pytest.mark.timeout(3000)
def test_each_student_gets_the_points_of_the_parts_that_hold(course):
    full = {"check_design": 24, "check_cost": 22, "check_policy": 20, "check_train": 20}
    ada, bo, cy = (points(course, student) for student in ("ada", "bo", "cy"))
    assert {name: ada[name][0] for name in full} == full, (course / "commands.log").read_text()
    assert bo["check_design"][0] == pytest.approx(24 - lost("wrong/design_that_is_late"), abs=0.2)
    assert bo["check_cost"][0] < 22 and (bo["check_policy"][0], bo["check_train"][0]) == (20, 20)
    assert {name: cy[name][0] for name in full} == {**dict.fromkeys(full, 0), "check_design": 24}
    assert {one["words"] for one in (ada, bo, cy)} == {(0, 14, True)}


@pytest.mark.timeout(3000)
def test_the_page_of_feedback_says_what_was_wrong_and_where(course):
    pages = {one: (course / "feedback" / one / NAME / "report.html").read_text() for one in ("ada", "bo", "cy")}
    assert "SyntaxError" in pages["cy"] and "programs.py, line " in pages["cy"]
    assert "days" in pages["bo"] and "published steps" in pages["bo"]
    assert all("Traceback (most recent" not in page for page in pages.values())


@pytest.mark.timeout(3000)
def test_the_rubric_stands_above_the_answer_that_a_person_reads(course):
    graded = nbformat.read(course / "autograded" / "ada" / NAME / "report.ipynb", as_version=4)
    (place,) = (
        n for n, cell in enumerate(graded.cells) if cell.metadata.get("nbgrader", {}).get("grade_id") == "words"
    )
    assert graded.cells[place].source == WORDS
    rubric = graded.cells[place - 1].source.partition("**Rubric.**")[2]
    assert sum(int(worth) for worth in re.findall(r"\((\d)\)", rubric)) == 14
