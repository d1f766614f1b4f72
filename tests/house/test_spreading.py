"""How tests are spread over workers: what shares a prepared fixture stays together, and the longest starts first."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import tiers
from repository import ROOT
from tiers import Measured

CONFTEST = ROOT / "tests" / "conftest.py"
SHARING = """
import pytest

@pytest.fixture(scope="module")
def prepared(worker_id, request):
    (request.path.parent / worker_id).touch()

@pytest.mark.parametrize("number", range(8))
def test_shares(prepared, number):
    pass
"""


@pytest.fixture(scope="module")
def prepared() -> object:
    return object()


@pytest.fixture
def conftest(request) -> ModuleType:
    plugins = request.config.pluginmanager.get_plugins()
    return next(one for one in plugins if getattr(one, "__file__", "") == str(CONFTEST))


def test_one_worker_runs_all_that_uses_what_is_prepared_for_a_file(prepared: object, request) -> None:
    assert request.node.get_closest_marker("xdist_group").args == ("tests/house/test_spreading.py",)


def test_a_fixture_of_a_file_is_prepared_by_one_worker(tmp_path) -> None:
    done = run_tests(tmp_path, SHARING, {})
    assert "8 passed" in done, done
    assert len(list(tmp_path.glob("gw*"))) == 1


def test_a_test_that_needs_nothing_prepared_goes_anywhere(request) -> None:
    assert request.node.get_closest_marker("xdist_group") is None


def test_a_group_takes_as_long_as_its_tests_together(conftest) -> None:
    first, alone, last = item("a.py::first", "folder"), item("a.py::alone"), item("a.py::last", "folder")
    measured = Measured({"a.py::alone": [3, 1], "a.py::last": [2, 1], "a.py::first": [2.5, 1]})
    groups = conftest.groups_of([first, alone, last])
    assert groups == {"folder": [first, last], "a.py::alone": [alone]}
    assert [conftest.length_s(group, measured) for group in groups.values()] == [4.5, 3]


def test_a_group_of_a_new_file_may_take_forever(conftest) -> None:
    measured = Measured({"a.py": [0.1, 0.1], "a.py::slow": [9, 9]})
    assert conftest.length_s([item("a.py::quick")], measured) == 0
    assert conftest.length_s([item("new.py::new")], measured) == math.inf


FIVE = """
import pytest

@pytest.mark.parametrize("number", range(5))
def test_is_one_of_five(number):
    pass
"""


def test_the_longest_starts_first(tmp_path) -> None:
    took = {f"test_one.py::test_is_one_of_five[{number}]": [number, 0] for number in range(5)}
    done = run_tests(tmp_path, FIVE, took, "-n", "1", "-vv")
    assert re.findall(r"PASSED .*five\[(\d)\]", done) == ["4", "3", "2", "1", "0"], done


def test_each_part_of_the_long_groups_is_drawn_once_with_all_short_and_new_ones(conftest) -> None:
    long = {f"long {number}": conftest.LONG_S + number for number in range(1, 7)}
    lengths_s = {"short": conftest.LONG_S, **long, "new": math.inf}
    parts = [conftest.drawn(lengths_s, 3, seed) - {"short", "new"} for seed in (30, 31, 32)]
    assert sorted(name for part in parts for name in part) == sorted(long)
    assert [len(part) for part in parts] == [2, 2, 2]
    assert all({"short", "new"} <= conftest.drawn(lengths_s, 3, seed) for seed in range(3))


def test_tests_that_are_not_drawn_are_deselected(tmp_path, conftest) -> None:
    took = {f"test_one.py::test_is_one_of_five[{number}]": [conftest.LONG_S + 1, 0] for number in range(4)}
    done = run_tests(tmp_path, FIVE, took, "--draw", "2")
    assert "3 passed" in done, done
    assert "5 passed" in run_tests(tmp_path, FIVE, took), done


def test_durations_of_a_part_replace_only_those_of_its_files_and_of_no_slow_test_that_did_not_run() -> None:
    before = Measured({"a.py::old": [1, 1], "a.py::slow": [5, 5], "b.py": [0.2, 0.1], "b.py::slow": [7, 6]})
    after = before.updated({"a.py::new": [1.26, 1.2], "a.py::quick": [0.1, 0.1], "a.py::quicker": [0.1, 0]})
    a = {"a.py": [0.2, 0.1], "a.py::new": [1.3, 1.2], "a.py::slow": [5, 5]}
    assert after.took == {**a, "b.py": [0.2, 0.1], "b.py::slow": [7, 6]}


def test_nearly_all_files_have_been_measured(conftest) -> None:
    measured = Measured.read(conftest.DURATIONS)
    files = [path for path in CONFTEST.parent.rglob("test_*.py") if "bench" not in path.parts]
    unknown = [path.name for path in files if not measured.knows(str(path.relative_to(ROOT)))]
    assert len(unknown) < len(files) / 10, f"make session ARGS=--write-durations: {unknown}"


COSTLY = """
import os, subprocess, sys, time
import pytest

BURN = "import time\\nwhile time.process_time() < {}: pass"

@pytest.fixture(scope="module")
def prepared():
    subprocess.run([sys.executable, "-c", BURN.format(1.5)], check=True)

def test_is_quick(prepared):
    pass

def test_is_quick_too(prepared):
    pass

def test_burns_in_a_child():
    subprocess.run([sys.executable, "-c", BURN.format(1)], check=True)

def test_waits():
    time.sleep(1)
"""


def test_the_cpu_of_children_counts_and_time_spent_waiting_does_not(tmp_path) -> None:
    run_tests(tmp_path, COSTLY, {}, "--write-durations")
    took = json.loads((tmp_path / "durations.json").read_text())
    assert took["test_one.py::test_burns_in_a_child"][1] >= 1
    assert took["test_one.py::test_waits"][0] >= 1 > took["test_one.py::test_waits"][1] + 0.5
    assert took["test_one.py::<prepared>"][1] >= 1.5
    assert took.get("test_one.py::test_is_quick", [0, 0])[1] < 1  # not what it waited for to be prepared


def test_what_is_shared_counts_for_each_test_that_uses_it(tmp_path) -> None:
    took = {"test_one.py::<prepared>": [1, 1.6], "test_one.py::test_burns_in_a_child": [2, 1.4]}
    done = run_tests(tmp_path, COSTLY, took, "-m", "slow")
    assert "2 passed" in done, done
    done = run_tests(tmp_path, COSTLY, took | {"test_one.py::test_waits": [tiers.FAST_WALL_S + 0.1, 0]}, "-m", "slow")
    assert "3 passed" in done, done


def test_a_fast_test_that_has_grown_slow_fails(tmp_path) -> None:
    grown = COSTLY.replace("format(1)", f"format({tiers.GROWN_CPU_S + 0.5})")
    done = run_tests(tmp_path, grown, {}, "--budget")
    assert "4 passed, 1 error" in done and "a fast one may use 1.5. Make it quicker" in done, done
    known = run_tests(tmp_path, grown, {"test_one.py::test_burns_in_a_child": [9, 9]}, "--budget")
    assert "4 passed" in known and "error" not in known, known


def run_tests(folder: Path, source: str, took: dict[str, list[float]], *options: str) -> str:
    """Run these tests on two workers beside our conftest, whose measurements are `took`; return what is printed."""
    shutil.copy(CONFTEST, folder)
    (folder / "durations.json").write_text(json.dumps(took))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (folder / "test_one.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    env = os.environ | {"PYTHONPATH": str(ROOT / "tests" / "support")}
    done = subprocess.run([*command, *options, folder], capture_output=True, text=True, cwd=folder, env=env)
    return done.stdout + done.stderr


def item(name: str, group: str = "") -> SimpleNamespace:
    mark = SimpleNamespace(args=(group,)) if group else None
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: mark)
