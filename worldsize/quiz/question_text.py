"""Questions as HTML and as plain text, without their answers."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from functools import lru_cache
from html import escape

from worldsize.event import Event
from worldsize.quiz.variant import Gaps, Options, Order, TimelinePicture, Variant
from worldsize.timeline import Timeline

QUESTIONS = "worldsize-questions"  # the CSS class of what `as_html` returns


def as_html(title: str, variants: Sequence[Variant]) -> str:
    """Render the questions as an HTML list, for a page on which nobody can answer."""
    items = "".join(f"<li>{_question_html(variant)}</li>" for variant in variants)
    note = "Run this cell in JupyterLab to answer and to get an explanation of every choice."
    head = f"<p><b>Self-check: {escape(title)}</b></p>"
    return f'<div class="{QUESTIONS}">{head}<ol>{items}</ol><p><i>{note}</i></p></div>'


def as_text(title: str, variants: Sequence[Variant]) -> str:
    """Render the questions as plain text."""
    lines = [f"Self-check: {title}"]
    for number, variant in enumerate(variants, start=1):
        text = with_blanks(variant.text) if isinstance(variant.answer, Gaps) else variant.text
        lines += ["", f"{number}. {text}"]
        if variant.picture:
            lines += [f"   [{variant.picture.title}: {variant.picture.alt}]"]
        lines += [f"   ( ) {text}" for text in _offered(variant)]
    return "\n".join(lines)


def with_blanks(text: str) -> str:
    """Replace the gaps of a text by numbered blanks."""
    numbers = iter(range(1, 100))
    return re.sub(r"\[\[[a-z][a-z0-9_]*\]\]", lambda _: f"\\_\\_\\_({next(numbers)})\\_\\_\\_", text)


def html(markdown: str) -> str:
    """Render Markdown as HTML; LaTeX between dollar signs stays as it is."""
    from nbconvert.filters.markdown_mistune import markdown2html_mistune  # takes a second to import

    return markdown2html_mistune(markdown)


def inline(markdown: str) -> str:
    """Turn one line of Markdown into a widget's label, without marks for emphasis and code."""
    return re.sub(r"(\*\*|`)(.+?)\1", r"\2", markdown)


def picture_html(picture: TimelinePicture | None) -> str:
    """Return the picture as a self-contained image; empty if there is none."""
    if picture is None:
        return ""
    data = base64.b64encode(png(picture)).decode()
    return f'<p><img src="data:image/png;base64,{data}" alt="{escape(picture.alt)}" style="max-width: 100%"></p>'


@lru_cache(maxsize=256)
def png(picture: TimelinePicture) -> bytes:
    """Draw the picture as the bytes of a PNG file.

    Raises:
        ValueError: a line of its events is not `rank, stream, kind, name, start_s, end_s`.
    """
    from worldsize import draw  # matplotlib takes a second to import

    run = timeline(picture)
    streams = {event.stream for event in run.events}
    return draw.timeline(run, picture.title, streams, shows_shares=False).png()  # the question may ask for the shares


def timeline(picture: TimelinePicture) -> Timeline:
    """Parse the events of a picture."""
    return Timeline.of_events(_event(line) for line in picture.events.splitlines() if line.strip())


def _event(line: str) -> Event:
    try:
        rank, stream, kind, name, start_s, end_s = (part.strip() for part in line.split(","))
        return Event(int(rank), stream, kind, name, float(start_s), float(end_s))
    except ValueError:
        raise ValueError(f"a figure's line is {line!r}; it must be rank, stream, kind, name, start_s, end_s") from None


def _question_html(variant: Variant) -> str:
    text = with_blanks(variant.text) if isinstance(variant.answer, Gaps) else variant.text
    listed = "".join(f"<li>{html(text)}</li>" for text in _offered(variant))
    return html(text) + picture_html(variant.picture) + (f"<ul>{listed}</ul>" if listed else "")


def _offered(variant: Variant) -> list[str]:
    match variant.answer:
        case Options(options=options):
            return [option.text for option in options]
        case Order(shown=shown):
            return list(shown)
        case _:
            return []
