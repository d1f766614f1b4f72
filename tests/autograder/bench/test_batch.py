"""`autograder bench`: a class with every kind of submission, cut off and gone on, and one's own program."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import jsonschema
import psutil
import pytest
import tiny_project
from processes import are_gone, wait_until
from tiny_lab import ROOT, needs_jail, once
from tiny_project import ENDLESS, NAME, PROGRAM, RAISES, SILENT, hand_in, make_course, program
from typer.testing import CliRunner

from autograder.bench.batch import Batch, MeasuredLab, read_batch
from autograder.cli import app
from autograder.course import open_course
from autograder.grading.lab import Lab
from autograder.judging.judge.measuring import Settings
from worldsize import bench

TINY = ["--steps=6", "--batch=32", "--width=4", "--repeats=1", "--world-sizes=2"]
NUM_TIMINGS = 4  # one rank; two of them, strong, weak and without exchange


def start(root: Path, *words: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "autograder", "bench", *words]
    env = {**os.environ, "COLUMNS": "250"}
    return subprocess.Popen(
        command,
        cwd=root,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def batch(root: Path, *words: str) -> tuple[int, str]:
    running = start(root, NAME, "--submissions=handed", "--out=out", *TINY, *words)
    said, _ = running.communicate(timeout=280)
    return running.returncode, said


def line_of(said: str, student: str) -> str:
    return next(line for line in said.splitlines() if line.strip().startswith(student))


def make_class(root: Path) -> None:
    make_course(root, "c.Grade.call_s = 20\nc.Grade.total_s = 90\n")
    sources = {
        "apart": tiny_project.apart(root),
        "endless": program(root, ENDLESS),
        "missing": None,
        "raises": program(root, RAISES),
        "right": program(root),
        "silent": program(root, SILENT),
    }
    for student, source in sources.items():
        # one in nbgrader's own layout, the others as a download gives them
        hand_in(root / "handed" / student / (NAME if student == "right" else ""), source, root)
    before = set(psutil.Process().children())
    code, said = batch(root)
    (root / "said.txt").write_text(f"{code}\n{said}")
    assert set(psutil.Process().children()) <= before


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A class of six after one batch."""
    return once(tmp_path_factory.getbasetemp(), "bench-class", make_class)


@needs_jail
def test_every_submission_gets_a_verdict_and_the_batch_goes_on(course):
    code, _, said = (course / "said.txt").read_text().partition("\n")
    assert code == "0", said
    verdicts = {
        "right": ("6 of 6", "measured"),
        "silent": ("2 of 6", "the program ended without handing in its weights"),
        "endless": ("2 of 6", "1 real rank: "),
        "raises": ("2 of 6", "no luck today"),
        "missing": ("0", "malformed: The submission holds no train.py."),
        "apart": ("2 of 6", "its final weights differ from those of one process"),
    }
    for student, words in verdicts.items():
        assert all(word in line_of(said, student) for word in words), said
    assert "%" in line_of(said, "right") and "%" not in line_of(said, "apart")


@needs_jail
def test_results_lie_in_a_folder_for_each_student_and_fit_the_schema(course):
    out = course / "out"
    results = read_batch(out)
    assert set(results) == {"right", "silent", "endless", "raises", "apart"}
    schema = json.loads((ROOT / "docs" / "benchmark.schema.json").read_text())
    for student in results:
        jsonschema.validate(json.loads((out / student / "result.json").read_text()), schema)
    right = results["right"]
    assert len(right.timings) == NUM_TIMINGS and not any(one.failure for one in right.timings)
    assert {(one.world_size, one.scaling) for one in right.points} == {(1, "strong"), (2, "strong"), (2, "weak")}
    assert json.loads((out / "right" / "report.json").read_text())["report"]["tier"]
    assert not list(out.glob("*/timings-*")), "journals go when a measurement is done"


@needs_jail
def test_what_is_finished_is_not_done_again_unless_its_files_changed(course):
    stamps = {path: path.stat().st_mtime_ns for path in (course / "out").glob("*/*.json")}
    first = (course / "said.txt").read_text().partition("\n")[2]
    code, said = batch(course)
    assert code == 0 and {path: path.stat().st_mtime_ns for path in stamps} == stamps
    for student in ("right", "silent", "missing", "apart"):
        assert line_of(said, student) == line_of(first, student)
    path = course / "handed" / "missing" / PROGRAM
    path.write_text(program(course))
    try:
        code, said = batch(course, "--student=missing")
        assert code == 0 and "6 of 6" in line_of(said, "missing") and "measured" in said
    finally:
        path.unlink()
    assert {path: path.stat().st_mtime_ns for path in stamps if path.parent.name != "missing"} == {
        path: stamp for path, stamp in stamps.items() if path.parent.name != "missing"
    }


@needs_jail
@pytest.mark.parametrize(
    "by", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.nightly("two minutes, and SIGKILL is harder"))]
)
def test_a_batch_that_is_ended_in_a_measurement_goes_on_there_and_leaves_no_process(tmp_path, by):
    root = make_course(tmp_path)
    for student in ("anna", "ben"):
        hand_in(root / "handed" / student, program(root), root)
    running = start(root, NAME, "--submissions=handed", "--out=out", "--no-grade", *TINY, "--repeats=2")
    journals: list[Path] = []

    def is_measuring() -> bool:
        journals[:] = (root / "out").glob("*/timings-*")
        assert running.poll() is None, running.communicate()[0]
        return any(len(lines(path)) >= 2 for path in journals)

    assert wait_until(is_measuring, within_s=120)
    started = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(by)
    said, _ = running.communicate(timeout=60)
    assert are_gone([one.pid for one in started])
    if by == signal.SIGINT:
        assert running.returncode == 130 and "resumes from there" in said, said
    (journal,) = journals
    kept = [json.loads(line)["timing"] for line in lines(journal)]
    assert len(kept) >= 2
    code, said = batch(root, "--no-grade", "--repeats=2")
    assert code == 0, said
    results = read_batch(root / "out")
    assert set(results) == {"anna", "ben"}
    timings = [one.model_dump() for one in results[journal.parent.name].timings]
    assert timings[: len(kept)] == kept, "what was measured is kept"
    assert len(timings) == 2 * NUM_TIMINGS


def lines(path: Path) -> list[str]:
    """The whole lines of a journal."""
    return [line for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []


def call(*words: str):
    return CliRunner().invoke(app, ["bench", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["project9", "--submissions=nowhere"], "There is no folder nowhere"),
        (["project9", "--submissions=empty"], "no file matches empty/STUDENT/report.ipynb"),
        (["project9", "--submissions=handed", "--student=zoe"], "from zoe. Submissions exist from anna"),
        (["lab99"], "There is no lab99"),
        (["project9", "--world-sizes=1,two"], "--world-sizes takes whole numbers"),
        (["project9", "--steps=4"], "the first 4 are warm-up steps"),
        (["missing.py"], "There is no program"),
        (["project9", "--images=cifar10"], "There are no CIFAR-10 files in ''"),
        (["leaderboard", "empty"], "empty holds no result"),
    ],
)
def test_what_cannot_be_measured_is_told_in_a_sentence(tmp_path, monkeypatch, words, said):
    make_course(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "handed" / "anna").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLDSIZE_CIFAR10", raising=False)
    done = call(*words)
    assert done.exit_code == 1 and said in done.output, done.output


def test_a_batch_takes_what_grading_takes(tmp_path):
    """The same folders, notebook and teams as `Lab`, whether the class is in the course or outside it."""
    make_course(tmp_path)
    (tmp_path / "roster.csv").write_text("id,name,team\nanna,Anna,red\nben,Ben,red\n")
    for within in (f"submitted/anna/{NAME}", "handed/anna", f"handed/cy/{NAME}"):
        hand_in(tmp_path / within, None, tmp_path)
        (tmp_path / within / "report.ipynb").rename(tmp_path / within / "my report (1).ipynb")
    hand_in(tmp_path / f"submitted/cy/{NAME}", None, tmp_path)
    for place in ("submitted", "handed"):
        (tmp_path / place / "linked").symlink_to("anna")
        (tmp_path / place / ".cache").mkdir()
    coursedir = open_course(tmp_path)
    for outside in (None, tmp_path / "handed"):
        lab = MeasuredLab(coursedir, NAME, outside=outside)
        assert lab.named([]) == ["anna", "cy"] and lab.named(["ben"]) == ["anna"]
        assert lab.submitted_file("anna").name == "my report (1).ipynb"
        (outcome,) = Batch(lab, Settings()).refused([])
        assert outcome.student == "linked" and "this folder is a link" in outcome.verdict
    assert MeasuredLab(coursedir, NAME).named([]) == Lab(coursedir, NAME).named([])


def test_a_program_that_may_not_be_read_does_not_end_the_batch(monkeypatch):
    refused = PermissionError(13, "Permission denied")
    monkeypatch.setattr("autograder.submissions.submitted_files.read_program", Mock(side_effect=refused))
    measured = Batch(Mock(limits=None), None)._fingerprint("ada")  # pyright: ignore[reportArgumentType]
    assert len(measured) == 64


def test_a_lab_without_a_program_has_nothing_to_measure(tmp_path, monkeypatch):
    from tiny_lab import make_course as make_sums

    make_sums(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = call("sums", "--submissions=.")
    assert done.exit_code == 1 and "sums asks for no train.py" in done.output


def test_a_program_that_trains_on_other_samples_is_refused(monkeypatch):
    monkeypatch.chdir(ROOT)
    done = call("project2", "--submissions=.")
    assert done.exit_code == 1 and "`autograder grade project2` judges it" in done.output


def test_the_published_schema_is_that_of_results():
    done = call("schema")
    assert json.loads(done.output) == bench.schema()
    assert (ROOT / "docs" / "benchmark.schema.json").read_text() == done.output


def test_ones_own_program_is_measured_here_and_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_course(tmp_path / "course")
    Path("train.py").write_text(program(tmp_path / "course"))
    done = call("train.py", "--out=mine.json", "--world-sizes=1", *TINY[:-1])
    assert done.exit_code == 0, done.output
    assert "without a sandbox" in done.output and "samples/s each" in done.output
    result = bench.Result.model_validate_json(Path("mine.json").read_bytes())
    assert [(one.world_size, one.kind, one.failure) for one in result.timings] == [(1, "real", "")]
    assert result.program_sha256 == bench.sha256_of("train.py") and not list(Path().glob("*.jsonl"))


def test_ones_own_program_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_course(tmp_path / "course")
    Path("train.py").write_text(program(tmp_path / "course", RAISES))
    done = call("train.py", "--world-sizes=1", *TINY[:-1])
    assert done.exit_code == 1 and "no luck today" in done.output
