"""A link at the foot of every page to report a mistake in it, where the course says where its repository is."""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import urlencode

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the link to every page that is written."""
    app.connect("html-page-context", _add)
    return {"parallel_read_safe": True}


def _add(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    if app.config.repository_url and doctree is not None:
        url = f"{app.config.repository_url}/issues/new?{urlencode({'title': f'Mistake in {page}'})}"
        context["body"] += f'<p class="report"><a href="{escape(url)}">Report a mistake on this page</a></p>'
