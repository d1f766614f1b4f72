"""The `autograder` command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE
from rich.markup import escape
from rich.progress import track
from rich.table import Table

from autograder.bench.commands import EngineName
from autograder.bench.commands import app as bench
from autograder.capstone.commands import app as capstone
from autograder.capstone.report_commands import app as reports
from autograder.files import shown
from autograder.grading import term_commands
from autograder.quiz.commands import app as quizzes
from autograder.similarity.commands import similar
from autograder.terminal import console, errors, exit_on_value_error

if TYPE_CHECKING:
    from nbgrader.coursedir import CourseDirectory

    from autograder.grading.audit_log import AuditEntry
    from autograder.grading.lab import Judged
    from autograder.grading.standing import Standing
    from autograder.grading.verify import GradedCase

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
app.add_typer(quizzes, name="quiz")
app.add_typer(bench, name="bench")
app.add_typer(capstone, name="capstone")
app.add_typer(reports, name="report")
app.add_typer(term_commands.roster, name="roster")
app.command()(term_commands.extend)
app.command()(term_commands.status)
app.command()(term_commands.regrade)
app.command()(similar)


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
def release(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which weeks and labs, such as week01 or lab01; all by default.")
    ] = None,
    to: Annotated[Path, typer.Option(help="The zip to write.")] = Path("student.zip"),
) -> None:
    """Write the course as students get it: no solutions, no hidden checks, no questions but the lessons' own."""
    from autograder.authoring.student_copy import write_student_copy
    from autograder.course import find_root

    with exit_on_value_error():
        paths = write_student_copy(find_root(Path.cwd()), to, names or ())
    console.print(f"Written: {to}, with {len(paths)} files.", soft_wrap=True)


@app.command()
def verify(
    labs: Annotated[
        list[str] | None,
        typer.Argument(help="Labs or projects to verify, by name; by default all except those with real jobs."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="How many answers to grade at once; one per core by default.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed for the inputs of the checks; derived from the commit's hash by default."),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of each lab, grade only the solution, the untouched notebook and about so many other answers, "
            "different ones for a different commit.",
        ),
    ] = None,
    real_jobs: Annotated[
        bool,
        typer.Option("--real-jobs", help="Where none are named, verify the labs and projects with real jobs instead."),
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Grade even answers with a kept result again; so do --seed and --seeds."),
    ] = False,
    seeds: Annotated[
        int,
        typer.Option(
            min=1,
            help="Grade each answer on so many draws of all inputs, and fail where points depend on the draw.",
        ),
    ] = 1,
) -> None:
    """Grade every known answer of a lab and compare with the score that it declares."""
    from autograder.authoring import notebooks as builder
    from autograder.course import find_root, lab_settings
    from autograder.grading import verify as bank

    with exit_on_value_error():
        root = find_root(Path.cwd())
        sources = [path.parent for path in builder.find_sources(root).labs]
        names = labs or [one.name for one in sources if lab_settings(one).has_real_jobs == real_jobs]
        for lab in names:
            bank.refuse_absent_packages(root, lab)
    known = [case for lab in names for case in bank.cases(root, lab)]
    if sample is not None:
        num_all, known = len(known), bank.sample(root, known, sample)
        console.print(f"{len(known)} of {num_all} answers; other commits take others")
    use_kept, first = not again and seed is None and seeds == 1, bank.commit_seed(root) if seed is None else seed
    found: list[GradedCase] = []
    for drawn in range(first, first + seeds):
        console.print(f"inputs drawn with --seed {drawn}")
        asked = bank.verify(root, known, jobs, drawn, use_kept=use_kept)
        found += track(asked, total=len(known), console=console, description="Grading")
    found.sort(key=lambda finding: known.index(finding.case))
    _show_findings(found)
    wrong, unlike = [finding for finding in found if finding.problems], bank.unlike_draws(found)
    for text in (*(finding.describe() for finding in wrong), *unlike):
        errors.print(f"[red]{escape(text)}", soft_wrap=True)
    if unlike:
        errors.print(f"{len(unlike)} of {len(known)} answers got points that depend on the draw.")
    if wrong:
        num_wrong = sum(any(one.case == case for one in wrong) for case in known)
        errors.print(f"{num_wrong} of {len(known)} answers did not get the score that they declare.")
    if wrong or unlike:
        raise typer.Exit(1)


@app.command()
def answer(
    lab: Annotated[str, typer.Argument(help="Which lab or project, such as lab01.")],
    name: Annotated[str, typer.Argument(help="Which known answer, such as wrong/sums_up.")],
    script: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Write the answer from this script, such as an edited copy of the solution's with the answer's header "
            "on top: only cells that differ, as hunks where that is much shorter.",
        ),
    ] = None,
) -> None:
    """Show the cells of a known answer as they are graded, or write one from an edited script."""
    from autograder.authoring import known_answers
    from autograder.course import find_root

    with exit_on_value_error():
        folder = find_root(Path.cwd()) / "solutions" / lab
        if script is not None:
            console.print(f"Written: {known_answers.write_answer(folder, name, script)}", soft_wrap=True)
            return
        cells = known_answers.read_answer(folder, name).cells
    for title, source in cells.items():
        console.print(f"# %% {title}\n{source}\n", markup=False, highlight=False, soft_wrap=True)


def _show_findings(found: Sequence[GradedCase]) -> None:
    """Print a row for every finding, and what was tried for them."""
    table = Table("answer", "must get", "got", "seconds", "", box=SIMPLE)
    for finding in found:
        must = finding.case.due(finding.report.max_score)
        verdict = "[red]not as declared" if finding.problems else "[green]as declared"
        name = f"{finding.case.lab} {finding.case.name}"
        seconds = "kept" if finding.is_kept else f"{finding.report.duration_s:.1f}"
        table.add_row(name, must, f"{finding.report.score:g}", seconds, verdict)
    console.print(table)
    console.print(_pairs(found))


def _pairs(findings: Sequence[GradedCase]) -> str:
    """How many checks of answers were run now, and how many earlier."""
    num_all = sum(len(one.report.checks) for one in findings)
    num_kept = sum(len(one.report.checks) for one in findings if one.is_kept)
    return f"{num_all} checks of answers: {num_all - num_kept} run now, {num_kept} taken from earlier runs."


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
        EngineName, typer.Option(help="Judge on this machine, or on the Ray cluster at RAY_ADDRESS.")
    ] = EngineName.LOCAL,
    again: Annotated[bool, typer.Option("--again", help="Judge again what was judged before.")] = False,
    allow_untrusted: Annotated[
        bool, typer.Option("--allow-untrusted", help="Grade even where the sandbox is too weak for final grades.")
    ] = False,
) -> None:
    """Grade a class like nbgrader autograde, several submissions at a time.

    An interrupted run resumes where it stopped.
    """
    from autograder.course import find_root, lab_settings, open_course, source_of
    from autograder.grading.classroom import enter, judge_class, refuse_stock_grading, refuse_unknown
    from autograder.grading.engines import open_engine
    from autograder.grading.lab import Lab
    from autograder.grading.preprocessor import Grade

    with exit_on_value_error():
        coursedir = open_course(find_root(Path.cwd()))
        if allow_untrusted:
            coursedir.config.Grade.allow_untrusted = True
        settings = Grade(config=coursedir.config)
        source = source_of(coursedir, lab)
        course = Lab(coursedir, lab, settings.limits(source))
        refuse_stock_grading(coursedir)
        names, done = course.named(students or ()), course.refused(students or ())
        place = open_engine(engine.value, jobs, settings.gpus(source), lab_settings(source).is_timed)
        refuse_unknown(course)
    judged = track(judge_class(course, names, place, again), "Grading", len(names), console=console)
    num_refused = len(done)
    for student, one in judged:
        done[student] = enter(course, student, one)
    console.print(_verdicts(done))
    for tier in sorted({one.report.tier for one in done.values() if one.report}):
        console.print(f"sandbox: {tier}")
    _show_unread(coursedir, lab)
    if num_faults := sum(bool(one.fault) for one in done.values()) - num_refused:
        errors.print(
            f"{num_faults} of {len(done)} submissions were not graded because the grader broke; no score was recorded "
            "for them."
        )
    if num_refused:
        errors.print(f"{num_refused} of {len(done)} folders were not graded: change them as the table says.")
    if num_faults or num_refused:
        raise typer.Exit(1)


def _verdicts(done: Mapping[str, Judged]) -> Table:
    """Make a table with a row for each student and, if an instructor should look at names, a column of them."""
    seen = any(one.look_at for one in done.values())
    table = Table("student", "score", "verdict", *(["look at"] if seen else []), box=SIMPLE)
    for student, one in sorted(done.items()):
        score = "" if one.fault else f"{one.score:g}"
        look_at = [escape("\n".join(one.look_at))] if seen else []
        table.add_row(escape(shown(student)), score, escape(one.verdict), *look_at)
    return table


def _show_unread(coursedir: CourseDirectory, lab: str) -> None:
    """Print how many answers wait for points by hand, and which had points for an earlier text."""
    from nbgrader.api import Gradebook

    from autograder.grading.term.hand_grades import unread

    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        waiting = unread(gradebook, lab)
    if waiting:
        console.print(f"Answers to grade by hand, in the Formgrader: {len(waiting)}.")
    for one in waiting:
        if one.has_changed:
            sentence = f"{one.student}: {one.cell} has changed since it was graded by hand."
            console.print(sentence, markup=False, soft_wrap=True)


@app.command()
def late(lab: Annotated[str, typer.Argument(help="Which assignment, such as lab01.")]) -> None:
    """Compute the penalties of late work again, without grading: after a date, a rule, or points by hand changed."""
    from autograder.course import find_root, open_course
    from autograder.grading.term import penalties

    with exit_on_value_error():
        coursedir = open_course(find_root(Path.cwd()))
        found, unmatched = penalties.renew(coursedir, lab), penalties.unmatched(coursedir, lab)
    table = Table("student", "late by", "points", "penalty before", "penalty now", box=SIMPLE)
    for one in found:
        numbers = [f"{points:g}" for points in (one.score, one.before, one.now)]
        table.add_row(escape(one.student), str(one.late).partition(".")[0], *numbers)
    if found:
        console.print(table)
    console.print(f"Penalties changed: {sum(one.is_outdated for one in found)}.")
    if unmatched:
        sentence = f"collected.csv has times of {lab} for students who have no graded work: {', '.join(unmatched)}"
        console.print(sentence, markup=False, soft_wrap=True)


@app.command()
def feedback(
    lab: Annotated[str, typer.Argument(help="Which assignment, such as lab01.")],
    students: Annotated[list[str] | None, typer.Argument(help="Whose pages; all by default.")] = None,
    canvas: Annotated[
        Path | None, typer.Option(help="A zip to write the pages into, for Re-Upload Submissions in Canvas.")
    ] = None,
) -> None:
    """Write the pages of feedback: new ones, and those whose points, comments or checks have changed."""
    from collections import Counter

    from autograder.course import find_root, notebook_of, open_course
    from autograder.grading.reports import canvas_feedback, feedback_pages
    from autograder.grading.reports.feedback_pages import Page

    with exit_on_value_error():
        coursedir = open_course(find_root(Path.cwd()))
        names = canvas_feedback.read_names(coursedir, lab) if canvas else {}
        _warn_of_what_is_outdated(coursedir, lab)
        pages = dict(feedback_pages.renew(coursedir, lab, students or ()))
    for student, page in pages.items():
        if page is not Page.UNCHANGED:
            console.print(f"{student}: {page}", markup=False, soft_wrap=True)
    num = Counter(pages.values())
    console.print(f"Pages written: {num[Page.WRITTEN]}. Up to date: {num[Page.UNCHANGED]}.")
    if canvas:
        there = [student for student, page in pages.items() if page in (Page.WRITTEN, Page.UNCHANGED)]
        without = canvas_feedback.write_canvas_feedback(coursedir, lab, there, names, canvas)
        num_packed = sum(student in names for student in there)
        console.print(f"Written: {canvas}, with {num_packed} page{'' if num_packed == 1 else 's'}.", soft_wrap=True)
        if without:
            where = f"feedback/STUDENT/{lab}/{notebook_of(lab)}.html"
            sentence = f"Not from Canvas, so not in it: {', '.join(without)}. Their pages are {where}."
            console.print(sentence, markup=False, soft_wrap=True)
    if num[Page.FAILED]:
        raise typer.Exit(1)


def _warn_of_what_is_outdated(coursedir: CourseDirectory, lab: str) -> None:
    """Warn about feedback pages that would be out of date: changed files, and late penalties."""
    from autograder.grading.reports import feedback_pages

    for student, kinds in feedback_pages.graded_otherwise(coursedir, lab).items():
        changed = ", ".join(kinds)
        sentence = f"{student}: changed since this was graded: {changed}. `autograder grade {lab}` grades it again."
        errors.print(sentence, markup=False, soft_wrap=True)
    _warn_of_penalties(coursedir, [lab])


def _warn_of_penalties(coursedir: CourseDirectory, assignments: Sequence[str]) -> None:
    from nbgrader.api import Gradebook

    from autograder.grading.term import penalties

    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        outdated = penalties.outdated(coursedir, gradebook, assignments)
    if outdated:
        errors.print(penalties.warning(outdated), markup=False, soft_wrap=True)


@app.command()
def export(
    format: Annotated[str, typer.Argument(help="The format: csv, canvas, moodle, blackboard or gradescope.")],
    assignment: Annotated[list[str] | None, typer.Option(help="Assignments to export; all by default.")] = None,
    to: Annotated[Path | None, typer.Option(help="The file to write; for gradescope a folder.")] = None,
    rename: Annotated[
        list[str] | None, typer.Option(help="An assignment's name in the other system, such as 'lab01=Lab 1 (4711)'.")
    ] = None,
) -> None:
    """Write the gradebook's scores for another system; only where they are final."""
    from autograder.course import find_root, open_course
    from autograder.grading.reports import exports

    with exit_on_value_error():
        root = find_root(Path.cwd())
        path = to or root / ("gradescope" if format == "gradescope" else f"grades-{format}.csv")
        names = dict(exports.renamed(text) for text in rename or ())
        coursedir = open_course(root)
        left_out = exports.export(coursedir, format, path, assignment or (), names)
        _warn_of_penalties(coursedir, assignment or ())
    console.print(f"Written: {path}", soft_wrap=True)
    _show_left_out(left_out)


@app.command()
def passback(
    assignment: Annotated[list[str] | None, typer.Option(help="Assignments to send; all by default.")] = None,
    settings: Annotated[Path | None, typer.Option(help="What this course and the LMS know of each other.")] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option(help="The title of a new column, such as 'lab01=Lab 1'; its name here by default."),
    ] = None,
) -> None:
    """Send the gradebook's scores to an LMS over LTI 1.3; only where they are final."""
    from nbgrader.api import Gradebook

    from autograder.course import find_root, open_course
    from autograder.grading import audit_log
    from autograder.grading.reports import exports
    from autograder.grading.standing import standings

    with exit_on_value_error():
        from autograder.grading.reports import lti

        root = find_root(Path.cwd())
        platform = lti.read_platform(settings or root / lti.SETTINGS)
        names = dict(exports.renamed(text) for text in rename or ())
        coursedir = open_course(root)
        entries, _ = audit_log.read(root / audit_log.LOG)
        with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
            found = standings(coursedir, gradebook, entries, assignment or ())
        left_out = lti.send(found, platform, names)
        _warn_of_penalties(coursedir, assignment or ())
    console.print(f"Scores sent: {len(found) - len(left_out)}")
    _show_left_out(left_out)


def _show_left_out(left_out: Sequence[tuple[Standing, str]]) -> None:
    """Print the rows for which the other system got no score."""
    if left_out:
        table = Table("student", "assignment", "why there is no score", box=SIMPLE)
        for row, reason in left_out:
            table.add_row(escape(row.student), escape(row.assignment), escape(reason))
        console.print(table)


@app.command()
def progress(
    student: Annotated[str | None, typer.Argument(help="The student whose checklist to show.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Everybody's, which --to writes.")] = False,
    to: Annotated[Path | None, typer.Option(help="The file to write: a page (.html) or a table (.csv).")] = None,
) -> None:
    """Show what a student has completed, from the gradebook: done, waiting for points by hand, missing, late."""
    from autograder.course import find_root, open_course
    from autograder.grading.reports import progress as checklists

    with exit_on_value_error():
        if (student is not None) == everybody:
            raise ValueError("Name a student, or ask for everybody's checklists with --all.")
        found = checklists.read(open_course(find_root(Path.cwd())), [student] if student else ())
        if to is not None:
            checklists.write(found, to)
    for checklist in found:
        table = Table("", "assignment", "score", "state", title=escape(checklist.name), box=SIMPLE)
        for item in checklist.items:
            table.add_row(item.kind, escape(item.assignment), item.score_text, item.state)
        console.print(table)
        console.print(checklist.summary, markup=False, soft_wrap=True)
    if to is not None:
        console.print(f"Written: {to}", soft_wrap=True)


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


def _replay(coursedir: CourseDirectory, entries: list[AuditEntry], number: int) -> bool:
    """Show a repeated grading next to its entry in the log, and return whether they are the same."""
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
    week: Annotated[str | None, typer.Option(help="The week to execute; the first by default.")] = None,
    lab: Annotated[
        str | None, typer.Option(help="The lab whose sample class to grade; the first that has one by default.")
    ] = None,
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
