"""The formats that a quiz can be written in, by name."""

from __future__ import annotations

from autograder.quiz.formats import canvas, html, markdown, moodle, notebook, pdf, qti21
from autograder.quiz.formats.format import Format

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        markdown.FORMAT,
        html.FORMAT,
        pdf.FORMAT,
        notebook.FORMAT,
        Format("moodle", ".moodle.xml", moodle.render),
        Format("canvas", ".qti12.zip", canvas.render),
        Format("qti21", ".qti21.zip", qti21.render),
    )
}
