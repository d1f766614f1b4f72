"""`autograder report`: the numbers of performance reports that are neither computed nor cited."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autograder.terminal import console, errors

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Look at performance reports. Students: `python -m worldsize.course.reporting`."""


@app.command()
def check(
    notebooks: Annotated[list[Path], typer.Argument(help="Executed reports, such as submitted/*/report/report.ipynb.")],
) -> None:
    """Find numbers that no output shows and no source supports; exit with code 1 if there are any.

    Nothing is run, and outputs are what the notebook says of itself: it is an aid for grading by hand, and gives no
    points.
    """
    from worldsize.course import reporting

    is_clean = True
    for path in notebooks:
        try:
            found = reporting.check(reporting.read(path))
        except ValueError as error:
            errors.print(f"{path}: {error}", markup=False, soft_wrap=True)
            is_clean = False
            continue
        console.print(f"{path}: {found}", markup=False, soft_wrap=True)
        is_clean &= found.is_clean
    if not is_clean:
        raise typer.Exit(1)
