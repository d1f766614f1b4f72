"""Whose word counts for when a submission was handed in, and what lateness costs."""

import os
import shutil
import zipfile
from datetime import datetime
from pathlib import Path

import nbformat
import pytest
from commands import run
from nbformat.v4 import new_code_cell, new_notebook
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import parse_utc
from tiny_lab import NAME, make_course
from traitlets import TraitError
from traitlets.config import Application, Config

from autograder.submissions import lateness
from autograder.tables import collected
from autograder.tables.collected import COLLECTED, note_collected, read_collected

NOON = datetime(2026, 11, 20, 12)
GARBAGE = [b"", b"garbage", b"\x00\xff\xfe", b"9" * 4000, b"2026-13-45", b"1 2 3", b"-1", b"9999999-01-01"]


def policy(**settings: object) -> lateness.Policy:
    return lateness.Policy(config=Config({"Policy": settings}))


@pytest.mark.parametrize(
    ("settings", "late_s", "penalty"),
    [
        ({}, 10**9, None),
        ({"percent_per_day": 10}, 1, 2),
        ({"percent_per_day": 10}, 86400, 2),
        ({"percent_per_day": 10}, 86401, 4),
        ({"percent_per_day": 10}, 10**9, 20),
        ({"percent_per_day": 10, "cap_percent": 50}, 10**9, 10),
        ({"percent_per_day": 10, "grace_minutes": 30}, 1800, None),
        ({"percent_per_day": 10, "grace_minutes": 30}, 1801, 2),
        ({"penalty_method": "zero"}, 1, 20),
        ({"penalty_method": "zero", "grace_minutes": 1}, 60, None),
    ],
)
def test_a_penalty(settings, late_s, penalty):
    assert policy(**settings).late_submission_penalty("ada", 20, late_s) == penalty


@pytest.mark.parametrize("settings", [{"percent_per_day": 101}, {"cap_percent": -1}, {"grace_minutes": -1}])
def test_a_policy_that_makes_no_sense_is_refused(settings):
    with pytest.raises(TraitError, match="should not be"):
        policy(**settings)


@pytest.fixture
def handed_in(tmp_path):
    folder = tmp_path / "submitted" / "ada" / NAME
    folder.mkdir(parents=True)
    return folder


def submitted_at(folder: Path, **settings: object) -> datetime | None:
    course = CourseDirectory(root=str(folder.parents[2]), config=Config({"Policy": settings}))
    return lateness.submitted_at(course, str(folder))


def test_the_students_own_word_does_not_count(handed_in):
    (handed_in / "timestamp.txt").write_text("2020-01-01 00:00:00 UTC")
    assert submitted_at(handed_in) is None
    assert submitted_at(handed_in, trust_timestamps=True) == datetime(2020, 1, 1)


def test_a_setting_counts_that_a_command_reads_after_it_has_made_its_course_folder(handed_in):
    (handed_in / "timestamp.txt").write_text("2020-01-01 00:00:00 UTC")
    app = Application()
    course = CourseDirectory(parent=app, root=str(handed_in.parents[2]))
    app.update_config(Config({"Policy": {"trust_timestamps": True}}))
    assert lateness.submitted_at(course, str(handed_in)) == datetime(2020, 1, 1)


def test_the_collectors_word_counts_and_its_last_one(handed_in):
    (handed_in / "timestamp.txt").write_text("2020-01-01 00:00:00 UTC")
    root = handed_in.parents[2]
    note_collected(root, NAME, "ada", datetime(2026, 11, 19), "first")
    note_collected(root, NAME, "bob", datetime(2026, 11, 18), "another student")
    note_collected(root, "other", "ada", datetime(2026, 11, 18), "another assignment")
    note_collected(root, NAME, "ada", NOON.replace(microsecond=5), "second, with a comma")
    for settings in ({}, {"trust_timestamps": True}):
        assert submitted_at(handed_in, **settings) == NOON.replace(microsecond=5)


def test_a_students_file_name_is_no_formula_in_the_record(tmp_path):
    note_collected(tmp_path, NAME, "ada", NOON, "=HYPERLINK(1).ipynb")
    assert ",'=HYPERLINK(1).ipynb\n" in (tmp_path / COLLECTED).read_text()
    assert read_collected(tmp_path) == {(NAME, "ada"): NOON}


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("written", GARBAGE)
def test_garbage_is_no_time_and_fails_nobody(handed_in, written, trust):
    (handed_in / "timestamp.txt").write_bytes(written)
    if written != b"-1":  # which dateutil takes for a day of this month
        assert submitted_at(handed_in, trust_timestamps=trust) is None
    submitted_at(handed_in, trust_timestamps=trust)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_no_time(handed_in, make):
    make(handed_in / "timestamp.txt")
    assert submitted_at(handed_in, trust_timestamps=True) is None


@pytest.mark.parametrize(
    "text",
    [
        "assignment,student,submitted\nsums,ada,tomorrow",
        "name,time\nada,2026-11-20",
        "assignment,student,submitted\nsums",
    ],
)
def test_a_record_that_cannot_be_read_is_told_with_its_line(tmp_path, text):
    (tmp_path / COLLECTED).write_text(text)
    with pytest.raises(ValueError, match=r"collected\.csv, line 2: write assignment,student,submitted"):
        read_collected(tmp_path)


def test_an_instructors_own_record_may_have_a_time_zone_and_a_byte_order_mark(tmp_path):
    text = "assignment,student,submitted\nsums,ada,2026-11-20T13:00:00+01:00\n,,\n"  # and an empty row
    (tmp_path / COLLECTED).write_text(text, encoding="utf-8-sig")
    assert read_collected(tmp_path) == {("sums", "ada"): NOON}


def test_the_record_is_parsed_once_for_a_whole_class(tmp_path, monkeypatch):
    students = ["ada", "bob", "cy"]
    rows = "".join(f"{NAME},{student},{NOON} UTC\n" for student in students)
    (tmp_path / COLLECTED).write_text(f"assignment,student,submitted\n{rows}")
    parsed = []
    monkeypatch.setattr(collected, "parse_utc", lambda text: parsed.append(text) or parse_utc(text))
    assert {submitted_at(tmp_path / "submitted" / student / NAME) for student in students} == {NOON}
    assert len(parsed) == len(students)
    (tmp_path / COLLECTED).write_text(f"assignment,student,submitted\n{rows}".replace("12:00", "13:00"))
    assert submitted_at(tmp_path / "submitted" / "ada" / NAME) == NOON.replace(hour=13), "as the file is now"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return made(tmp_path_factory.mktemp("course"))


def made(root: Path) -> Path:
    """A course that collects from an exchange and from archives, in an empty folder."""
    make_course(root)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write(f"c.Exchange.root = {str(root / 'exchange')!r}\nc.FileNameCollectorPlugin.named_regexp = REGEXP\n")
        file.write("c.ZipCollectApp.force = True\n")
    config = (root / "nbgrader_config.py").read_text()
    regexp = r".*/(?P<student_id>[a-z]+)_(?P<timestamp>[-\d]+)_(?P<file_id>.*)"
    (root / "nbgrader_config.py").write_text(config.replace("REGEXP", repr(regexp)))
    return root


def nbgrader(root: Path, *words: str, fails: bool = False) -> str:
    done = run(root, "nbgrader", *words)
    assert (done.returncode != 0) == fails, done.stdout
    return done.stdout


def test_nbgrader_collect_notes_the_exchanges_time(course):
    def submit(time: str) -> None:
        folder = course / "exchange" / "worldsize" / "inbound" / f"ada+{NAME}+{time} UTC+x"
        folder.mkdir(parents=True)
        (folder / f"{NAME}.ipynb").write_text("{}")
        (folder / "timestamp.txt").write_text("garbage")

    submit("2026-11-20 12:00:00.000000")
    said = nbgrader(course, "collect", NAME)
    assert "was last changed" in said  # the test made its folder later than the name says
    assert read_collected(course)[NAME, "ada"] == NOON
    kept = (course / COLLECTED).read_text()
    nbgrader(course, "collect", NAME, "--update")  # nothing is newer
    assert (course / COLLECTED).read_text() == kept
    submit("2026-11-21 12:00:00.000000")
    nbgrader(course, "collect", NAME)  # without --update the first one stays, and so does its time
    assert read_collected(course)[NAME, "ada"] == NOON
    nbgrader(course, "collect", NAME, "--update")
    assert read_collected(course)[NAME, "ada"] == NOON.replace(day=21)


def test_nbgrader_zip_collect_notes_the_time_of_the_last_attempt(course):
    archive = course / "downloaded" / NAME / "archive"
    archive.mkdir(parents=True)
    with zipfile.ZipFile(archive / "all.zip", "w") as file:
        for name in ("bob_2026-11-21-10-29-59", "z/bob_2026-11-20-12-00-00", "cy_2026-11-19-12-00-00", "di_99-99"):
            file.writestr(f"{name}_{NAME}.ipynb", "{}")
    said = nbgrader(course, "zip_collect", NAME)
    times = {student: time for (_, student), time in read_collected(course).items() if student in ("bob", "cy", "di")}
    assert times == {"bob": datetime(2026, 11, 21, 10, 29, 59), "cy": datetime(2026, 11, 19, 12)}
    assert "'99-99' is not a time" in said
    assert {one.name for one in (course / "submitted").iterdir()} >= {"bob", "cy", "di"}


def test_who_adds_a_request_for_a_regrade_keeps_the_time(course):
    def submit(day: int, **files: str) -> None:
        folder = course / "exchange" / "worldsize" / "inbound" / f"zed+{NAME}+2026-11-{day} 12:00:00.000000 UTC+x"
        folder.mkdir(parents=True)
        for name, text in {"timestamp.txt": "", f"{NAME}.ipynb": "{}", **files}.items():
            (folder / name).write_text(text)

    def collect() -> int:
        nbgrader(course, "collect", NAME, "--update")
        return read_collected(course)[NAME, "zed"].day

    submit(19)
    assert collect() == 19
    submit(25, **{"regrade.md": "# check_total\nPlease.\n"})
    assert collect() == 19 and (course / "submitted/zed" / NAME / "regrade.md").exists()
    submit(26, **{"regrade.md": "# check_total\nPlease.\n", f"{NAME}.ipynb": "{ }"})
    assert collect() == 26, "other work is new work"
    request, notebook = {"regrade.md": "Please."}, new_notebook(cells=[new_code_cell("x = 1")])
    submit(27, **request, **{f"{NAME}.ipynb": nbformat.writes(notebook)})
    assert collect() == 27
    notebook.cells[0].execution_count = 3
    submit(28, **request, **{f"{NAME}.ipynb": nbformat.writes(notebook)})
    assert collect() == 27, "it was opened, run and saved"
    notebook.cells[0].source = "x = 2"
    submit(29, **request, **{f"{NAME}.ipynb": nbformat.writes(notebook)})
    assert collect() == 29


def test_work_that_cannot_be_collected_leaves_the_earlier_work_there(course):
    def submit(day: int, size: int) -> None:
        folder = course / "exchange" / "worldsize" / "inbound" / f"yan+{NAME}+2026-11-{day} 12:00:00.000000 UTC+x"
        folder.mkdir(parents=True)
        (folder / f"{NAME}.ipynb").write_text("{}")
        (folder / "timestamp.txt").write_text("")
        (folder / "data.bin").write_bytes(bytes(size))

    submit(19, 10)
    nbgrader(course, "collect", NAME, "--update")
    submit(20, 300_000)
    nbgrader(course, "collect", NAME, "--update", "--CourseDirectory.max_dir_size=100", fails=True)
    assert (course / "submitted/yan" / NAME / "data.bin").stat().st_size == 10
    assert read_collected(course)[NAME, "yan"].day == 19


def test_files_that_are_not_handed_over_leave_the_earlier_time(tmp_path):
    course = made(tmp_path)
    archive = course / "downloaded" / NAME / "archive"
    archive.mkdir(parents=True)
    (archive / f"bob_2026-11-19-12-00-00_{NAME}.ipynb").write_text("{}")
    nbgrader(course, "zip_collect", NAME)
    (archive / f"bob_2026-11-29-12-00-00_{NAME}.ipynb").write_text("{ }")
    shutil.rmtree(course / "downloaded" / NAME / "extracted")
    nbgrader(course, "zip_collect", NAME, "--ZipCollectApp.force=False", fails=True)
    assert (course / "submitted/bob" / NAME / f"{NAME}.ipynb").read_text() == "{}"
    assert read_collected(course)[NAME, "bob"].day == 19
