"""A form as one self-contained HTML page, to fill in on a screen or on paper, and the key of all forms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from html import escape
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from autograder.files import templates
from autograder.judging.report import format_points
from autograder.markdown import bank_text
from autograder.quiz.formats.form_text import data_uri, gap_hints, instruction, lettered, num_lines, terms, who
from autograder.quiz.formats.format import Format
from autograder.quiz.formats.key_text import explained
from autograder.quiz.forms import Form
from autograder.quiz.key import printed
from worldsize.quiz import Variant
from worldsize.quiz.variant import Amount, Gaps, Options, Prose


def render(form: Form) -> bytes:
    """The form as a page."""
    return _template("quiz_form.html.j2").render(form=form).encode()


def key(forms: Sequence[Form]) -> bytes:
    """The answers of all forms, and the explanation of every question, as a page."""
    return _template("quiz_key.html.j2").render(forms=forms, explained=explained(forms)).encode()


@lru_cache
def _template(name: str) -> Template:
    environment = templates()
    environment.filters |= {
        "data_uri": data_uri,
        "gap_hints": gap_hints,
        "html": lambda markdown: Markup(bank_text.html(markdown)),
        "html_with_gaps": lambda markdown: Markup(bank_text.html(markdown, lambda gap: f"<b>___({gap})___</b>")),
        "inline": lambda markdown: Markup(bank_text.inline_html(markdown)),
        "instruction": instruction,
        "lettered": lettered,
        "points": format_points,
        "printed": printed,
        "terms": terms,
        "who": who,
    }
    environment.globals |= {"field": _field, "question": _question}
    return environment.get_template(name)


def _question(variant: Variant, place: int) -> Markup:
    """The text of a question, with a field for each gap."""
    return Markup(bank_text.html(variant.text, lambda gap: _gap(place, gap)))


def _gap(place: int, gap: int) -> str:
    label = escape(f"Question {place}, gap {gap}")
    return (
        f'<span class="gap"><span aria-hidden="true">({gap})</span>'
        f'<input type="text" name="q{place}-{gap}" aria-label="{label}"></span>'
    )


def _field(variant: Variant) -> dict[str, Any]:
    """The kind of field for the answer: radio buttons, boxes, a line with a unit, an area, or none besides the gaps."""
    answer = variant.answer
    match answer:
        case Options(single=single):
            return {"kind": "radio" if single else "checkbox"}
        case Gaps():
            return {"kind": "gaps"}
        case Prose():
            return {"kind": "area", "lines": num_lines(answer)}
        case Amount(unit=unit):
            return {"kind": "line", "unit": unit}
        case _:
            return {"kind": "line", "unit": ""}


FORMAT = Format("html", ".html", render, key)
