"""Built notebooks are what their scripts say, and hold no outputs."""

import json
import shutil
from pathlib import Path

import pytest
from repository import ROOT as REPOSITORY

from autograder.authoring.notebooks import build, out_of_date


def notebooks_with_outputs(root: Path) -> list[str]:
    """The notebooks that were saved after a run."""
    found = []
    for pattern in ("weeks/*.ipynb", "solutions/**/*.ipynb", "labs/**/*.ipynb"):
        for path in sorted(root.glob(pattern)):
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            if any(cell.get("outputs") or cell.get("execution_count") for cell in cells):
                found.append(str(path.relative_to(root)))
    return found


@pytest.fixture
def course(tmp_path):
    (tmp_path / "weeks").mkdir()
    (tmp_path / "weeks/week01_why.py").write_text("# %% picture\nprint(1)\n")
    shutil.copy(REPOSITORY / "nbgrader_config.py", tmp_path)
    build(tmp_path)
    return tmp_path


@pytest.mark.parametrize("rule", [out_of_date, notebooks_with_outputs])
def test_the_course_keeps_the_rule(rule):
    assert rule(REPOSITORY) == []


def test_a_notebook_edited_by_hand_is_caught(course):
    path = course / "weeks/week01_why.ipynb"
    path.write_text(path.read_text().replace("print(1)", "print(2)"))
    assert out_of_date(course) == [Path("weeks/week01_why.ipynb")]


@pytest.mark.parametrize(
    "planted",
    [
        {"outputs": [{"output_type": "stream", "name": "stdout", "text": "1"}], "execution_count": None},
        {"outputs": [], "execution_count": 1},
    ],
)
def test_a_notebook_saved_after_a_run_is_caught(course, planted):
    assert notebooks_with_outputs(course) == []
    path = course / "weeks/week01_why.ipynb"
    node = json.loads(path.read_text())
    node["cells"][0].update(planted)
    path.write_text(json.dumps(node))
    assert notebooks_with_outputs(course) == ["weeks/week01_why.ipynb"]
