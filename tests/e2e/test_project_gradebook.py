"""A project through plain nbgrader commands: its program is judged, logged with its hash, and graded again."""

import hashlib
from pathlib import Path

import pytest
from commands import run
from nbgrader.api import Gradebook
from tiny_lab import needs_jail, once
from tiny_project import NAME, PROGRAM, apart, hand_in, make_course, program

from autograder.course import open_course
from autograder.grading import audit_log
from autograder.grading.replay import replay

pytestmark = needs_jail


def grade_class(root: Path) -> None:
    make_course(root)
    sources = {"right": program(root), "wrong": apart(root), "missing": None}
    for student, source in sources.items():
        hand_in(root / "submitted" / student / NAME, source, root)
    done = [run(root, "nbgrader", "generate_assignment", NAME, "--force"), run(root, "nbgrader", "autograde", NAME)]
    (root / "commands.log").write_text("\n".join(f"{one.returncode}\n{one.stdout}" for one in done))


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A project that three have handed in, graded."""
    return once(tmp_path_factory.getbasetemp(), "project-gradebook", grade_class)


def test_a_right_a_wrong_and_a_missing_program_get_their_points(course):
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        scores = {one.student.id: one.score for one in gradebook.assignment_submissions(NAME)}
    assert scores == {"right": 6, "wrong": 2, "missing": 0}, (course / "commands.log").read_text()


def test_the_release_holds_the_program_without_its_solution(course):
    released = (course / "labs" / NAME / PROGRAM).read_text()
    assert "raise NotImplementedError" in released and "DistributedDataParallel" not in released


def test_the_log_names_the_program_that_was_graded_and_the_reference(course):
    entries, problems = audit_log.read(course / audit_log.LOG)
    found = {entry.student: entry for entry in entries}
    assert not problems and set(found) == {"right", "wrong", "missing"}
    for student in ("right", "wrong"):
        read = {f"submitted/{PROGRAM}": course / "submitted" / student / NAME / PROGRAM}
        read |= {f"reference/{name}": course / "solutions" / NAME / name for name in (PROGRAM, "report.py")}
        expected = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in read.items()}
        assert found[student].inputs.programs == expected
    assert found["missing"].verdict is audit_log.Verdict.MALFORMED and "holds no train.py" in found["missing"].reason


def test_a_grading_is_reproduced_also_after_the_program_has_changed(course):
    entries, _ = audit_log.read(course / audit_log.LOG)
    (entry,) = (entry for entry in entries if entry.student == "wrong")
    path = course / "submitted" / "wrong" / NAME / PROGRAM
    then = path.read_bytes()
    path.write_text("print('another one')\n")
    try:
        again = replay(open_course(course), entry)
    finally:
        path.write_bytes(then)
    assert again.is_same and again.score == 2
    assert f"The submitted/{PROGRAM} has changed since, so its kept copy was used." in again.differences
