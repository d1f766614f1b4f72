"""Results of optional packages: measured where a package is installed, else recorded; no lesson leaves one out."""

import contextlib
import importlib
import io
import json
import re
import sys
from types import SimpleNamespace

import pytest
from repository import ROOT

from worldsize.course import optional

WEEKS = sorted((ROOT / "weeks").glob("week*.py"))
FILE = ROOT / "worldsize" / "data" / "recorded.json"
ENTRIES = [(lesson, key) for lesson, results in json.loads(FILE.read_text()).items() for key in results]
MADE_WITH = r"\d+(\.\d+)+ and torch 2(\.\d+)+ on \d+ cores( that other work kept busy)?"
LINE = rf"^(\S+) is not installed\. Recorded with \1 {MADE_WITH}; to measure it: \S+ "
# what the lessons' cells that show such results need of the cells above them
NEEDED = {
    "week11": {"healthy": SimpleNamespace(overlap_fraction=lambda rank: 0.5)},
    "week13": {
        **{"results": {}, "measured": {}, "survived": {}},
        **dict.fromkeys(("by_torchrun", "by_horovodrun", "by_mpirun", "by_itself", "by_replicas"), lambda name: {}),
    },
}
IMPORTED = ("dataclasses", "functools", "os", "worldsize.course.optional", "worldsize.units")


@pytest.fixture
def hidden(monkeypatch):
    """No optional package is installed."""
    monkeypatch.setattr(optional, "is_installed", lambda package: False)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file of one recorded result, in place of the shipped one."""
    path = tmp_path / "recorded.json"
    entry = {"made_with": "HTA 0.5.0 and torch 2.13.0 on 2 cores", "result": [3]}
    path.write_text(json.dumps({"week11": {"HTA": entry, "HTA, twice": {**entry, "result": [6]}}}))
    monkeypatch.setattr(optional, "_FILE", path)
    monkeypatch.setattr(optional, "busy_cores", lambda: 0.1)
    return path


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """A program that is the only thing that the package "tool" has."""
    path = tmp_path / "tool"
    path.write_text("#!/bin/sh\necho tool, version 1.2.3+ds '(2026.1)'\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setitem(optional.PACKAGES, "tool", optional.Package("get tool", programs=("tool",)))


def test_what_is_installed_is_measured(file, tool, capsys):
    assert optional.is_installed("tool") and optional.where("tool") == "here"
    assert optional.result("week11", "tool", lambda: {"found": 1.5}) == {"found": 1.5}
    assert capsys.readouterr().out == "" and "tool" not in file.read_text()


@pytest.mark.parametrize("what", ["", "twice"])
def test_a_hidden_module_gives_the_recorded_result_with_its_versions_and_its_command(what, file, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "hta", None)
    assert not optional.is_installed("HTA") and optional.where("HTA") == "recorded"
    assert optional.result("week11", "HTA", pytest.fail, what) == ([6] if what else [3])
    line = "HTA is not installed. Recorded with HTA 0.5.0 and torch 2.13.0 on 2 cores; to measure it: "
    assert capsys.readouterr().out == line + "pip install 'worldsize[hta]'\n"


def test_a_package_without_one_of_its_programs_is_not_installed(monkeypatch):
    monkeypatch.setattr(optional, "find", lambda program: "" if program == "mungekey" else "there")
    assert not optional.is_installed("Slurm") and optional.is_installed("Prometheus")


def test_a_measurement_that_the_machine_does_not_permit_is_recorded_too(file, monkeypatch, capsys):
    monkeypatch.setattr(optional, "is_installed", lambda package: True)
    assert optional.result("week11", "HTA", lambda: None) == [3]
    assert capsys.readouterr().out.startswith("HTA gave no result. Recorded with HTA 0.5.0 ")


def test_a_record_is_the_same_text_for_the_same_result(file, tool, monkeypatch):
    monkeypatch.setenv("WORLDSIZE_RECORD", "1")
    given = {"b": 1 / 3, "a": (1, 5.171000123456, "text")}
    assert optional.result("week13", "tool", lambda: given, "killed") == given
    once = file.read_text()
    optional.result("week13", "tool", lambda: dict(reversed(given.items())), "killed")
    assert file.read_text() == once
    (entry,) = json.loads(once)["week13"].items()
    assert entry[0] == "tool, killed" and entry[1]["result"] == {"a": [1, 5.171, "text"], "b": 0.3333333}
    assert re.fullmatch(r"tool 1\.2\.3 and torch 2(\.\d+)+ on \d+ cores", entry[1]["made_with"])
    assert list(json.loads(once)) == ["week11", "week13"] and once.index('"a"') < once.index('"b"')


def test_a_record_says_that_the_machine_was_busy(file, tool, monkeypatch):
    monkeypatch.setenv("WORLDSIZE_RECORD", "1")
    monkeypatch.setattr(optional, "busy_cores", lambda: 1.5)
    optional.result("week13", "tool", lambda: 1)
    made_with = json.loads(file.read_text())["week13"]["tool"]["made_with"]
    assert made_with.endswith(" cores that other work kept busy")


def test_a_python_package_is_recorded_with_its_distributions_version(file, monkeypatch):
    monkeypatch.setenv("WORLDSIZE_RECORD", "1")
    monkeypatch.setitem(optional.PACKAGES, "YAML", optional.Package("", ("yaml",)))
    optional.result("week13", "YAML", lambda: 1)
    made_with = json.loads(file.read_text())["week13"]["YAML"]["made_with"]
    assert made_with.startswith(f"YAML {importlib.metadata.version('PyYAML')} and torch ")


def shown_by(week):
    """What a week's cells with results of optional packages print, and those that define what these need."""
    names = {name.rpartition(".")[2]: importlib.import_module(name) for name in IMPORTED} | NEEDED.get(
        week.stem[:6], {}
    )
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for cell in week.read_text().split("\n# %% "):  # parsing it takes a second
            title, _, source = cell.partition("\n")
            if title in ("frameworks", "killed_horovod", "read_by_hta") or "optional.result" in source:
                exec(source, names)
    return printed.getvalue().splitlines()


def test_each_lesson_shows_recorded_results_where_packages_are_absent_and_all_are_used(hidden):
    num_marked = 0
    for week in (week for week in WEEKS if "optional.result" in week.read_text()):
        lines = shown_by(week)
        marked = [line for line in lines if re.match(LINE, line)]
        assert [line for line in lines if "not installed" in line] == marked
        assert len(lines) > len(marked), f"{week.name} shows no result below such a line"
        num_marked += len(marked)
    assert num_marked == sum(lesson.startswith("week") for lesson, _ in ENTRIES) > 10


def test_no_lesson_looks_for_a_package_by_itself():
    lessons = [*WEEKS, *(ROOT / "solutions").glob("lab*/lab*.py")]
    assert [lesson.name for lesson in lessons if "find_spec" in lesson.read_text()] == []
    assert [week.name for week in WEEKS if "shutil.which" in week.read_text()] == []


@pytest.mark.parametrize("entry", ENTRIES, ids="-".join)
def test_no_record_names_a_path(entry):
    lesson, key = entry
    assert not re.search(r'[\s("]/\w', json.dumps(json.loads(FILE.read_text())[lesson][key]))
