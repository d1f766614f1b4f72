"""An assignment's files: which notebook is due, programs with and without solutions, submitted ones read strictly."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

from autograder.authoring import programs
from autograder.authoring.notebooks import build
from autograder.course import notebook_of
from autograder.submissions import Malformed
from autograder.submissions.submitted_files import read_program

PROGRAM = '''"""Doubles."""

# %% setup
import sys

# %% double tags=["solution"]
def double(x):
    """Twice as much."""
    ### BEGIN SOLUTION
    more = x
    return x + more
    ### END SOLUTION


class Twice:
    def __call__(self, x):
        ### BEGIN SOLUTION
        return 2 * x
        ### END SOLUTION


# %% main
if __name__ == "__main__":
    print(double(int(sys.argv[1])))
'''

REPORT = """# %% [markdown]
# # A report

# %% one tags=["solution"]
def one():
    ### BEGIN SOLUTION
    return 1
    ### END SOLUTION


# %% check_one points=2
assert one() == 1
"""
CHECKS = """from autograder.judging.checks.check import points


@points(2, cell="check_one")
def check_one(student, rng):
    'One.'
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "solutions/project9"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(PROGRAM)
    (folder / "report.py").write_text(REPORT)
    (folder / "checks.py").write_text(CHECKS)
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    return folder


def test_a_lab_is_handed_in_under_its_name_and_a_project_as_its_report() -> None:
    assert notebook_of("lab03") == "lab03"
    assert notebook_of("project1") == "report"


def test_programs_are_what_is_neither_the_notebook_nor_the_checks(folder) -> None:
    assert [path.name for path in programs.authored(folder)] == ["train.py"]
    (folder.parent / "lab01").mkdir()
    (folder.parent / "lab01/notes.py").write_text("secret = 42")
    assert programs.authored(folder.parent / "lab01") == []


def test_the_solved_program_runs_and_the_released_one_says_what_to_replace(folder, tmp_path, capfd) -> None:
    for text, told in ((programs.solved(folder / "train.py"), "14"), (programs.released(folder / "train.py"), "")):
        path = tmp_path / "train.py"
        path.write_text(text)
        done = subprocess.run([sys.executable, path, "7"], capture_output=True, text=True)
        assert done.stdout.strip() == told
        assert bool(done.returncode) == (not told)
    assert "NotImplementedError: Replace this line with your own code." in done.stderr
    assert "SOLUTION" not in text and "more = x" not in text and text.count("Replace this line") == 2
    assert "tags=" not in text and '"""Twice as much."""' in text


def test_a_known_answer_replaces_a_cell_and_only_one_that_there_is(folder) -> None:
    path = folder / "train.py"
    text = programs.solved(path, {"double": "def double(x):\n    return 3 * x"})
    assert "3 * x" in text and "x + more" not in text and "sys.argv" in text
    with pytest.raises(ValueError, match=r"train\.py has no cell called triple: it has double, main, setup"):
        programs.solved(path, {"triple": ""})


def test_a_build_releases_programs_without_solutions_beside_the_notebook(folder) -> None:
    root = folder.parents[1]
    built = build(root)
    assert set(map(str, built)) >= {"labs/project9/report.ipynb", "labs/project9/train.py"}
    assert (root / "labs/project9/train.py").read_text() == programs.released(folder / "train.py")
    assert sorted(path.name for path in (root / "labs/project9").iterdir()) == ["report.ipynb", "train.py"]
    assert not any(build(root).values())


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda path: None, "holds no train.py. Submit it together with the notebook"),
        (lambda path: path.symlink_to("/etc/passwd"), "not a plain file"),
        (lambda path: os.mkfifo(path), "not a plain file"),
        (lambda path: path.mkdir(), "not a plain file"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00x"), "not a text in UTF-8"),
        (lambda path: path.write_text("#" * (1 << 20) + "##"), "at most 1024 are read"),
    ],
)
def test_what_is_handed_in_is_a_plain_text_of_a_sane_size(tmp_path, spoil, told) -> None:
    spoil(tmp_path / "train.py")
    with pytest.raises(Malformed, match=told):
        read_program(tmp_path / "train.py")


def test_what_is_handed_in_is_read(tmp_path) -> None:
    (tmp_path / "train.py").write_text("﻿x = 'ä'\n", encoding="utf-8")
    assert read_program(tmp_path / "train.py") == "x = 'ä'\n"
