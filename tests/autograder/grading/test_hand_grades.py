"""What becomes of points given by hand when a submission is graded again."""

import logging
import os
import shutil
import sys
from copy import deepcopy

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from nbgrader.api import Gradebook
from nbgrader.coursedir import CourseDirectory

from autograder.grading.term.hand_grades import SaveAutoGrades, UnreadAnswer, unread

LAB = "project1"


@pytest.fixture(scope="module")
def gradebook(tmp_path_factory):
    """The file of a gradebook with one submission; making one takes seconds, which a copy does not."""
    path = tmp_path_factory.mktemp("empty") / "gradebook.db"
    with pytest.MonkeyPatch.context() as patch:
        # nbgrader looks for alembic there when it makes a gradebook
        patch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
        with Gradebook(f"sqlite:///{path}") as book:
            book.add_assignment(LAB)
            book.add_notebook("report", LAB)
            for name, points in (("check_f", 3), ("why", 2)):
                book.add_grade_cell(name, "report", LAB, max_score=points, cell_type="code")
            for name in ("f", "why"):
                book.add_solution_cell(name, "report", LAB)
            book.add_student("ada")
            book.add_submission(LAB, "ada")
    return path


def marked(cell, **marks):
    usual = {"grade": False, "locked": False, "solution": False, "schema_version": 3, "task": False}
    cell.metadata["nbgrader"] = {**usual, "cell_type": cell.cell_type, **marks}
    return cell


def submission(words="My answer", code="return 1", score=1.0):
    check = new_code_cell("assert f()", outputs=[new_output("execute_result", {"text/plain": repr(score)})])
    return new_notebook(
        cells=[
            marked(new_code_cell(code), grade_id="f", solution=True),
            marked(check, grade_id="check_f", grade=True, locked=True, points=3),
            marked(new_markdown_cell(words), grade_id="why", grade=True, solution=True, points=2),
        ]
    )


class Course:
    """A course with one submission, which is graded as often as a test likes."""

    def __init__(self, root, gradebook):
        self.url = f"sqlite:///{shutil.copy(gradebook, root)}"
        self.coursedir = CourseDirectory(root=str(root), db_url=self.url)
        (root / "release" / LAB).mkdir(parents=True)
        (root / "release" / LAB / "train.py").write_text("pass")
        self.program = root / "submitted" / "ada" / LAB / "train.py"
        self.program.parent.mkdir(parents=True)
        self.program.write_text("v = 1")

    def grade(self, notebook):
        step = SaveAutoGrades()
        step.coursedir = self.coursedir
        names = {"notebook": "report", "assignment": LAB, "student": "ada", "db_url": self.url}
        step.preprocess(deepcopy(notebook), {"nbgrader": names})

    def give(self, **points):
        """Points by hand, as the formgrader stores them."""
        with Gradebook(self.url) as book:
            for name, score in points.items():
                grade = book.find_grade(name, "report", LAB, "ada")
                grade.manual_score, grade.needs_manual_grade = score, False
            book.db.commit()

    def scores(self):
        """Points by cell; None where they still have to be given by hand."""
        with Gradebook(self.url) as book:
            grades = book.find_submission_notebook("report", LAB, "ada").grades
            return {one.name: None if one.needs_manual_grade else one.score for one in grades}

    def unread(self):
        with Gradebook(self.url) as book:
            return unread(book, LAB)


@pytest.fixture
def course(tmp_path, gradebook):
    return Course(tmp_path, gradebook)


def test_an_answer_that_nobody_has_read_waits(course):
    course.grade(submission())
    assert course.scores() == {"check_f": 1, "why": None}
    assert course.unread() == [UnreadAnswer("ada", "why", False)]


def test_points_by_hand_stay_while_the_answer_does(course):
    course.grade(submission())
    course.give(why=1.5)
    for score in (1.0, 3.0):  # the checks may have changed
        course.grade(submission(code=f"return {score}", score=score))
        assert course.scores() == {"check_f": score, "why": 1.5}
    assert course.unread() == []


def test_a_changed_answer_needs_grading_again_until_somebody_has_read_it(course, caplog):
    course.grade(submission())
    course.give(why=1.5)
    with caplog.at_level(logging.WARNING):
        course.grade(submission(words="Another answer"))
    assert "ada: why has changed since it was graded by hand (1.5 points): it needs grading again" in caplog.text
    for words in ("Another answer", "My answer"):
        course.grade(submission(words=words))
        assert course.scores()["why"] is None and course.unread() == [UnreadAnswer("ada", "why", True)]
    course.give(why=2)
    course.grade(submission())
    assert course.scores()["why"] == 2


def test_a_picture_is_part_of_an_answer(course):
    shown = submission()
    course.grade(shown)
    course.give(why=2)
    shown.cells[-1]["attachments"] = {"curve.png": {"image/png": "aaaa"}}
    course.grade(shown)
    assert course.scores()["why"] is None


@pytest.mark.parametrize("change", ["cell", "added cell", "program", "nothing"])
def test_points_given_in_place_of_a_check_stay_while_all_that_was_handed_in_does(course, change):
    course.grade(submission())
    course.give(check_f=2)
    again = submission(score=0.0, code="return 2" if change == "cell" else "return 1")
    if change == "added cell":
        again.cells.append(new_code_cell("g = 1"))
    if change == "program":
        course.program.write_text("v = 2")
    course.grade(again)
    assert course.scores()["check_f"] == (2 if change == "nothing" else None)


def test_a_file_that_cannot_be_read_has_no_points_by_hand(course):
    course.grade(submission())
    course.give(why=2)
    damaged = submission()
    damaged.metadata["worldsize"] = {"malformed": "The file is damaged."}
    for _ in range(2):
        course.give(why=2)  # nbgrader takes the mark off, too, where no file is there
        course.grade(damaged)
        assert course.scores()["why"] is None


def test_a_gradebook_from_before_asks_once_more(course):
    course.give(why=2)
    course.grade(submission())
    assert course.scores()["why"] is None
