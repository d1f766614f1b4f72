"""Student text on an instructor's screen: Markdown becomes HTML in which nothing can run.

nbgrader's feedback pages and its formgrader both render Markdown with nbconvert's filter `markdown2html`, which passes
a student's HTML through. nbgrader_config.py puts `markdown_to_html` in its place, and `clean` in that of `clean_html`,
which lets raw cells pose as parts of the page. What was rendered is cleaned, and not the Markdown before: only so do a
quote's `>`, a formula's `a<b` and code stay what they are, and only so is a `[link](javascript:...)` seen.

The time that the renderers take can grow with the square of a cell's length: one cell would keep them for hours.
What they are slow at is shown as it was written, and for the same reason only Python is coloured.
"""

from __future__ import annotations

import re
import sys
from html import escape
from typing import Any

import bleach
from bleach.css_sanitizer import CSSSanitizer
from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

_TEXT_TAGS = """
    a abbr b blockquote br caption code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li ol p pre s span
    strong sub summary sup table tbody td tfoot th thead tr u ul
"""
_MATH_TAGS = """
    math menclose mfenced mfrac mi mn mo mover mpadded mphantom mroot mrow mspace msqrt mstyle msub msubsup msup mtable
    mtd mtext mtr munder munderover
"""
_MATH_ATTRIBUTES = """
    accent accentunder columnalign columnlines columnspacing depth display displaystyle fence form height largeop
    linethickness lspace mathbackground mathcolor mathsize mathvariant maxsize minsize movablelimits notation rowlines
    rowspacing rspace scriptlevel separator stretchy symmetric voffset width xmlns
"""
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_MATH, _MATH_NAMES = set(_MATH_TAGS.split()), set(_MATH_ATTRIBUTES.split())
_TAGS = set(_TEXT_TAGS.split()) | _MATH
# as written, entities and all: what hides its beginning behind one does not pass
_LINK = re.compile(r"(https?://|mailto:|#)\S*")
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml);base64,[\w+/=\s]*|(?!/)(?!.*\.\.)[\w\-./ %]+")
_PYGMENTS = re.compile(r"[a-z]{1,2}\d?|highlight|hl-\w+|language-[\w+#-]+")
_MAX_TAGS = 20_000  # of one cell; the time to clean nested ones grows with their square
# of one cell, five times what the longest of this course has; FormulasToMathML's tags come on top
_MAX_CHARS = 20_000
_MATHML = re.compile(r"</?m[a-z]+[^<>]{0,99}>")
_BLANKS = re.compile(r"\s{300}")  # from each of them the rest is searched for a string or a line's end
_OPENING = re.compile(r"\\begin\{|\\\\[\[(]")  # for a formula without an end the whole rest of the cell is searched
_CHARACTER = re.compile(r"\\N\{")  # the same for a name without an end
_MAX_OPENINGS = 100
_PYTHON = {"python", "python3", "py", "ipython", "ipython3"}
# mistune's own, for `- [x]`
_BOX = re.compile(r'<input class="task-list-item-checkbox" type="checkbox" disabled(?P<checked> checked)?\s*/?>')


def install() -> None:
    """Has the formgrader show submissions by the settings of their course; call it where those are read.

    Without this it does so by those that it found when the server was started, which may be none: a JupyterLab may be
    opened above several courses.
    """
    # only a server has loaded it, before it reads the settings of any course
    if formgrader := sys.modules.get("nbgrader.server_extensions.formgrader.base"):
        formgrader.BaseHandler.exporter = property(_exporter)


def _exporter(handler: Any) -> HTMLExporter:
    return HTMLExporter(config=handler.settings["nbgrader_formgrader"].config)


@pass_context
def markdown_to_html(context: Context, source: str) -> str:
    """The HTML of a Markdown cell, with tables, formulas, code and the cell's own pictures, and nothing that can run.

    Tags that are not allowed are shown as text. A cell that cannot be rendered, or only slowly, is shown as it was
    written.
    """
    if _is_slow(_MATHML.sub("", source), _OPENING) or source.count("<") > _MAX_TAGS:
        return _as_written(source)
    try:
        html = MarkdownWithMath(renderer=_Renderer.of_cell(context)).render(source)
        return clean(_BOX.sub(lambda box: "☑" if box["checked"] else "☐", html))
    except Exception:  # a stranger wrote it: a missing attachment or an odd formula must fail neither page
        return _as_written(source)


def highlight_code(source: str, language: str | None = None, metadata: Any = None) -> str:
    """The HTML of Python code in colours; of what that would take long for, the code as it was written.

    `language` and `metadata` are what nbconvert's filter takes. They are not looked at: a student chooses them.
    """
    if _is_slow(source, _CHARACTER):
        return f'<div class="highlight">{_as_written(source)}</div>'
    return Highlight2HTML(pygments_lexer="python3")(source)


class _Renderer(IPythonRenderer):
    """nbconvert's, with colours for Python only: hundreds of other languages have their own ways to take hours."""

    @classmethod
    def of_cell(cls, context: Any) -> _Renderer:
        return cls(escape=False, attachments=context.get("cell", {}).get("attachments", {}))

    def block_code(self, code: str, info: str | None = None) -> str:
        words = (info or "").split()
        if words and words[0] in _PYTHON:
            return highlight_code(code)
        return super(IPythonRenderer, self).block_code(code, info)


def _is_slow(source: str, opening: re.Pattern[str]) -> bool:
    if len(source) > _MAX_CHARS:  # before anything is searched
        return True
    return bool(_BLANKS.search(source)) or len(opening.findall(source)) > _MAX_OPENINGS


def _as_written(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def clean(html: str) -> str:
    """The HTML with only the tags and attributes that text, tables, pictures and formulas need."""
    if html.count("<") > _MAX_TAGS:
        return _as_written(html)
    return bleach.clean(
        html,
        tags=_TAGS,
        attributes=_is_allowed,
        protocols={"http", "https", "mailto", "data"},
        css_sanitizer=CSSSanitizer(allowed_css_properties=["text-align"]),
    )


def _is_allowed(tag: str, name: str, value: str) -> bool:
    if tag in _MATH:
        return name in _MATH_NAMES
    if name == "href":
        return tag == "a" and bool(_LINK.fullmatch(value))
    if name == "src":
        return tag == "img" and bool(_PICTURE.fullmatch(value))
    if name == "class":  # any other could cover the page or pose as the formgrader's own
        return all(_PYGMENTS.fullmatch(word) for word in value.split()) or value == "anchor-link"
    if name == "id":
        return tag in _HEADINGS
    if name == "style":
        return tag in {"td", "th"}
    if name in {"width", "height", "alt"}:
        return tag == "img"
    return name in {"title", "start", "colspan", "rowspan"}
