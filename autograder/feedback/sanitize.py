"""Rendering students' Markdown on an instructor's screen as HTML in which nothing can run.

nbgrader's feedback pages and its formgrader both render Markdown with nbconvert's filter `markdown2html`, which passes
a student's HTML through. nbgrader_config.py replaces it with `markdown_to_html`, and `clean_html`, which lets raw cells
pose as parts of the page, with `clean`. The rendered HTML is cleaned rather than the Markdown: this leaves a quote's
`>`, a formula's `a<b` and code as they are, and a `[link](javascript:...)` is seen.

The time of the renderers can grow with the square of a cell's length: a single cell could occupy them for hours. Cells
that would be slow are shown as plain text, and for the same reason only Python code is coloured.
"""

from __future__ import annotations

import re
import sys
from html import escape
from typing import Any

import nh3
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
_TAGS = {*_TEXT_TAGS.split(), *_MATH_TAGS.split()}
_ATTRIBUTES = {tag: set(_MATH_ATTRIBUTES.split()) for tag in _MATH_TAGS.split()}
_ATTRIBUTES |= {heading: {"id"} for heading in ("h1", "h2", "h3", "h4", "h5", "h6")}
_ATTRIBUTES |= {"a": {"href"}, "img": {"src", "width", "height", "alt"}, "td": {"style"}, "th": {"style"}}
_ATTRIBUTES["*"] = {"class", "title", "start", "colspan", "rowspan"}
_LINK = re.compile(r"(https?://|mailto:|#)\S*")
_PICTURE = re.compile(
    r"data:image/(png|jpeg|gif|webp|svg\+xml);base64,[\w+/=\s]*|(?!/)(?!.*(?:\.|%2e){2})[\w\-./ %]+", re.IGNORECASE
)
_PYGMENTS = re.compile(r"[a-z]{1,2}\d?|highlight|hl-\w+|language-[\w+#-]+")
# HTML opens these again in each block that follows, attributes and all: a page would grow with the square of a cell
_REOPENED = "b|code|em|i|s|strong|u"
_REOPENED_WITH_ATTRIBUTES = re.compile(rf"<({_REOPENED})\s[^<>]*>", re.IGNORECASE)
_SHORT = r"""(?:\s{1,9}[\w-]{1,20}=(?:"[^"<>]{0,500}"|'[^'<>]{0,500}')){0,3}\s{0,9}>"""
_REST = "|".join(sorted(_TAGS - {"a", *_REOPENED.split("|")}))
_NOT_ALLOWED = re.compile(rf"<(?!/?(?:{_REST})[\s/>]|/?(?:{_REOPENED})>|/a>|a{_SHORT}|!--)", re.IGNORECASE)
_MAX_TAGS = 20_000  # per cell; parsing nested blocks takes time quadratic in their number: 1.7 s for this many
# of one cell, five times what the longest of this course has; FormulasToMathML's tags come on top
_MAX_CHARS = 20_000
_MATHML = re.compile(r"</?m[a-z]+[^<>]{0,99}>")
_BLANKS = re.compile(r"\s{300}")  # from each of them, the rest is searched for a string or the end of the line
_OPENING = re.compile(r"\\begin\{|\\\\[\[(]")  # for a formula without an end, the whole rest of the cell is searched
_CHARACTER = re.compile(r"\\N\{")  # the same for a name without an end
_MAX_OPENINGS = 100
_PYTHON = {"python", "python3", "py", "ipython", "ipython3"}
# mistune's own, for `- [x]`
_BOX = re.compile(r'<input class="task-list-item-checkbox" type="checkbox" disabled(?P<checked> checked)?\s*/?>')


def install() -> None:
    """Make the formgrader show submissions with the settings of their course; call this where they are read.

    Otherwise it uses the settings that it found when the server started, possibly none: JupyterLab may have been
    started above several courses.
    """
    # only a server has loaded it, before it reads the settings of any course
    if formgrader := sys.modules.get("nbgrader.server_extensions.formgrader.base"):
        formgrader.BaseHandler.exporter = property(_exporter)


def _exporter(handler: Any) -> HTMLExporter:
    return HTMLExporter(config=handler.settings["nbgrader_formgrader"].config)


@pass_context
def markdown_to_html(context: Context, source: str) -> str:
    """Render a Markdown cell with tables, formulas, code and attached pictures to HTML in which nothing can run.

    A cell that cannot be rendered, or only slowly, is shown as plain text.
    """
    if _is_slow(_MATHML.sub("", source), _OPENING) or source.count("<") > _MAX_TAGS:
        return _as_written(source)
    try:
        html = MarkdownWithMath(renderer=_Renderer.of_cell(context)).render(source)
        return clean(_BOX.sub(lambda box: "☑" if box["checked"] else "☐", html))
    except Exception:  # untrusted text: a missing attachment or an odd formula must not break the page
        return _as_written(source)


def highlight_code(source: str, language: str | None = None, metadata: Any = None) -> str:
    """Highlight Python code as HTML, or show it without colours if highlighting would take long.

    `language` and `metadata` are what nbconvert's filter takes. They are ignored: a student chooses them.
    """
    if _is_slow(source, _CHARACTER):
        return f'<div class="highlight">{_as_written(source)}</div>'
    return Highlight2HTML(pygments_lexer="python3")(source)


class _Renderer(IPythonRenderer):
    """nbconvert's renderer, with colours only for Python: the lexers of other languages can also take hours."""

    @classmethod
    def of_cell(cls, context: Any) -> _Renderer:
        return cls(escape=False, attachments=context.get("cell", {}).get("attachments", {}))

    def block_code(self, code: str, info: str | None = None) -> str:
        words = (info or "").split()
        if words and words[0] in _PYTHON:
            return highlight_code(code)
        return super(IPythonRenderer, self).block_code(code)


def _is_slow(source: str, opening: re.Pattern[str]) -> bool:
    if len(source) > _MAX_CHARS:  # before any search
        return True
    return bool(_BLANKS.search(source)) or len(opening.findall(source)) > _MAX_OPENINGS


def _as_written(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def clean(html: str) -> str:
    """Clean HTML: keep the tags and attributes that text, tables, pictures and formulas need, show others as text."""
    if html.count("<") > _MAX_TAGS:
        return _as_written(html)
    html = _REOPENED_WITH_ATTRIBUTES.sub(r"<\1>", html.encode(errors="replace").decode())  # half a surrogate is invalid
    return _CLEANER.clean(_NOT_ALLOWED.sub("&lt;", html))


def _checked(tag: str, name: str, value: str) -> str | None:
    """The value of an allowed attribute, or None if this value is not allowed."""
    if name == "href":
        allowed = bool(_LINK.fullmatch(value))
    elif name == "src":
        allowed = bool(_PICTURE.fullmatch(value))
    elif name == "class":  # any other could cover the page or pose as the formgrader's own
        allowed = value == "anchor-link" or all(_PYGMENTS.fullmatch(word) for word in value.split())
    else:
        allowed = True
    return value if allowed else None


_CLEANER = nh3.Cleaner(
    tags=_TAGS,
    attributes=_ATTRIBUTES,
    attribute_filter=_checked,
    url_schemes={"http", "https", "mailto", "data"},
    filter_style_properties={"text-align"},
)
