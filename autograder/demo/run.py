"""Running the whole demo: the first look, a week executed, a class graded, and one page about all of it."""

from __future__ import annotations

import csv
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from rich.console import Console
from rich.table import Table

from autograder.authoring.known_answers import compose, read_answer, solution_cells
from autograder.authoring.notebooks import find_sources, notebook, render
from autograder.authoring.scripts import parse
from autograder.demo.first_look import SCRIPT, Cheat, Look, cheat, looks
from autograder.demo.steps import DemoSteps, program, progress, run
from autograder.files import templates
from autograder.grading.standing import State
from autograder.judging.report import RECORD, Report
from worldsize.pages import FormulasToMathML, OfflineHTMLExporter

_CLASS = "sample_class.toml"
_NBGRADER = {
    "generate_assignment {} --force": "release the lab",
    "autograde {}": "judge each submission in the sandbox",
    "generate_feedback {}": "write each student's feedback",
    "export": "write the grades",
}


@dataclass(frozen=True)
class ScoreLine:
    """A row of the score table: the points graded so far, and the student's page, relative to the demo's folder."""

    student: str
    about: str
    score: float
    max_score: float
    verdict: str
    feedback: str


def demo(root: Path, week: str | None, lab: str | None, console: Console) -> Path:
    """Run the demo below `build/demo`: execute the first look and a week, grade a lab's sample class; return the page.

    By default, use the first week and the first lab with a sample class.

    Raises:
        StepFailed: one of the commands behind it failed.
    """
    folder = root / "build" / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    course, logs = folder / "course", folder / "logs"
    sources = find_sources(root)
    week = week or sources.weeks[0].name.partition("_")[0]
    lab = lab or next(path.parent.name for path in sources.labs if (path.parent / _CLASS).is_file())
    steps = DemoSteps(console, num_steps=7)
    with steps.step("run a ring on emulated GPUs, and a program on 16,384 of them on paper"):
        source = _first_look(root, folder / "first_look")
        seen = looks(_execute(source, source.with_stem("executed"), logs / "first_look.log"))
    with steps.step(f"execute {week} with papermill, on real ranks"):
        (source,) = (root / "weeks").glob(f"{week}_*.ipynb")
        executed = folder / "week" / f"{week}.ipynb"
        _write_page(_execute(source, executed, logs / "papermill.log"), executed.with_suffix(".html"))
    with steps.step(f"hand in a sample class of {lab}: right, wrong, cheating and damaged"):
        students = _hand_in(root, lab, course)
    for command, why in _NBGRADER.items():
        words = command.format(lab).split()
        with steps.step(f"{why}: nbgrader {' '.join(words)}"):
            run([program("nbgrader"), *words], course, logs / f"{words[0]}.log")
    submissions = [_submission(course, lab, one["id"], one["about"]) for one in students]
    page = folder / "index.html"
    page.write_text(_render(week, lab, seen, _cheats(root, lab, course, students), submissions), encoding="utf-8")
    console.print(table(submissions))
    return page


def table(submissions: Sequence[ScoreLine]) -> Table:
    """The score table for the terminal."""
    shown = Table("student", "handed in", "points", "verdict", title="Scores")
    for one in submissions:
        shown.add_row(one.student, one.about, f"{one.score:g} of {one.max_score:g}", one.verdict)
    return shown


def _first_look(root: Path, folder: Path) -> Path:
    """Write the notebook of the first look into a folder."""
    path = folder / "first_look.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(render(notebook(parse(root / SCRIPT), graded=False)), encoding="utf-8")
    return path


def _execute(source: Path, executed: Path, log: Path) -> NotebookNode:
    """Execute a notebook with papermill in the folder of the result, and return it."""
    executed.parent.mkdir(parents=True, exist_ok=True)
    with progress(source, executed):
        run([program("papermill"), str(source), str(executed)], executed.parent, log)
    return nbformat.read(executed, as_version=4)


def _write_page(executed: NotebookNode, to: Path) -> None:
    """Write the page of an executed lesson, with formulas that need no script."""
    exporter = OfflineHTMLExporter()
    exporter.register_preprocessor(FormulasToMathML)
    html, _ = exporter.from_notebook_node(deepcopy(executed), {"metadata": {"name": to.stem}})
    to.write_text(html, encoding="utf-8")


def _hand_in(root: Path, lab: str, course: Path) -> list[dict[str, Any]]:
    """Write the submissions of the sample class below `course/submitted`; return a mapping for each student."""
    folder = root / "solutions" / lab
    shutil.copytree(folder, course / "solutions" / lab)
    shutil.copy(root / "nbgrader_config.py", course)
    release = nbformat.read(root / "labs" / lab / f"{lab}.ipynb", as_version=4)
    solution = solution_cells(folder / f"{lab}.py")
    students = tomllib.loads((folder / _CLASS).read_text(encoding="utf-8"))["student"]
    for student in students:
        name = student["answer"]
        cells = solution if name == "solution" else solution | read_answer(folder, name).cells
        text = nbformat.writes(compose(release, cells))
        handed_in = course / "submitted" / student["id"] / lab / f"{lab}.ipynb"
        handed_in.parent.mkdir(parents=True)
        handed_in.write_text(text[: int(len(text) * student.get("keep_fraction", 1.0))], encoding="utf-8")
    return students


def _cheats(root: Path, lab: str, course: Path, students: Sequence[Mapping[str, Any]]) -> list[Cheat]:
    """The cheats of the sample class, each with the result of the check that the class names for it."""
    return [
        cheat(read_answer(root / "solutions" / lab, one["answer"]), one["shown_check"], report)
        for one in students
        if "shown_check" in one
        for report in [Report.model_validate(_graded(course, lab, one["id"]).metadata[RECORD])]
    ]


def _graded(course: Path, lab: str, student: str) -> NotebookNode:
    return nbformat.read(course / "autograded" / student / lab / f"{lab}.ipynb", as_version=4)


def _submission(course: Path, lab: str, student: str, about: str) -> ScoreLine:
    with open(course / "grades.csv", newline="", encoding="utf-8") as file:
        (row,) = (row for row in csv.DictReader(file) if row["student_id"] == student)
    graded = _graded(course, lab, student)
    feedback = f"course/feedback/{student}/{lab}/{lab}.html"
    verdict = _verdict(graded.metadata[RECORD])
    if row["status"] == State.BY_HAND.exported:
        verdict += "; an answer in words still needs manual grading"
    # the final score stays empty until the hand grading is done
    return ScoreLine(student, about, float(row["raw_score"]), float(row["max_score"]), verdict, feedback)


def _verdict(record: dict) -> str:
    if "malformed" in record:
        return f"malformed submission: {record['malformed']}"
    outcomes = [check["outcome"] for check in record["checks"]]
    counts = {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)}
    return "graded: " + ", ".join(f"{count} checks {outcome}" for outcome, count in counts.items())


def _render(
    week: str, lab: str, seen: Sequence[Look], cheats: Sequence[Cheat], submissions: Sequence[ScoreLine]
) -> str:
    environment = templates()
    return environment.get_template("demo.html.j2").render(
        week=week, lab=lab, looks=seen, cheats=cheats, submissions=submissions
    )
