"""Links of pages that are read as files too: to a page of the site, else to the repository, else no link at all."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from docutils import nodes
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Follow the links of every page once all pages are known."""
    app.add_config_value("repository_url", "", "html")
    app.add_config_value("repository_folder", "", "env")
    app.connect("doctree-read", _take_anchors)
    app.connect("doctree-resolved", _follow)
    return {"parallel_read_safe": True}


def _take_anchors(app: Sphinx, doctree: nodes.document) -> None:
    """Give every heading the anchor that it has on a forge, beside docutils' own."""
    for section in doctree.findall(nodes.section):
        slug = section.get("slug")
        if slug and slug not in section["ids"]:
            section["ids"].append(slug)


def _follow(app: Sphinx, doctree: nodes.document, page: str) -> None:
    for link in [*doctree.findall(nodes.reference)]:
        url = urlsplit(link.get("refuri", ""))
        if url.scheme or url.netloc or not url.path or link.get("internal"):
            continue
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page), url.path))
        target = place.rsplit(".", 1)[0]
        if place.endswith((".md", ".ipynb")) and target in app.env.found_docs:
            anchor = f"#{url.fragment}" if url.fragment else ""
            link["refuri"] = app.builder.get_relative_uri(page, target) + anchor
            link["internal"] = True
        elif app.config.repository_url and Path(app.config.repository_folder, place).exists():
            link["refuri"] = app.config.repository_url + (f"/blob/main/{place}" if place != "." else "")
        else:
            link.replace_self(nodes.inline("", "", *link.children, classes=["not-here"]))
