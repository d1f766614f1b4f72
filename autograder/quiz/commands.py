"""`autograder quiz`: make, mark and preview quizzes for a class."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from autograder.terminal import console, errors, exit_on_value_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autograder.quiz.marked_forms import MarkedForm

app = typer.Typer(
    no_args_is_help=True, help="Make, mark and preview quizzes: a form for each student, all equally hard."
)


@app.command()
def make(
    out: Annotated[Path, typer.Option(help="The folder to write; it appears when it is complete.")],
    roster: Annotated[
        Path | None,
        typer.Option(
            help="The students: a CSV file with a column `id`, and `name` and `extra time` where you like; by default "
            "the course's roster.csv."
        ),
    ] = None,
    blueprint: Annotated[
        str | None, typer.Option(help="A quiz of quizzes/blueprints.toml; the options below change it.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The title of every form.")] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(help="Only questions of this pool: weekly (the default), exam, self-check; may be repeated."),
    ] = None,
    week: Annotated[list[int] | None, typer.Option(help="Only questions of this week; may be repeated.")] = None,
    objective: Annotated[
        list[str] | None, typer.Option(help="Only questions whose objective contains these words; may be repeated.")
    ] = None,
    difficulty: Annotated[
        list[int] | None, typer.Option(help="Only questions of this difficulty, 1 to 3; may be repeated.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Only questions of this kind: single, multiple, numeric, ordering, text, cloze; may be repeated."
        ),
    ] = None,
    count: Annotated[int | None, typer.Option(help="The number of questions on a form, essays included.")] = None,
    essays: Annotated[
        int | None, typer.Option(help="How many of them are essays, which are graded by hand; none by default.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="The most time that a form's questions may take together.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="The secret that forms are drawn with; created if absent. Keep it to yourself.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Instead of a secret, for a demonstration: anybody can repeat it.")
    ] = None,
    format: Annotated[
        list[str] | None, typer.Option(help="A format to write; all by default; may be repeated.")
    ] = None,
    paper: Annotated[str, typer.Option(help="For PDF: a4 or letter.")] = "a4",
    bank: Annotated[Path | None, typer.Option(help="The folder of questions; the nearest quizzes/ by default.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the quiz in the folder.")] = False,
    jobs: Annotated[int | None, typer.Option(min=1, help="The number of processes; one per core by default.")] = None,
) -> None:
    """Write a form for each student in every format, the key, and a summary; all of it or nothing."""
    from autograder.course import find_root
    from autograder.quiz import command_options
    from autograder.quiz.quiz_folder import HANDOUTS, refuse_to_destroy, write_quiz
    from autograder.tables.roster import ROSTER
    from worldsize.quiz.bank import find_folder

    changes = {
        "title": title,
        "pools": pool,
        "weeks": week,
        "objectives": objective,
        "difficulties": difficulty,
        "kinds": kind,
        "count": count,
        "essays": essays,
        "minutes": minutes,
    }
    with exit_on_value_error():
        refuse_to_destroy(out, force)  # before a secret is created
        folder = bank or find_folder()
        people = roster or find_root(Path.cwd()) / ROSTER
        quiz = command_options.chosen_quiz(folder, people, blueprint, changes, format or (), paper, key_file, seed)
        with _bar() as bar:
            task = bar.add_task("Writing", total=len(quiz.roster))
            summary = write_quiz(quiz, out, force=force, jobs=jobs, done=lambda num: bar.advance(task, num))
    console.print(summary, markup=False, soft_wrap=True)
    if warning := command_options.font_warning(quiz):
        errors.print(warning, markup=False, soft_wrap=True)
    console.print(f"Written: {out}. Hand out only what is in {out / HANDOUTS}.", markup=False, soft_wrap=True)


@app.command()
def pools(
    out: Annotated[Path, typer.Option(help="The folder to write; it appears when it is complete.")],
    key_file: Annotated[Path, typer.Option(help="The secret that variants are drawn with; created if absent.")],
    blueprint: Annotated[
        str | None, typer.Option(help="A quiz of quizzes/blueprints.toml; the options below change it.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="The title of the quiz.")] = None,
    pool: Annotated[list[str] | None, typer.Option(help="Only questions of this pool; may be repeated.")] = None,
    week: Annotated[list[int] | None, typer.Option(help="Only questions of this week; may be repeated.")] = None,
    kind: Annotated[list[str] | None, typer.Option(help="Only questions of this kind; may be repeated.")] = None,
    count: Annotated[int | None, typer.Option(help="The number of slots, essays included.")] = None,
    essays: Annotated[int | None, typer.Option(help="How many of them are essays.")] = None,
    minutes: Annotated[float | None, typer.Option(help="The most time that a student's questions may take.")] = None,
    variants: Annotated[int, typer.Option(min=1, max=100, help="Variants in each slot.")] = 10,
    system: Annotated[
        list[str] | None, typer.Option(help="moodle or canvas; both by default; may be repeated.")
    ] = None,
    bank: Annotated[Path | None, typer.Option(help="The folder of questions; the nearest quizzes/ by default.")] = None,
) -> None:
    """Write one file to import for a class: in each slot several variants, of which Moodle or Canvas draws one."""
    from autograder.quiz import command_options, secret_key
    from autograder.quiz.pools import WRITERS, fill_slots, write_pools
    from autograder.quiz.whole_bank import read_bank
    from worldsize.quiz.bank import find_folder

    changes = {
        "title": title,
        "pools": pool,
        "weeks": week,
        "kinds": kind,
        "count": count,
        "essays": essays,
        "minutes": minutes,
    }
    with exit_on_value_error():
        if unknown := [name for name in system or () if name not in WRITERS]:
            raise ValueError(
                f"There is no system {unknown[0]!r} that draws from slots: choose from {', '.join(WRITERS)}."
            )
        folder = bank or find_folder()
        plan, questions = command_options.blueprint_of(folder, blueprint, changes), read_bank(folder)
        slots = fill_slots(plan, questions, variants, secret_key.read_or_create(key_file))
        summary = write_pools(plan, slots, system or [*WRITERS], out)
    console.print(summary, markup=False, soft_wrap=True)
    console.print(f"Written: {out}. It holds answers: import it, and hand nothing of it out.", soft_wrap=True)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


@app.command()
def mark(
    key: Annotated[Path, typer.Argument(help="The answers/key.json that `make` wrote.")],
    responses: Annotated[
        Path, typer.Argument(help="A CSV file, a report from Moodle or Canvas, or a folder of notebooks.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    bank: Annotated[Path | None, typer.Option(help="The folder of questions; the nearest quizzes/ by default.")] = None,
    encoding: Annotated[
        str | None, typer.Option(help="The encoding of a CSV file that is not in UTF-8, such as cp1252.")
    ] = None,
    unreadable_as_zero: Annotated[
        bool, typer.Option("--unreadable-as-zero", help="Give 0 points for responses that cannot be read.")
    ] = False,
    ignore_unknown: Annotated[
        bool, typer.Option("--ignore-unknown", help="Leave out students without a form in this key.")
    ] = False,
    points: Annotated[
        Path | None,
        typer.Option(help="The points of essays: by_hand.csv, filled in; by default the one among earlier marks."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing marks; points by hand are kept.")] = False,
) -> None:
    """Mark a class's responses: scores, a feedback page for each student, and statistics of each question.

    Essays wait until you have filled the column `points` of by_hand.csv and run the command again with --force.
    """
    from autograder.quiz import command_options, results
    from autograder.quiz.key import read_key
    from autograder.quiz.marked_forms import mark_forms
    from autograder.quiz.response_reader import read_responses
    from autograder.quiz.whole_bank import read_bank
    from worldsize.quiz.bank import find_folder

    with exit_on_value_error():
        forms = read_key(key, read_bank(bank or find_folder()))
        read = read_responses(responses, forms, encoding)
        command_options.refuse_problems(read, unreadable_as_zero, ignore_unknown)
        by_hand = command_options.points_by_hand(points, out / results.BY_HAND, forms, encoding)
        marked_forms = mark_forms(forms, read, by_hand)
        command_options.refuse_to_lose_points(by_hand, marked_forms)
        items = results.write_marked(marked_forms, read, out, force=force)
    console.print(_points_table(marked_forms))
    for item in items:
        if item.flags:
            names = ", ".join(dict.fromkeys(flag.name for flag in item.flags))
            console.print(f"[yellow]look at[/] {item.question.id}: {names}", soft_wrap=True)
    there = [one for one in marked_forms if one.is_handed_in]
    num_waiting = sum(one.num_waiting for one in there)
    num = len(read.problems) + len(read.strangers)
    unreadable = f" {num} entries could not be read or have no form: {results.UNREADABLE}." if num else ""
    of_marked = [one.is_passed for one in there if not one.num_waiting]
    passed = f"{sum(of_marked)} passed" if of_marked or not there else "none is marked yet"
    waiting = ""
    if num_waiting:
        essays = "1 essay waits" if num_waiting == 1 else f"{num_waiting} essays wait"
        waiting = f" {essays} to be graded: fill in `points` in {out / results.BY_HAND}, and run this "
        waiting += "again with --force."
    console.print(
        f"{len(there)} of {len(forms)} handed in, {passed}.{unreadable}{waiting}\n"
        f"Written: {out / results.SCORES}, {out / results.REPORT}, {out / results.FEEDBACK}/",
        soft_wrap=True,
    )


def _points_table(marked_forms: Sequence[MarkedForm]) -> Table:
    table = Table("student", "points", "percent", "", box=SIMPLE)
    for one in marked_forms:
        result = ("not handed in", "", "")
        if one.num_waiting and one.is_handed_in:
            result = ("", "", "waiting to be graded by hand")
        elif one.is_handed_in:
            passed = "[green]passed[/]" if one.is_passed else "[red]not passed[/]"
            result = (f"{one.points:.4g} of {one.out_of:g}", f"{one.fraction:.0%}", passed)
        table.add_row(escape(one.form.student.id), *result)
    return table


@app.command()
def assign(
    key: Annotated[
        Path, typer.Argument(help="The answers/key.json that `make` wrote, with the notebooks in handouts/ipynb.")
    ],
    name: Annotated[str, typer.Argument(help="The assignment's name, such as quiz_week02.")],
) -> None:
    """Turn a quiz into an nbgrader assignment; autograde then marks each student's own notebook by the key."""
    from autograder.course import find_root
    from autograder.quiz import assignment

    with exit_on_value_error():
        source, handouts = assignment.assign(key, find_root(Path.cwd()), name)
    console.print(
        f"Written: {source}, with the key; and {handouts}/, a notebook for each student.\n"
        f"Now: nbgrader generate_assignment {name}, and once they are handed in, nbgrader autograde {name}.",
        soft_wrap=True,
    )


@app.command()
def preview(
    bank: Annotated[Path | None, typer.Option(help="The folder of questions; the nearest quizzes/ by default.")] = None,
    port: Annotated[int, typer.Option(help="The port on 127.0.0.1; 0 takes a free one.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write a page to this file instead of serving it.")] = None,
    variants: Annotated[
        int, typer.Option(min=1, max=50, help="The number of variants of each question with --out.")
    ] = 4,
) -> None:
    """Show the bank in a browser: every question with its answer, other variants at a click, errors by line."""
    from autograder.quiz import preview as previews
    from worldsize.quiz.bank import find_folder

    with exit_on_value_error():
        folder = bank or find_folder()
        if out is not None:
            previews.write(folder, out, variants)
            console.print(f"Written: {out}", soft_wrap=True)
            return
        server = previews.open_server(folder, port)
    console.print(f"The bank in {folder}: http://127.0.0.1:{server.server_port}/  (Ctrl-C ends it)", soft_wrap=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        console.print("Ended.")
    finally:
        server.server_close()
