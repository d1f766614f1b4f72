"""What students unpack runs there: week 1 and lab 1 from top to bottom, with the `worldsize` that came with them."""

import os
import subprocess
import sys
import zipfile
from copy import deepcopy

import nbformat
import pytest
from executed import assert_quiet, errors, executed, failures, stream
from nbformat.v4 import new_code_cell
from repository import ROOT

from autograder.authoring.known_answers import compose, solution_cells
from autograder.authoring.student_copy import TOP, write_student_copy

pytestmark = pytest.mark.slow
WHERE = "import os, worldsize, sys\nprint(worldsize.__file__, 'autograder' in sys.modules)"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The folder of a student, which holds nothing but the zip's content; its `worldsize` comes first."""
    folder = tmp_path_factory.mktemp("student")
    write_student_copy(ROOT, folder / "student.zip", ["week01", "lab01"])
    with zipfile.ZipFile(folder / "student.zip") as archive:
        archive.extractall(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / TOP))
        yield folder / TOP


def read(unpacked, pattern):
    (path,) = unpacked.glob(pattern)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(new_code_cell(WHERE, id="where"))
    return notebook, path.parent


@pytest.mark.nightly("more than a minute, and week 1 runs elsewhere")
def test_week_1_runs_and_asks_its_questions(unpacked):
    outputs = executed(*read(unpacked, "weeks/week01*.ipynb"))
    assert_quiet(outputs)
    assert stream(outputs["where"]) == f"{unpacked}/worldsize/__init__.py False\n"
    assert "Four ranks start from the same weights" in outputs["self_check"][-1]["data"]["text/plain"]


def test_lab_1_asks_for_its_functions_and_passes_its_open_checks_once_they_are_written(unpacked):
    lab, folder = read(unpacked, "labs/lab01/lab01.ipynb")
    solved = compose(deepcopy(lab), solution_cells(ROOT / "solutions/lab01/lab01.py"))
    ids = [cell.id for cell in lab.cells]
    del lab.cells[ids.index("check_rank_batches") + 1 :]
    (error,) = errors(executed(lab, folder, allow_errors=True)["check_rank_batches"])
    assert "Replace this line with your own code" in "\n".join(error.traceback)
    outputs = executed(solved, folder, allow_errors=True)
    assert len([name for name in outputs if name.startswith("check_")]) == 5
    assert failures(outputs) == {}
    assert stream(outputs["where"]) == f"{unpacked}/worldsize/__init__.py False\n"


def test_its_worldsize_can_be_installed(unpacked, tmp_path):
    """By setuptools alone, which reads the project as pip does, without a network."""
    program = "from setuptools import build_meta; print(build_meta.build_wheel('DIST'))".replace("DIST", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], cwd=unpacked, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    ours = {path.relative_to(unpacked).as_posix() for path in unpacked.glob("worldsize/**/*") if path.is_file()}
    assert names == {name for name in ours if "__pycache__" not in name}
    assert os.listdir(unpacked / "labs") == ["lab01"]
