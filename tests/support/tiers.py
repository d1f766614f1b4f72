"""Marking tests as slow according to the CPU time that they last used; `pytest --write-durations` measures it.

A test's CPU time includes its worker and every process below it: ranks, kernels, browsers. What is killed together with
its jail is missing, and a test that waits holds a worker, so there is a limit on wall-clock time, too. The cost of a
fixture with a wider scope counts for each test that uses it, not only for the first, which prepares it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

FAST_CPU_S, FAST_WALL_S = 1.5, 3.0  # a test that took more when it was measured is slow
GROWN_CPU_S = 2 * FAST_CPU_S  # a fast one that uses more fails; on a busy machine the same work takes more CPU
LEAST_S, LONGEST_NAME = 0.2, 200  # tests that take less or have longer names are summed by file
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree_cpu_s() -> float:
    """CPU seconds used so far by this process and all below it, including ended ones that were waited for."""
    own = os.times()
    total_s = own.user + own.system + own.children_user + own.children_system
    return total_s + sum(map(_descendants_cpu_s, _children("self")))


def _descendants_cpu_s(pid: str) -> float:
    try:
        fields = Path("/proc", pid, "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:  # it ended; whoever waited for it has its time
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS_PER_S + sum(map(_descendants_cpu_s, _children(pid)))


def _children(pid: str) -> list[str]:
    children = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            children += Path("/proc", pid, "task", task, "children").read_text().split()
    except OSError:  # it ended, or this is no Linux: then only children that were waited for count
        pass
    return children


class Measured:
    """The last measurements of tests and shared fixtures, by name: seconds of wall-clock time and of CPU time."""

    def __init__(self, took: Mapping[str, list[float]]) -> None:
        self.took = dict(took)
        self._files = {file_of(name) for name in took}

    @classmethod
    def read(cls, path: Path) -> Measured:
        """Read measurements from a file."""
        return cls(json.loads(path.read_text()))

    def write(self, path: Path, root: Path) -> None:
        """Write the measurements, without those of files that are no longer below `root`."""
        lines = [f"{json.dumps(name)}: {took}" for name, took in self.took.items() if (root / file_of(name)).exists()]
        path.write_text("{\n" + ",\n".join(sorted(lines)) + "\n}\n")

    def knows(self, file: str) -> bool:
        """Whether tests of this file were measured."""
        return file in self._files

    def wall_s(self, name: str) -> float:
        """Wall-clock seconds of a test without shared fixtures, or of a fixture; 0 if not recorded."""
        return self.took.get(name, [0.0, 0.0])[0]

    def is_slow(self, item: pytest.Item) -> bool:
        """Whether a test, including its shared fixtures, took more than a fast one may."""
        took = [self.took.get(name, [0.0, 0.0]) for name in [name_of(item), *shared_fixtures(item)]]
        return _is_slow(*map(sum, zip(*took, strict=True)))

    def updated(self, took: Mapping[str, list[float]]) -> Measured:
        """Replace the measurements of the files that have just run; quick tests are summed by file.

        Slow tests that did not run keep theirs: by default they are deselected.
        """
        ran = {file_of(name) for name in took}
        totals = {
            name: seconds
            for name, seconds in self.took.items()
            if file_of(name) not in ran or (name not in took and "::" in name and _is_slow(*seconds))
        }
        for name, seconds in took.items():
            key = name if max(seconds) >= LEAST_S and len(name) < LONGEST_NAME else file_of(name)
            totals[key] = [sum(pair) for pair in zip(totals.get(key, [0.0, 0.0]), seconds, strict=True)]
        return Measured({name: [round(one, 1) for one in seconds] for name, seconds in totals.items()})


def file_of(name: str) -> str:
    """The file of a test, or the file or folder of a fixture, from its name."""
    return name.partition("::")[0]


def name_of(item: pytest.Item) -> str:
    """The name of a test without the group that xdist appends."""
    return re.sub(r"@[^\]]*$", "", item.nodeid)


def shared_fixtures(item: pytest.Item) -> list[str]:
    """The names of the fixtures that a test shares with others."""
    info = getattr(item, "_fixtureinfo", None)  # pytest has no public name for it
    definitions = [found[-1] for found in info.name2fixturedefs.values()] if info else []
    return [_name_of(one) for one in definitions if one.scope != "function"]


def _name_of(fixture: Any) -> str:
    return f"{fixture.baseid or 'tests'}::<{fixture.argname}>"


def _is_slow(wall_s: float, cpu_s: float) -> bool:
    return cpu_s > FAST_CPU_S or wall_s > FAST_WALL_S


def mark_slow(items: list[pytest.Item], measured: Measured) -> None:
    """Mark as slow every test that took more than a fast one may when it was last measured."""
    for item in items:
        if measured.is_slow(item):
            item.add_marker(pytest.mark.slow)


class Meter:
    """Pytest plugin that records the time of each test in its report, and can fail fast tests that have become slow."""

    def __init__(self, fails_grown: bool) -> None:
        self._fails_grown = fails_grown
        self._fixtures_s: dict[str, list[float]] = {}
        self._start = (0.0, 0.0)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[Any]:
        """Measure a shared fixture separately from the first test that uses it."""
        if fixturedef.scope == "function":
            return (yield)
        start = _now()
        try:
            return (yield)
        finally:
            self._fixtures_s[_name_of(fixturedef)] = _since(start)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Start measuring a test."""
        self._fixtures_s, self._start = {}, _now()
        return (yield)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Iterator[Any]:
        """Record the time of the test in its last report."""
        report = yield
        if call.when != "teardown":
            return report
        columns = zip(_since(self._start), *self._fixtures_s.values(), strict=True)
        took = [max(0.0, test_s - sum(fixtures_s)) for test_s, *fixtures_s in columns]
        report.took = {name_of(item): took, **self._fixtures_s}
        if self._fails_grown and took[1] > GROWN_CPU_S and not item.get_closest_marker("slow") and report.passed:
            report.outcome = "failed"
            report.longrepr = (
                f"This test used {took[1]:.1f} s of CPU; a fast one may use {FAST_CPU_S:g}. Make it quicker, "
                "or measure it, which marks it as slow: pytest --write-durations FILE."
            )
        return report


def _now() -> tuple[float, float]:
    return time.perf_counter(), tree_cpu_s()


def _since(start: tuple[float, float]) -> list[float]:
    return [now - then for now, then in zip(_now(), start, strict=True)]
