"""What of the machine a jail shows, and that no course can be read in it, wherever it lies."""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from pathlib import Path

import cloudpickle
import pytest
from launching import run
from needs import give_up
from tiny_lab import CHECKS, judged, make_course, message, needs_jail

from autograder import sandbox
from autograder.sandbox import Limits, Sandbox, Tier, jail
from autograder.sandbox import visible as rules
from autograder.sandbox.visible import courses_around, visible_paths

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def readable_below(folder):
    """The files below a folder, by whichever way they can be read."""
    found = [os.path.join(inside, name) for inside, _, files in os.walk(folder) for name in files]
    for name in ("checks.py", "solutions/sums/checks.py", "submitted/ada/sums.ipynb"):
        path = Path(folder, name)
        for way in (path.read_text, lambda path=path: os.readlink(path), lambda path=path: os.stat(path)):
            try:
                way()
            except OSError:
                continue
            found.append(name)
    return found


def imports(names):
    import importlib

    return [importlib.import_module(name).__name__ for name in names]


@pytest.fixture
def course_below_python():
    """A course in a folder that jails show as a part of Python, with a hidden check and a submission in it."""
    try:
        with tempfile.TemporaryDirectory(prefix="course-", dir=sysconfig.get_paths()["purelib"]) as folder:
            os.chmod(folder, 0o755)
            root = Path(folder)
            for name in ("nbgrader_config.py", "solutions/sums/checks.py", "submitted/ada/sums.ipynb"):
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("secret")
            yield root
    except PermissionError:
        give_up("sandbox", "this user cannot write into its Python's folders")


@needs_jail
def test_a_course_below_a_folder_that_is_shown_cannot_be_read(course_below_python):
    with Sandbox(hidden=[str(course_below_python / "solutions" / "sums")]) as opened:
        options = {"world_size": 1, "echo": False, "forkserver": opened.forkserver}
        assert run(readable_below, str(course_below_python), **options).values == [[]]
        names = ["torch", "numpy", "worldsize", "email.mime.text", "safetensors"]
        assert run(imports, names, **options).values == [names]


def test_landlock_alone_keeps_such_a_course_shut_too(course_below_python, monkeypatch):
    if jail.landlock_abi() < jail.SCOPED_ABI:
        give_up("sandbox", "this kernel's Landlock cannot keep signals to a jail")
    monkeypatch.setattr(sandbox, "probe", lambda: Tier(user=os.geteuid() == 0, landlock=True))
    link = course_below_python.with_name(course_below_python.name + "-link")
    link.symlink_to(course_below_python)
    try:
        with Sandbox(Limits(), hidden=[str(course_below_python)]) as opened:
            options = {"world_size": 1, "echo": False, "forkserver": opened.forkserver}
            for path in (course_below_python, link):
                (found,) = run(readable_without_stat, str(path), **options).values
                assert found == []
            assert run(imports, ["torch", "worldsize"], **options).values == [["torch", "worldsize"]]
    finally:
        link.unlink()


def readable_without_stat(folder):
    """The files below a folder that can be opened: Landlock alone hides no names and sizes."""
    found = []
    for name in ("nbgrader_config.py", "solutions/sums/checks.py", "submitted/ada/sums.ipynb"):
        try:
            found.append(Path(folder, name).read_text())
        except OSError:
            continue
    return found


@needs_jail
def test_a_lab_of_such_a_course_is_judged_and_its_checks_are_not_to_be_found(course_below_python):
    checks = course_below_python / "solutions" / "sums" / "checks.py"
    checks.write_text(CHECKS)
    looks = f"""
import os
def total(tensor):
    found = [name for _, _, files in os.walk({str(course_below_python)!r}) for name in files]
    raise KeyError if found else FileNotFoundError
"""
    report = judged(checks, total=looks)
    assert "FileNotFoundError" in message(report, "check_total_sums")
    assert report.score == 2


# the rules, without a jail


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with programs, a Python and a course below its folder `usr`."""
    for name in ("usr/bin", "usr/lib/python3", "usr/src/other", "usr/src/app/solutions", "usr/src/app/worldsize"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "usr/src/app/nbgrader_config.py").touch()
    (tmp_path / "usr/file").touch()
    (tmp_path / "usr/link").symlink_to("src/app")
    (tmp_path / "lib").symlink_to("usr/lib")
    python = str(tmp_path / "usr/lib/python3")
    monkeypatch.setattr(rules, "_SYSTEM", (str(tmp_path / "usr"), str(tmp_path / "lib")))
    monkeypatch.setattr(rules.site, "getsitepackages", lambda: [])
    monkeypatch.setattr(rules.sysconfig, "get_paths", lambda: {"stdlib": python})
    monkeypatch.setattr(sys, "prefix", python)
    monkeypatch.setattr(sys, "base_prefix", python)
    monkeypatch.setattr(rules.worldsize, "__file__", str(tmp_path / "usr/src/app/worldsize/__init__.py"))
    return tmp_path


def shown(machine, *hidden):
    return [os.path.relpath(path, machine) for path in visible_paths([str(machine / one) for one in hidden])]


def test_without_a_course_below_it_a_folder_is_shown_whole(machine):
    assert shown(machine) == ["lib", "usr"]
    assert shown(machine, "home/course") == ["lib", "usr"]


def test_a_folder_that_holds_a_course_is_shown_in_parts(machine):
    parts = ["lib", "usr/bin", "usr/file", "usr/lib", "usr/link", "usr/src/app/worldsize", "usr/src/other"]
    assert shown(machine, "usr/src/app") == parts
    assert shown(machine, "usr/link") == parts, "named by a link, it is the same course"


def test_of_an_environment_at_a_courses_root_only_python_is_shown(machine, monkeypatch):
    for name in ("bin", "lib", "pyvenv.cfg", "submitted"):
        (machine / "usr/src/app" / name).mkdir()
    monkeypatch.setattr(sys, "prefix", str(machine / "usr/src/app"))
    of_the_course = [path for path in shown(machine, "usr/src/app") if path.startswith("usr/src/app")]
    assert of_the_course == [f"usr/src/app/{name}" for name in ("bin", "lib", "pyvenv.cfg", "worldsize")]


def test_an_environment_inside_a_course_is_shown(machine, monkeypatch):
    (machine / "usr/src/app/.venv/bin").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(machine / "usr/src/app/.venv"))
    assert "usr/src/app/.venv" in shown(machine, "usr/src/app")


def test_a_course_is_found_from_any_place_in_it(machine):
    inside = [str(machine / "usr/src/app/solutions/lab01/checks.py"), str(machine / "usr/link/solutions")]
    assert courses_around([*inside, str(machine / "usr/bin")]) == [str(machine / "usr/src/app")]


def test_a_jail_hides_the_course_in_which_it_is_made(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(sandbox, "plan", lambda *args: made.append(args[5]) or {})
    monkeypatch.setattr(sandbox, "probe", lambda: Tier(namespaces=True))
    monkeypatch.setattr(sandbox, "Forkserver", lambda *_, **__: None)
    course = make_course(tmp_path / "course")
    monkeypatch.chdir(course / "solutions")
    Sandbox(hidden=["/elsewhere"])
    assert {str(course), "/elsewhere"} <= set(made[0])
