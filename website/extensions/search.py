"""The index of the site's search: what stands in the articles, by section.

Pagefind makes it, a program that npm brings; `static/search_results.js` asks it.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from extensions.npm import package

_VERSION = "1.6.0"
_SHA256 = {  # of npm's package for each platform
    "darwin-arm64": "6fc37601e577d117541d45dd5e929881e0595086b55f420317132196ba6709c8",
    "darwin-x64": "0f6b3f866e8f3e250f04ea87361b7293b0393c8cf2bf7cb7d0a49c045e4b7610",
    "linux-arm64": "226b97e7d622bc044f55d0c2cb4c3e77c499e1f5c4ce1b09c52d3cf711fb025a",
    "linux-x64": "148fd94a099d6a3dcb137c92186cc193ea3c7eb97888d83ed58dd0956b2d1c2a",
}
_CPUS = {"x86_64": "x64", "aarch64": "arm64"}  # as npm names them
_LEFT_OUT = ".headerlink, .cell_input"  # a lesson's code; what it printed is found
_UNUSED = ("pagefind-*ui*", "pagefind-highlight.js")  # user interfaces of Pagefind's own
_SECTION = re.compile(
    r'<section(?P<begin>[^>]*)>(?=\s*(?:<span[^>]*></span>)*<h\d>(?P<title>.*?)<a class="headerlink")'
)
_TAG = re.compile(r"<[^>]+>")


def setup(app: Sphinx) -> dict[str, Any]:
    """Mark what is to be found, and make the index once all pages are written."""
    app.connect("html-page-context", _mark)
    app.connect("build-finished", _index)
    return {"parallel_read_safe": True}


def _mark(app: Sphinx, name: str, template: str, context: dict[str, Any], page: nodes.document | None) -> None:
    """Mark the article, so that nothing else is searched, and name its sections, which are results of their own."""
    if page is not None:
        context["body"] = f"<div data-pagefind-body>{_SECTION.sub(_named, context['body'])}</div>"


def _named(section: re.Match[str]) -> str:
    title = escape(unescape(_TAG.sub("", section["title"])))
    return f'<section{section["begin"]} data-pagefind-title="{title}">'


def _index(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    folder = Path(app.outdir, "pagefind")
    shutil.rmtree(folder, ignore_errors=True)
    command = [pagefind(), "--site", app.outdir, "--exclude-selectors", _LEFT_OUT, "--keep-index-url", "--silent"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise ExtensionError(f"Pagefind did not index the site: {done.stderr.strip() or done.stdout.strip()}")
    for path in [path for pattern in _UNUSED for path in folder.glob(pattern)]:
        path.unlink()


def pagefind() -> Path:
    """Pagefind's program for this machine.

    Raises:
        ExtensionError: There is none, or npm is not there or gives something else.
    """
    machine = f"{platform.system()}-{_CPUS.get(platform.machine(), platform.machine())}".lower()
    if machine not in _SHA256:
        raise ExtensionError(f"Pagefind {_VERSION} was not tried on {machine}, only on {', '.join(_SHA256)}.")
    return package(f"@pagefind/{machine}", _VERSION, _SHA256[machine]) / "bin/pagefind_extended"
