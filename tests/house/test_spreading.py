"""How tests are spread over workers: what shares a prepared fixture stays together, and the longest starts first."""

from types import SimpleNamespace

import pytest
from repository import ROOT


@pytest.fixture(scope="module")
def prepared() -> object:
    return object()


def test_one_worker_runs_all_that_uses_what_is_prepared_for_a_file(prepared: object, request) -> None:
    assert request.node.get_closest_marker("xdist_group").args == ("tests/house/test_spreading.py",)


def test_a_test_that_needs_nothing_prepared_goes_anywhere(request) -> None:
    assert request.node.get_closest_marker("xdist_group") is None


def test_the_longest_group_comes_first_and_stays_whole(request) -> None:
    plugins = request.config.pluginmanager.get_plugins()
    (conftest,) = (one for one in plugins if getattr(one, "__file__", "") == str(ROOT / "tests" / "conftest.py"))
    first, alone, last = item("first", "folder"), item("alone"), item("last", "folder")
    assert conftest.longest_first([first, alone, last], {"alone": 3, "last": 2}) == [alone, first, last]
    assert conftest.longest_first([first, alone, last], {"alone": 3, "last": 2, "first": 2}) == [first, last, alone]


def item(name: str, group: str = "") -> SimpleNamespace:
    mark = SimpleNamespace(args=(group,)) if group else None
    return SimpleNamespace(nodeid=name, get_closest_marker=lambda _: mark)
