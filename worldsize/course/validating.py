"""nbgrader's Validate, which names a failed check and prints its error whole, in place of cutting both."""

from __future__ import annotations

import textwrap
from functools import cache
from typing import Any

import nbformat
from nbconvert.filters import strip_ansi
from nbgrader.utils import is_grade
from nbgrader.validator import Validator


@cache  # settings are read again for each notebook that JupyterLab validates
def install() -> None:
    """Replace what `nbgrader validate` and JupyterLab's Validate button say of a cell that fails."""
    as_shipped = Validator.validate

    def validate(self: Validator, filename: str) -> dict[str, list[dict[str, Any]]]:
        results = as_shipped(self, filename)
        cells = [cell for cell in nbformat.read(filename, as_version=4).cells if is_grade(cell)]
        names = {cell.source.strip(): cell.metadata.nbgrader.grade_id for cell in cells}
        for failed in results.get("failed", []):
            failed["source"] = names.get(failed["source"], failed["source"])
        return results

    Validator.validate = validate
    Validator._indent = _indent


def _indent(self: Validator, val: str) -> str:
    return textwrap.indent(strip_ansi(val), self.indent)
