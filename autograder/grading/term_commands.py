"""Commands for a class through a term: who is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autograder.terminal import console, exit_on_value_error

roster = typer.Typer(no_args_is_help=True, help="The students of the class, for gradebook, quizzes and exports.")


@roster.callback()
def _roster() -> None:
    """The students of the class, for gradebook, quizzes and exports."""  # keeps `import` a command of its own


@roster.command("import")
def import_roster(
    file: Annotated[Path, typer.Argument(help="A CSV file: id, name, email, section, lms id, extra time, team.")],
) -> None:
    """Enter a class into the gradebook and roster.csv: new students, and changes of those who are there.

    Only the column `id` is required. A row that cannot be used stops the import, and is named with its line. Nobody is
    removed, and no grade is touched: import again after every change.
    """
    from autograder.course import find_root, open_course
    from autograder.grading.enrolment import enrol

    with exit_on_value_error():
        done = enrol(open_course(find_root(Path.cwd())), file)
    for sentence in done.sentences:
        console.print(sentence, markup=False, soft_wrap=True)
