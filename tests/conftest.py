"""Distribution of tests over workers, the longest first; options for nightly runs and for measuring durations."""

from __future__ import annotations

import math
import os
import signal
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tiers import Measured, Meter, file_of, mark_slow, shared_fixtures

DURATIONS = Path(__file__).with_name("durations.json")
ROOT = Path(__file__).parents[1]
LONG_S = 5.0  # groups of tests that last took longer than this are drawn with --draw
_took: dict[str, list[float]] = {}

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's `&` sets this, and child processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("worldsize")
    group.addoption(
        "--nightly", action="store_true", help="also run the longest tests, and draw ten times as many samples"
    )
    group.addoption(
        "--draw",
        type=int,
        metavar="N",
        help=f"run one Nth of the groups of tests that take over {LONG_S:g} s, a different Nth for each commit",
    )
    group.addoption(
        "--budget", action="store_true", help="fail fast tests that use more than twice the CPU that they may"
    )
    group.addoption(
        "--write-durations",
        action="store_true",
        help=f"record in tests/{DURATIONS.name} how long each test takes, which decides which tests are slow",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same cases of property tests on every run, and different ones in nightly runs."""
    any_speed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # the machine may be busy
    settings.register_profile("same cases", derandomize=True, **any_speed)
    settings.register_profile("different cases", **any_speed)
    settings.load_profile("different cases" if config.getoption("--nightly") else "same cases")
    config.pluginmanager.register(Meter(fails_grown=config.getoption("--budget")), "meter")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker more than there are cores, because tests wait half of the time for ranks, kernels and browsers."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep tests that share a module fixture on one worker, and start the longest groups first."""
    measured = Measured.read(DURATIONS)
    mark_slow(items, measured)
    for item in items:
        skip_until_night(item)
        if shares_a_fixture(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(file_of(item.nodeid)))
    groups = groups_of(items)
    lengths_s = {name: length_s(group, measured) for name, group in groups.items()}
    if num_parts := config.getoption("--draw"):
        from autograder.grading.verify import commit_seed  # which imports torch

        left = groups.keys() - drawn(lengths_s, num_parts, commit_seed(ROOT))
        config.hook.pytest_deselected(items=[item for name in left for item in groups.pop(name)])
        items[:] = [item for group in groups.values() for item in group]
    if is_worker(config):  # without workers, keep the order of the files, which reads better
        names = sorted(groups, key=lengths_s.__getitem__, reverse=True)
        items[:] = [item for name in names for item in groups[name]]


def skip_until_night(item: pytest.Item) -> None:
    """Skip a test marked `nightly` unless the run has the option `--nightly`."""
    if (mark := item.get_closest_marker("nightly")) and not item.config.getoption("--nightly"):
        item.add_marker(pytest.mark.skip(reason=f"{mark.args[0]}; give --nightly"))


def shares_a_fixture(item: pytest.Item) -> bool:
    """Whether this test uses a fixture that is kept for the other tests of its file."""
    info = getattr(item, "_fixtureinfo", None)  # pytest has no public name for it
    return info is not None and any(found[-1].scope == "module" for found in info.name2fixturedefs.values())


def groups_of(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """The tests by xdist group; a test without one is a group of its own."""
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        groups[mark.args[0] if mark else item.nodeid].append(item)
    return dict(groups)


def length_s(group: list[pytest.Item], measured: Measured) -> float:
    """The seconds that a group last took; infinite if one of its files was never measured."""
    if not all(measured.knows(file_of(item.nodeid)) for item in group):
        return math.inf
    fixtures = {name for item in group for name in shared_fixtures(item)}
    # fsum is exact, so every worker computes the same order, however it iterates over the set
    return math.fsum(map(measured.wall_s, [*(item.nodeid for item in group), *fixtures]))


def drawn(lengths_s: Mapping[str, float], num_parts: int, seed: int) -> set[str]:
    """The groups to run: the short and the never measured ones, and one part of the long ones, about equally long."""
    long = sorted((took_s, name) for name, took_s in lengths_s.items() if LONG_S < took_s < math.inf)
    return lengths_s.keys() - {name for _, name in long} | {name for _, name in long[seed % num_parts :: num_parts]}


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a pytest-xdist worker."""
    return hasattr(config, "workerinput")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect the durations that a test reported."""
    _took.update(getattr(report, "took", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the durations of this run if `--write-durations` was given."""
    if session.config.getoption("--write-durations") and not is_worker(session.config):
        Measured.read(DURATIONS).updated(_took).write(DURATIONS, session.config.rootpath)
