r"""JSON for jupyterquiz (https://github.com/jmshea/jupyterquiz): a list of questions for `display_quiz`.

It gives feedback and no marks. Texts are HTML with formulas between `\(` and `\)`; figures are in them as data. It has
no ordering and no cloze: the first becomes a choice for each place, the second a question for each gap. Every part of
a question has its `id` and `part`, which jupyterquiz leaves alone. Essays are left
out, since it judges everything that is typed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from autograder.markdown.platform_markup import html
from autograder.quiz.formats.platform_text import bounds, distinct, gap_text, gaps_of, mistake_tolerance, text_of
from autograder.quiz.forms import Form
from worldsize.quiz import Variant
from worldsize.quiz.question_text import picture_html
from worldsize.quiz.variant import Amount, Gaps, Options, Order, Phrase, Prose

_RIGHT, _WRONG = "Right.", "Not yet."


def render(form: Form) -> bytes:
    """The form as JSON."""
    questions = [question for variant in form.variants for question in _questions(variant)]
    return (json.dumps(questions, ensure_ascii=False, indent=1) + "\n").encode()


def _questions(variant: Variant) -> Iterator[dict[str, Any]]:
    match variant.answer:
        case Order(shown=shown, places=places):
            for number, right in enumerate(places, start=1):
                text = f"{text_of(variant)}\n\nWhich is number {number} of {len(shown)}?"
                answers = [
                    _said(html(item), place == right, variant.feedback if place == right else "")
                    for place, item in enumerate(shown)
                ]
                yield _question(variant, text, "multiple_choice", answers, part=f"{number} of {len(shown)}")
        case Gaps(gaps=gaps):
            for place, name in enumerate(names := gaps_of(variant)):
                kind, answers = _answers(gaps[name], variant.feedback)
                part = f"{place + 1} of {len(names)}"
                yield _question(variant, gap_text(variant, place), kind, answers, part=part)
        case Prose():
            return
        case answer:
            kind, answers = _answers(answer, variant.feedback)
            yield _question(variant, text_of(variant), kind, answers)


def _question(variant: Variant, text: str, kind: str, answers: list[dict[str, Any]], **more: str) -> dict[str, Any]:
    question = _without_dollars(html(text) + picture_html(variant.picture))
    return {"id": variant.id, **more, "question": question, "type": kind, "answers": answers}


def _answers(answer: Options | Amount | Phrase, feedback: str) -> tuple[str, list[dict[str, Any]]]:
    match answer:
        case Options(options=options, single=single):
            kind = "multiple_choice" if single else "many_choice"
            return kind, [_said(html(option.text), option.correct, option.feedback) for option in options]
        case Amount():
            said = [
                {
                    "range": _range(answer.value, answer.tolerance),
                    "correct": True,
                    "feedback": _html(feedback) or _RIGHT,
                }
            ]
            for m in answer.mistakes:
                reach = _range(m.value, mistake_tolerance(answer, m))
                said.append({"range": reach, "correct": False, "feedback": _html(m.feedback)})
            return "numeric", [*said, {"type": "default", "feedback": _WRONG}]
        case Phrase():
            said = [_said(text, True, feedback, match_case=False) for text in distinct(answer)]
            said += [_said(m.text, False, m.feedback, match_case=False) for m in answer.mistakes]
            return "string", [*said, {"type": "default", "feedback": _WRONG}]


def _said(text: str, correct: bool, feedback: str, **more: Any) -> dict[str, Any]:
    text = text if more else _without_dollars(text)  # what is typed is compared and not shown
    return {"answer": text, "correct": correct, "feedback": _html(feedback) or (_RIGHT if correct else _WRONG), **more}


def _range(value: float, tolerance: float) -> list[float]:
    low, high = bounds(value, tolerance)
    return [low, math.nextafter(high, math.inf)]  # its upper end does not count


def _html(markdown: str) -> str:
    return _without_dollars(html(markdown))


def _without_dollars(text: str) -> str:
    """HTML in which jupyterquiz finds no formula or link of its own making."""
    return text.replace("$", "&#36;").replace("](", "]&#40;")
