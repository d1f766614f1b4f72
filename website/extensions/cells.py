"""Cells of notebooks: each can be linked to by its id, and a page can show what a cell of another page gave."""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes
from docutils.frontend import get_default_settings
from docutils.utils import new_document
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

OUTPUT = "cell_code_output"  # as myst-nb marks what a cell gave


class shown_cell(nodes.General, nodes.Element):
    """The place of an output that another page has."""


class ShownCell(SphinxDirective):
    """What a cell of a lesson gave: `{shown} weeks/week02_all_reduce_from_scratch#ring_computed`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        page, _, cell = self.arguments[0].partition("#")
        return [shown_cell(page=page, cell=cell)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, and name the cells of each notebook."""
    app.add_node(shown_cell)
    app.add_directive("shown", ShownCell)
    app.connect("source-read", _name_texts)
    app.connect("doctree-read", _name_cells)
    app.connect("doctree-resolved", _show)
    return {"parallel_read_safe": True}


def _name_texts(app: Sphinx, page: str, source: list[str]) -> None:
    """Put an anchor before every cell of text but the first, which holds the page's title."""
    if not _is_notebook(app, page):
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"][1:]:
        if cell["cell_type"] == "markdown":
            cell["source"] = f'<a id="{cell["id"]}"></a>\n\n' + "".join(cell["source"])
    source[0] = json.dumps(notebook)


def _name_cells(app: Sphinx, doctree: nodes.document) -> None:
    page = app.env.docname
    if not _is_notebook(app, page):
        return
    cells = json.loads(app.env.doc2path(page).read_text(encoding="utf-8"))["cells"]
    for container in doctree.findall(nodes.container):
        if container.get("nb_element") == "cell_code":
            container["ids"].append(cells[container["cell_index"]]["id"])


def _show(app: Sphinx, doctree: nodes.document, page: str) -> None:
    for place in [*doctree.findall(shown_cell)]:
        if place["page"] not in app.env.found_docs:
            place.parent.remove(place)
            continue
        cells = app.env.get_doctree(place["page"]).findall(nodes.container)
        cell = next(cell for cell in cells if place["cell"] in cell["ids"])
        app.env.apply_post_transforms(found := _alone(cell), page)
        place.replace_self(found.children)


def _alone(cell: nodes.container) -> nodes.document:
    """A document that holds what a cell gave, and not its source."""
    document = new_document("", get_default_settings())
    document += [part.deepcopy() for part in cell.findall(nodes.container) if part.get("nb_element") == OUTPUT]
    return document


def _is_notebook(app: Sphinx, page: str) -> bool:
    return app.env.doc2path(page).suffix == ".ipynb"
