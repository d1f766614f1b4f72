"""What travels through nbgrader's exchange: a project's programs do; what a student's link leads to does not."""

import os
import socket
import stat
import zipfile
from datetime import datetime
from pathlib import Path

import pytest
from commands import run, run_afresh
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange import ExchangeError
from tiny_lab import need_root
from tiny_project import NAME, PROGRAM, make_course
from traitlets.config import Config

from autograder.submissions.collecting import collectors, exchange
from autograder.tables.collected import read_collected

SECRET = "the hidden checks"
NOON = "2026-11-20 12:00:00.000000 UTC"
REGEXP = r".*/(?P<student_id>[a-z]+)_(?P<file_id>[^/]+)"


@pytest.fixture
def secret(tmp_path):
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "checks.py").write_text(SECRET)
    return folder / "checks.py"


def inbound(root: Path) -> Path:
    return root / "exchange" / "worldsize" / "inbound"


def submission(root: Path, student: str, time: str = NOON) -> Path:
    """A student's folder in the exchange, with a report and a program."""
    folder = inbound(root) / f"{student}+{NAME}+{time}+x"
    folder.mkdir(parents=True)
    (folder / "report.ipynb").write_text("{}")
    (folder / PROGRAM).write_text("print(1)\n")
    return folder


def mischief(folder: Path, secret: Path) -> None:
    """Puts all that is no plain file into a student's folder."""
    (folder / "data").mkdir()
    (folder / "data" / "numbers.txt").write_text("1 2 3")
    (folder / "leak.html").symlink_to(secret)
    (folder / "leaks").symlink_to(secret.parent)
    (folder / "data" / "leak.html").symlink_to(secret)
    (folder / "dangling.txt").symlink_to("nowhere")
    os.mkfifo(folder / "a_pipe")
    here = os.getcwd()
    os.chdir(folder)  # the path of a socket may have 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("a_socket")
    finally:
        os.chdir(here)


def collector(root: Path, assignment: str = NAME, **settings: object) -> collectors.Collect:
    """The collector of a course with nothing in it, without a command round it."""
    config = Config(
        {
            "CourseDirectory": {"ignore": ["*.py", ".*"], "course_id": "worldsize", **settings},
            "Exchange": {"root": str(root / "exchange")},
        }
    )
    coursedir = CourseDirectory(root=str(root), config=config)
    coursedir.assignment_id = assignment
    return collectors.Collect(coursedir=coursedir, config=config)


def collected(root: Path, student: str) -> set[str]:
    """All that arrived of a student's folder."""
    folder = root / "submitted" / student / NAME
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_nbgrader_carries_a_project_there_and_back(tmp_path, secret):
    course, home = tmp_path / "course", tmp_path / "home"
    make_course(course)
    home.mkdir()
    settings = f"c.Exchange.root = {str(tmp_path / 'exchange')!r}\nc.Exchange.cache = {str(tmp_path / 'cache')!r}\n"
    for root in (course, home):
        text = (course / "nbgrader_config.py").read_text()
        (root / "nbgrader_config.py").write_text(text + settings)

    def done(root: Path, *words: str) -> str:
        ended = run_afresh(root, "nbgrader", *words)
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    done(course, "generate_assignment", NAME, "--force")
    done(course, "release_assignment", NAME)
    outbound = tmp_path / "exchange" / "worldsize" / "outbound" / NAME
    assert {path.name for path in outbound.iterdir()} == {"report.ipynb", PROGRAM}
    done(home, "fetch_assignment", NAME)
    assert {path.name for path in (home / NAME).iterdir()} == {"report.ipynb", PROGRAM}
    done(home, "submit", NAME, "--student=ada")
    (handed_in,) = (tmp_path / "exchange" / "worldsize" / "inbound").iterdir()
    mischief(handed_in, secret)
    submission(tmp_path, "bob")
    said = done(course, "collect", NAME)
    plain = {"report.ipynb", PROGRAM, "timestamp.txt", "submission_secret.txt", "data", "data/numbers.txt"}
    assert collected(course, "ada") == plain
    assert collected(course, "bob") == {"report.ipynb", PROGRAM}
    for name in ("leak.html", "leaks", "data/leak.html", "dangling.txt", "a_pipe", "a_socket"):
        assert f"{handed_in / name}' is left out" in said


def test_an_assignment_is_generated_without_what_lies_beside_its_solution(tmp_path):
    make_course(tmp_path)
    assert run(tmp_path, "nbgrader", "generate_assignment", NAME, "--force").returncode == 0
    assert {path.name for path in (tmp_path / "labs" / NAME).iterdir()} == {"report.ipynb", PROGRAM}
    assert "raise NotImplementedError" in (tmp_path / "labs" / NAME / PROGRAM).read_text()


@pytest.mark.parametrize("make", [exchange.Release, exchange.Submit])
def test_programs_are_ignored_again_after_a_copy_that_failed(tmp_path, make):
    coursedir = collector(tmp_path, max_dir_size=0).coursedir
    (tmp_path / "report.ipynb").write_text("{}")
    with pytest.raises(RuntimeError, match="too big"):
        make(coursedir=coursedir).do_copy(str(tmp_path), str(tmp_path / "copy"))
    assert coursedir.ignore == ["*.py", ".*"]


def test_a_lab_has_no_programs(tmp_path):
    folder = submission(tmp_path, "ada")
    folder = folder.rename(folder.with_name(f"ada+lab01+{NOON}+x"))
    collector(tmp_path, "lab01").start()
    assert os.listdir(tmp_path / "submitted" / "ada" / "lab01") == ["report.ipynb"]


@pytest.mark.parametrize(
    "make",
    [
        lambda path, secret: path.symlink_to(secret.parent),
        lambda path, secret: path.symlink_to("nowhere"),
        lambda path, secret: path.write_text("no folder"),
        lambda path, secret: os.mkfifo(path),
    ],
)
def test_what_takes_the_place_of_a_students_folder_hides_nobodys(tmp_path, secret, make):
    submission(tmp_path, "ada")
    submission(tmp_path, "bob")
    make(inbound(tmp_path) / f"ada+{NAME}+{NOON.replace('2026', '2027')}+x", secret)
    make(inbound(tmp_path) / f"eve+{NAME}+{NOON}+x", secret)
    collector(tmp_path).start()
    assert sorted(os.listdir(tmp_path / "submitted")) == ["ada", "bob"]
    assert collected(tmp_path, "ada") == collected(tmp_path, "bob") == {"report.ipynb", PROGRAM}
    assert read_collected(tmp_path)[NAME, "ada"] == datetime(2026, 11, 20, 12)


@pytest.mark.parametrize("name", [f"a+{NAME}+yesterday+x", f"+{NAME}+{NOON}+x", f"a+{NAME}+{NOON}+\udcff"])
def test_a_folder_with_an_odd_name_stops_nobodys_collection(tmp_path, name):
    submission(tmp_path, "bob")
    os.mkdir(inbound(tmp_path) / name)
    collector(tmp_path).start()
    assert os.listdir(tmp_path / "submitted") == ["bob"]


def test_a_folder_that_becomes_a_link_is_not_followed(tmp_path, secret):
    folder = submission(tmp_path, "ada")
    submission(tmp_path, "bob")
    collect = collector(tmp_path)
    collect.init_src()
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(secret.parent)
    with pytest.raises(ExchangeError, match=r"Not collected: ada$"):
        collect.copy_files()
    assert collected(tmp_path, "bob") == {"report.ipynb", PROGRAM}
    assert collected(tmp_path, "ada") == set() and (NAME, "ada") not in read_collected(tmp_path)


@pytest.mark.parametrize("reason", [PermissionError(13, "Permission denied"), FileNotFoundError(2, "No such file")])
def test_a_file_that_cannot_be_opened_is_left_out(tmp_path, monkeypatch, caplog, reason):
    folder = submission(tmp_path, "ada")
    (folder / "notes.txt").write_text("private")
    submission(tmp_path, "bob")
    really = os.open

    def fail(path, *rest, **kw):
        if os.path.basename(path) == "notes.txt":  # also root's tests have one that cannot be read
            raise reason
        return really(path, *rest, **kw)

    monkeypatch.setattr(os, "open", fail)
    monkeypatch.setattr("shutil.copy2", fail)  # by which nbgrader copies
    collect = collector(tmp_path)
    collect.log.propagate = True
    collect.start()
    assert collected(tmp_path, "ada") == collected(tmp_path, "bob") == {"report.ipynb", PROGRAM}
    assert f"{folder / 'notes.txt'}' is left out of what is collected: it {reason.strerror}" in caplog.text


def test_a_submission_that_is_too_large_is_told_and_stops_nobodys(tmp_path):
    for place, name in enumerate(("a", "b", "c")):
        (submission(tmp_path, name) / "data.txt").write_bytes(bytes(900 if place == 1 else 0))
    (inbound(tmp_path) / f"b+{NAME}+{NOON}+x" / "more.txt").write_bytes(bytes(900))
    with pytest.raises(ExchangeError, match=r"Not collected: b$"):
        collector(tmp_path, max_dir_size=1).start()
    assert collected(tmp_path, "a") == collected(tmp_path, "c") == {"report.ipynb", PROGRAM, "data.txt"}
    assert not (tmp_path / "submitted" / "b" / NAME).exists()


def test_nbgraders_limits_and_patterns_hold(tmp_path):
    folder = submission(tmp_path, "ada")
    (folder / ".git").mkdir()
    (folder / "large.txt").write_bytes(bytes(1001))
    (folder / "picture.png").write_bytes(b"1")
    collector(tmp_path, max_file_size=1, include=["*.txt", "*.py", "*.ipynb"]).start()
    assert collected(tmp_path, "ada") == {"report.ipynb", PROGRAM}


def test_folders_in_folders_have_an_end(tmp_path):
    folder = submission(tmp_path, "ada")
    (folder / "/".join("d" * 100)).mkdir(parents=True)
    collector(tmp_path).start()
    assert max(path.count("/") for path in collected(tmp_path, "ada")) < 20


@pytest.mark.parametrize(("is_shared", "modes"), [(False, (0o744, 0o604)), (True, (0o2774, 0o664))])
def test_modes_are_kept_widened_for_a_group_and_without_other_rights(tmp_path, is_shared, modes):
    need_root("only root reads what its owner may not")
    folder = submission(tmp_path, "ada")
    (folder / PROGRAM).chmod(0o4004)
    folder.chmod(0o2044)
    coursedir = collector(tmp_path, groupshared=is_shared).coursedir
    exchange.copy_plain(coursedir, str(folder), str(tmp_path / "copy"), collector(tmp_path).log)
    found = (stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "copy", tmp_path / "copy" / PROGRAM))
    assert tuple(found) == modes


def test_zip_collect_takes_the_program_that_was_asked_for(tmp_path):
    make_course(tmp_path, f"c.FileNameCollectorPlugin.named_regexp = {REGEXP!r}\n")
    archive = tmp_path / "downloaded" / NAME / "archive"
    archive.mkdir(parents=True)
    with zipfile.ZipFile(archive / "all.zip", "w") as file:
        for name in ("ada_report.ipynb", f"ada_{PROGRAM}", "x/ada_library.py", "y/ada_library.py", "bob_report.ipynb"):
            file.writestr(name, "{}")
    done = run_afresh(tmp_path, "nbgrader", "zip_collect", NAME)
    assert done.returncode == 0, done.stdout
    assert collected(tmp_path, "ada") == {"report.ipynb", PROGRAM}
    assert collected(tmp_path, "bob") == {"report.ipynb"}


def test_zip_collect_gives_nobody_what_another_handed_in_under_that_name(tmp_path):
    make_course(tmp_path, f"c.FileNameCollectorPlugin.named_regexp = {REGEXP!r}\n")
    archive = tmp_path / "downloaded" / NAME / "archive"
    archive.mkdir(parents=True)
    inner = archive / "inner.zip"
    with zipfile.ZipFile(inner, "w") as file:
        file.writestr("eve_report.ipynb", '{"by": "eve"}')
        file.writestr("bob_report.ipynb", '{"by": "eve"}')
    with zipfile.ZipFile(archive / "all.zip", "w") as file:
        file.write(inner, "eve_work.zip")
        file.writestr("bob_report.ipynb", '{"by": "bob"}')
        file.writestr("cleo_report.zip", b"damaged")
    inner.unlink()
    done = run(tmp_path, "nbgrader", "zip_collect", NAME)
    assert done.returncode == 0, done.stdout
    assert {path.name: (path / NAME / "report.ipynb").read_text() for path in (tmp_path / "submitted").iterdir()} == {
        "bob": '{"by": "bob"}',
        "eve": '{"by": "eve"}',
    }
    assert "it is in an archive that somebody else handed in" in done.stdout and "cleo_report.zip" in done.stdout


def released_feedback(root: Path, student: str, secret: str | None) -> None:
    folder = root / "feedback" / student / NAME
    folder.mkdir(parents=True)
    (folder / "report.html").write_text(student)
    (folder / "timestamp.txt").write_text(NOON)
    if secret is not None:
        (folder / "submission_secret.txt").write_bytes(secret.encode("latin-1"))


def test_feedback_is_released_from_a_course_with_brackets_in_its_path(tmp_path):
    root = tmp_path / "course [2026]"
    released_feedback(root, "ada", "a")
    (root / "exchange").mkdir()
    app = collector(root)
    exchange.ReleaseFeedback(coursedir=app.coursedir, config=app.config).start()
    pages = (root / "exchange" / "worldsize" / "feedback").glob("*.html")
    assert [page.read_text() for page in pages] == ["ada"]


def test_feedback_of_the_others_is_released_where_one_student_has_no_secret(tmp_path):
    for student, secret in (("ada", "a"), ("bob", None), ("cleo", "\xff"), ("dan", "d")):
        released_feedback(tmp_path, student, secret)
    (tmp_path / "exchange").mkdir()
    release = exchange.ReleaseFeedback(coursedir=collector(tmp_path).coursedir, config=collector(tmp_path).config)
    with pytest.raises(ExchangeError, match=r"Not released: \S*/bob/\S+, \S*/cleo/\S+$"):
        release.start()
    pages = (tmp_path / "exchange" / "worldsize" / "feedback").glob("*.html")
    assert sorted(page.read_text() for page in pages) == ["ada", "dan"]
