"""Commands for a class during a term: its roster, extensions, status and regrade requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from autograder.terminal import console, exit_on_value_error

if TYPE_CHECKING:
    from autograder.grading.reports.status import AssignmentStatus
    from autograder.grading.standing import Standing

roster = typer.Typer(no_args_is_help=True, help="The students of the class, for gradebook, quizzes and exports.")


@roster.callback()
def _roster() -> None:
    """The students of the class, for gradebook, quizzes and exports."""  # keeps `import` a command of its own


@roster.command("import")
def import_roster(
    file: Annotated[Path, typer.Argument(help="A CSV file: id, name, email, section, lms id, extra time, team.")],
) -> None:
    """Enter a class into the gradebook and roster.csv: new students, and changes of those who are there.

    Only the column `id` is required; the export of Canvas's gradebook is read as it is. A row that cannot be used stops
    the import, and is named with its line. Nobody is removed, and no grade is touched: import again after every change.
    """
    from autograder.course import find_root, open_course
    from autograder.grading.term.enrolment import enrol

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
    from autograder.grading.term import due_dates, penalties
    from autograder.submissions.team_work import submitter_of

    with exit_on_value_error():
        if none == bool(days or hours):
            raise ValueError("Say for how long, with --days or --hours, or take an extension back with --none.")
        coursedir = open_course(find_root(Path.cwd()))
        sentence = due_dates.extend(coursedir, student, assignment, days + hours / 24)
        author = submitter_of(coursedir, assignment).get(student, student)
        changed = penalties.renew(coursedir, assignment, author)
    console.print(sentence, markup=False, soft_wrap=True)
    for penalty in changed:
        if penalty.is_outdated:
            console.print(
                f"Late penalty: {penalty.before:g} points before, {penalty.now:g} now.", markup=False, soft_wrap=True
            )


def status(
    assignment: Annotated[
        str | None, typer.Argument(help="An assignment whose students to list; by default all, in figures.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Write a page (.html) about every student as well.")] = None,
) -> None:
    """Show who handed in, who waits to be graded, what failed, and what is to be read by hand."""
    from autograder.course import find_root, open_course
    from autograder.grading.reports import status as reports

    with exit_on_value_error():
        if to is not None and to.suffix != ".html":
            raise ValueError(f"{to}: the page must end in .html.")
        class_status = reports.read(open_course(find_root(Path.cwd())), [assignment] if assignment else ())
        if to is not None:
            reports.write_page(class_status, to)
    console.print(_of_students(class_status.students) if assignment else _of_assignments(class_status.assignments))
    for sentence in [line for assignment in class_status.assignments for line in assignment.to_do] + [
        *class_status.remarks
    ]:
        console.print(sentence, markup=False, soft_wrap=True)
    if to is not None:
        console.print(f"Written: {to}", soft_wrap=True)


def _of_assignments(assignments: Sequence[AssignmentStatus]) -> Table:
    """The figures in a table, without columns in which every figure is 0, so that it fits in a terminal."""
    figures = [assignment.figures for assignment in assignments]
    names = [name for name in figures[0] if any(one[name] not in ("", "0") for one in figures)]
    table = Table("assignment", *names, box=SIMPLE)
    for one in assignments:
        table.add_row(escape(one.name), *(one.figures[name] for name in names))
    return table


def regrade(
    assignment: Annotated[str, typer.Argument(help="The assignment, such as lab03.")],
    student: Annotated[str | None, typer.Argument(help="Whose request to answer; without it, all are listed.")] = None,
    cell: Annotated[str, typer.Argument(help="The cell that the request names.")] = "",
    answer: Annotated[str, typer.Option(help="Your answer, which the feedback shows.")] = "",
    points: Annotated[float | None, typer.Option(help="The cell's points from now on, given by hand.")] = None,
) -> None:
    """List what students ask to be graded again, in `regrade.md` next to their notebooks, or answer one request."""
    from autograder.course import find_root, open_course
    from autograder.grading.term import regrades

    with exit_on_value_error():
        coursedir = open_course(find_root(Path.cwd()))
        if student is not None:
            sentence = regrades.answer(coursedir, assignment, student, cell, answer, points)
            console.print(sentence, markup=False, soft_wrap=True)
            console.print(f"`autograder feedback {assignment}` shows it to the student.", markup=False, soft_wrap=True)
            return
        if answer or points is not None:
            raise ValueError(f"Say whose request you answer: autograder regrade {assignment} STUDENT CELL --answer ...")
        requests = regrades.of_class(coursedir, assignment)
        worth = {request.student: regrades.points_of(coursedir, assignment, request.student) for request in requests}
    for request in requests:
        unknown = "no graded cell has this name" if worth[request.student] else "not graded yet"
        of_cell = worth[request.student].get(request.cell, unknown if request.cell else "all of it")
        state = f"answered: {request.answer}" if request.answer else "open"
        lines = [f"{request.student}, {request.cell or 'no cell named'} ({of_cell}), {state}", *request.why.split("\n")]
        console.print("\n    ".join(lines), markup=False, soft_wrap=True)
    num_open = sum(not request.answer for request in requests)
    console.print(f"{len(requests)} requests, {num_open} open.", markup=False)


def _of_students(students: Sequence[tuple[Standing, Sequence[Standing | None]]]) -> Table:
    table = Table("student", "name", "section", "", "state", "score", "remarks", box=SIMPLE)
    for standing in (standing for _, standings in students for standing in standings if standing):
        about = [escape(text) for text in (standing.student, standing.name, standing.section)]
        state = standing.state
        table.add_row(*about, state.sign, state.value, standing.score_text, standing.remarks)
    return table
