"""Whatever becomes of nbgrader_config.py, nbgrader never runs a submission outside of the sandbox."""

import json
import sqlite3
from copy import deepcopy

import nbformat
import pytest
from commands import run_afresh as run
from graded_course import hand_in
from tiny_lab import MEAN, NAME, TOTAL, answered, make_course, needs_jail, release

from autograder.grading.no_kernel import KERNEL

BREAK_IT = {
    "gone": lambda text: None,
    "a slip of the pen": lambda text: text + "\nc.Policy.grace_minutes = (30\n",
    "a module that is missing": lambda text: "import no_such_module\n" + text,
}


@pytest.fixture
def course(tmp_path):
    """A course whose only submission leaves a mark when it is run outside of a sandbox."""
    make_course(tmp_path)
    mark = f"try:\n    open({str(tmp_path / 'MARK')!r}, 'w')\nexcept OSError:\n    pass\n"
    hand_in(
        tmp_path, "ada", nbformat.writes(answered(deepcopy(release(tmp_path)), {"total": mark + TOTAL, "mean": MEAN}))
    )
    assert run(tmp_path, "nbgrader", "generate_assignment", NAME, "--force").returncode == 0
    return tmp_path


@pytest.mark.parametrize("how", BREAK_IT)
def test_nbgrader_without_our_settings_runs_no_submission(course, how):
    config = course / "nbgrader_config.py"
    broken = BREAK_IT[how](config.read_text())
    if broken is None:
        config.unlink()
    else:
        config.write_text(broken)
    done = run(course, "nbgrader", "autograde", NAME)
    assert not (course / "MARK").exists()
    assert f"No such kernel named {KERNEL['name']}" in done.stdout
    assert not (course / "autograded" / "ada" / NAME).exists()


@needs_jail
def test_with_our_settings_the_first_grading_makes_an_older_gradebook_safe(course):
    usual = json.dumps({"name": "python3", "display_name": "Python 3"})
    with sqlite3.connect(course / "gradebook.db") as book:
        book.execute("UPDATE notebook SET kernelspec = ?", [usual])
    done = run(course, "nbgrader", "autograde", NAME)
    assert "ada: 5 of 5 points" in done.stdout, done.stdout
    assert not (course / "MARK").exists()
    with sqlite3.connect(course / "gradebook.db") as book:
        ((kernel,),) = book.execute("SELECT kernelspec FROM notebook")
    assert json.loads(kernel) == KERNEL


def test_students_get_a_notebook_with_the_usual_kernel(course):
    assert release(course).metadata.kernelspec.name == "python3"
