"""Folders below `submitted/` that are nobody's work, or oddly named: each is said, and no other student is touched."""

import json
import os
from collections import Counter
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
import stand_in_judge
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from rich.console import Console
from tiny_class import RIGHT, hand_in, lab, place
from tiny_lab import NAME, answered, make_course, release
from typer.testing import CliRunner

from autograder import cli
from autograder.cli import app
from autograder.course import open_course
from autograder.grading import audit_log, standing
from autograder.grading.reports import feedback_pages

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
    b"capital": "it holds Sums, but sums/sums.ipynb is needed; move it there",
    b"flat": "it holds sums.ipynb, but sums/sums.ipynb is needed; move it there",
    b"Sums.ipynb": "this is a file; put it into a student's folder, as sums/sums.ipynb",
}
MISPLACED = {b"capital": b"capital/Sums/sums.ipynb", b"flat": b"flat/sums.ipynb", b"Sums.ipynb": b"Sums.ipynb"}
SCORES = {"ada": 5, "ada ": 2, "zoë": 5, "Ada": 2, "empty": 0, "copy": 5, "copies": 0, "folder": 0, "a,b {c} %s": 5}


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
        elif name in MISPLACED:
            file = Path(os.fsdecode(os.path.join(os.fsencode(root / "submitted"), MISPLACED[name])))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(whole)
        else:
            os.makedirs(folder)
            place_in(folder, whole) if name != b"half-linked" else os.symlink(f"../ada/{NAME}", folder + b"/sums")
    (root / "submitted" / "notes.txt").write_text("no student")
    (root / "submitted" / "nobody").mkdir()


def place_in(folder: bytes, text: str) -> None:
    os.mkdir(folder + b"/sums")
    with open(folder + b"/sums/sums.ipynb", "w") as file:
        file.write(text)


@pytest.fixture
def course(tmp_path, monkeypatch):
    monkeypatch.setattr("autograder.grading.engines.judge", stand_in_judge.judge)
    monkeypatch.setattr(cli, "console", Console(highlight=False, width=300))
    monkeypatch.chdir(tmp_path)
    return make_course(tmp_path)


def nbgrader(root: Path) -> NbGraderAPI:
    coursedir = open_course(root)
    return NbGraderAPI(coursedir=coursedir, config=coursedir.config)


def grade(root: Path, program: str = "autograder") -> tuple[bool, str]:
    """Whether a command over the class ends well, and what it says."""
    if program == "nbgrader":
        done = nbgrader(root).autograde(NAME, "*")
        return done["success"], done["log"]
    done = CliRunner().invoke(app, ["grade", NAME, "--jobs", "2"])
    return done.exit_code == 0, done.output


def generate(root: Path) -> None:
    assert nbgrader(root).generate_assignment(NAME, force=True)["success"]


@pytest.mark.parametrize("program", ["autograder", "nbgrader"])
def test_odd_folders_are_named_and_the_honest_are_graded_once(course, program):
    fill(course)
    generate(course)
    for _ in range(2 if program == "autograder" else 1):  # what is in the gradebook is not entered again
        is_well, said = grade(course, program)
        assert not is_well and "Traceback" not in said, said
        for name, reason in REFUSED.items():
            shown = name.decode(errors="surrogateescape").translate({10: "\\n", 9: "\\t", 0xDCFC: "\\udcfc"})
            assert any(shown in line and reason in line for line in said.splitlines()), (shown, said)
        with Gradebook(f"sqlite:///{course}/gradebook.db") as book:
            assert {one.student.id: one.score for one in book.assignment_submissions(NAME)} == SCORES
        entries, problems = audit_log.read(course / audit_log.LOG)
        assert Counter(entry.student for entry in entries) == dict.fromkeys(SCORES, 1) and not problems


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
    assert "2 other notebooks (one.ipynb, two.ipynb)" in said and said.endswith("under that name.")


def test_the_due_notebook_counts_whatever_lies_beside_it(course):
    hand_in(course, "ada", is_right=False)
    folder = course / "submitted" / "ada" / NAME
    hand_in(course, "eve")
    (course / "submitted" / "eve" / NAME / f"{NAME}.ipynb").rename(folder / "better.ipynb")
    judged = lab(course).judge("ada")
    assert judged.score == 2 and not judged.report.notes


def test_a_student_named_before_anybody_handed_in_hears_that_nobody_did(course):
    with pytest.raises(ValueError, match=r"Nobody has handed in sums: no file matches .*STUDENT/sums/sums\.ipynb"):
        lab(course).named(["bob"])
    (course / "submitted" / "flat").mkdir(parents=True)
    (course / "submitted" / "flat" / f"{NAME}.ipynb").write_text("{}")
    with pytest.raises(ValueError, match=r"no submission of sums from bob\. Submissions exist from flat"):
        lab(course).named(["bob"])


def test_nothing_is_judged_before_the_gradebook_knows_the_lab(course):
    hand_in(course, "ada")
    is_well, said = grade(course)
    assert not is_well and "Run this first: nbgrader generate_assignment sums --force" in " ".join(said.split())
    assert not (course / "build" / "judged").exists()
    generate(course)
    assert grade(course)[0]


def test_names_that_an_instructor_should_see_stand_in_the_table_each_time(course):
    notebook = answered(deepcopy(release(course)), RIGHT | {"mean": "import sys\ndist.all_reduce(sys.modules)"})
    place(course, "eve", json.dumps(notebook))
    hand_in(course, "ada")
    generate(course)
    for _ in range(2):
        _, said = grade(course)
        (row,) = (line for line in said.splitlines() if "eve" in line)
        assert "look at" in said and "mean: sys.modules" in row and "5 points" in row


@pytest.mark.parametrize("name", ["course", "course [2026]", "what?*"])
def test_a_course_may_lie_in_a_folder_whose_name_is_a_pattern(tmp_path, name):
    coursedir = CourseDirectory(root=str(tmp_path / name))
    for step in ("submitted", "autograded"):
        for student in ("zoe", "[ada]"):
            (tmp_path / name / step / student / NAME).mkdir(parents=True)
    graded = tmp_path / name / "autograded" / "zoe" / NAME / f"{NAME}.ipynb"
    graded.write_text(json.dumps({"metadata": {audit_log.MARK: {"number": 3, "sha256": "lost"}}}))
    assignment = SimpleNamespace(name=NAME, duedate=None, max_score=5)
    strangers = standing._standings_of_strangers(coursedir, SimpleNamespace(students=[]), assignment)
    assert [row.student for row in strangers] == ["[ada]", "zoe"]
    assert feedback_pages._students(coursedir, "autograded", NAME) == {"zoe", "[ada]"}
    assert len(audit_log.missing_entries(coursedir, [])) == 1
