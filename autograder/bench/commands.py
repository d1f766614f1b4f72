"""`autograder bench`: measure a class's programs or your own, write the page about a class, print the schema."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from typer.core import TyperGroup

from autograder.files import shown
from autograder.terminal import console, errors, exit_on_value_error

if TYPE_CHECKING:
    from autograder.bench.batch import Batch, SubmissionOutcome
    from autograder.judging.judge.measuring import Settings
    from worldsize.bench import Result

OUT = Path("build", "bench")  # relative to the course's folder
_INTERRUPTED = 130


class _BenchGroup(TyperGroup):
    """`autograder bench project1` is short for `autograder bench run project1`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["run", *args])


app = typer.Typer(cls=_BenchGroup, no_args_is_help=True, pretty_exceptions_enable=False)


class EngineName(StrEnum):
    """Where a class can be judged or measured."""

    LOCAL = "local"
    RAY = "ray"


@app.callback()
def main() -> None:
    """Measure training programs: how they scale, real and emulated. `run` may be left out."""


@app.command()
def run(
    what: Annotated[str, typer.Argument(help="An assignment, such as project1, or a program, such as train.py.")],
    submissions: Annotated[
        Path | None, typer.Option(help="A folder with a folder for each student; by default what nbgrader collected.")
    ] = None,
    students: Annotated[
        list[str] | None, typer.Option("--student", help="A student to measure; repeatable, all by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go; by default below build/bench.")] = None,
    engine: Annotated[
        EngineName, typer.Option(help="Measure on this machine, or on the Ray cluster at RAY_ADDRESS.")
    ] = EngineName.LOCAL,
    num_gpus: Annotated[
        int | None, typer.Option(min=0, help="GPUs for one submission; by default all that this machine has.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure again what was measured before.")] = False,
    grade: Annotated[bool, typer.Option(help="Judge each submission, too.")] = True,
    world_sizes: Annotated[str, typer.Option(help="Numbers of ranks, separated by commas.")] = "1,2,4",
    repeats: Annotated[int, typer.Option(min=1, help="How often each number of real ranks is timed.")] = 3,
    steps: Annotated[int, typer.Option(help="Steps of each training; the first 4 are warm-up steps.")] = 24,
    batch: Annotated[int, typer.Option(help="Samples in a global batch.")] = 128,
    width: Annotated[int, typer.Option(help="Channels of the model's first layer.")] = 16,
    images: Annotated[
        Literal["digits", "cifar10"],
        typer.Option(help="What is trained on; cifar10 from files in the folder that WORLDSIZE_CIFAR10 names."),
    ] = "digits",
    allow_untrusted: Annotated[
        bool, typer.Option("--allow-untrusted", help="Measure even where the sandbox is too weak for final grades.")
    ] = False,
) -> None:
    """Measure a class's programs, each in its sandbox, or your own program without one.

    What is finished is kept: a run that was interrupted, by Ctrl-C or by a batch system, resumes from there.
    """
    from autograder.judging.judge.measuring import Settings
    from worldsize.bench import Task
    from worldsize.images import cifar10_files

    with exit_on_value_error():
        task = Task(num_steps=steps, batch_size=batch, width=width, images=images)
        if images == "cifar10" and engine is EngineName.LOCAL:
            cifar10_files()  # fail now, and not once for every timing
        settings = Settings(task=task, world_sizes=_sizes(world_sizes), num_repeats=repeats)
        if steps <= settings.num_warmup_steps:
            raise ValueError(
                f"--steps {steps}: the first {settings.num_warmup_steps} are warm-up steps, so none is left to time."
            )
    if what.endswith(".py") or "/" in what:
        _run_here(Path(what), out, settings)
        return
    with exit_on_value_error():
        class_ = _batch(what, submissions, out, settings, grade, allow_untrusted)
        names, refused = class_.lab.named(students or ()), class_.refused(students or ())
        if engine is EngineName.LOCAL:
            _warn_if_busy(settings)
        place = _place(engine, num_gpus)
    outcomes = []
    try:
        with (
            _progress(len(names)) as (advance, on_progress),
            closing(_outcomes(class_, names, place, again, on_progress)) as found,
        ):
            for outcome in found:
                outcomes.append(outcome)
                advance(outcome.student)
    except KeyboardInterrupt:
        errors.print(
            f"Interrupted: {len(outcomes)} of {len(names)} are done and kept. The same command resumes from there."
        )
        raise typer.Exit(_INTERRUPTED) from None
    console.print(table_of([*outcomes, *refused], settings.world_sizes))
    console.print(f"Written: {class_.lab.kept_in}", soft_wrap=True)
    results = {one.student: one.kept.result for one in outcomes if one.kept.result}
    _name_disturbed(results, what, {"--submissions": submissions, "--out": out})
    if faults := sum(bool(outcome.fault) for outcome in outcomes):
        errors.print(
            f"{faults} of {len(outcomes)} submissions were not measured because the harness broke; no score was "
            "recorded. Run the same command again."
        )
    if refused:
        errors.print(f"{len(refused)} folders were not measured: change them as the table says.")
    if faults or refused:
        raise typer.Exit(1)


@app.command()
def leaderboard(
    folder: Annotated[Path, typer.Argument(help="The folder that a batch has written its results to.")],
    to: Annotated[Path, typer.Option(help="The page to write.")] = Path("leaderboard.html"),
    names: Annotated[
        bool, typer.Option("--names/--anonymous", help="Show students' names, or only their programs' fingerprints.")
    ] = False,
) -> None:
    """Write a page of a class's results: one file, which loads nothing."""
    from autograder.bench.batch import read_batch
    from autograder.bench.leaderboard import page

    with exit_on_value_error():
        results = read_batch(folder)
        if not results:
            raise ValueError(f"{folder} holds no result: no file matches {folder}/STUDENT/result.json.")
        text, num_shown = page(results, has_names=names)
    to.parent.mkdir(parents=True, exist_ok=True)
    to.write_text(text, encoding="utf-8")
    console.print(f"Written: {to}, with {num_shown} of {len(results)} results", soft_wrap=True)
    is_usual = folder.absolute().parent.parts[-2:] == OUT.parts
    _name_disturbed(
        results, folder.absolute().name if is_usual else "ASSIGNMENT", {"--out": None if is_usual else folder}
    )


@app.command()
def schema() -> None:
    """Print the JSON Schema of a result file."""
    from worldsize.bench import schema as result_schema

    print(json.dumps(result_schema(), indent=1))


def table_of(outcomes: Sequence[SubmissionOutcome], world_sizes: Sequence[int]) -> Table:
    """A row for each submission: points, speed, efficiency on several ranks, and the verdict."""
    several = [size for size in sorted(set(world_sizes)) if size > 1]
    headings = [f"efficiency at {size}" for size in several]
    table = Table("student", "points", "samples/s per rank", *headings, "verdict", box=SIMPLE)
    for outcome in sorted(outcomes, key=lambda outcome: outcome.student):
        cells = _cells(outcome.kept.result, several)
        report = outcome.judged.report if outcome.judged and not outcome.judged.fault else None
        points = f"{report.score:g} of {report.max_score:g}" if report else ""
        if outcome.judged and outcome.judged.malformed:
            points = "0"
        table.add_row(escape(shown(outcome.student)), points, *cells, escape(outcome.verdict))
    return table


def _cells(result: Result | None, several: Sequence[int]) -> list[str]:
    """Samples per second of one rank, and efficiencies; all empty if the weights were wrong."""
    from autograder.bench.batch import has_right_weights, point_of

    if result is None or not has_right_weights(result):
        return [""] * (1 + len(several))
    points = [point_of(result, size) for size in (1, *several)]
    texts = [f"{points[0].samples_per_s_per_rank:,.0f}" if points[0] else ""]
    texts += [f"{point.efficiency:.0%}" if point else "" for point in points[1:]]
    marks = [" emulated" if point and point.kind == "emulated" else "" for point in points]
    return [text + mark for text, mark in zip(texts, marks, strict=True)]


def _run_here(path: Path, out: Path | None, settings: Settings) -> None:
    from autograder.files import write_whole
    from worldsize.bench import ScriptHere, measure, sha256_of

    with exit_on_value_error():
        program = ScriptHere(path)
    _warn_if_busy(settings)
    errors.print(f"{path} runs as you, without a sandbox: measure only what you would run yourself.", soft_wrap=True)
    to = out or OUT / f"{path.stem}.json"
    journal = to.with_suffix(".timings.jsonl")
    with _bar() as bar:
        task = bar.add_task(escape(path.name), total=None)
        result = measure(
            program,
            sha256_of(path),
            settings.task,
            settings.world_sizes,
            num_repeats=settings.num_repeats,
            num_warmup_steps=settings.num_warmup_steps,
            journal=journal,
            on_timing=lambda _, done, total: bar.update(task, completed=done, total=total),
        )
    write_whole(to, result.model_dump_json(indent=1))
    journal.unlink(missing_ok=True)
    _show(result)
    console.print(f"Written: {to}", soft_wrap=True)
    _refuse_failures(result)


def _show(result: Result) -> None:
    headings = ["scaling", "ranks", "ms/step", "spread", "samples/s each", "efficiency", "exchange"]
    table = Table(*headings, box=SIMPLE)
    for point in sorted(result.points, key=lambda point: (point.kind != "real", point.scaling, point.world_size)):
        exchange = "" if point.communication_fraction is None else f"{point.communication_fraction:.0%}"
        spread = f"{point.spread_fraction:.0%}" if point.num_repeats > 1 else ""
        ranks = f"{point.world_size}{' emulated' if point.kind == 'emulated' else ''}"
        speed = f"{point.samples_per_s_per_rank:,.0f}"
        table.add_row(
            point.scaling, ranks, f"{1e3 * point.step_s:.2f}", spread, speed, f"{point.efficiency:.0%}", exchange
        )
    console.print(table)
    console.print("Exchange: the share of a step that exchanging gradients takes.")
    if any(point.kind == "emulated" for point in result.points):
        console.print(f"Emulated: in the virtual time of the cluster '{result.cluster}', not of this machine.")
    if result.is_disturbed:
        errors.print(
            f"Other work kept up to {result.most_busy_cores:.1f} of {result.machine.num_cores} cores busy meanwhile: "
            "do not trust the times of real ranks, and measure again on an idle machine.",
            soft_wrap=True,
        )


def _warn_if_busy(settings: Settings) -> None:
    """Warn if this machine is so busy with other work that timings taken now would be left out of the page."""
    from worldsize.bench import machine

    busy, num_cores = machine.busy_cores(), machine.num_cores()
    num_needed = max((size for size in settings.world_sizes if size <= num_cores), default=1)
    if busy is not None and busy > machine.busy_limit_cores(num_cores, num_needed):
        errors.print(
            f"{busy:.1f} of {num_cores} cores are busy with other work: times of real ranks that are taken meanwhile "
            "are not to be trusted, and the leaderboard leaves them out.",
            soft_wrap=True,
        )


def _name_disturbed(results: Mapping[str, Result], name: str, places: Mapping[str, Path | None]) -> None:
    """Print which submissions must be measured again, and the command for it."""
    from autograder.bench.leaderboard import to_measure_again

    if not (students := to_measure_again(results)):
        return
    words = ["autograder", "bench", name, *(f"{flag}={place}" for flag, place in places.items() if place)]
    words += ["--no-grade", "--again", *(f"--student={student}" for student in students)]
    errors.print(
        f"Timed while other work kept the machine busy, so the leaderboard leaves them out: {', '.join(students)}.\n"
        "Measure them again when the machine is idle, with the same flags otherwise:\n"
        f"    {shlex.join(words)}",
        markup=False,
        soft_wrap=True,
    )


def _refuse_failures(result: Result) -> None:
    from autograder.bench.batch import has_right_weights
    from autograder.judging.judge.measuring import first_failure

    if failure := first_failure(result.timings):
        errors.print(f"Not everything could be timed. {failure}", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    if not has_right_weights(result):
        errors.print(
            "The final weights differ from those of one process on the same batches, so these times do not count."
        )
        raise typer.Exit(1)


def _batch(
    name: str, submissions: Path | None, out: Path | None, settings: Settings, is_graded: bool, allow_untrusted: bool
) -> Batch:
    from autograder.bench.batch import Batch, MeasuredLab
    from autograder.course import find_root, open_course, source_of
    from autograder.grading.preprocessor import Grade

    root = find_root(Path.cwd())
    coursedir = open_course(root)
    if allow_untrusted:
        coursedir.config.Grade.allow_untrusted = True
    limits = Grade(config=coursedir.config).limits(source_of(coursedir, name))
    if submissions and not submissions.is_dir():
        raise ValueError(f"There is no folder {submissions} with a folder for each student in it.")
    lab = MeasuredLab(coursedir, name, limits, outside=submissions, kept_in=out or root / OUT / name)
    batch = Batch(lab, settings, is_graded)
    batch.refuse_unmeasurable()
    return batch


def _place(engine: EngineName, num_gpus: int | None) -> Any:
    from autograder.grading.engines import gpu_names, open_engine

    if num_gpus is None:
        num_gpus = len(gpu_names()) if engine is EngineName.LOCAL else 0
    return open_engine(engine.value, None, num_gpus, is_alone=True)


def _outcomes(class_: Batch, names: Sequence[str], place: Any, again: bool, on_progress: Any) -> Any:
    from autograder.bench.batch import run_batch

    return run_batch(class_, names, place, again, on_progress)


def _sizes(text: str) -> tuple[int, ...]:
    """Parse numbers of ranks such as 1,2,4. Raises: ValueError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and int(word) for word in words):
        raise ValueError(f"--world-sizes takes whole numbers separated by commas, such as 1,2,4; got {text!r}.")
    return tuple(sorted({1, *map(int, words)}))


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=not console.is_terminal)


@contextmanager
def _progress(num_students: int) -> Iterator[tuple[Any, Any]]:
    """Show a bar for the class and a line for each running submission; yield the functions that update them."""
    with _bar() as bar:
        whole = bar.add_task("submissions", total=num_students)
        lines: dict[str, Any] = {}

        def on_progress(student: str, doing: str, done: int, total: int) -> None:
            if student not in lines:
                lines[student] = bar.add_task("", total=None)
            bar.update(lines[student], description=f"{escape(student)}: {doing}", completed=done, total=total or None)

        def advance(student: str) -> None:
            if student in lines:
                bar.remove_task(lines.pop(student))
            bar.advance(whole)

        yield advance, on_progress
