"""`autograder capstone`: check a design, simulate it with the judge's cost model, and compare a class's designs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autograder.terminal import console, errors, exit_on_value_error

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
DesignFile = Annotated[Path, typer.Argument(help="The design's TOML file. Programs that it names are not run.")]


@app.callback()
def main() -> None:
    """Check and run designs of training systems. Students: `python -m worldsize.capstone`."""


@app.command()
def check(design: DesignFile) -> None:
    """Say in sentences what does not add up; the exit code is 1 where something does not."""
    from autograder.capstone.step_times import cost_of
    from worldsize import capstone
    from worldsize.capstone.report import verdict

    with exit_on_value_error():
        found = capstone.load(design)
        problems = capstone.check(found, cost_of(found))
    console.print(verdict(found, problems), markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


@app.command()
def run(
    design: DesignFile,
    to: Annotated[Path | None, typer.Option(help="A page to write, with pictures.")] = None,
) -> None:
    """Compute throughput, days, cost, energy, goodput, the bottleneck, and what more of each resource buys."""
    from autograder.capstone.step_times import cost_of
    from worldsize import capstone
    from worldsize.capstone.report import DesignReport, verdict

    with exit_on_value_error():
        found = capstone.load(design)
        if problems := capstone.check(found):
            errors.print(verdict(found, problems), markup=False, soft_wrap=True)
            raise typer.Exit(1)
        shown = DesignReport.of(found, cost_of(found))
        if to is not None:
            to.write_text(shown.page(), encoding="utf-8")
    console.print(str(shown), markup=False, soft_wrap=True)


@app.command()
def compare(
    folder: Annotated[Path, typer.Argument(help="A folder of designs, or of students' folders with one each.")],
    to: Annotated[Path, typer.Option(help="The page to write.")] = Path("designs.html"),
) -> None:
    """Write a class's designs as a Pareto picture of days against cost; those that do not add up are listed."""
    from autograder.capstone.step_times import cost_of
    from worldsize import capstone
    from worldsize.capstone.sweep import days_against_dollars
    from worldsize.draw.page import page

    achieved, refused = {}, {}
    for path in sorted([*folder.glob("*.toml"), *folder.glob("*/*.toml")]):
        name = path.stem if path.parent == folder else path.parent.name
        if path.parent != folder and len([*path.parent.glob("*.toml")]) > 1:
            name += f"/{path.stem}"
        try:
            design = capstone.load(path)
            refused[name] = capstone.check(design)
            if not refused[name]:
                achieved[name] = capstone.run(design, cost_of(design))
        except ValueError as error:
            refused[name] = [str(error)]
        except ArithmeticError:
            refused[name] = ["its numbers are beyond all that can be computed."]
    for name, problems in refused.items():
        for problem in problems:
            errors.print(f"{name}: {problem}", markup=False, soft_wrap=True)
    num_refused = sum(map(bool, refused.values()))
    if not achieved:
        errors.print(f"{folder}: no design adds up, so there is nothing to draw.", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    with exit_on_value_error():
        picture = days_against_dollars(achieved)
    title = f"Days against cost: {len(achieved)} designs"
    to.write_text(page(title, picture._repr_mimebundle_()["text/html"]), encoding="utf-8")
    console.print(f"Designs in {to}: {len(achieved)}. Designs that do not add up: {num_refused}.", soft_wrap=True)
