"""Grading a class at once: what is kept, what is judged again, what a crash leaves, what a broken grader costs."""

import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest
import tiny_project
from commands import run
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from processes import wait_until
from tiny_class import hand_in, lab, place
from tiny_lab import NAME, make_course, needs_jail
from typer.testing import CliRunner

from autograder.cli import app
from autograder.course import open_course
from autograder.files import write_whole
from autograder.grading import audit_log, engines
from autograder.grading.classroom import enter, judge_class
from autograder.grading.engines import LocalPool
from autograder.grading.lab import KEPT, Judged, Lab
from autograder.judging.report import CheckResult, Outcome, Report

SCORES = {f"student{number}": 5 if number % 2 else 2 for number in range(6)} | {"damaged": 0}


@pytest.fixture
def course(tmp_path):
    return make_course(tmp_path)


@pytest.fixture
def judgings(monkeypatch):
    """The judgings asked for; each gives 5 points and starts no process."""
    asked = []

    def judge(request, granted):
        asked.append(request.cells)
        check = CheckResult(name="check", cell="check_total", promise="It holds.", points=5, outcome=Outcome.PASSED)
        return Report(checks=[check], tier="none", seed=1, duration_s=0)

    monkeypatch.setattr(engines, "judge", judge)
    return asked


def test_a_new_program_is_judged_anew(tmp_path):
    root = tiny_project.make_course(tmp_path)
    folder = root / "submitted" / "ada" / tiny_project.NAME
    tiny_project.hand_in(folder, "x = 1\n", root)
    project = Lab(open_course(root), tiny_project.NAME)
    project.keep("ada", Judged(fingerprint=project.fingerprint("ada")))
    assert project.kept("ada")
    (folder / tiny_project.PROGRAM).write_text("x = 2\n")
    assert project.kept("ada") is None


def test_a_submission_is_judged_once_and_again_when_it_has_changed_or_is_asked_for(course, judgings):
    hand_in(course, "anna")
    for again, total in ((False, 1), (False, 1), (True, 2)):
        ((student, judged),) = judge_class(lab(course), ["anna"], LocalPool(1), again)
        assert (student, judged.score, len(judgings)) == ("anna", 5, total)
    hand_in(course, "anna", is_right=False)
    list(judge_class(lab(course), ["anna"], LocalPool(1)))
    assert len(judgings) == 3
    checks = course / "solutions" / NAME / "checks.py"
    checks.write_text(checks.read_text() + "\n")
    list(judge_class(lab(course), ["anna"], LocalPool(1)))
    assert len(judgings) == 4


def test_a_flag_lets_a_class_be_graded_without_a_sandbox_and_that_is_another_judgement(course, monkeypatch):
    allowed = []

    def judge(request, granted):
        allowed.append(request.allow_untrusted)
        results = [
            CheckResult(name="check", cell=cell, promise="It holds.", points=points, outcome=Outcome.PASSED)
            for cell, points in (("check_total", 3), ("check_mean", 2))
        ]
        return Report(checks=results, tier="these walls", seed=1, duration_s=0)

    monkeypatch.setattr(engines, "judge", judge)
    monkeypatch.chdir(course)
    coursedir = open_course(course)
    NbGraderAPI(coursedir=coursedir, config=coursedir.config).generate_assignment(NAME, force=True)
    hand_in(course, "anna")
    for words, asked in (([], [False]), (["--allow-untrusted"], [False, True]), (["--allow-untrusted"], [False, True])):
        done = CliRunner().invoke(app, ["grade", NAME, *words])
        assert done.exit_code == 0, done.output
        assert "sandbox: these walls" in done.output and "5 points" in done.output
        assert allowed == asked
    entries, _ = audit_log.read(course / audit_log.LOG)
    assert [(entry.limits.allow_untrusted, entry.tier) for entry in entries] == [
        (False, "these walls"),
        (True, "these walls"),
    ]


def test_a_judgement_that_was_torn_is_made_again(course, judgings):
    hand_in(course, "anna")
    list(judge_class(lab(course), ["anna"], LocalPool(1)))
    (path,) = (course / KEPT / NAME).iterdir()
    path.write_text(path.read_text()[:40])
    list(judge_class(lab(course), ["anna"], LocalPool(1)))
    assert len(judgings) == 2


def test_a_grader_that_breaks_on_one_goes_on_with_the_others_and_tries_it_again(course, judgings, monkeypatch):
    for student in ("anna", "ben", "carl"):
        hand_in(course, student)
    judge = engines.judge
    submission = Lab.submitted_file

    def break_on_ben(self, student):
        if student == "ben" and sys._getframe(1).f_code.co_name == "read":
            raise OSError("no space left")
        return submission(self, student)

    monkeypatch.setattr(Lab, "submitted_file", break_on_ben)
    found = dict(judge_class(lab(course), ["anna", "ben", "carl"], LocalPool(2)))
    assert found["ben"].verdict == "not graded: OSError: no space left" and found["ben"].report is None
    assert [found[name].verdict for name in ("anna", "carl")] == ["5 points"] * 2
    monkeypatch.setattr(Lab, "submitted_file", submission)
    assert dict(judge_class(lab(course), ["ben"], LocalPool(1)))["ben"].score == 5 and engines.judge is judge


def crowded(may_be_external):
    """A judge by which the first submission fails, perhaps because of one beside it."""
    numbers = count(1)

    def judge(request, granted):
        number = next(numbers)
        check = CheckResult(name="check", cell="check_total", promise="It holds.", points=5, outcome=Outcome.PASSED)
        if number == 1:
            check.outcome, check.may_be_external = Outcome.CRASHED, may_be_external
            check.message = "Rank 0: SIGKILL: something killed it. No progress for 20 s."  # as a student may write
        return Report(checks=[check], tier="none", seed=number, duration_s=0)

    return judge


def test_a_submission_that_may_have_lost_to_another_is_judged_again_alone(course, monkeypatch):
    for student in ("anna", "ben"):
        hand_in(course, student)
    monkeypatch.setattr(engines, "judge", crowded(True))
    found = dict(judge_class(lab(course), ["anna", "ben"], LocalPool(2)))
    assert sorted(judged.score for judged in found.values()) == [5, 5]
    assert sorted(judged.report.seed for judged in found.values()) == [2, 3]
    assert {student: lab(course).kept(student) for student in found} == found
    monkeypatch.setattr(engines, "judge", crowded(True))
    assert sorted(one.score for _, one in judge_class(lab(course), ["anna", "ben"], LocalPool(1), again=True)) == [0, 5]


def test_a_failure_of_its_own_is_not_judged_again_whatever_its_words(course, monkeypatch):
    hand_in(course, "anna")
    monkeypatch.setattr(engines, "judge", crowded(False))
    assert [one.score for _, one in judge_class(lab(course), ["anna"], LocalPool(2))] == [0]


def test_a_gradebook_that_was_lost_gets_its_scores_again(course, monkeypatch):
    checks = [
        CheckResult(name=cell, cell=f"check_{cell}", promise="It holds.", points=points, outcome=Outcome.PASSED)
        for cell, points in (("total", 3), ("mean", 2))
    ]
    asked = []
    report = Report(checks=checks, tier="none", seed=1, duration_s=0)
    monkeypatch.setattr(engines, "judge", lambda *_, **__: asked.append(1) or report)
    hand_in(course, "anna")
    for _ in range(2):
        assert run(course, "nbgrader", "generate_assignment", NAME, "--force").returncode == 0
        ((_, judged),) = judge_class(lab(course), ["anna"], LocalPool(1))
        assert enter(lab(course), "anna", judged).is_entered
        with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
            assert gradebook.find_submission(NAME, "anna").score == 5
        (course / "gradebook.db").unlink()
    assert asked == [1]


def test_a_file_that_may_not_be_read_is_a_fault_of_its_student_alone(course, judgings, monkeypatch):
    hand_in(course, "ada")
    hand_in(course, "bob")
    refused, real = lab(course).submitted_file("ada"), io.open

    def opened(file, *args, **kw):  # root may read everything, so no mode of a file would do
        if str(file) == str(refused):
            raise PermissionError(13, "Permission denied", str(file))
        return real(file, *args, **kw)

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr("builtins.open", opened)
    found = dict(judge_class(lab(course), ["ada", "bob"], LocalPool(1)))
    assert found["ada"].fault.startswith("PermissionError: ") and found["ada"].report is None
    assert found["bob"].report and not found["bob"].fault


def test_a_file_is_written_in_utf8_whatever_the_locale(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", partial(_in_latin1, tempfile.NamedTemporaryFile))
    write_whole(tmp_path / "new" / "a.json", "✓ 3")
    assert (tmp_path / "new" / "a.json").read_bytes() == "✓ 3".encode()


def _in_latin1(real, mode="w+b", **kw):
    return real(mode, **({} if "b" in mode else {"encoding": "latin-1"}) | kw)


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_file_that_could_not_be_written_leaves_the_old_one_and_no_other(tmp_path, monkeypatch, broken):
    (tmp_path / "a.json").write_text("old")
    monkeypatch.setattr(os, broken, Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_whole(tmp_path / "a.json", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "old"


def test_a_report_with_a_broken_check_is_a_fault(course, monkeypatch):
    check = CheckResult(name="check_a", cell="a", promise="", points=1, outcome=Outcome.FAULT, message="1 / 0")
    broken = Report(checks=[check], tier="none", seed=1, duration_s=0)
    monkeypatch.setattr(engines, "judge", lambda *_, **__: broken)
    hand_in(course, "anna")
    assert lab(course).judge("anna").verdict == "not graded: check_a: 1 / 0"
    assert lab(course).kept("anna") is None


def test_a_damaged_file_is_a_verdict_and_needs_no_judge(course, judgings):
    place(course, "anna", "{")
    ((_, judged),) = judge_class(lab(course), ["anna"], LocalPool(1))
    assert judged.verdict.startswith("malformed: The file is damaged") and judgings == []
    ((_, again),) = judge_class(lab(course), ["anna"], LocalPool(1))
    assert again == judged


def test_nothing_is_entered_where_nbgrader_would_run_the_code_itself(course, judgings):
    config = course / "nbgrader_config.py"
    config.write_text(config.read_text().replace('"autograder.nbgrader.Grade",', ""))
    hand_in(course, "anna")
    with pytest.raises(ValueError, match=r"does not name autograder\.nbgrader\.Grade"):
        enter(lab(course), "anna", lab(course).judge("anna"))


def test_a_student_who_is_named_twice_is_judged_once(course, judgings):
    hand_in(course, "anna")
    names = lab(course).named(["anna", "anna"])
    assert names == ["anna"] and len(list(judge_class(lab(course), names, LocalPool(1)))) == len(judgings) == 1


@pytest.mark.parametrize(
    ("students", "words"),
    [(["ben"], "There is no submission of sums from ben. Submissions exist from anna."), ([], "")],
)
def test_students_are_named_or_all(course, students, words):
    hand_in(course, "anna")
    if not words:
        assert lab(course).named(students) == ["anna"]
        return
    with pytest.raises(ValueError, match=words):
        lab(course).named(students)


def test_a_lab_that_is_not_there_is_told(course):
    with pytest.raises(ValueError, match=r"There is no lab99: .*lab99\.ipynb is missing"):
        Lab(open_course(course), "lab99").named([])
    with pytest.raises(ValueError, match="Nobody has handed in sums"):
        lab(course).named([])


def command(root: Path, *words: str) -> subprocess.Popen:
    program = str(Path(sys.executable).with_name("autograder"))
    return subprocess.Popen(
        [program, *words], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


@needs_jail
def test_a_class_is_graded_also_when_the_grader_is_killed_in_the_middle(course, monkeypatch):
    temporary = course / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    for student, score in SCORES.items():
        hand_in(course, student, is_right=score == 5)
    place(course, "damaged", "not a notebook")
    assert run(course, "nbgrader", "generate_assignment", NAME, "--force").returncode == 0
    kept = course / KEPT / NAME
    first = command(course, "grade", NAME, "--jobs", "2")
    deadline_s = time.monotonic() + 120
    while not kept.is_dir() or sum(path.suffix == ".json" for path in kept.iterdir()) < 3:
        assert first.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    assert wait_until(lambda: not os.listdir(temporary), within_s=60), "what it left in /tmp goes with what it started"
    judged = {
        path: Report.model_validate(found["report"]).seed
        for path in kept.glob("*.json")
        if (found := read(path))["report"]
    }
    second = command(course, "grade", NAME, "--jobs", "2")
    said, _ = second.communicate(timeout=240)
    assert second.returncode == 0, said
    assert {path: read(path)["report"]["seed"] for path in judged} == judged, "nothing is judged twice"
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        graded = gradebook.assignment_submissions(NAME)
        assert {one.student.id: one.score for one in graded} == SCORES
    with sqlite3.connect(course / "gradebook.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def read(path):
    return json.loads(path.read_text())
