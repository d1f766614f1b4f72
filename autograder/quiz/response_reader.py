"""Reading responses in any known layout: our tables, reports of Moodle and Canvas, a folder of notebooks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from autograder.quiz.forms import Form
from autograder.quiz.lms_reports import is_canvas, is_moodle, read_canvas, read_moodle
from autograder.quiz.notebook_responses import read_notebooks
from autograder.quiz.responses import Problem, Responses
from autograder.quiz.written_answers import parse_written
from autograder.tables.csv_table import CsvTable, read_table
from worldsize.units import parse_number

_STUDENT = ("student", "id")
_QUESTION = ("question", "number")
_RESPONSE = ("response", "answer")
_MORE = ("name", "minutes")


def read_responses(path: Path, forms: Sequence[Form], encoding: str | None = None) -> Responses:
    """Read the responses in a CSV file of a known layout, or in a folder of notebooks.

    Raises:
        ValueError: it is neither; lists the known columns.
    """
    responses = Responses(forms)
    if path.is_dir():
        read_notebooks(path, responses)
        return responses
    table = read_table(path, encoding)
    if not table.rows:
        raise ValueError(f"{path} has no rows below its header.")
    head = [name.casefold() for name in table.head]
    if is_moodle(table.head):
        read_moodle(table, responses)
    elif is_canvas(table.head):
        read_canvas(table, responses)
    elif any(name in head for name in _STUDENT) and any(name in head for name in _RESPONSE):
        _read_long(table, responses)
    elif any(name in head for name in _STUDENT):
        _read_wide(table, responses)
    else:
        raise ValueError(
            f"{path} has the columns {', '.join(table.head)}. Known are: student, question, response; or student and a "
            "column for each question; or Moodle's report of responses; or the student analysis of Canvas's classic "
            "quizzes; these two in English."
        )
    return responses


def _column(table: CsvTable, names: Sequence[str]) -> str | None:
    return next((column for name in names for column in table.head if column.casefold() == name), None)


def _read_long(table: CsvTable, responses: Responses) -> None:
    student, question = _column(table, _STUDENT), _column(table, _QUESTION)
    response, minutes = _column(table, _RESPONSE), _column(table, ("minutes",))
    assert student is not None and response is not None
    if question is None:
        raise ValueError(f"{table.file} has `{response}` but not to which question: it needs a column `question`.")
    for line, row in table.rows:
        where = table.where(line)
        form = responses.form(row[student], where)
        if form is None:
            continue
        number = _number(row[question], form)
        if number is None:
            reason = f"there is no question {row[question].strip()!r} in this form"
            responses.problems.append(Problem(where, form.student.id, None, reason))
            continue
        written = row[response]
        answer = responses.answer(form, number)
        responses.put(form, number, written, where, lambda a=answer, w=written: parse_written(a, w))
        _note_minutes(responses, form, row[minutes] if minutes else "", where)


def _read_wide(table: CsvTable, responses: Responses) -> None:
    student, minutes = _column(table, _STUDENT), _column(table, ("minutes",))
    questions = [name for name in table.head if name.casefold() not in (*_STUDENT, *_MORE)]
    ids = {one.variant.question.id for form in responses.forms for one in form.asked}
    most = max(len(form.asked) for form in responses.forms)
    if odd := [name for name in questions if name not in ids and _slot(name, most) is None]:
        raise ValueError(
            f"{table.file} has the column {odd[0]!r}, which is neither a number from 1 to {most} nor a question's id."
        )
    assert student is not None
    for line, row in table.rows:
        where = table.where(line)
        form = responses.form(row[student], where)
        if form is None or not responses.once(form, where):
            continue
        for name in questions:
            number = _number(name, form)
            if number is not None:
                answer, written = responses.answer(form, number), row[name]
                responses.put(form, number, written, where, lambda a=answer, w=written: parse_written(a, w))
            elif row[name].strip():
                reason = f"there is no question {name!r} in this form, and it is answered {row[name]!r}"
                responses.problems.append(Problem(where, form.student.id, None, reason))
        _note_minutes(responses, form, row[minutes] if minutes else "", where)


def _number(name: str, form: Form) -> int | None:
    """The number of a form's question, given its number or id."""
    name = name.strip()
    for number, one in enumerate(form.asked, start=1):
        if name in (one.variant.question.id, one.variant.id):
            return number
    return _slot(name, len(form.asked))


def _slot(name: str, most: int) -> int | None:
    found = re.fullmatch(r"[Qq]?\s*0*(\d{1,3})", name.strip())
    return int(found[1]) if found and 1 <= int(found[1]) <= most else None


def _note_minutes(responses: Responses, form: Form, text: str, where: str) -> None:
    if not text.strip():
        return
    try:
        minutes = parse_number(text)
    except ValueError:
        minutes = -1.0
    if not 0 <= minutes < 1e6:
        responses.problems.append(Problem(where, form.student.id, None, f"{text!r} is not a number of minutes"))
        return
    responses.minutes[form.student.id] = minutes
