"""No kernel for submissions: should nbgrader ever grade without our configuration, it finds none to run them in.

One typing error in nbgrader_config.py is enough: nbgrader reports it, goes on with its own settings, and would run
students' code itself, as the instructor, outside any sandbox. It does so in the kernel that the gradebook names for a
notebook. So the gradebook names one that does not exist.
"""

from __future__ import annotations

import json
from typing import Any

from nbformat import NotebookNode
from nbgrader import preprocessors
from nbgrader.api import Gradebook

KERNEL = {
    "name": "graded-in-the-sandbox-only",
    "display_name": "none: nbgrader_config.py of the course was not read",
    "language": "python",
}


class SaveCells(preprocessors.SaveCells):
    """nbgrader's own `SaveCells`, which also names a kernel that does not exist; students' notebooks keep theirs."""

    def _create_notebook(self, nb: NotebookNode) -> None:
        super()._create_notebook(nb)
        _name_no_kernel(self.gradebook, self.assignment_id, self.notebook_id)


def name_no_kernel(names: dict[str, str]) -> None:
    """Make the gradebook name a kernel that does not exist; `names` as nbgrader gives them to preprocessors."""
    with Gradebook(names["db_url"]) as book:  # an older gradebook is safe from the first grading on
        _name_no_kernel(book, names["assignment"], names["notebook"])


def _name_no_kernel(book: Gradebook, assignment: str, notebook: str) -> None:
    record: Any = book.find_notebook(notebook, assignment)  # sqlalchemy's columns are typed as columns
    record.kernelspec = json.dumps(KERNEL)
    book.db.commit()
