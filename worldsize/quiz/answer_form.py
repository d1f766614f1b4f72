"""Questions as a form in a notebook, with feedback only after an attempt."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from worldsize.quiz.marking import Marked, mark
from worldsize.quiz.question_text import html, inline, picture_html, with_blanks
from worldsize.quiz.variant import Amount, Gaps, Options, Order, Phrase, Variant

if TYPE_CHECKING:
    import ipywidgets


def form(variants: Sequence[Variant]) -> ipywidgets.Widget:
    """The questions as a form, one at a time."""
    import ipywidgets as widgets

    pages = [page(variant) for variant in variants]
    place = widgets.HTML()
    shown = widgets.VBox()
    back = widgets.Button(description="Previous", tooltip="Go to the previous question")
    onward = widgets.Button(description="Next", tooltip="Go to the next question")

    def turn(to: int) -> None:
        shown.children = [pages[to]]
        place.value = f"<b>Question {to + 1} of {len(pages)}</b>"
        back.disabled, onward.disabled = to == 0, to == len(pages) - 1
        current[0] = to

    current = [0]
    back.on_click(lambda _: turn(current[0] - 1))
    onward.on_click(lambda _: turn(current[0] + 1))
    turn(0)
    box = widgets.VBox([place, shown, widgets.HBox([back, onward])])
    box.layout = widgets.Layout(border="1px solid #BBBBBB", padding="0.8em", max_width="56em")
    return box


def page(variant: Variant) -> ipywidgets.Widget:
    """One question: its text, its fields, a button to check the answer, and room for feedback."""
    import ipywidgets as widgets

    fields = _fields(variant.answer)
    check = widgets.Button(description="Check", button_style="primary", tooltip="Check your answer")
    feedback = widgets.HTMLMath()

    def show_feedback(_: Any) -> None:
        response = fields.response()
        try:
            feedback.value = _feedback(variant, response) if response else _ASK_FIRST
        except ValueError as error:
            feedback.value = f"<p>{escape(str(error))}</p>"

    check.on_click(show_feedback)
    text = with_blanks(variant.text) if isinstance(variant.answer, Gaps) else variant.text
    head = widgets.HTMLMath(html(text) + picture_html(variant.picture))
    return widgets.VBox([head, *fields.widgets, check, feedback])


_ASK_FIRST = "<p>Choose an answer first, then press <b>Check</b>.</p>"


class _Radio:
    """One of several options."""

    def __init__(self, answer: Options, label: str = "") -> None:
        import ipywidgets as widgets

        options = [(inline(option.text), index) for index, option in enumerate(answer.options)]
        kind = widgets.Dropdown if label else widgets.RadioButtons
        options = [("", None), *options] if label else options
        self.field = kind(options=options, value=None, description=label, layout=_wide())
        self.widgets = [self.field]

    def response(self) -> Any:
        return [] if self.field.value is None else [self.field.value]


class _Boxes:
    """Any number of several options."""

    def __init__(self, answer: Options) -> None:
        import ipywidgets as widgets

        self.widgets = [
            widgets.Checkbox(description=inline(option.text), indent=False, layout=_wide()) for option in answer.options
        ]

    def response(self) -> Any:
        return [index for index, box in enumerate(self.widgets) if box.value]


class _Typed:
    """A number or a few words."""

    def __init__(self, answer: Amount | Phrase, label: str = "") -> None:
        import ipywidgets as widgets

        unit = answer.unit if isinstance(answer, Amount) else ""
        hint = f"a number, in {unit}" if unit else "a number" if isinstance(answer, Amount) else "a word or two"
        layout = widgets.Layout(width="22em")
        self.field = widgets.Text(placeholder=hint, description=label or "Answer", layout=layout)
        self.widgets = [self.field]

    def response(self) -> Any:
        return self.field.value.strip()


class _Places:
    """A position for each of several items."""

    def __init__(self, answer: Order) -> None:
        import ipywidgets as widgets

        self.num = len(answer.shown)
        places = [("", None)] + [(str(index + 1), index) for index in range(self.num)]
        self.fields = [widgets.Dropdown(options=places, value=None, layout={"width": "4.5em"}) for _ in answer.shown]
        rows = zip(self.fields, answer.shown, strict=True)
        self.widgets = [widgets.HBox([field, widgets.HTMLMath(html(text))]) for field, text in rows]

    def response(self) -> Any:
        chosen = [field.value for field in self.fields if field.value is not None]
        if len(chosen) < self.num:
            return []
        if sorted(chosen) != list(range(self.num)):
            raise ValueError(f"Give each of the places 1 to {self.num} once.")
        return [chosen.index(index) for index in range(self.num)]


class _Blanks:
    """The gaps of a text, numbered in their order."""

    def __init__(self, answer: Gaps) -> None:
        self.fields = {
            name: _Radio(gap, f"({index})") if isinstance(gap, Options) else _Typed(gap, f"({index})")
            for index, (name, gap) in enumerate(answer.gaps.items(), start=1)
        }
        self.widgets = [widget for field in self.fields.values() for widget in field.widgets]

    def response(self) -> Any:
        given = {name: field.response() for name, field in self.fields.items()}
        return {name: response for name, response in given.items() if response}


def _fields(answer: Any) -> Any:
    match answer:
        case Options():
            return _Radio(answer) if answer.single else _Boxes(answer)
        case Order():
            return _Places(answer)
        case Gaps():
            return _Blanks(answer)
        case _:
            return _Typed(answer)


def _feedback(variant: Variant, response: Any) -> str:
    marked = mark(variant, response)
    verdict, colour, sign = _verdict(variant, response, marked)
    explanations = "".join(html(text) for text in marked.feedback)
    return (
        f'<div role="status" style="border-left: 4px solid {colour}; padding-left: 0.8em; line-height: 1.5">'
        f"<p><b>{sign} {verdict}</b></p>{explanations}</div>"
    )


def _verdict(variant: Variant, response: Any, marked: Marked) -> tuple[str, str, str]:
    if marked.is_right:
        return "Right.", "#009E73", "✓"
    answer = variant.answer
    is_incomplete = isinstance(answer, Options) and not answer.single and set(response) < answer.right
    if is_incomplete:
        return "Right as far as it goes, but something is missing.", "#E69F00", "…"
    if isinstance(answer, Order | Gaps) and marked.share:
        return f"Partly: {marked.share:.0%} of it is right.", "#E69F00", "…"
    return "Not yet.", "#D55E00", "✗"


def _wide() -> Any:
    import ipywidgets as widgets

    return widgets.Layout(width="100%", height="auto")
