"""Plain nbgrader commands over a class with every kind of submission, honest, damaged and hostile."""

import csv
import json
import os
import shutil
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output
from tiny_class import CONFIG, RIGHT, note
from tiny_lab import MEAN, NAME, answered, make_course, needs_jail, once, release

pytestmark = needs_jail
HALF = {"total": "def total(tensor):\n    return tensor", "mean": MEAN}
HOSTILE = "def total(tensor):\n    raise ValueError('<script>alert(1)</script> \\ud800')"
HANGING = {"total": "def total(tensor):\n    while True:\n        pass", "mean": MEAN}
COMMANDS = (f"generate_assignment {NAME} --force", f"autograde {NAME}", f"generate_feedback {NAME}", "export")
SCORES = {
    "right": 5,
    "half": 2,
    "hanging": 2,
    "bare_answers": 5,
    "copied_cells": 5,
    "forged_metadata": 2,
    "forged_outputs": 0,
    "hostile_message": 2,
    "damaged": 0,
    "renamed": 5,
    "two_renamed": 0,
    "folder": 0,
}


def hand_in(root: Path) -> None:
    """Puts a submission of every kind below `submitted/`."""
    blank = release(root)

    def filled(cells):
        return answered(deepcopy(blank), cells)

    def place(student, notebook, name=f"{NAME}.ipynb"):
        folder = root / "submitted" / student / NAME
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(notebook if isinstance(notebook, str) else json.dumps(notebook))
        return folder

    right, half = filled(RIGHT), filled(HALF)
    folder = place("right", right)
    place("right", "not a notebook", "other.ipynb")
    for name in ("checks.py", "torch.py", "data.txt"):
        (folder / name).write_text("raise SystemExit")
    folder = place("half", half)
    (root / "secret.txt").write_text("SECRET")
    (folder / "notes.txt").symlink_to(root / "secret.txt")
    (folder / "all").symlink_to(root / "solutions")
    (folder / "gone").symlink_to(root / "nowhere")
    os.mkfifo(folder / "pipe")
    place("hanging", filled(HANGING))
    place("bare_answers", bare_answers(right))
    place("copied_cells", copied_cells(filled({}), right))
    place("forged_metadata", forged_metadata(half))
    place("forged_outputs", forged_outputs(filled({})))
    place("hostile_message", filled({"total": HOSTILE, "mean": MEAN}))
    place("damaged", nbformat.writes(right)[:-300])
    place("renamed", right, f"{NAME} (1).ipynb")
    place("two_renamed", right, f"{NAME} (1).ipynb")
    place("two_renamed", right, f"{NAME} (2).ipynb")
    (place("folder", right, "notes.ipynb") / f"{NAME}.ipynb").mkdir()


def bare_answers(notebook):
    """Only the answers, and those turned into text; check cells and given cells are deleted."""
    content = json.loads(nbformat.writes(notebook))
    content["cells"] = [cell for cell in content["cells"] if cell["metadata"]["nbgrader"]["grade_id"] in RIGHT]
    for cell in content["cells"]:
        cell["cell_type"] = "markdown"
        del cell["outputs"], cell["execution_count"]
    return content


def copied_cells(blank, notebook):
    """Every grade id twice, every schema version unknown, and cells whose metadata is of no known kind."""
    notebook.cells = [*blank.cells, *deepcopy(notebook.cells)]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"copy-{number}"
        cell.metadata.nbgrader.schema_version = 99
    for marks in ([], "text", {"grade_id": ["list"]}, {"schema_version": 99}, {"schema_version": 3, "grade_id": "new"}):
        notebook.cells.append(new_code_cell("pass", metadata={"nbgrader": marks}))
    return notebook


def forged_metadata(notebook):
    """Every cell is worth 1000 points and may be edited."""
    notebook = deepcopy(notebook)
    for cell in notebook.cells:
        cell.metadata.nbgrader |= {"points": 1000, "grade": True, "solution": False, "locked": False}
    return notebook


def forged_outputs(notebook):
    """Every cell shows a score, and the notebook says that it has been graded."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [new_output("execute_result", {"text/plain": "1000.0", "text/html": "<b>1000</b>"})]
    notebook.metadata["worldsize"] = {"checks": [], "score": 5, "malformed": ["not", "text"]}
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": ["none"]}
    return notebook


def grade_class(root: Path) -> None:
    """Runs the commands that an instructor would, and notes how each one ended."""
    make_course(root)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write(CONFIG)
    hand_in(root)
    for command in COMMANDS:
        note(root, command)
    checks = root / "solutions" / NAME / "checks.py"
    checks.write_text(checks.read_text().replace("    shards = draw(rng, 2)", "    1 / 0"))
    shutil.copytree(root / "submitted" / "hanging", root / "submitted" / "unlucky")
    note(root, f"autograde {NAME} --student unlucky", "fault")


@dataclass
class Graded:
    """A graded course: its folder, and what an instructor and a student would look at."""

    root: Path

    @property
    def rows(self) -> dict[str, dict[str, str]]:
        with open(self.root / "grades.csv", newline="") as file:
            return {row["student_id"]: row for row in csv.DictReader(file)}

    def feedback(self, student: str) -> str:
        return (self.root / "feedback" / student / NAME / f"{NAME}.html").read_text()


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    return Graded(once(tmp_path_factory.getbasetemp(), "graded_class", grade_class))


def test_every_command_ends_well(graded):
    for command in COMMANDS:
        log = (graded.root / f"{command.split()[0]}.log").read_text()
        assert log.startswith("0\n"), log


@pytest.mark.parametrize("student", SCORES)
def test_score(graded, student):
    row = graded.rows[student]
    assert (float(row["score"]), float(row["max_score"])) == (SCORES[student], 5)


@pytest.mark.parametrize(
    ("student", "said"),
    [
        ("right", "Every rank holds the sum over all ranks."),
        ("half", "Expected: the total on rank 0"),
        ("half", "Sum over all ranks."),
        ("forged_outputs", "not a valid notebook"),
        ("hanging", "while True"),
        ("damaged", "The file is damaged"),
        ("renamed", f"Graded from {NAME} (1).ipynb, the only notebook in the folder"),
        ("two_renamed", f"holds no {NAME}.ipynb but 2 other notebooks"),
        ("folder", "not a plain file"),
        ("hostile_message", "&lt;script&gt;alert(1)&lt;/script&gt;"),
    ],
)
def test_feedback_says_why(graded, student, said):
    assert said in graded.feedback(student)


@pytest.mark.parametrize("student", SCORES)
def test_feedback_keeps_what_is_hidden(graded, student):
    page = graded.feedback(student)
    for secret in ("total_on_rank", "expect_close", "check_total_sums", "manual_seed", "<script>alert(1)"):
        assert secret not in page
    checks = (graded.root / "solutions" / NAME / "checks.py").read_text()
    assert not [line for line in checks.splitlines() if len(line) > 30 and '"""' not in line and line.strip() in page]


def test_files_beside_a_notebook_stay_what_they_are(graded):
    folder = graded.root / "autograded" / "right" / NAME
    assert sorted(path.name for path in folder.iterdir()) == ["data.txt", f"{NAME}.ipynb"]


def test_what_a_link_points_to_reaches_nobody(graded):
    for stage in ("autograded", "feedback"):
        for path in (graded.root / stage).rglob("*"):
            assert not path.is_file() or "SECRET" not in path.read_text()
    assert not (graded.root / "feedback" / "half" / NAME / "all").exists()


def test_a_file_that_is_a_verdict_says_so_in_its_record(graded):
    path = graded.root / "autograded" / "damaged" / NAME / f"{NAME}.ipynb"
    assert "damaged" in nbformat.read(path, as_version=4).metadata.worldsize.malformed


def test_the_record_says_under_which_conditions_a_submission_was_graded(graded):
    path = graded.root / "autograded" / "half" / NAME / f"{NAME}.ipynb"
    record = nbformat.read(path, as_version=4).metadata.worldsize
    assert "namespaces" in record.tier
    assert [check.outcome for check in record.checks] == ["wrong", "skipped", "passed"]


def test_a_fault_of_ours_is_loud_and_gives_nobody_a_zero(graded):
    log = (graded.root / "fault.log").read_text()
    assert log.startswith("1\n")
    assert "no score was recorded" in log and "ZeroDivisionError" in log
    assert not (graded.root / "autograded" / "unlucky" / NAME).exists()
