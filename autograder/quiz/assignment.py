"""A quiz as an nbgrader assignment: marked with the key, without running code; essays are graded by hand.

The assignment has the cells that all forms share: for each question number, an answer and its point. The questions are
in the notebook that `quiz make` wrote for each student. The key is stored with the source, where no student sees it.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.course import QUIZ_KEY
from autograder.judging.report import NO_CODE, CheckResult, Outcome, Report
from autograder.quiz.atomic_folder import in_place_of, write_private
from autograder.quiz.formats import notebook as forms_notebook
from autograder.quiz.formats.platform_text import rubric_text
from autograder.quiz.forms import Form
from autograder.quiz.key import Key, parse_key, read_key
from autograder.quiz.marked_forms import mark_forms
from autograder.quiz.notebook_responses import read_cells
from autograder.quiz.page_html import solution
from autograder.quiz.quiz_folder import place_of
from autograder.quiz.responses import Responses
from autograder.quiz.results import AnswerFeedback, feedback_on
from autograder.quiz.whole_bank import read_bank
from worldsize.quiz.bank import FOLDER
from worldsize.quiz.variant import Prose

HANDOUTS = "handouts"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MAX_WRITTEN_CHARS = 500
_OUTCOMES = {
    "good": Outcome.PASSED,
    "part": Outcome.PARTLY,
    "bad": Outcome.WRONG_ANSWER,
    "open": Outcome.NO_ANSWER,
    "waiting": Outcome.BY_HAND,
}


def assign(key: Path, root: Path, name: str) -> list[Path]:
    """Write an assignment's source and each student's notebook, and return their two folders.

    Raises:
        ValueError: the key cannot be read, the quiz has no notebooks, or the name is taken or not allowed.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of an assignment: use letters, digits and . _ -.")
    source, handouts = root / "solutions" / name, root / HANDOUTS / name
    if taken := [folder for folder in (source, handouts) if folder.exists()]:
        raise ValueError(f"{taken[0]} exists already: choose another name, or remove it.")
    given = parse_key(key)
    worth = _worth(given, read_key(key, read_bank(root / FOLDER)) if given.blueprint.essays else [])
    notebooks = {form.student: _notebook_of(key, form.student) for form in given.forms}
    with in_place_of(handouts) as folder:
        for student, notebook in notebooks.items():
            (folder / student).mkdir()
            shutil.copyfile(notebook, folder / student / f"{name}.ipynb")
    with in_place_of(source) as folder:
        write_private(folder / QUIZ_KEY, key.read_bytes())
        (folder / f"{name}.ipynb").write_text(nbformat.writes(_source(given, name, worth)) + "\n", encoding="utf-8")
    return [source, handouts]


def report(key: Path, bank: Path, student: str, submission: NotebookNode) -> Report:
    """Mark a student's notebook. Only literals are read; no code is run.

    Raises:
        ValueError: the key has no form for the student, or does not fit the bank.
    """
    start_s = time.monotonic()
    forms = read_key(key, read_bank(bank), student)
    if not forms:
        raise ValueError(f"{key} has no form for {student}: only students on the quiz's roster can be marked.")
    responses = Responses(forms)
    form = responses.form(student, "the notebook")
    assert form is not None
    read_cells(submission, form, "the notebook", responses)
    (marked_form,) = mark_forms(forms, responses)
    checks = [_result(one) for one in feedback_on(marked_form, responses.problems)]
    notes = [f"The answer to question {one.number} cannot be read" for one in responses.problems if one.number]
    return Report(checks=checks, tier=NO_CODE, seed=0, duration_s=time.monotonic() - start_s, notes=notes)


def _notebook_of(key: Path, student: str) -> Path:
    # the key is in the quiz's folder `answers`
    notebook = key.absolute().parents[1] / place_of(forms_notebook.FORMAT) / f"{student}{forms_notebook.FORMAT.suffix}"
    if not notebook.is_file():
        raise ValueError(f"{notebook} is missing: make the quiz with `--format {forms_notebook.FORMAT.name}`.")
    return notebook


def _for_the_grader(one: AnswerFeedback, answer: Prose) -> CheckResult:
    """The rubric and a model answer, shown below an essay in the formgrader and, once graded, on the student's page."""
    number, variant = one.answered.number, one.answered.variant
    return CheckResult(
        name=f"question_{number}",
        cell=_rubric(number),
        promise=f"{number}. {variant.question.objective}",
        points=0,
        outcome=Outcome.BY_HAND,
        explanation=f"{rubric_text(answer)}\n\nA good answer is, for instance:\n\n{variant.feedback}",
    )


def _worth(key: Key, forms: Sequence[Form]) -> dict[int, float]:
    """The points of each essay by question number, the same on every form; empty without essays.

    Raises:
        ValueError: the forms differ in them, or all questions are essays, so that the key marks nothing.
    """
    if not key.blueprint.essays:
        return {}
    if key.blueprint.essays == key.blueprint.count:
        raise ValueError("A quiz with only essays cannot be an assignment: add a question that the key marks.")
    found = [
        {number: one.question.points for number, one in enumerate(form.variants, 1) if one.question.kind == "essay"}
        for form in forms
    ]
    if any(worth != found[0] for worth in found):
        raise ValueError("The forms differ in which questions are essays, or in their points: make the quiz again.")
    return found[0]


def _source(key: Key, name: str, worth: Mapping[int, float]) -> NotebookNode:
    text = (
        f"# {key.blueprint.title}\n\nEvery student has a different notebook. Answer in the one that was made for you, "
        f"and hand it in as `{name}.ipynb`."
    )
    cells = [new_markdown_cell(text, id="title")]
    for number in range(1, key.blueprint.count + 1):
        if number in worth:
            cells += _essay(number, worth[number])
            continue
        answer, point = f"question_{number}", _point(number)
        marks = forms_notebook.nbgrader(number)
        cells.append(new_code_cell(f"answer_{number} = None", id=answer, metadata={"nbgrader": marks}))
        marks = {**marks, "grade_id": point, "grade": True, "solution": False, "locked": True, "points": 1}
        cells.append(new_code_cell(f"# the point of question {number}", id=point, metadata={"nbgrader": marks}))
    return new_notebook(cells=cells, metadata={"kernelspec": forms_notebook.KERNEL})


def _essay(number: int, points: float) -> list[NotebookNode]:
    """The two cells of an essay: the answer, graded by a person, and one that shows the grader the rubric."""
    marks = forms_notebook.nbgrader_essay(number, points)
    answer = new_markdown_cell(forms_notebook.TO_REPLACE, id=f"question_{number}", metadata={"nbgrader": marks})
    marks = {**forms_notebook.nbgrader(number), "grade_id": _rubric(number), "grade": True, "solution": False}
    marks |= {"locked": True, "points": 0}
    rubric = new_code_cell("# for the grader", id=_rubric(number), metadata={"nbgrader": marks})
    return [answer, rubric]


def _rubric(number: int) -> str:
    return f"rubric_{number}"


def _point(number: int) -> str:
    return f"point_{number}"


def _result(one: AnswerFeedback) -> CheckResult:
    answer = one.answered.variant.answer
    if isinstance(answer, Prose):
        return _for_the_grader(one, answer)
    number, variant, share = one.answered.number, one.answered.variant, one.answered.marked.share
    outcome = _OUTCOMES[one.style]
    is_written = one.written and (one.problem or not one.answered.is_empty)
    message = [f"You wrote: {one.written[:_MAX_WRITTEN_CHARS]}"] if is_written else []
    message += [f"This cannot be read: {one.problem}."] if one.problem else []
    return CheckResult(
        name=f"question_{number}",
        cell=_point(number),
        promise=f"{number}. {variant.question.objective}",
        points=1,
        outcome=outcome,
        share=share if outcome is Outcome.PARTLY else None,
        message="\n".join(message),
        explanation="\n\n".join([f"The right answer: {solution(variant.answer)}", *one.why]),
    )
