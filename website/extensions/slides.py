"""Slides of each lesson: one for each picture, table, formula and exercise below its heading; the text is the notes.

`static/slides.js` fits them to the screen in the browser, and Reveal, from npm, shows them; `?print-pdf` behind an
address prints them, and the key S opens the speaker's view.
"""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from jinja2 import Environment, FileSystemLoader
from markupsafe import escape
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
_GIVEN = "tag_skip-execution"  # marks an exercise's cell as students get it: `solved` in stage.py
_MINUTES = re.compile(r"(\d+) minutes · ")
_PARAMETER = re.compile(r"(?P<above>(?:^#.*\n)*)^(?P<name>\w+) = None(?: +# (?P<beside>.+))?$", re.M)
_ENVIRONMENT = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True)


class Slide(NamedTuple):
    """A heading, what stands below it, and the speaker's notes, all HTML."""

    title: str
    body: str
    notes: str
    anchor: str  # its place in the lesson
    minutes: int  # that its exercise takes, as it states


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the slides of each lesson once its page is, link to them there, and bring Reveal."""
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
    slides = [slide for section in doctree.findall(nodes.section) for slide in _slides(app.builder, section, doctree)]
    title = next(doctree.findall(nodes.title)).astext()
    lesson = f"../{page}.html"
    html = _ENVIRONMENT.get_template("slides.html.j2").render(title=title, slides=slides, lesson=lesson)
    html = html.replace('href="#', f'href="{lesson}#')  # to a place in the lesson
    html = _OF_WEEKS.sub(r'href="../weeks/\1', html)
    path = Path(app.outdir, place(week))
    path.parent.mkdir(exist_ok=True)
    path.write_text(take_out(html, Path(app.outdir), "../"), encoding="utf-8")
    link = f'</h1>\n<p><a href="../{place(week)}">Slides of this lesson</a></p>'
    context["body"] = context["body"].replace("</h1>", link, 1)


def _slides(builder: StandaloneHTMLBuilder, section: nodes.section, lesson: nodes.document) -> Iterator[Slide]:
    """Yield a section's slides, without those of the sections in it."""
    title, *rest = [child for child in section.children if not isinstance(child, nodes.section)]
    asked = [quote for quote in lesson.findall(nodes.block_quote) if quote.astext().endswith("?")][:1]
    is_first = section.parent is lesson
    if not is_first and any(quote in rest for quote in asked):
        return  # the first slide shows it
    texts = [child for child in rest if _is_short(child) or _is_text(child)]
    exercise = _exercise(rest)
    bodies = [html for cell in rest for html in _pictures(builder, cell)]
    if is_first:
        bodies.insert(0, _html(builder, *asked))
        texts += [child for quote in asked for child in quote.parent.children if _is_text(child)]
    elif exercise:
        bodies.insert(0, f"<div>{_html(builder, *exercise)}</div>")
    elif shown := _questions(lesson, rest) or _html(builder, *filter(_is_short, texts)):
        bodies.insert(0, shown)
    elif not bodies:
        bodies = [_html(builder, *texts[:1])]
    minutes = sum(int(found[1]) for node in exercise if (found := _MINUTES.match(node.astext())))
    for number, body in enumerate(bodies):
        yield Slide(
            title=_html(builder, *title.children),
            body=body,
            notes="" if number else _html(builder, *texts),
            anchor=section["ids"][0],
            minutes=0 if number else minutes,
        )


def _is_text(node: nodes.Node) -> bool:
    return isinstance(node, nodes.paragraph) and not node.astext().startswith("<a id=")  # an anchor of a cell


def _is_short(node: nodes.Node) -> bool:
    """Whether a slide shows it: a table, a formula, a list or a quotation, which the theme may have wrapped."""
    return isinstance(node, _SHORT) or (isinstance(node, nodes.container) and bool(_WRAPPED & {*node["classes"]}))


def _exercise(section: Sequence[nodes.Node]) -> list[nodes.Node]:
    """The task of the section's exercise and its code as students get it, without the hint; empty if it has none."""
    given = next((node for node in section if isinstance(node, nodes.container) and _GIVEN in node["classes"]), None)
    if given is None:
        return []
    before = takewhile(lambda node: node is not given and "<details" not in node.astext(), section)
    return [node for node in before if _is_short(node) or _is_text(node)] + [next(given.findall(nodes.literal_block))]


def _questions(lesson: nodes.document, section: Sequence[nodes.Node]) -> str:
    """What the section's cell asks readers to predict, explained by the comments on the lesson's parameters."""
    said = {
        found["name"]: found["beside"] or " ".join(line.strip("# ") for line in found["above"].splitlines())
        for found in _PARAMETER.finditer(_source("parameters", lesson.findall(nodes.container)))
    }
    items = []
    for call in ast.walk(ast.parse(_source("predict", section))):
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(".ask"):
            name, parameter, *unit = call.args
            offered = [ast.literal_eval(word.value) for word in call.keywords if word.arg == "choices"]
            choices = " or ".join(str(choice) for each in offered for choice in each)
            amount = " ".join([choices or "…", *map(ast.literal_eval, unit)]).strip()
            about = said.get(ast.unparse(parameter), "")
            items.append(
                f"<li><strong>{escape(ast.literal_eval(name))}</strong> ({escape(amount)}): {escape(about)}</li>"
            )
    return f'<ol class="questions">{"".join(items)}</ol>' if items else ""


def _source(name: str, cells: Iterable[nodes.Node]) -> str:
    """The source of the cell of this name; empty if it is not among them."""
    found = (cell for cell in cells if isinstance(cell, nodes.container) and name in cell["ids"])
    return next((next(cell.findall(nodes.literal_block)).astext() for cell in found), "")


def _pictures(builder: StandaloneHTMLBuilder, cell: nodes.Node) -> Iterator[str]:
    """The pictures and tables that a cell gave."""
    if isinstance(cell, nodes.container):
        for output in cell.findall(nodes.container):
            if output.get("nb_element") == OUTPUT:
                shown = (_html(builder, one) for one in output.children)
                yield from (html for html in shown if any(mark in html for mark in _PICTURE))


def _html(builder: StandaloneHTMLBuilder, *found: nodes.Node) -> str:
    return "".join(builder.render_partial(node.deepcopy())["fragment"] for node in found)


def _bring(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html" or not Path(app.outdir, "slides").is_dir():
        return
    into = Path(app.outdir, "_static/reveal")
    into.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copyfile(package(*_REVEAL) / name, into / Path(name).name)
