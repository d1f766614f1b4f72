"""How tests are spread over workers: what shares a prepared fixture stays together, and the longest starts first."""

import json
import shutil
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest
from repository import ROOT

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
    shutil.copy(CONFTEST, tmp_path)
    (tmp_path / "durations.json").write_text("{}")
    (tmp_path / "test_sharing.py").write_text(SHARING)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    done = subprocess.run([*command, "--rootdir", tmp_path, tmp_path], capture_output=True, text=True, cwd=tmp_path)
    assert "8 passed" in done.stdout, done.stdout + done.stderr
    assert len(list(tmp_path.glob("gw*"))) == 1


def test_a_test_that_needs_nothing_prepared_goes_anywhere(request) -> None:
    assert request.node.get_closest_marker("xdist_group") is None


def test_the_longest_group_comes_first_and_stays_whole(conftest) -> None:
    first, alone, last = item("a.py::first", "folder"), item("a.py::alone"), item("a.py::last", "folder")
    took_s = {"a.py::alone": 3, "a.py::last": 2}
    assert conftest.longest_first([first, alone, last], took_s) == [alone, first, last]
    assert conftest.longest_first([first, alone, last], {**took_s, "a.py::first": 2}) == [first, last, alone]


def test_what_was_never_measured_comes_before_all_else(conftest) -> None:
    quick, new = item("a.py::quick"), item("new.py::new")
    assert conftest.longest_first([quick, new], {"a.py": 0.1, "a.py::slow": 9}) == [new, quick]


def test_durations_of_a_part_replace_only_those_of_its_files(conftest) -> None:
    before = {"a.py::gone": 5.0, "b.py": 0.2, "b.py::slow": 7.0}
    measured_s = {"a.py::slow": 1.26, "a.py::quick": 0.1, "a.py::quicker": 0.1}
    assert conftest.merged(before, measured_s) == {"a.py": 0.2, "a.py::slow": 1.3, "b.py": 0.2, "b.py::slow": 7.0}


def test_nearly_all_files_have_been_measured(conftest) -> None:
    known = {conftest.file_of(name) for name in json.loads(conftest.DURATIONS.read_text())}
    files = [path for path in CONFTEST.parent.rglob("test_*.py") if "bench" not in path.parts]
    unknown = [path.name for path in files if str(path.relative_to(ROOT)) not in known]
    assert len(unknown) < len(files) / 10, f"make session ARGS=--write-durations: {unknown}"


def item(name: str, group: str = "") -> SimpleNamespace:
    mark = SimpleNamespace(args=(group,)) if group else None
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: mark)
