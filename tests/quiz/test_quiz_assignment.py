"""A quiz as an assignment of nbgrader: each student gets the points of their own form, and no code is run."""

import json
import re
import shutil

import nbformat
import pytest
from commands import run
from nbgrader.api import Gradebook
from quiz_class import KINDS, STUDENTS, number_of, right, write_bank
from quiz_samples import ESSAY
from tiny_lab import ROOT, once

from autograder.authoring.notebooks import out_of_date
from autograder.course import open_course
from autograder.grading.lab import Lab
from autograder.judging.report import Outcome
from autograder.quiz.assignment import assign
from autograder.quiz.blueprint import Blueprint
from autograder.quiz.formats import FORMATS
from autograder.quiz.key import read_key
from autograder.quiz.quiz_folder import QuizInputs, write_quiz
from autograder.quiz.whole_bank import read_bank
from autograder.submissions import Malformed
from autograder.submissions.submission import read_submission
from autograder.tables.roster import Student

NAME = "quiz_week02"
COUNT = 7  # of which the last is an essay
CLASS = [*STUDENTS, Student("dan")]  # ada is right, bob is in part, c3's file is damaged, dan hands ada's form in
CODE = "open('ran', 'w').write('x')"


def answer(root, student, answers, of=None):
    """Hands in a student's own notebook, or that of another one, with answers in the place of None."""
    text = (root / "handouts" / NAME / (of or student) / f"{NAME}.ipynb").read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        number = int(cell.id.partition("_")[2]) if cell.id.startswith("question_") else None
        if number == COUNT and number in answers:
            cell.source = answers[number]
        elif number in answers:
            cell.source = cell.source.replace("None", answers[number])
    folder = root / "submitted" / student / NAME
    folder.mkdir(parents=True)
    (folder / f"{NAME}.ipynb").write_text(nbformat.writes(notebook), encoding="utf-8")


def forms_of(root):
    return {form.student.id: form for form in read_key(root / "quiz/answers/key.json", read_bank(root / "quizzes"))}


def grade_quiz(root):
    shutil.copy(ROOT / "nbgrader_config.py", root)
    questions = read_bank(write_bank(root / "quizzes", [*KINDS, ESSAY]))
    plan = Blueprint(title="Week 2", count=COUNT, essays=1, pass_fraction=0.5)
    write_quiz(QuizInputs(plan, questions, CLASS, b"secret", [FORMATS["ipynb"]]), root / "quiz", jobs=1)
    log = [run(root, "autograder", "quiz", "assign", "quiz/answers/key.json", NAME)]
    log.append(run(root, "nbgrader", "generate_assignment", NAME))
    forms = forms_of(root)
    full = {
        student: {n: json.dumps(right(one.answer)) for n, one in enumerate(form.variants[:-1], start=1)}
        for student, form in forms.items()
    }
    answer(root, "ada", {**full["ada"], COUNT: "Sums go round, then <b>copies</b>."})
    half = number_of(forms["bob"], "multiple")
    words = number_of(forms["bob"], "text")
    numeric = number_of(forms["bob"], "numeric")
    single = number_of(forms["bob"], "single")
    first_of_two = json.dumps(right(forms["bob"].variants[half - 1].answer)[0])
    cells = {half: first_of_two, words: '"<script>alert(1)</script>"', numeric: CODE, single: full["bob"][single]}
    answer(root, "bob", cells)
    answer(root, "c3", full["c3"])
    damaged = root / "submitted" / "c3" / NAME / f"{NAME}.ipynb"
    damaged.write_text(damaged.read_text()[:-200])
    answer(root, "dan", full["ada"], of="ada")
    log += [run(root, "nbgrader", "autograde", NAME), run(root, "nbgrader", "generate_feedback", NAME)]
    (root / "commands.log").write_text("\n".join(f"{done.args} {done.returncode}\n{done.stdout}" for done in log))
    assert all(done.returncode == 0 for done in log), (root / "commands.log").read_text()


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return once(tmp_path_factory.getbasetemp(), "quiz_course", grade_quiz)


@pytest.fixture(scope="module")
def pages(course):
    return {one.id: (course / "feedback" / one.id / NAME / f"{NAME}.html").read_text() for one in CLASS}


def test_the_gradebook_has_the_points_of_each_students_own_form(course):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        points = {}
        for one in CLASS:
            submission = gradebook.find_submission(NAME, one.id)
            points[one.id] = [submission.notebooks[0].score, submission.notebooks[0].max_score]
            grades = {grade.name: grade for grade in submission.notebooks[0].grades}
            by_key = {f"point_{number}" for number in range(1, COUNT)}
            assert set(grades) == {*by_key, f"question_{COUNT}", f"rubric_{COUNT}"}
            assert {grades[name].max_score for name in by_key} == {1}
            assert (grades[f"question_{COUNT}"].max_score, grades[f"rubric_{COUNT}"].max_score) == (2, 0)
            waiting = {name for name, grade in grades.items() if grade.needs_manual_grade}
            assert waiting == ({f"question_{COUNT}"} if one.id == "ada" else set())  # who wrote nothing has no points
    assert points == {"ada": [6, 8], "bob": [1.5, 8], "c3": [0, 8], "dan": [0, 8]}


def test_an_answer_that_cannot_be_read_is_named_to_who_grades(course):
    number = number_of(forms_of(course)["bob"], "numeric")
    assert f"bob: The answer to question {number} cannot be read" in (course / "commands.log").read_text()
    judged = Lab(open_course(course), NAME).judge("bob")
    assert judged.verdict == f"1.5 points. The answer to question {number} cannot be read"


def test_no_code_of_a_student_is_run(course):
    assert not list(course.rglob("ran"))
    entries = [json.loads(line) for line in (course / "gradebook-audit.jsonl").read_text().splitlines()]
    assert {entry["student"]: (entry["verdict"], entry["score"], entry["tier"]) for entry in entries} == {
        "ada": ("graded", 6, "no code was run"),
        "bob": ("graded", 1.5, "no code was run"),
        "c3": ("malformed submission", 0, None),
        "dan": ("malformed submission", 0, None),
    }


def test_the_page_tells_what_was_asked_what_was_written_and_what_is_right(course, pages):
    bob = forms_of(course)["bob"]
    page = pages["bob"]
    for variant in bob.variants:
        assert variant.question.objective in page
    assert "1.5</strong> of 8 points" in page
    assert "You wrote: '&lt;script&gt;alert(1)&lt;/script&gt;'" in page and "<script>alert" not in page
    assert "because no code is run" in page and "no answer" in page and "You wrote: None" not in page
    assert "Read below what is right, and why" in page
    assert "Two twos." in page and "The code ran" not in page and "fresh inputs" not in page
    assert "<math" in page  # a formula of the bank, which no script renders
    names = [f"{name}_{n}" for n in range(1, COUNT) for name in ("question", "point")]
    places = [page.index(f'id="{name}"') for name in (*names, f"question_{COUNT}", f"rubric_{COUNT}")]
    assert places == sorted(places)  # each question's points stand below its answer


def test_the_grader_of_an_essay_sees_the_rubric_and_students_do_not(course, pages):
    graded = nbformat.read(course / "autograded" / "ada" / NAME / f"{NAME}.ipynb", as_version=4)
    cells = [cell for cell in graded.cells if cell.metadata.get("nbgrader")]
    essay, rubric = cells[-2:]
    assert essay.source == "Sums go round, then <b>copies</b>." and essay.metadata.nbgrader.grade
    (shown,) = rubric.outputs
    assert "<strong>1.5</strong>: It names the <em>reduce-scatter</em>" in shown.data["text/html"]
    assert "A model answer" in shown.data["text/html"] and "0 of 0" not in shown.data["text/html"]
    for place in ("labs", "handouts", "solutions"):
        for file in (course / place).rglob("*.ipynb"):
            assert "It names the" not in file.read_text() and "A model answer" not in file.read_text(), file
    assert "still to be read, 2 points" in pages["ada"] and "1 answer is still to be read" in pages["ada"]
    assert "Sums go round" in pages["ada"]


def test_forms_whose_essays_differ_in_their_place_are_not_assigned(course, tmp_path):
    root = tmp_path / "course"
    shutil.copytree(course / "quizzes", root / "quizzes")
    shutil.copytree(course / "quiz", root / "quiz")
    key = json.loads((root / "quiz/answers/key.json").read_text())
    key["forms"][1]["asked"].reverse()
    (root / "quiz/answers/key.json").write_text(json.dumps(key))
    with pytest.raises(ValueError, match="The forms differ in which questions are essays"):
        assign(root / "quiz/answers/key.json", root, "other")
    key["blueprint"] |= {"count": 1}
    (root / "quiz/answers/key.json").write_text(json.dumps(key))
    with pytest.raises(ValueError, match="A quiz with only essays cannot be an assignment"):
        assign(root / "quiz/answers/key.json", root, "other")


def test_a_file_that_cannot_be_marked_says_why(pages):
    assert "The file is damaged" in pages["c3"]
    assert "This form was made for 'ada'. Answer in your own notebook, and hand that in." in pages["dan"]


def test_nothing_of_the_key_is_in_what_students_get(course):
    released = sorted(path.name for path in (course / "labs" / NAME).iterdir())
    assert released == [f"{NAME}.ipynb"]
    assert sorted(path.name for path in (course / "autograded" / "ada" / NAME).iterdir()) == released
    assert oct((course / "solutions" / NAME / "key.json").stat().st_mode)[-3:] == "600"


def test_the_audit_log_reproduces_a_mark(course):
    done = run(course, "autograder", "audit", "--replay", "2")
    assert done.returncode == 0 and re.search("1.5, graded +1.5, graded", done.stdout), done.stdout
    key = course / "solutions" / NAME / "key.json"
    before = key.read_text()
    with_other_answers = json.loads(before)
    with_other_answers["forms"][1]["asked"].reverse()
    try:
        key.write_text(json.dumps(with_other_answers))  # the kept copy is marked by
        again = run(course, "autograder", "audit", "--replay", "2")
    finally:
        key.write_text(before)
    assert again.returncode == 0 and "The checks have changed since" in again.stdout, again.stdout


def test_who_is_not_on_the_roster_gets_no_score(course, tmp_path):
    shutil.copytree(course, tmp_path / "course")
    lab = Lab(open_course(tmp_path / "course"), NAME)
    shutil.copytree(tmp_path / "course/submitted/ada", tmp_path / "course/submitted/eve")
    path = lab.submitted_file("eve")
    path.write_text(path.read_text().replace('"student": "ada"', '"student": "eve"'))
    assert "has no form for eve" in lab.judge("eve").fault
    judged = lab.judge("ada")
    assert judged.report and {check.outcome for check in judged.report.checks} == {Outcome.PASSED, Outcome.BY_HAND}


def test_building_the_course_leaves_a_quiz_alone(course):
    assert out_of_date(course) == []


def test_a_quiz_is_not_assigned_over_something_else(course, tmp_path):
    with pytest.raises(ValueError, match="exists already"):
        assign(course / "quiz/answers/key.json", course, NAME)
    with pytest.raises(ValueError, match="cannot be the name"):
        assign(course / "quiz/answers/key.json", course, "../quiz")
    (tmp_path / "answers").mkdir()
    shutil.copy(course / "quiz/answers/key.json", tmp_path / "answers")
    with pytest.raises(ValueError, match="make the quiz with `--format ipynb`"):
        assign(tmp_path / "answers/key.json", course, "other")
    assert not (course / "solutions" / "other").exists()


def test_a_form_whose_owner_is_named_in_an_odd_way_is_read_as_nobodys(course):
    release = nbformat.read(course / "labs" / NAME / f"{NAME}.ipynb", as_version=4)
    path = course / "submitted" / "ada" / NAME / f"{NAME}.ipynb"
    assert read_submission(path, release, "ADA").notebook.cells
    with pytest.raises(Malformed, match="made for 'ada'"):
        read_submission(path, release, "bob")
