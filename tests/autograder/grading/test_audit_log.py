"""The audit log: nothing is taken out of it unseen, and a score in it can be reproduced."""

import io
import json
import os
import subprocess
import sys
from copy import deepcopy
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import nbformat
import pytest
from commands import run
from graded_course import grade_course
from nbgrader.coursedir import CourseDirectory
from repository import ROOT
from tiny_lab import NAME, needs_jail, once

from autograder.course import graded_files
from autograder.files import file_sha256
from autograder.grading import audit_log
from autograder.grading.replay import replay
from autograder.judging.report import CheckResult, Outcome, Report

pytestmark = pytest.mark.xdist_group("graded_course")
_IMPORTS = f"{Path(__file__).parent} {ROOT / 'tests/support'}"  # where a process of its own finds this file
LIMITS = audit_log.RecordedLimits(call_s=15, total_s=120, allow_untrusted=False)
NAMES = {"assignment": "lab01", "student": "ada", "notebook": "lab01"}
PASSED = CheckResult(name="check_a", cell="a", promise="It holds.", points=2, outcome=Outcome.PASSED)
WRONG = PASSED.model_copy(update={"name": "check_b", "outcome": Outcome.WRONG, "message": "<secret>"})


@pytest.fixture
def course(tmp_path):
    """A course folder with what a grading of ada's lab01 reads."""
    coursedir = CourseDirectory(root=str(tmp_path), source_directory="solutions", release_directory="labs")
    for path in graded_files(coursedir, NAMES).values():
        path.parent.mkdir(parents=True)
        path.write_text(f"the content of {path.parent}")
    return coursedir


def grade(coursedir, report=None, malformed="", **names):
    with audit_log.grading(coursedir, {**NAMES, **names}, LIMITS) as grading:
        grading.report, grading.malformed = report, malformed
    return grading.entry


def report(*checks):
    return Report(checks=list(checks), tier="namespaces", seed=7, duration_s=1.0)


def read(coursedir):
    return audit_log.read(Path(coursedir.root, audit_log.LOG))


def test_a_grading_is_noted_with_all_that_its_score_depends_on(course):
    entry = grade(course, report(PASSED, WRONG))
    assert read(course) == ([entry], [])
    assert (entry.number, entry.verdict, entry.score, entry.seed, entry.tier) == (1, "graded", 2, 7, "namespaces")
    assert [(check.name, check.outcome, check.earned) for check in entry.checks] == [
        ("check_a", "passed", 2),
        ("check_b", "wrong", 0),
    ]
    assert entry.limits == LIMITS and entry.versions == audit_log.versions() and entry.versions.torch
    assert abs((datetime.now(UTC) - entry.time).total_seconds()) < 60
    for kind, path in graded_files(course, NAMES).items():
        kept = Path(course.root, audit_log.KEPT, getattr(entry.inputs, kind))
        assert kept.read_bytes() == path.read_bytes()
    assert "secret" not in Path(course.root, audit_log.LOG).read_text()


def test_a_malformed_submission_is_noted_even_when_there_is_no_file(course):
    graded_files(course, NAMES)["submission"].unlink()
    entry = grade(course, malformed="It holds no file.")
    assert (entry.verdict, entry.reason, entry.score) == ("malformed submission", "It holds no file.", 0)
    assert entry.inputs.submission is None and entry.seed is None


@pytest.mark.parametrize("error", [RuntimeError("the judge broke"), KeyboardInterrupt()])
def test_a_fault_is_noted_without_a_score_and_goes_on_its_way(course, error):
    with pytest.raises(type(error)), audit_log.grading(course, NAMES, LIMITS) as grading:
        grading.report = report(PASSED)
        raise error
    ((entry,), _) = read(course)
    assert (entry.verdict, entry.score, entry.checks[0].name) == ("grader fault", None, "check_a")
    assert entry.reason == (str(error) or "KeyboardInterrupt")


def test_only_the_owner_reads_what_is_kept(course):
    grade(course, report(PASSED))
    root = Path(course.root)
    paths = [root / audit_log.LOG, root / audit_log.KEPT, *(root / audit_log.KEPT).iterdir()]
    assert [oct(path.stat().st_mode & 0o077) for path in paths] == ["0o0"] * 5


def test_an_older_submission_is_still_kept_after_a_new_one(course):
    first = grade(course, report(PASSED))
    graded_files(course, NAMES)["submission"].write_text("another one")
    second = grade(course, report(PASSED))
    assert first.inputs.submission != second.inputs.submission
    assert (Path(course.root) / audit_log.KEPT / first.inputs.submission).exists()
    assert first.inputs.checks == second.inputs.checks


def test_a_link_or_a_file_too_large_is_not_kept(course, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_log, "MAX_BYTES", 3)
    assert audit_log.keep(tmp_path, graded_files(course, NAMES)["submission"])
    (tmp_path / "link").symlink_to(tmp_path / "labs")
    assert audit_log.keep(tmp_path, tmp_path / "link") is None
    assert not (tmp_path / audit_log.KEPT).exists()


@pytest.fixture
def lines(course):
    for student in ("ada", "bob", "cy"):
        grade(course, report(PASSED), student=student)
    return Path(course.root, audit_log.LOG).read_text().splitlines()


TAMPERED = {
    "first edited": (lambda lines: [lines[0].replace("2.0", "1.0"), *lines[1:]], [1]),
    "last edited": (lambda lines: [*lines[:2], lines[2].replace('"score":2.0', '"score":3.0')], [3]),
    "removed": (lambda lines: [lines[0], lines[2]], [2]),
    "first removed": (lambda lines: lines[1:], [1]),
    "swapped": (lambda lines: [lines[1], lines[0], lines[2]], [1, 2, 3]),
    "repeated": (lambda lines: [lines[0], lines[0], *lines[1:]], [2]),
    "garbage between": (lambda lines: [lines[0], "{}", *lines[1:]], [2]),
    "garbage instead": (lambda lines: [lines[0], "\x00\xff", lines[2]], [2, 3]),
    "empty line": (lambda lines: [lines[0], "", *lines[1:]], [2]),
    "half written": (lambda lines: [*lines, lines[0][:100]], [4]),
    "none": (lambda lines: lines, []),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_tampering_is_found_at_its_line(course, lines, how):
    change, broken = TAMPERED[how]
    log = Path(course.root, audit_log.LOG)
    log.write_text("\n".join(change(lines)) + "\n")
    _, problems = audit_log.read(log)
    found = [int(problem.split(", line ")[1].split(":")[0]) for problem in problems]
    assert sorted(set(found)) == broken


def test_an_entry_whose_hash_was_made_anew_breaks_the_next_one(course, lines):
    entry = audit_log.AuditEntry.model_validate_json(lines[1]).model_copy(update={"score": 100.0})
    entry = entry.model_copy(update={"sha256": entry.computed_sha256()})
    log = Path(course.root, audit_log.LOG)
    log.write_text("\n".join([lines[0], entry.model_dump_json(), lines[2]]) + "\n")
    assert [problem.split(": ")[0][-6:] for problem in audit_log.read(log)[1]] == ["line 3"]


def test_the_log_goes_on_after_a_line_that_was_half_written(course, lines):
    log = Path(course.root, audit_log.LOG)
    log.write_text("\n".join(lines) + "\n" + lines[0][:50])
    grade(course, report(PASSED), student="dan")
    entries, problems = audit_log.read(log)
    assert [entry.student for entry in entries] == ["ada", "bob", "cy", "dan"]
    assert len(problems) == 1 and "line 4" in problems[0]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 16])
@pytest.mark.parametrize(
    ("log", "last", "is_torn"),
    [
        (b"", None, False),
        (b"{a}\n{b}\n", "{b}", False),
        (b"{a}\n{b", "{a}", True),
        (b"{a}\nx\n", "{a}", False),
        (b"x", None, True),
    ],
)
def test_the_last_entry_is_found_from_the_end_of_the_log(monkeypatch, chunk_bytes, log, last, is_torn):
    monkeypatch.setattr(audit_log, "_CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr(audit_log, "_parsed", lambda line: line if line[:1] + line[-1:] == "{}" else None)
    assert audit_log._last_entry(io.BytesIO(log)) == (last, is_torn)


def test_an_entry_that_the_disk_has_no_room_for_is_an_error(course, lines):
    """Of the last bytes that fit, the system tells in a number only that they were not all."""
    log = Path(course.root, audit_log.LOG)
    before = log.read_bytes()
    script = (
        "import resource, signal, sys\nsys.path[:0] = sys.argv[1].split()\n"
        "from test_audit_log import grade, report, PASSED\n"
    )
    script += "from nbgrader.coursedir import CourseDirectory\n"
    script += "course = CourseDirectory(root=sys.argv[2], source_directory='solutions', release_directory='labs')\n"
    script += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    script += "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))\n"
    script += "try:\n    grade(course, report(PASSED))\nexcept OSError as error:\n    sys.exit(f'refused: {error}')\n"
    command = [sys.executable, "-c", script, _IMPORTS, course.root, str(len(before) + 100)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "refused: [Errno 27] File too large" in done.stderr
    grade(course, report(PASSED), student="dan")
    entries, problems = read(course)
    assert [entry.student for entry in entries] == ["ada", "bob", "cy", "dan"] and log.read_bytes().startswith(before)
    assert len(problems) == 1 and "line 4" in problems[0]


def test_a_kept_copy_that_is_not_whole_is_made_anew(course, tmp_path):
    path = graded_files(course, NAMES)["submission"]
    kept = tmp_path / audit_log.KEPT / str(audit_log.keep(tmp_path, path))
    kept.write_bytes(b"")
    audit_log.keep(tmp_path, path)
    assert kept.read_bytes() == path.read_bytes()


def test_a_copy_is_on_disk_before_it_has_its_name(course, tmp_path, monkeypatch):
    done, synced, named = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append(f"{os.fstat(file).st_size} bytes") or synced(file))
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("named") or named(*paths))
    path = graded_files(course, NAMES)["submission"]
    audit_log.keep(tmp_path, path)
    assert done == [f"{path.stat().st_size} bytes", "named"]


@pytest.mark.parametrize("of", ["open", "stat"])
def test_a_file_that_may_not_be_read_has_no_hash(course, monkeypatch, of):
    path = graded_files(course, NAMES)["submission"]
    where = "builtins.open" if of == "open" else "pathlib.Path.is_file"  # the folder, too, may be closed
    with monkeypatch.context() as patched:
        patched.setattr(where, Mock(side_effect=PermissionError(13, "Permission denied")))
        found = file_sha256(path)
    assert found is None and file_sha256(path)


def test_a_log_whose_end_was_cut_off_is_found_by_the_graded_notebook(course, lines):
    entries, _ = read(course)
    path = Path(course.format_path(course.autograded_directory, "cy", "lab01"), "lab01.ipynb")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"metadata": {audit_log.MARK: {"number": 3, "sha256": entries[2].sha256}}}))
    assert audit_log.missing_entries(course, entries) == []
    (problem,) = audit_log.missing_entries(course, entries[:2])
    assert str(path) in problem and "entry 3" in problem


def test_gradings_that_end_at_once_make_one_chain(course, tmp_path):
    script = tmp_path / "many.py"
    script.write_text(
        "import sys\nsys.path[:0] = sys.argv[1].split()\nfrom test_audit_log import grade, report, PASSED\n"
        "from nbgrader.coursedir import CourseDirectory\n"
        "course = CourseDirectory(root=sys.argv[2], source_directory='solutions', release_directory='labs')\n"
        "for _ in range(20):\n    grade(course, report(PASSED))\n"
    )
    command = [sys.executable, str(script), _IMPORTS, course.root]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    entries, problems = read(course)
    assert problems == [] and [entry.number for entry in entries] == list(range(1, 61))


def test_no_log_is_no_problem(tmp_path):
    assert audit_log.read(tmp_path / audit_log.LOG) == ([], [])


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    return once(tmp_path_factory.getbasetemp(), "graded_course", grade_course)


def coursedir_of(root):
    return CourseDirectory(root=str(root), source_directory="solutions", release_directory="labs")


@needs_jail
def test_a_graded_course_has_an_entry_for_every_submission(graded):
    entries, problems = audit_log.read(graded / audit_log.LOG)
    assert problems == [] == audit_log.missing_entries(coursedir_of(graded), entries)
    assert {entry.student: (entry.verdict, entry.score) for entry in entries} == {
        "ada": ("graded", 5),
        "bob": ("graded", 5),
        "cy": ("malformed submission", 0),
        "dan": ("grader fault", None),
    }
    assert "ZeroDivisionError" in entries[-1].reason and entries[-1].limits.call_s == 20


@needs_jail
def test_nbgraders_own_export_has_the_penalty_and_no_number_where_the_grader_broke(graded):
    rows = dict(line.split(",", 4)[3:] for line in (graded / "grades.csv").read_text().splitlines()[1:])
    assert {student: row.split(",")[3:] for student, row in rows.items()} == {
        "ada": ["5.0", "0.0", "5.0", "5.0", "graded"],
        "bob": ["5.0", "1.0", "4.0", "5.0", "graded"],
        "cy": ["0.0", "0.0", "0.0", "5.0", "graded"],
        "dan": ["", "", "", "5.0", "not graded: the grader broke"],
        "eve": ["0.0", "0.0", "0.0", "5.0", "not submitted"],
    }, (graded / "commands.log").read_text()


@needs_jail
def test_the_students_file_is_untouched_and_the_page_harmless(graded):
    handed_in = nbformat.read(graded / "submitted" / "ada" / NAME / f"{NAME}.ipynb", as_version=4)
    assert "<script>" in handed_in.cells[-1].source
    assert (graded / "submitted" / "ada" / NAME / "timestamp.txt").read_text() == "garbage \x01"
    page = (graded / "feedback" / "ada" / NAME / f"{NAME}.html").read_text()
    assert "<script>alert" not in page and "onerror" not in page and 'href="javascript' not in page
    assert "&lt;script&gt;alert" in page


@needs_jail
def test_a_score_is_reproduced_from_what_was_kept(graded):
    entries, _ = audit_log.read(graded / audit_log.LOG)
    again = replay(coursedir_of(graded), entries[0])
    assert again.is_same and again.score == 5, again
    assert not [difference for difference in again.differences if not difference.startswith("commit")]
    forged = entries[1].model_copy(update={"score": 3.0})
    path = graded / "submitted" / "bob" / NAME / f"{NAME}.ipynb"
    whole = path.read_text()
    try:
        path.write_text("a new submission")
        again = replay(coursedir_of(graded), forged)
    finally:
        path.write_text(whole)
    assert not again.is_same and again.score == 5  # by the kept copy, so the log's 3 is wrong
    assert again.differences[0] == "The submission has changed since, so its kept copy was used."


@needs_jail
def test_checks_are_repeated_beside_the_solution_that_they_took_parts_of(graded):
    script = graded / "solutions" / NAME / f"{NAME}.py"
    whole = script.read_text()
    entry = audit_log.read(graded / audit_log.LOG)[0][0]
    assert f"reference/{script.name}" in entry.inputs.programs
    try:
        script.write_text("a new solution")
        again = replay(coursedir_of(graded), entry)
    finally:
        script.write_text(whole)
    assert again.is_same
    assert again.differences[0] == f"The reference/{script.name} has changed since, so its kept copy was used."


@needs_jail
def test_a_malformed_submission_is_so_again_and_a_fault_has_nothing_to_reproduce(graded):
    _, _, malformed, fault = audit_log.read(graded / audit_log.LOG)[0]
    assert replay(coursedir_of(graded), malformed).is_same
    with pytest.raises(ValueError, match="Entry 4 has no score to reproduce"):
        replay(coursedir_of(graded), fault)
    gone = deepcopy(malformed).model_copy(update={"inputs": malformed.inputs.model_copy(update={"checks": "0" * 64})})
    with pytest.raises(ValueError, match=r"cannot be graded again: .*checks\.py is not the checks that was graded"):
        replay(coursedir_of(graded), gone)


@needs_jail
def test_the_commands_on_a_graded_course(graded, tmp_path):
    whole = run(graded, "autograder", "audit", "bob")
    last = audit_log.read(graded / audit_log.LOG)[0][-1].sha256
    assert whole.returncode == 0 and f"4 entries, intact; the last hash: {last}" in whole.stdout
    assert "graded" in whole.stdout and "malformed" not in whole.stdout
    again = run(graded, "autograder", "audit", "--replay", "2")
    assert again.returncode == 0 and "Every check gave the same score." in again.stdout
    none = run(graded, "autograder", "audit", "--replay", "9")
    assert none.returncode == 1 and "no entry 9: it holds 4" in none.stdout
    done = run(graded, "autograder", "export", "canvas", "--to", str(tmp_path / "out.csv"), "--rename", f"{NAME}=X (1)")
    assert done.returncode == 0 and "dan" in done.stdout and "the grader broke" in done.stdout
    assert (tmp_path / "out.csv").read_text().startswith("Student,ID,SIS User ID,SIS Login ID,Section,X (1)\n")
    wrong = run(graded, "autograder", "export", "excel")
    assert wrong.returncode == 1 and "choose one of csv, canvas, moodle, blackboard, gradescope" in wrong.stdout
