"""Slides of each lesson: a slide for each picture, table and formula below its heading; the text is the notes.

Reveal shows them, from npm; `?print-pdf` behind an address prints them, and the key S opens the speaker's view.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from jinja2 import Environment, FileSystemLoader
from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder

from extensions.cells import OUTPUT
from extensions.npm import package
from extensions.pictures import take_out

_REVEAL = ("reveal.js", "5.2.1", "359b575dd51bbda32f89b2fd4c7dc46ad7389a805572158916c29252f7a27333")
_FILES = ("dist/reveal.css", "dist/reveal.js", "plugin/notes/notes.js", "plugin/notes/speaker-view.html")
_SHORT = (nodes.math_block, nodes.table, nodes.bullet_list, nodes.enumerated_list, nodes.block_quote)
_OF_WEEKS = re.compile(r'href="(week\d\d\w*\.html)')  # a lesson's links to others in its folder
_WRAPPED = {"table-wrapper", "math-wrapper"}  # as the theme names them
_PICTURE = ("<img", "<svg", "<table", "worldsize-")
_ENVIRONMENT = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)


class Slide(NamedTuple):
    """A heading, what stands below it, and the speaker's notes, all HTML."""

    title: str
    body: str = ""
    notes: str = ""


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the slides of each lesson once its page is, and bring Reveal."""
    app.connect("html-page-context", _write)
    app.connect("build-finished", _bring)
    return {"parallel_read_safe": True}


def place(week: str) -> str:
    """The place of a lesson's slides on the site: `slides/week02_all_reduce_from_scratch.html`."""
    return f"slides/{week}.html"


def _write(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    folder, _, week = page.partition("/")
    if folder != "weeks" or doctree is None or not isinstance(app.builder, StandaloneHTMLBuilder):
        return
    slides = [slide for section in doctree.findall(nodes.section) for slide in _slides(app.builder, section)]
    title = next(doctree.findall(nodes.title)).astext()
    html = _ENVIRONMENT.get_template("slides.html.j2").render(title=title, slides=slides)
    html = html.replace('href="#', f'href="../{page}.html#')  # to a place in the lesson
    html = _OF_WEEKS.sub(r'href="../weeks/\1', html)
    path = Path(app.outdir, place(week))
    path.parent.mkdir(exist_ok=True)
    path.write_text(take_out(html, Path(app.outdir), "../"), encoding="utf-8")


def _slides(builder: StandaloneHTMLBuilder, section: nodes.section) -> Iterator[Slide]:
    """Yield a section's slides, without those of the sections in it."""
    title, *rest = [child for child in section.children if not isinstance(child, nodes.section)]
    is_turn = title.astext().startswith("Your turn")
    texts = [child for child in rest if _is_short(child) or _is_text(child)]
    shown = texts[:2] if is_turn else [child for child in texts if _is_short(child)]
    pictures = [] if is_turn else [html for cell in rest if (html := _picture(builder, cell))]
    if not shown and not pictures:
        shown = texts[:1]
    bodies = [_html(builder, *shown), *pictures] if shown or not pictures else pictures
    notes = _html(builder, *texts)
    for number, body in enumerate(bodies):
        yield Slide(_html(builder, *title.children), body, "" if number else notes)


def _is_text(node: nodes.Node) -> bool:
    return isinstance(node, nodes.paragraph) and not node.astext().startswith("<a id=")  # an anchor of a cell


def _is_short(node: nodes.Node) -> bool:
    """Whether a slide shows it: a table, a formula, a list or a quotation, which the theme may have wrapped."""
    return isinstance(node, _SHORT) or (isinstance(node, nodes.container) and bool(_WRAPPED & {*node["classes"]}))


def _picture(builder: StandaloneHTMLBuilder, cell: nodes.Node) -> str:
    """The pictures and tables that a cell gave; empty if it gave none."""
    if not isinstance(cell, nodes.container):
        return ""
    html = _html(builder, *(one for one in cell.findall(nodes.container) if one.get("nb_element") == OUTPUT))
    return html if any(mark in html for mark in _PICTURE) else ""


def _html(builder: StandaloneHTMLBuilder, *found: nodes.Node) -> str:
    return "".join(builder.render_partial(node.deepcopy())["fragment"] for node in found)


def _bring(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html" or not Path(app.outdir, "slides").is_dir():
        return
    into = Path(app.outdir, "_static/reveal")
    into.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copyfile(package(*_REVEAL) / name, into / Path(name).name)
