"""What a calculator answers, and the calls that a page makes: the answer at chosen positions, and a guess judged."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from types import ModuleType
from typing import Any

from worldsize.controls import Control, controls_of
from worldsize.units import parse_number, significant

_CLOSE = 0.25  # a guess this near, as a fraction, is a good one


@dataclass(frozen=True)
class Question:
    """What a reader is asked before the first answer: a number in a unit, which the answer at the start gives."""

    text: str
    unit: str
    why: str
    """How the number comes about, shown after the guess."""


@dataclass(frozen=True)
class Answer:
    """A sentence with the result, the table behind it, and a picture as a specification of Vega-Lite."""

    sentence: str
    value: float = 0.0
    """The number that the question asks for, in its unit."""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    chart: Mapping[str, Any] = field(default_factory=dict)
    report: str = ""
    """Lines as a terminal shows them."""

    def html(self) -> str:
        """The sentence and the table."""
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        lines = ("".join(f"<td>{escape(_unbroken(cell))}</td>" for cell in row) for row in self.rows)
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        table = f'<div class="table-wrapper"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
        report = f"<pre>{escape(self.report)}</pre>" if self.report else ""
        return f"<p><strong>{escape(self.sentence)}</strong></p>" + (table if self.rows else "") + report

    def picture(self) -> dict[str, Any]:
        """The specification with the sentence as its words; empty if there is none."""
        return {**self.chart, "description": self.sentence} if self.chart else {}


def _unbroken(cell: str) -> str:
    """The text of a cell, with numbers on one line with their units or names and with the numbers of a list."""
    return re.sub(r"(?<=\d) |(?<=\d,) (?=\d)|(?<=^stage) (?=\d)", "\N{NO-BREAK SPACE}", cell)


def module_of(name: str) -> ModuleType:
    """The module of a calculator."""
    return importlib.import_module(f"calculators.{name}")


def controls(name: str) -> list[Control]:
    """What a reader may change, in the order of the page."""
    page = module_of(name)
    return controls_of(page.answer, page.RANGES)[0]


def label(name: str, control: str) -> str:
    """The words beside a control."""
    return module_of(name).LABELS.get(control, control.replace("_", " "))


def title(name: str) -> str:
    """The title of the page."""
    return _parts(name)[0]


def teaser(name: str) -> str:
    """What the page asks, or the start of its text if it asks nothing."""
    question: Question | None = module_of(name).QUESTION
    return question.text if question else text(name).partition(". ")[0].replace("\n", " ") + "."


def text(name: str) -> str:
    """The text of the page, in Markdown."""
    return _parts(name)[1]


def _parts(name: str) -> tuple[str, str]:
    first, _, rest = inspect.cleandoc(module_of(name).__doc__ or "").partition("\n")
    return first.removesuffix("."), rest.strip()


def answer(name: str, places: Sequence[int]) -> str:
    """The answer with each control at a place, as JSON: `html` and `chart`, or `problem` where there is none."""
    chosen = {control.name: control.options[place][1] for control, place in zip(controls(name), places, strict=True)}
    try:
        found: Answer = module_of(name).answer(**chosen)
    except ValueError as error:  # such as 6 GPUs for 4 heads: a reader can change it
        return json.dumps({"problem": f"{error}."})
    return json.dumps({"html": found.html(), "chart": found.picture()})


def explain(name: str, paths: Sequence[str]) -> str:
    """The answer for files of the reader's, as JSON like that of `answer`."""
    try:
        return json.dumps({"html": module_of(name).explain(list(paths)).html(), "chart": {}})
    except ValueError as error:
        return json.dumps({"problem": f"{error}."})


def reveal(name: str) -> str:
    """The answer to the question, and how it comes about: what there is to say of any guess."""
    page = module_of(name)
    return f"It is {_shown(page)}. {page.QUESTION.why}"


def _shown(page: ModuleType) -> str:
    return f"{page.answer().value:,.3g} {page.QUESTION.unit}"


def judge(name: str, typed: str) -> str:
    """What there is to say of a guess."""
    page = module_of(name)
    question, right = page.QUESTION, page.answer().value
    try:
        guess = parse_number(typed, question.unit)
    except ValueError:
        return f"Give a number in {question.unit}."
    if abs(guess - right) <= _CLOSE * abs(right):
        return f"Close: it is {_shown(page)}. {question.why}"
    if guess <= 0:
        return reveal(name)
    factor, side = significant(max(guess / right, right / guess), 2), "high" if guess > right else "low"
    return f"It is {_shown(page)}; your guess is too {side} by a factor of {factor}. {question.why}"
