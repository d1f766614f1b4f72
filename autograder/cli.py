"""The `autograder` command."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from autograder.bench.commands import Engine
from autograder.bench.commands import app as bench
from autograder.quiz.commands import app as quizzes
from autograder.terminal import console, errors, exit_on_value_error

if TYPE_CHECKING:
    from nbgrader.coursedir import CourseDirectory

    from autograder.grading.audit_log import Entry
    from autograder.grading.verify import Finding

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(quizzes, name="quiz")
app.add_typer(bench, name="bench")


def _show_version(is_asked: bool) -> None:
    if is_asked:
        console.print(version("worldsize"))
        raise typer.Exit


@app.callback()
def main(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Build and grade the course."""


@app.command()
def build(
    names: Annotated[
        list[str] | None, typer.Argument(help="Weeks or labs to build, such as week01; all by default.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if a file is out of date.")] = False,
) -> None:
    """Build the notebooks of weeks/ and solutions/, and release the students' labs."""
    # nbgrader takes a second to import, which other commands and --help need not wait for
    from autograder.authoring import notebooks as builder
    from autograder.course import find_root

    with exit_on_value_error():
        root = find_root(Path.cwd())
        if check:
            _report_out_of_date(builder.out_of_date(root, names or ()))
        else:
            for path, written in builder.build(root, names or ()).items():
                console.print(f"[green]written  [/] {path}" if written else f"[dim]unchanged {path}[/]")


@app.command()
def verify(
    labs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Labs or projects to verify, such as lab01; by default all labs, but no project, because projects are "
            "timed."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="How many answers to grade at once; one per core by default.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed for the inputs of the checks; derived from the commit's hash by default."),
    ] = None,
    reach: Annotated[
        bool,
        typer.Option(
            "--reach",
            help="Faster: run on each answer only the checks whose result it can change. Applies to labs listed in "
            "solutions/proven.json; a run without --reach adds labs to that list.",
        ),
    ] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Grade again even answers with a kept result; --seed implies this.")
    ] = False,
) -> None:
    """Grade every known answer of a lab and compare with the score that it declares."""
    from autograder.authoring import notebooks as builder
    from autograder.course import find_root, is_project
    from autograder.grading import verify as bank

    with exit_on_value_error():
        root = find_root(Path.cwd())
    all_names = [path.parent.name for path in builder.find_sources(root).labs]
    names = labs or [name for name in all_names if not is_project(name)]
    known = [case for lab in names for case in bank.cases(root, lab)]
    use_kept, seed = not again and seed is None, bank.commit_seed(root) if seed is None else seed
    console.print(f"inputs drawn with --seed {seed}")
    asked = bank.verify(root, known, jobs, seed, by_reach=reach, use_kept=use_kept)
    found = list(track(asked, total=len(known), console=console, description="Grading"))
    table = Table("answer", "must get", "got", "seconds", "", box=SIMPLE)
    for finding in sorted(found, key=lambda finding: known.index(finding.case)):
        must = finding.case.due(finding.report.max_score)
        verdict = "[red]not as declared" if finding.problems else "[green]as declared"
        name = f"{finding.case.lab} {finding.case.name}"
        seconds = "kept" if finding.is_kept else f"{finding.report.duration_s:.1f}"
        table.add_row(name, must, f"{finding.report.score:g}", seconds, verdict)
    console.print(table)
    console.print(_pairs(found))
    bank.note_proven(root, found)
    wrong = [finding for finding in found if finding.problems]
    for finding in wrong:
        errors.print(f"[red]{escape(finding.describe())}", soft_wrap=True)
    if wrong:
        errors.print(f"{len(wrong)} of {len(known)} answers did not get the score that they declare.")
        raise typer.Exit(1)


def _pairs(findings: Sequence[Finding]) -> str:
    """How many checks of answers were run now, and why the others were not."""
    num_all = sum(len(one.report.checks) for one in findings)
    num_kept = sum(len(one.report.checks) for one in findings if one.is_kept)
    num_tried = sum(one.num_judged for one in findings if not one.is_kept)
    num_beyond = num_all - num_kept - num_tried
    return (
        f"{num_all} checks of answers: {num_tried} run now, {num_beyond} skipped because the answer cannot affect "
        f"them, {num_kept} taken from earlier runs."
    )


@app.command()
def grade(
    lab: Annotated[str, typer.Argument(help="The lab to grade, such as lab01.")],
    students: Annotated[
        list[str] | None, typer.Argument(help="Students whose submissions to grade; all by default.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="How many to judge at once; by default one per core, or what a cluster holds.")
    ] = None,
    engine: Annotated[
        Engine, typer.Option(help="Judge on this machine, or on the Ray cluster at RAY_ADDRESS.")
    ] = Engine.LOCAL,
    again: Annotated[bool, typer.Option("--again", help="Judge again what was judged before.")] = False,
    allow_untrusted: Annotated[
        bool, typer.Option("--allow-untrusted", help="Grade even where the sandbox is too weak for final grades.")
    ] = False,
) -> None:
    """Grade a class like nbgrader autograde, several submissions at a time.

    An interrupted run resumes where it stopped.
    """
    from autograder.course import find_root, is_project, open_course
    from autograder.grading.classroom import enter, judge_class, refuse_stock_grading
    from autograder.grading.engines import open_engine
    from autograder.grading.lab import Lab
    from autograder.grading.preprocessor import Grade

    with exit_on_value_error():
        coursedir = open_course(find_root(Path.cwd()))
        if allow_untrusted:
            coursedir.config.Grade.allow_untrusted = True
        settings = Grade(config=coursedir.config)
        course = Lab(coursedir, lab, settings.limits_of(lab))
        refuse_stock_grading(coursedir)
        names = course.named(students or ())
        place = open_engine(engine.value, jobs, settings.num_gpus.get(lab, 0), is_project(lab))
    judged = track(judge_class(course, names, place, again), "Grading", len(names), console=console)
    done = {}
    for student, one in judged:
        done[student] = enter(course, student, one)
    table = Table("student", "score", "verdict", box=SIMPLE)
    for student in sorted(done):
        score = "" if done[student].fault else f"{done[student].score:g}"
        table.add_row(escape(student), score, escape(done[student].verdict))
    console.print(table)
    for tier in sorted({one.report.tier for one in done.values() if one.report}):
        console.print(f"sandbox: {tier}")
    if faults := sum(bool(one.fault) for one in done.values()):
        errors.print(
            f"{faults} of {len(done)} submissions were not graded because the grader broke; no score was recorded "
            "for them."
        )
        raise typer.Exit(1)


@app.command()
def export(
    format: Annotated[str, typer.Argument(help="The format: csv, canvas, moodle or gradescope.")],
    assignment: Annotated[list[str] | None, typer.Option(help="Assignments to export; all by default.")] = None,
    to: Annotated[Path | None, typer.Option(help="The file to write; for gradescope a folder.")] = None,
    rename: Annotated[
        list[str] | None, typer.Option(help="An assignment's name in Canvas or Moodle: 'lab01=Lab 1 (4711)'.")
    ] = None,
) -> None:
    """Write the gradebook's scores for another system; only where they are final."""
    from autograder.course import find_root, open_course
    from autograder.grading import exports

    with exit_on_value_error():
        root = find_root(Path.cwd())
        path = to or root / ("gradescope" if format == "gradescope" else f"grades-{format}.csv")
        names = dict(exports.renamed(text) for text in rename or ())
        left_out = exports.export(open_course(root), format, path, assignment or (), names)
    console.print(f"Written: {path}", soft_wrap=True)
    if left_out:
        table = Table("student", "assignment", "why there is no score", box=SIMPLE)
        for row in left_out:
            table.add_row(escape(row.student), escape(row.assignment), row.standing.value)
        console.print(table)


@app.command()
def audit(
    student: Annotated[str | None, typer.Argument(help="The student whose gradings to list.")] = None,
    replay: Annotated[int | None, typer.Option(help="Grade this entry again and compare.")] = None,
) -> None:
    """Check that the log of all gradings is intact; list a student's, or reproduce one."""
    from autograder.course import find_root, open_course
    from autograder.grading import audit_log

    with exit_on_value_error():
        coursedir = open_course(find_root(Path.cwd()))
    entries, problems = audit_log.read(Path(coursedir.root, audit_log.LOG))
    problems += audit_log.missing_entries(coursedir, entries)
    if student:
        table = Table("entry", "time (UTC)", "assignment", "verdict", "score", "sandbox", box=SIMPLE)
        for entry in (entry for entry in entries if entry.student == student):
            score = "" if entry.score is None else f"{entry.score:g}"
            when = f"{entry.time:%Y-%m-%d %H:%M:%S}"
            table.add_row(str(entry.number), when, entry.assignment, entry.verdict, score, entry.tier or "")
        console.print(table)
    for problem in problems:
        errors.print(problem, markup=False, soft_wrap=True)
    state = "[red]altered[/]" if problems else "[green]intact[/]"
    last = entries[-1].sha256 if entries else "none"
    console.print(f"{len(entries)} entries, {state}; the last hash: {last}", soft_wrap=True)
    is_same = replay is None or _replay(coursedir, entries, replay)
    if problems or not is_same:
        raise typer.Exit(1)


def _replay(coursedir: CourseDirectory, entries: list[Entry], number: int) -> bool:
    """Show a repeated grading beside its entry in the log, and return whether they are the same."""
    from autograder.grading.replay import replay

    entry = next((entry for entry in entries if entry.number == number), None)
    try:
        if entry is None:
            raise ValueError(f"The log has no entry {number}: it holds {len(entries)}.")
        with console.status(f"Grading entry {number} again"):
            again = replay(coursedir, entry)
    except (ValueError, RuntimeError) as error:
        errors.print(str(error), markup=False, soft_wrap=True)
        return False
    table = Table("check", "then", "now", box=SIMPLE)
    now = {check.name: check for check in again.checks}
    for name in dict.fromkeys([*(check.name for check in entry.checks), *now]):
        then = next((check for check in entry.checks if check.name == name), None)
        shown = [f"{check.earned:g}, {check.outcome}" if check else "none" for check in (then, now.get(name))]
        table.add_row(name, *shown)
    table.add_row("[bold]score", f"{entry.score:g}, {entry.verdict}", f"{again.score:g}, {again.verdict}")
    console.print(table)
    for difference in again.differences:
        console.print(difference, markup=False, soft_wrap=True)
    console.print("[green]Every check gave the same score." if again.is_same else "[red]The scores differ.")
    return again.is_same


@app.command()
def demo(
    week: Annotated[str, typer.Option(help="The week to execute.")] = "week01",
    lab: Annotated[str, typer.Option(help="The lab whose sample class to grade.")] = "lab01",
) -> None:
    """Execute a week, grade a sample class, and write build/demo/index.html about both."""
    from autograder import demo as show
    from autograder.course import find_root

    try:
        page = show.demo(find_root(Path.cwd()), week, lab, console)
    except show.StepFailed as error:
        errors.print(str(error), markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    console.print(f"The page with each student's feedback and the executed week: {page}", soft_wrap=True)


def _report_out_of_date(paths: list[Path]) -> None:
    if not paths:
        console.print("Every notebook is up to date.")
        return
    for path in paths:
        console.print(f"[red]out of date[/] {path}")
    raise ValueError("Run `autograder build`, and delete the files that no script builds any more.")
