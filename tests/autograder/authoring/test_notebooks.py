import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbgrader.nbgraderformat import MetadataValidator
from repository import ROOT as REPOSITORY
from typer.testing import CliRunner

from autograder.authoring.notebooks import build, find_sources, out_of_date
from autograder.authoring.scripts import AuthoringError
from autograder.cli import app
from autograder.course import find_root

WEEK = """\
# %% [markdown]
# # Why one GPU is not enough

# %% parameters tags=["parameters"]
steps = 20

# %% The picture
print(steps)
"""
LAB = '''\
# %% [markdown]
# Average the gradients.

# %% mean tags=["solution"]
def mean(values):
    """The mean."""
    ### BEGIN SOLUTION
    return sum(values) / len(values)
    ### END SOLUTION

# %% check_mean points=3
assert mean([1, 3]) == 2

# %% why [markdown] points=2 tags=["solution"]
# Because the batch is shared out.
'''
CHECKS = '@points(3, cell="check_mean")\ndef check_value(student, rng): ...\n'
SECRETS = (
    *("checks.py", "lab.toml", "wrong/sums.py", "wrong/mean.diff", "right/loop.txt"),
    *("__pycache__/checks.pyc", ".cache/seen"),
)


@pytest.fixture
def course(tmp_path):
    """A course of one lesson, one lab and one project, with everything beside them that students must not get."""
    for folder in ("weeks", "solutions/lab01/data", "solutions/project1"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(REPOSITORY / "nbgrader_config.py", tmp_path)
    (tmp_path / "weeks/week01_why.py").write_text(WEEK)
    (tmp_path / "solutions/lab01/lab01.py").write_text(LAB)
    (tmp_path / "solutions/lab01/data/losses.csv").write_text("step,loss\n")
    (tmp_path / "solutions/project1/report.py").write_text(LAB)
    (tmp_path / "solutions/project1/checks.py").write_text(CHECKS)
    for name in SECRETS:
        path = tmp_path / "solutions/lab01" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(CHECKS if name == "checks.py" else "secret = 42\n")
    return tmp_path


BUILT = [
    "docs/numbers.md",
    "labs/lab01/data/losses.csv",
    "labs/lab01/lab01.ipynb",
    "labs/project1/report.ipynb",
    "solutions/lab01/lab01.ipynb",
    "solutions/project1/report.ipynb",
    "weeks/week01_why.ipynb",
]


def contents(course):
    return {name: (course / name).read_bytes() for name in BUILT}


def read(path):
    return nbformat.read(path, as_version=4)


def test_a_build_writes_every_notebook_and_releases_only_what_students_may_see(course, monkeypatch):
    # without alembic nbgrader cannot open a gradebook, which a build must not want
    monkeypatch.setenv("PATH", str(course))
    assert build(course) == dict.fromkeys(map(Path, BUILT), True)
    released = sorted(str(path.relative_to(course)) for path in course.glob("labs/**/*") if path.is_file())
    assert released == [name for name in BUILT if name.startswith("labs/")]
    assert not (course / "gradebook.db").exists()


def test_a_second_build_writes_nothing(course):
    build(course)
    before, times = contents(course), [(course / name).stat().st_mtime_ns for name in BUILT]
    assert build(course) == dict.fromkeys(map(Path, BUILT), False)
    assert contents(course) == before
    assert [(course / name).stat().st_mtime_ns for name in BUILT] == times


def test_only_the_notebooks_asked_for_are_built(course):
    assert list(map(str, build(course, ["week01"]))) == [BUILT[0], BUILT[6]]
    assert list(map(str, build(course, ["lab01"]))) == [BUILT[1], BUILT[2], BUILT[4]]
    with pytest.raises(ValueError, match=r"No script is called lab02: there are lab01, project1, week01"):
        find_sources(course, ["lab02"])


def test_a_lesson_keeps_its_tags_and_has_no_grading_metadata(course):
    build(course, ["week01"])
    node = read(course / "weeks/week01_why.ipynb")
    assert [cell.id for cell in node.cells] == ["top-markdown-1", "parameters", "The-picture"]
    assert [dict(cell.metadata) for cell in node.cells] == [{}, {"tags": ["parameters"]}, {}]
    assert "jupytext" not in node.metadata
    nbformat.validate(node)


def test_a_lab_has_the_grading_metadata_of_each_kind_of_cell(course):
    build(course, ["lab01"])
    node = read(course / "solutions/lab01/lab01.ipynb")
    MetadataValidator().validate_nb(node)
    nbformat.validate(node)
    fields = ("grade_id", "grade", "solution", "locked", "points")
    assert [tuple(cell.metadata.nbgrader.get(name) for name in fields) for cell in node.cells] == [
        ("top-markdown-1", False, False, True, None),
        ("mean", False, True, False, None),
        ("check_mean", True, False, True, 3),
        ("why", True, True, False, 2),
    ]


def test_a_released_lab_has_a_stub_that_says_what_to_do(course):
    build(course, ["lab01"])
    cells = {cell.id: cell for cell in read(course / "labs/lab01/lab01.ipynb").cells}
    namespace = {}
    exec(cells["mean"].source, namespace)
    with pytest.raises(NotImplementedError, match="Replace this line with your own code"):
        namespace["mean"]([1, 3])
    assert "shared out" not in cells["why"].source
    assert cells["check_mean"].metadata.editable is False


def test_a_check_names_what_is_out_of_date_and_writes_nothing(course):
    build(course)
    assert out_of_date(course) == []
    (course / "labs/lab01/lab01.ipynb").write_text("edited by hand")
    (course / "weeks/week01_why.ipynb").unlink()
    (course / "labs/lab01/notes.txt").write_text("left over")
    assert list(map(str, out_of_date(course))) == [
        "labs/lab01/lab01.ipynb",
        "labs/lab01/notes.txt",
        "weeks/week01_why.ipynb",
    ]
    assert (course / "labs/lab01/lab01.ipynb").read_text() == "edited by hand"


def test_the_problems_of_all_scripts_are_reported_and_nothing_is_written(course):
    (course / "weeks/week02_ring.py").write_text("# %% one points=1\nx = 1\n")
    (course / "solutions/lab01/lab01.py").write_text(LAB.replace("check_mean", "check_mode"))
    with pytest.raises(AuthoringError) as caught:
        build(course)
    assert {problem.split(":")[0].rsplit("/")[-1] for problem in caught.value.problems} == {
        "week02_ring.py",
        "lab01.py",
        "checks.py",
    }
    assert not list(course.rglob("*.ipynb"))


def test_nbgrader_itself_releases_the_same_bytes(course):
    build(course)
    before = contents(course)
    # nbgrader calls alembic by name
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    command = [sys.executable, "-m", "nbgrader", "generate_assignment", "lab01", "--force"]
    subprocess.run(command, cwd=course, env=os.environ | {"PATH": path}, check=True, capture_output=True)
    assert (course / "gradebook.db").exists()
    assert contents(course) == before
    assert out_of_date(course) == []


def test_nbgrader_failing_says_why(course):
    (course / "nbgrader_config.py").write_text(
        (course / "nbgrader_config.py").read_text() + 'c.ClearSolutions.code_stub = {"R": "fail()"}\n'
    )
    with pytest.raises(ValueError, match=r"nbgrader cannot release lab01.\n.*[\s\S]*code_stub"):
        build(course, ["lab01"])


@pytest.fixture
def run(course, monkeypatch):
    monkeypatch.chdir(course / "weeks")
    return lambda *words: CliRunner().invoke(app, ["build", *words])


def test_the_command_builds_from_anywhere_in_the_course(run, course):
    assert run("--check").exit_code == 1
    written = run()
    assert written.exit_code == 0
    assert all(f"written   {name}" in written.stdout for name in BUILT)
    assert "unchanged labs/lab01/lab01.ipynb" in run("lab01").stdout
    assert run("--check").exit_code == 0


def test_the_command_names_a_malformed_line(run, course):
    (course / "weeks/week01_why.py").write_text("# %% one\nx = (\n")
    failed = run()
    assert failed.exit_code == 1
    assert failed.stderr.startswith("week01_why.py:2: This code has a syntax error")


def test_a_folder_outside_every_course_is_refused(tmp_path):
    with pytest.raises(ValueError, match="is not in a course"):
        find_root(tmp_path)


def test_building_does_not_import_torch():
    code = "import sys, autograder.authoring.notebooks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
