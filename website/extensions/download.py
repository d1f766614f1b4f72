"""The course as students get it, to download from the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from autograder.authoring.student_copy import write_student_copy
from extensions.npm import ROOT

NAME = "student.zip"


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the zip beside the pages, once these are written."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True}


def _write(app: Sphinx, error: Exception | None) -> None:
    if not error and app.builder.format == "html":
        write_student_copy(ROOT, to := Path(app.outdir, NAME))
        to.chmod(0o644)  # a web server may be another user
