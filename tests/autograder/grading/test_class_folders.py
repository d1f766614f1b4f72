"""Folders below `submitted/` that are nobody's work, or oddly named: each is said, and no other student is touched."""

import json
import os
from collections import Counter
from copy import deepcopy
from pathlib import Path

import nbformat
import pytest
import stand_in_judge
from nbgrader.api import Gradebook
from tiny_class import RIGHT, hand_in, lab, place
from tiny_lab import NAME, answered, make_course, release

from autograder.grading import audit_log

REFUSED = {
    b"M\xfcller": "it is not text in UTF-8",
    b"*": "it holds *",
    b"a*": "it holds *",
    b"[a-z]*": "it holds",
    b"who?": "it holds ?",
    b"two\nlines": "a line break",
    b"a\ttab": "control character",
    b".hidden": "begins with a dot",
    b"..a": "begins with a dot",
    b"linked": "a link",
    b"half-linked": "a link",
}
SCORES = {"ada": 5, "ada ": 2, "zoë": 5, "Ada": 2, "empty": 0, "copy": 5, "copies": 0, "folder": 0, "a,b {c} %s": 5}
COMMANDS = {"autograder": ("grade", NAME, "--jobs", "2"), "nbgrader": ("autograde", NAME)}


def fill(root: Path) -> None:
    """Puts honest work, and everything else that has been seen in such a folder, below `submitted/`."""
    whole = nbformat.writes(answered(deepcopy(release(root)), RIGHT))
    for student in ("ada", "zoë", "a,b {c} %s"):
        hand_in(root, student)
    for student in ("ada ", "Ada"):
        hand_in(root, student, is_right=False)
    for student, names in {"empty": (), "copy": ("sums (1)",), "copies": ("one", "two")}.items():
        folder = root / "submitted" / student / NAME
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}.ipynb").write_text(whole)
    (root / "submitted" / "folder" / NAME / f"{NAME}.ipynb").mkdir(parents=True)
    for name in REFUSED:
        folder = os.path.join(os.fsencode(root / "submitted"), name)
        if name == b"linked":
            os.symlink("ada", folder)
        else:
            os.makedirs(folder)
            place_in(folder, whole) if name != b"half-linked" else os.symlink(f"../ada/{NAME}", folder + b"/sums")
    (root / "submitted" / "notes.txt").write_text("no student")
    (root / "submitted" / "nobody").mkdir()


def place_in(folder: bytes, text: str) -> None:
    os.mkdir(folder + b"/sums")
    with open(folder + b"/sums/sums.ipynb", "w") as file:
        file.write(text)


@pytest.mark.parametrize("program", COMMANDS)
def test_odd_folders_are_named_and_the_honest_are_graded_once(tmp_path, program):
    fill(make_course(tmp_path))
    stand_in_judge.run(tmp_path, "nbgrader", "generate_assignment", NAME, "--force")
    code, said, _ = stand_in_judge.run(tmp_path, program, *COMMANDS[program])
    assert code == 1 and "Traceback" not in said, said
    for name, reason in REFUSED.items():
        shown = name.decode(errors="surrogateescape").translate({10: "\\n", 9: "\\t", 0xDCFC: "\\udcfc"})
        assert any(shown in line and reason in line for line in said.splitlines()), (shown, said)
    with Gradebook(f"sqlite:///{tmp_path}/gradebook.db") as book:
        assert {one.student.id: one.score for one in book.assignment_submissions(NAME)} == SCORES
    entries, problems = audit_log.read(tmp_path / audit_log.LOG)
    assert Counter(entry.student for entry in entries) == dict.fromkeys(SCORES, 1) and not problems


def test_a_second_run_enters_nobody_again(tmp_path):
    fill(make_course(tmp_path))
    stand_in_judge.run(tmp_path, "nbgrader", "generate_assignment", NAME, "--force")
    for _ in range(2):
        stand_in_judge.run(tmp_path, "autograder", *COMMANDS["autograder"])
    assert len(audit_log.read(tmp_path / audit_log.LOG)[0]) == len(SCORES)


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.setattr("autograder.grading.engines.judge", stand_in_judge.judge)
    return make_course(tmp_path)


@pytest.mark.parametrize("name", ["sums (1)", "Sums", "lab"])
def test_the_only_notebook_is_taken_with_a_note(course, name):
    hand_in(course, "ada")
    folder = course / "submitted" / "ada" / NAME
    (folder / f"{NAME}.ipynb").rename(folder / f"{name}.ipynb")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / f"{NAME}.ipynb").write_text("{}")
    (folder / "notes.txt").write_text("")
    judged = lab(course).judge("ada")
    assert (judged.score, judged.malformed) == (5, "")
    assert judged.verdict == (
        f"5 points. Graded from {name}.ipynb, the only notebook in the folder: next time, name it {NAME}.ipynb."
    )
    assert lab(course).kept("ada") == judged


def test_of_two_notebooks_under_other_names_none_is_taken(course):
    place(course, "ada", "{}")
    folder = course / "submitted" / "ada" / NAME
    (folder / f"{NAME}.ipynb").rename(folder / "one.ipynb")
    (folder / "two.ipynb").write_text("{}")
    said = lab(course).judge("ada").malformed
    assert "2 other notebooks (one.ipynb, two.ipynb)" in said and said.endswith("under its own name.")


def test_the_due_notebook_counts_whatever_lies_beside_it(course):
    hand_in(course, "ada", is_right=False)
    folder = course / "submitted" / "ada" / NAME
    hand_in(course, "eve")
    (course / "submitted" / "eve" / NAME / f"{NAME}.ipynb").rename(folder / "better.ipynb")
    judged = lab(course).judge("ada")
    assert judged.score == 2 and not judged.report.notes


def test_nothing_is_judged_before_the_gradebook_knows_the_lab(tmp_path):
    hand_in(make_course(tmp_path), "ada")
    code, said, _ = stand_in_judge.run(tmp_path, "autograder", "grade", NAME)
    assert code == 1 and "Run this first: nbgrader generate_assignment sums --force" in " ".join(said.split())
    assert not (tmp_path / "build" / "judged").exists()
    stand_in_judge.run(tmp_path, "nbgrader", "generate_assignment", NAME, "--force")
    assert stand_in_judge.run(tmp_path, "autograder", "grade", NAME)[0] == 0


def test_names_that_an_instructor_should_see_stand_in_the_table_each_time(tmp_path):
    make_course(tmp_path)
    notebook = answered(deepcopy(release(tmp_path)), RIGHT | {"mean": "import sys\ndist.all_reduce(sys.modules)"})
    place(tmp_path, "eve", json.dumps(notebook))
    hand_in(tmp_path, "ada")
    stand_in_judge.run(tmp_path, "nbgrader", "generate_assignment", NAME, "--force")
    for _ in range(2):
        _, said, _ = stand_in_judge.run(tmp_path, "autograder", "grade", NAME)
        (row,) = (line for line in said.splitlines() if "eve" in line)
        assert "look at" in said and "mean: sys.modules" in row and "5 points" in row
