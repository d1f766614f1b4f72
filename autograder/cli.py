"""The `autograder` command."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


@app.callback()
def main() -> None:
    """Build and grade the course."""


@app.command()
def build(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which ones, such as week01 or lab01; all by default.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is out of date.")] = False,
) -> None:
    """Build the notebooks of weeks/ and solutions/, and release the students' labs."""
    # nbgrader takes a second to import, which other commands and --help need not wait for
    from autograder import build as builder

    try:
        root = builder.find_root(Path.cwd())
        if check:
            _report_out_of_date(builder.out_of_date(root, names or ()))
        else:
            for path, written in builder.build(root, names or ()).items():
                console.print(f"[green]written  [/] {path}" if written else f"[dim]unchanged {path}[/]")
    except ValueError as error:
        errors.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


@app.command()
def verify(
    labs: Annotated[list[str] | None, typer.Argument(help="Which labs, such as lab01; all by default.")] = None,
    jobs: Annotated[int | None, typer.Option(help="How many answers to grade at once; one a core by default.")] = None,
) -> None:
    """Grade every known answer of a lab and compare with the score that it declares."""
    from autograder import build as builder
    from autograder import verify as bank

    root = builder.find_root(Path.cwd())
    names = labs or [path.stem for path in builder.find_sources(root).labs]
    known = [case for lab in names for case in bank.cases(root, lab)]
    findings = track(bank.verify(root, known, jobs), total=len(known), console=console, description="Grading")
    table = Table("answer", "must get", "got", "seconds", "", box=SIMPLE)
    wrong = 0
    for finding in sorted(findings, key=lambda finding: known.index(finding.case)):
        must = finding.report.max_score if finding.case.score is None else finding.case.score
        verdict = "[red]" + "; ".join(map(escape, finding.problems)) if finding.problems else "[green]as declared"
        name, seconds = f"{finding.case.lab} {finding.case.name}", f"{finding.report.duration_s:.1f}"
        table.add_row(name, f"{must:g}", f"{finding.report.score:g}", seconds, verdict)
        wrong += bool(finding.problems)
    console.print(table)
    if wrong:
        errors.print(f"{wrong} of {len(known)} answers did not get what they declare.")
        raise typer.Exit(1)


@app.command()
def demo(
    week: Annotated[str, typer.Option(help="The week to execute.")] = "week01",
    lab: Annotated[str, typer.Option(help="The lab whose sample class to grade.")] = "lab01",
) -> None:
    """Execute a week, grade a sample class, and write build/demo/index.html about both."""
    from autograder import build as builder
    from autograder import demo as show

    try:
        page = show.demo(builder.find_root(Path.cwd()), week, lab, console)
    except show.StepFailed as error:
        errors.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    console.print(f"The page with each student's feedback and the executed week: {page}", soft_wrap=True)


def _report_out_of_date(paths: list[Path]) -> None:
    if not paths:
        console.print("Every notebook is as its script says.")
        return
    for path in paths:
        console.print(f"[red]out of date[/] {path}")
    raise ValueError("Run `autograder build`, and delete the files that no script builds any more.")
