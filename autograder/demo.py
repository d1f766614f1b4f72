"""The main job from end to end, as an instructor would do it: a week executed, a class graded, one page about both."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import nbformat
from jinja2 import Environment, PackageLoader
from nbformat import NotebookNode
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from autograder.authoring.known_answers import compose, read_answer, solution_cells
from autograder.grading.exports import Standing
from autograder.judging.report import RECORD
from worldsize.pages import FormulasToMathML, OfflineHTMLExporter

_RESULT = re.compile(r"\] (\w+: (?:[\d.]+ of [\d.]+ points|malformed submission).*)")


@dataclass(frozen=True)
class Submission:
    """One line of the score table: points as far as graded, and the student's page, relative to the demo's folder."""

    student: str
    about: str
    score: float
    max_score: float
    verdict: str
    feedback: str


class StepFailed(RuntimeError):
    """A step of the demo ended badly; the text holds its last lines and where its log is."""


def demo(root: Path, week: str, lab: str, console: Console) -> Path:
    """The page that shows a week executed and the lab's sample class graded, written below `build/demo`.

    Raises:
        StepFailed: one of the commands behind it failed.
    """
    folder = root / "build" / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    course = folder / "course"
    with _step(console, f"execute {week} with papermill, on real ranks"):
        notebook = _execute(root, week, folder)
    with _step(console, f"hand in a sample class of {lab}"):
        about = _hand_in(root, lab, course)
    for command in ("generate_assignment {} --force", "autograde {}", "generate_feedback {}", "export"):
        words = command.format(lab).split()
        with _step(console, f"nbgrader {' '.join(words)}"):
            _run([_program("nbgrader"), *words], course, folder / "logs" / f"{words[0]}.log")
    submissions = [_submission(course, lab, student, text) for student, text in about.items()]
    page = folder / "index.html"
    page.write_text(_render(week, lab, submissions, notebook), encoding="utf-8")
    console.print(table(submissions))
    return page


def table(submissions: Sequence[Submission]) -> Table:
    """The score table as the terminal shows it."""
    shown = Table("student", "handed in", "points", "verdict", title="Scores")
    for one in submissions:
        shown.add_row(one.student, one.about, f"{one.score:g} of {one.max_score:g}", one.verdict)
    return shown


def _execute(root: Path, week: str, folder: Path) -> NotebookNode:
    (source,) = (root / "weeks").glob(f"{week}_*.ipynb")
    executed = folder / "week" / f"{week}.ipynb"
    executed.parent.mkdir(parents=True)
    with _progress(source, executed):
        _run([_program("papermill"), str(source), str(executed)], executed.parent, folder / "logs" / "papermill.log")
    notebook = nbformat.read(executed, as_version=4)
    exporter = OfflineHTMLExporter()
    exporter.register_preprocessor(FormulasToMathML)
    html, _ = exporter.from_notebook_node(deepcopy(notebook), {"metadata": {"name": week}})
    executed.with_suffix(".html").write_text(html, encoding="utf-8")
    return notebook


def _hand_in(root: Path, lab: str, course: Path) -> dict[str, str]:
    """What each student of the sample class is said to have handed in; their files lie below `course/submitted`."""
    folder = root / "solutions" / lab
    shutil.copytree(folder, course / "solutions" / lab)
    shutil.copy(root / "nbgrader_config.py", course)
    release = nbformat.read(root / "labs" / lab / f"{lab}.ipynb", as_version=4)
    solution = solution_cells(folder / f"{lab}.py")
    students = tomllib.loads((folder / "sample_class.toml").read_text(encoding="utf-8"))["student"]
    for student in students:
        name = student["answer"]
        cells = solution if name == "solution" else solution | read_answer(folder / f"{name}.py").cells
        text = nbformat.writes(compose(release, cells))
        handed_in = course / "submitted" / student["id"] / lab / f"{lab}.ipynb"
        handed_in.parent.mkdir(parents=True)
        handed_in.write_text(text[: int(len(text) * student.get("keep_fraction", 1.0))], encoding="utf-8")
    return {student["id"]: student["about"] for student in students}


def _submission(course: Path, lab: str, student: str, about: str) -> Submission:
    with open(course / "grades.csv", newline="", encoding="utf-8") as file:
        (row,) = (row for row in csv.DictReader(file) if row["student_id"] == student)
    graded = nbformat.read(course / "autograded" / student / lab / f"{lab}.ipynb", as_version=4)
    feedback = f"course/feedback/{student}/{lab}/{lab}.html"
    verdict = _verdict(graded.metadata[RECORD])
    if row["status"] == Standing.MANUAL:
        verdict += "; an answer in words still needs manual grading"
    # the final score is empty until somebody has graded by hand
    return Submission(student, about, float(row["raw_score"]), float(row["max_score"]), verdict, feedback)


def _verdict(record: dict) -> str:
    if "malformed" in record:
        return f"malformed submission: {record['malformed']}"
    outcomes = [check["outcome"] for check in record["checks"]]
    counts = {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)}
    return "graded: " + ", ".join(f"{count} checks {outcome}" for outcome, count in counts.items())


def _render(week: str, lab: str, submissions: Sequence[Submission], notebook: NotebookNode) -> str:
    environment = Environment(loader=PackageLoader("autograder"), autoescape=True, trim_blocks=True)
    return environment.get_template("demo.html.j2").render(
        week=week, lab=lab, submissions=submissions, figures=list(_figures(notebook))
    )


def _figures(notebook: NotebookNode) -> Iterator[tuple[str, str]]:
    """Every picture in a notebook as (base64 PNG, what it shows)."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                yield data["image/png"].replace("\n", ""), data.get("text/plain", "")


@contextmanager
def _progress(source: Path, executed: Path) -> Iterator[None]:
    """A bar that follows the executed notebook, which papermill saves after every cell."""
    num_cells = len(nbformat.read(source, as_version=4).cells)
    ended = threading.Event()

    def follow() -> None:
        with Progress("  ", BarColumn(), MofNCompleteColumn(), "cells", TimeElapsedColumn()) as bar:
            task = bar.add_task("", total=num_cells)
            is_last = False
            while not is_last:
                is_last = ended.wait(0.5)
                with suppress(OSError):  # it is not there yet
                    bar.update(task, completed=executed.read_text(encoding="utf-8").count('"status": "completed"'))

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


@contextmanager
def _step(console: Console, what: str) -> Iterator[None]:
    console.print(f"[bold]{what}[/]")
    start_s = time.monotonic()
    yield
    console.print(f"  [green]done[/] in {time.monotonic() - start_s:.0f} s")


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _run(command: list[str], cwd: Path, log: Path) -> None:
    """Run a command into a log; also show each submission's result, as soon as it is known."""
    log.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout
    with process, open(log, "w", encoding="utf-8") as file:
        for line in process.stdout:
            file.write(line)
            if result := _RESULT.search(line):
                print(f"  {result[1]}", flush=True)
    if process.returncode:
        tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-30:])
        raise StepFailed(
            f"{' '.join(command)} failed with exit code {process.returncode}.\n{tail}\nThe whole log: {log}"
        )
