"""For students: `python -m worldsize.capstone check DESIGN`, and `run DESIGN` with the programs that it names."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from worldsize import capstone
from worldsize.capstone import report
from worldsize.capstone.design import Design
from worldsize.capstone.programs import StudentPrograms, load_programs, record_step
from worldsize.launch.reports.result import RunError
from worldsize.planning.search import Cost


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; return 0 if the design adds up and could be run."""
    options = _options(words)
    try:
        return _check(options.design) if options.command == "check" else _run(options)
    except (ValueError, RunError) as error:
        print(error, file=sys.stderr)
        return 1


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m worldsize.capstone", description="Check a design, or run it.")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="Say what does not add up.")
    run = commands.add_parser(
        "run", help="Compute what the design achieves and costs, by its own programs or its serial time."
    )
    for command in (check, run):
        command.add_argument("design", type=Path, help="The design's TOML file.")
    run.add_argument("--record", action="store_true", help="Run the step on paper in place of the cost function.")
    run.add_argument("--to", type=Path, help="A page to write, with pictures.")
    return parser.parse_args(words)


def _check(path: Path) -> int:
    design = capstone.load(path)
    programs = load_programs(design, path.parent)
    return _say(design, capstone.check(design, programs.cost, programs.policy))


def _say(design: Design, problems: list[str]) -> int:
    print(report.verdict(design, problems))
    return 1 if problems else 0


def _run(options: argparse.Namespace) -> int:
    design = capstone.load(options.design)
    programs = load_programs(design, options.design.parent)
    if problems := capstone.check(design, policy=programs.policy):
        return _say(design, problems)
    cost = _cost(design, programs, options.record)
    design_report = report.DesignReport.of(design, cost, programs.policy)
    print(design_report)
    if options.to is not None:
        options.to.write_text(design_report.page(), encoding="utf-8")
    return 0


def _cost(design: Design, programs: StudentPrograms, is_recorded: bool) -> Cost:
    """Return the student's cost of the step, by default the serial time; print what was recorded for it.

    Raises:
        ValueError: the design's file of programs lacks it, or there is no step to record.
    """
    if is_recorded and programs.train is not None:
        recorded = record_step(programs.train, design)
        print(recorded.run)
        return recorded
    if design.programs is None and not is_recorded:
        from worldsize.planning import serial  # out of a student's reach where a project asks for a cost

        print("No cost of a step is given: it is the serial time, each resource at its peak, one after the other.\n")
        return lambda plan: serial.parts_s(plan, design.software.precision)
    if programs.cost is None or is_recorded:
        wanted = "train(plan), a step to run on paper" if is_recorded else "step_s(plan), the seconds of a step"
        raise ValueError(f"{design.name}: [programs] names no file with {wanted}; the capstone asks you to write it")
    return programs.cost


if __name__ == "__main__":
    sys.exit(main())
