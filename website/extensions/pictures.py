"""Pictures inside a page's HTML as files beside it: a browser loads them when they come into view."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

_DATA = re.compile(r'<img (?P<before>[^>]*?)src="data:image/(?P<kind>png|jpeg|gif);base64,(?P<data>[A-Za-z0-9+/=\s]+)"')
FOLDER = "_images"


def setup(app: Sphinx) -> dict[str, Any]:
    """Take the pictures out of every page that is written."""
    app.connect("html-page-context", _take_out)
    return {"parallel_read_safe": True}


def _take_out(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    if "body" not in context:
        return
    folder = Path(app.outdir, FOLDER)
    up = "../" * page.count("/")

    def written(found: re.Match[str]) -> str:
        content = base64.b64decode(found["data"])
        name = f"{hashlib.sha256(content).hexdigest()[:20]}.{found['kind']}"
        folder.mkdir(exist_ok=True)
        if not (folder / name).exists():
            (folder / name).write_bytes(content)
        return f'<img loading="lazy" {found["before"]}src="{up}{FOLDER}/{name}"'

    context["body"] = _DATA.sub(written, context["body"])
