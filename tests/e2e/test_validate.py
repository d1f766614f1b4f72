"""`nbgrader validate`, as a student runs it at the root of the course: the open checks of lab 1."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from repository import ROOT

from autograder.authoring.known_answers import compose, solution_cells

LAB = Path("labs/lab01/lab01.ipynb")


@pytest.fixture
def course(tmp_path: Path) -> Path:
    (tmp_path / LAB).parent.mkdir(parents=True)
    shutil.copy(ROOT / LAB, tmp_path / LAB)
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    return tmp_path


def validate(course: Path) -> str:
    """What `nbgrader validate` prints, with the virtual environment active and a home of its own."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["nbgrader", "validate", str(LAB)],
        cwd=course,
        env={**os.environ, "PATH": path, "HOME": str(course)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_untouched_lab_fails_cell_by_cell(course):
    printed = validate(course)
    notebook = nbformat.read(course / LAB, as_version=4)
    graded = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    checks = [cell for cell in graded if cell.cell_type == "code"]
    assert printed.startswith(f"VALIDATION FAILED ON {len(graded)} CELL(S)!")
    named = [f"The following cell failed:\n\n    {check.id}\n\nThe error was:\n" for check in checks]
    assert [name for name in named if name not in printed] == []
    assert [check.id for check in checks if check.source.splitlines()[0] in printed] == []
    said = "failed with NotImplementedError: Replace this line with your own code, then run the cell again."
    assert printed.count(said) == len(checks)
    assert "Traceback" not in printed and "site-packages" not in printed


def test_what_a_check_expected_and_its_hint_are_printed_whole(course):
    notebook = nbformat.read(course / LAB, as_version=4)
    cells = solution_cells(ROOT / "solutions/lab01/lab01.py")
    cells["average_gradients"] = "def average_gradients(model, num_samples):\n    pass"
    nbformat.write(compose(notebook, cells), course / LAB)
    printed = validate(course)
    assert "..." not in printed and max(map(len, printed.splitlines())) > 90
    for part in ("expected: ", "got: ", "hint: "):
        assert part in printed


def test_solution_passes(course):
    notebook = nbformat.read(course / LAB, as_version=4)
    nbformat.write(compose(notebook, solution_cells(ROOT / "solutions/lab01/lab01.py")), course / LAB)
    assert validate(course) == "Success! Your notebook passes all the tests.\n"
