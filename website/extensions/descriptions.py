"""What a page is about, in its own first sentences: for search engines, and below results of Sphinx's search."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from markupsafe import escape
from sphinx.application import Sphinx

_FILE = "descriptions.js"
_SHORTEST, _LONGEST = 60, 220  # characters
_SENTENCES = re.compile(r"(?<=[.?!]) (?=[A-Z`])")


def setup(app: Sphinx) -> dict[str, Any]:
    """Describe each page, and write all descriptions into a file that the search page reads."""
    app.connect("html-page-context", _describe)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}


def about(page: nodes.Node) -> str:
    """A lesson's question, or the first sentences of a page's text; of a table where it has no text."""
    paragraphs = list(page.findall(nodes.paragraph))
    questions = [one for one in paragraphs if isinstance(one.parent, nodes.block_quote) and one.astext()[-1] == "?"]
    text = questions or [one for one in paragraphs if not isinstance(one.parent, nodes.entry)] or paragraphs
    sentences = (sentence for one in text for sentence in _SENTENCES.split(" ".join(one.astext().split())))
    said = ""
    while len(said) < _SHORTEST and (sentence := next(sentences, "")):
        said = f"{said} {sentence}".strip()
    return said if len(said) <= _LONGEST else said[:_LONGEST].rpartition(" ")[0] + " …"


def _describe(app: Sphinx, name: str, template: str, context: dict[str, Any], page: nodes.document | None) -> None:
    if page is not None and (text := about(page)):
        context["metatags"] += f'<meta name="description" content="{escape(text)}" />'


def _write(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    found = {name: about(app.env.get_doctree(name)) for name in sorted(app.env.found_docs)}
    text = json.dumps({name: said for name, said in found.items() if said}, ensure_ascii=False)
    Path(app.outdir, "_static", _FILE).write_text(f"const DESCRIPTIONS = {text};\n", encoding="utf-8")
