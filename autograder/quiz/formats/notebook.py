"""A form as a notebook: below each question a cell that sets its answer, which `autograder quiz mark` reads.

For marking, the literal in `answer_3 = ...` is read from the source of the cell with the id `question_3`. No code in
the notebook is ever run, so code cannot change a score.
"""

from __future__ import annotations

import base64
import itertools
import json
from typing import Any

from autograder.quiz.formats.form_text import instruction, lettered, terms, who
from autograder.quiz.formats.format import Format
from autograder.quiz.formats.markdown import choices, escaped, hints, text_of
from autograder.quiz.forms import Form
from autograder.quiz.key import letter
from worldsize.quiz import Variant
from worldsize.quiz.question_text import png
from worldsize.quiz.variant import Amount, Answer, Gaps, Options, Order, Prose

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
_RULES = """\
Replace each `None` with your answer, in the form that the comment beside it shows. Answers are read as plain letters,
numbers and words, and nothing is run: a variable's name or a calculation does not count. Leave `None` where you have no
answer. Save the notebook and hand it in without renaming it."""
_ESSAYS = "Where you are to answer in your own words, double-click the line below the question and write in its place."
TO_REPLACE = "*Replace this line with your answer.*"  # as in a lab; nbgrader counts it as unanswered


def render(form: Form) -> bytes:
    """The form as a notebook."""
    title = f"# {escaped(form.blueprint.title)}\n\n**{escaped(who(form))}**\n\n{terms(form)}\n\n{_RULES}"
    if any(isinstance(variant.answer, Prose) for variant in form.variants):
        title += f"\n\n{_ESSAYS}"
    cells = [_markdown("title", title)]
    for place, variant in enumerate(form.variants, start=1):
        cells += [_text(place, variant), _answer(place, variant)]
    metadata = {"kernelspec": KERNEL, "quiz": {"student": form.student.id}}
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return (json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()


def nbgrader(place: int) -> dict[str, Any]:
    """The metadata of an answer cell, for quizzes that become nbgrader assignments."""
    marks = {"cell_type": "code", "grade_id": f"question_{place}", "solution": True, "schema_version": 3}
    return {**marks, "grade": False, "locked": False, "task": False}


def nbgrader_essay(place: int, points: float) -> dict[str, Any]:
    """The same for an essay, which nbgrader queues for grading by hand."""
    return {**nbgrader(place), "cell_type": "markdown", "grade": True, "points": points}


def _text(place: int, variant: Variant) -> dict[str, Any]:
    blocks = [f"## {place}", text_of(variant)]
    if variant.picture:
        blocks.append(f"![{escaped(' '.join(variant.picture.alt.split()))}](attachment:figure.png)")
    blocks += [f"*{instruction(variant.answer)}*", *hints(variant)]
    if offered := lettered(variant.answer):
        blocks.append(choices(offered))
    cell = _markdown(f"text_{place}", "\n\n".join(blocks))
    if variant.picture:
        cell["attachments"] = {"figure.png": {"image/png": base64.b64encode(png(variant.picture)).decode()}}
    return cell


def _answer(place: int, variant: Variant) -> dict[str, Any]:
    if isinstance(variant.answer, Prose):
        marks = {"question": variant.question.id, "nbgrader": nbgrader_essay(place, variant.answer.points)}
        return {**_markdown(f"question_{place}", TO_REPLACE), "metadata": marks}
    source = f"answer_{place} = None  # such as {_example(variant.answer)}"
    cell = {"cell_type": "code", "id": f"question_{place}", "source": source, "outputs": [], "execution_count": None}
    return {**cell, "metadata": {"question": variant.question.id, "nbgrader": nbgrader(place)}}


def _markdown(id: str, source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": id, "source": source, "metadata": {}}


def _example(answer: Answer) -> str:
    """An example with the right syntax that reveals nothing about the right answer."""
    match answer:
        case Options(single=True):
            return '"A"'
        case Options():
            return '"A, B"'
        case Order(shown=shown):
            return f'"{" ".join(map(letter, range(len(shown))))}"'
        case Gaps(gaps=gaps):
            given = itertools.starmap("{}: {}".format, enumerate(map(_example, gaps.values()), start=1))
            return "{" + ", ".join(given) + "}"
        case Amount():
            return "12.5"
        case _:
            return '"a word"'


FORMAT = Format("ipynb", ".ipynb", render)
