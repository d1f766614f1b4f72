"""Pictures inside a page's HTML as files beside it: a browser loads them when they come into view."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from pathlib import Path
from typing import Any

from PIL import Image
from sphinx.application import Sphinx

_DATA = re.compile(r'<img (?P<before>[^>]*?)src="data:image/(?P<kind>png|jpeg|gif);base64,(?P<data>[A-Za-z0-9+/=\s]+)"')
_FILE = re.compile(r'<img (?P<before>[^>]*?)src="(?P<src>[^":]*/_images/(?P<name>[^"/]+\.(png|jpe?g|gif)))"')
_GIVEN_WIDTH = re.compile(r'\bwidth="(\d+)(px)?"')
FOLDER = "_images"


def setup(app: Sphinx) -> dict[str, Any]:
    """Take the pictures out of every page that is written."""
    app.connect("html-page-context", _take_out)
    return {"parallel_read_safe": True}


def _take_out(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    if "body" not in context:
        return
    body = take_out(context["body"], Path(app.outdir), "../" * page.count("/"))
    sources = {name: source for source, name in getattr(app.builder, "images", {}).items()}

    def sized(found: re.Match[str]) -> str:
        source = sources.get(found["name"])
        before = _with_size(found["before"], Path(app.srcdir, source).read_bytes()) if source else found["before"]
        return f'<img {before}src="{found["src"]}"'

    context["body"] = _FILE.sub(sized, body)


def take_out(html: str, outdir: Path, up: str) -> str:
    """Write the pictures in a page's HTML beside it; `up` leads from the page to the site's folder."""
    folder = outdir / FOLDER

    def written(found: re.Match[str]) -> str:
        content = base64.b64decode(found["data"])
        name = f"{hashlib.sha256(content).hexdigest()[:20]}.{found['kind']}"
        folder.mkdir(exist_ok=True)
        if not (folder / name).exists():
            (folder / name).write_bytes(content)
        return f'<img loading="lazy" {_with_size(found["before"], content)}src="{up}{FOLDER}/{name}"'

    return _DATA.sub(written, html)


def _with_size(attributes: str, content: bytes) -> str:
    """The attributes of a picture with its width and height: links below it lead to their place before it is there."""
    if "height=" in attributes:
        return attributes
    width, height = Image.open(io.BytesIO(content)).size
    given = _GIVEN_WIDTH.search(attributes)
    if not given:
        return f'{attributes}width="{width}" height="{height}" '
    return f'{attributes}height="{round(int(given[1]) * height / width)}" '
