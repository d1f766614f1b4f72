"""Pages that work offline: formulas become MathML, which browsers draw themselves."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

from nbconvert.exporters import HTMLExporter
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode
from traitlets import Bool

from worldsize.formulas import mathml
from worldsize.quiz.question_text import QUESTIONS

# code is matched first, so that dollars inside it are left alone
_CODE_OR_FORMULA = re.compile(
    r"(?P<code>```.*?```|`[^`\n]+`|<code>.*?</code>)|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+?)\$", re.DOTALL
)
# a script that loads something, or configures what would have been loaded
_FROM_ELSEWHERE = re.compile(
    r'<script type="text/x-mathjax-config">.*?</script>|<script\b(?:(?!</script>).)*https?://(?:(?!</script>).)*</script>',
    re.DOTALL,
)


class FormulasToMathML(Preprocessor):
    """A preprocessor that replaces LaTeX between dollars in Markdown cells with MathML."""

    enabled = Bool(True).tag(config=True)

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        if cell.cell_type == "markdown":
            cell.source = _CODE_OR_FORMULA.sub(_to_mathml, cell.source)
        return cell, resources


class OfflineHTMLExporter(HTMLExporter):
    """nbconvert's HTML exporter without scripts that are loaded from elsewhere."""

    def from_notebook_node(self, nb: NotebookNode, resources: dict | None = None, **kw: object) -> tuple[str, dict]:
        html, resources = super().from_notebook_node(nb, resources, **kw)
        return _FROM_ELSEWHERE.sub("", html), resources


# what nbconvert's template leaves too faint, or marks by colour alone; the colours of code by theme
_READABLE = """<style>
:root { --jp-cell-prompt-not-active-opacity: 1; }
.jp-RenderedHTMLCommon a { text-decoration: underline !important; }
%s
</style>
"""
_CODE = {
    "light": ":root { --jp-mirror-editor-operator-color: #7d00d4; --jp-mirror-editor-number-color: #006b00;\n"
    "  --jp-mirror-editor-comment-color: #2f6b6b; --jp-mirror-editor-string-color: #a31515; }",
    "dark": ":root { --jp-mirror-editor-operator-color: #c99bff; --jp-mirror-editor-number-color: #7fd07f;\n"
    "  --jp-mirror-editor-comment-color: #7fbaba; }",
}


class LessonExporter(OfflineHTMLExporter):
    """An exporter of lessons to pages that need neither network nor kernel: `jupyter nbconvert --to worldsize`."""

    export_from_notebook = "HTML that needs no network"  # in JupyterLab's menu

    def __init__(self, config: Any = None, **kw: Any) -> None:
        super().__init__(config=config, **kw)
        self.register_preprocessor(FormulasOfLesson, enabled=True)

    def from_notebook_node(self, nb: NotebookNode, resources: dict | None = None, **kw: object) -> tuple[str, dict]:
        html, resources = super().from_notebook_node(nb, resources, **kw)
        return html.replace("</head>", f"{_READABLE % _CODE.get(self.theme, '')}</head>", 1), resources


class FormulasOfLesson(FormulasToMathML):
    """A preprocessor that also replaces LaTeX in the questions that cells asked; in other output a dollar is money."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        for output in cell.get("outputs", ()):
            html = output.get("data", {}).get("text/html", "")
            if html.startswith(f'<div class="{QUESTIONS}">'):
                output.data["text/html"] = _CODE_OR_FORMULA.sub(lambda found: _to_mathml(found, unescape), html)
        return super().preprocess_cell(cell, resources, index)


def _to_mathml(match: re.Match[str], read: Callable[[str], str] = str) -> str:
    """Convert a match of `_CODE_OR_FORMULA` to MathML if it is a formula; leave anything else unchanged."""
    if match["code"]:
        return match["code"]
    block = match["block"]
    try:
        return mathml(read(block or match["inline"]), "block" if block else "inline")
    except ValueError:  # not a formula after all: it stays as written
        return match[0]
