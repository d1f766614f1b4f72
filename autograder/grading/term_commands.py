"""Commands for a class through a term: who is in it, and who may hand in later."""

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


def extend(
    student: Annotated[str, typer.Argument(help="Who may hand in later, by id.")],
    assignment: Annotated[str, typer.Argument(help="Which assignment, such as lab03.")],
    days: Annotated[float, typer.Option(help="Days after the class's due date.")] = 0,
    hours: Annotated[float, typer.Option(help="Hours more.")] = 0,
    none: Annotated[bool, typer.Option("--none", help="Take an extension back.")] = False,
) -> None:
    """Let a student hand in later; a late penalty that this changes is computed again.

    Extensions do not add up: each counts from the class's due date and replaces the student's earlier one.
    """
    from autograder.course import find_root, open_course
    from autograder.grading import due_dates, penalties

    with exit_on_value_error():
        if none == bool(days or hours):
            raise ValueError("Say for how long, with --days or --hours, or take an extension back with --none.")
        coursedir = open_course(find_root(Path.cwd()))
        sentence = due_dates.extend(coursedir, student, assignment, days + hours / 24)
        changed = penalties.renew(coursedir, assignment, student)
    console.print(sentence, markup=False, soft_wrap=True)
    for one in changed:
        if one.is_outdated:
            console.print(f"Late penalty: {one.before:g} points before, {one.now:g} now.", markup=False, soft_wrap=True)
