"""Pages that need no network: formulas become MathML, which browsers draw by themselves."""

from __future__ import annotations

import re

from nbconvert.exporters import HTMLExporter
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode
from traitlets import Bool

from autograder.markdown.formulas import mathml

# code comes first, so that a dollar inside it is left alone
_CODE_OR_FORMULA = re.compile(
    r"(?P<code>```.*?```|`[^`\n]+`)|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+?)\$", re.DOTALL
)
_FROM_ELSEWHERE = re.compile(r"<script\b(?:(?!</script>).)*https?://(?:(?!</script>).)*</script>", re.DOTALL)


class FormulasToMathML(Preprocessor):
    """A preprocessor that replaces LaTeX between dollars in Markdown cells by MathML."""

    enabled = Bool(True).tag(config=True)

    def preprocess_cell(self, cell: NotebookNode, resources: dict, index: int) -> tuple[NotebookNode, dict]:
        if cell.cell_type == "markdown":
            cell.source = _CODE_OR_FORMULA.sub(_to_mathml, cell.source)
        return cell, resources


class OfflineHTMLExporter(HTMLExporter):
    """nbconvert's HTML without the scripts that it would load from elsewhere."""

    def from_notebook_node(self, nb: NotebookNode, resources: dict | None = None, **kw: object) -> tuple[str, dict]:
        html, resources = super().from_notebook_node(nb, resources, **kw)
        return _FROM_ELSEWHERE.sub("", html), resources


def _to_mathml(match: re.Match[str]) -> str:
    """A match of `_CODE_OR_FORMULA`: a formula as MathML; code, and what is not a formula, unchanged."""
    if match["code"]:
        return match["code"]
    block = match["block"]
    try:
        return mathml(block or match["inline"], "block" if block else "inline")
    except ValueError:  # not a formula after all: it stays as written
        return match[0]
