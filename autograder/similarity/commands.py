"""`autograder similar`: pairs of works that resemble each other, in the terminal and side by side on a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from autograder.similarity.pairs import LINE
from autograder.terminal import console, errors, exit_on_value_error


def similar(
    assignment: Annotated[str, typer.Argument(help="The lab or project, such as lab03.")],
    past: Annotated[
        list[Path] | None,
        typer.Option(help="A folder with an earlier year's works, laid out like submitted/; may be repeated."),
    ] = None,
    line: Annotated[
        float, typer.Option(min=0.1, max=1, help="Show pairs of this similarity, from 0.1 to 1, or more.")
    ] = LINE,
    to: Annotated[Path | None, typer.Option(help="The page to write; similar-ASSIGNMENT.html by default.")] = None,
) -> None:
    """Find works whose code resembles each other more than independent work does, and show them side by side.

    Names, comments, layout and the order of functions make no difference. Nothing that students wrote is run.
    """
    from autograder.course import find_root, open_course
    from autograder.similarity.page import write_page
    from autograder.similarity.pairs import compare
    from autograder.similarity.works import given, works

    with exit_on_value_error():
        root = find_root(Path.cwd())
        coursedir = open_course(root)
        about = given(coursedir, assignment)
        found, unreadable = works(coursedir, assignment, about, past or ())
        page = to or root / f"similar-{assignment}.html"
        comparison = compare(found, about.sources, line)
        write_page(assignment, comparison, line, page)
    if comparison.pairs:
        table = Table("", "", "similarity", box=SIMPLE)
        for pair in comparison.pairs:
            table.add_row(escape(pair.one.name), escape(pair.other.name), f"{pair.similarity:.2f}")
        console.print(table)
    num_new = sum(not work.is_past for work in found)
    console.print(
        f"{num_new} works compared, with one another and {len(found) - num_new} of earlier years: "
        f"{len(comparison.pairs)} pairs of similarity {line:g} or more.\nWritten: {page}",
        markup=False,
        soft_wrap=True,
    )
    if comparison.too_small:
        names = ", ".join(comparison.too_small)
        console.print(f"Too little of their own to be compared: {names}.", markup=False, soft_wrap=True)
    if unreadable:
        errors.print(f"Could not be read: {', '.join(unreadable)}.", markup=False, soft_wrap=True)
