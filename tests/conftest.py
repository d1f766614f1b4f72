"""How tests are spread over workers, the longest first, and that what they start can be interrupted."""

from __future__ import annotations

import json
import math
import os
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings

DURATIONS = Path(__file__).with_name("durations.json")
FEWEST_S = 0.5  # what is quicker is added up by file
_measured_s: Counter[str] = Counter()

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as under a shell's `&`; what tests start would inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("worldsize")
    group.addoption(
        "--nightly", action="store_true", help="also run the longest tests, and draw ten times as many samples"
    )
    group.addoption(
        "--write-durations", action="store_true", help=f"note in tests/{DURATIONS.name} what this run takes"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw the same cases of property tests on every run; other ones every night."""
    settings.register_profile("same cases", derandomize=True)
    if not config.getoption("--nightly"):
        settings.load_profile("same cases")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores: half of the tests' time is spent waiting, for ranks, kernels and browsers."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep tests that share a prepared fixture on one worker, and start the longest of these groups first."""
    for item in items:
        skip_until_night(item)
        if shares_a_fixture(item) and not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(file_of(item.nodeid)))
    if hasattr(config, "workerinput"):  # by hand, one after the other, the order of the files reads better
        items[:] = longest_first(items, json.loads(DURATIONS.read_text()))


def skip_until_night(item: pytest.Item) -> None:
    """Skip a test marked `nightly`, with its reason, in a run without that option."""
    if (mark := item.get_closest_marker("nightly")) and not item.config.getoption("--nightly"):
        item.add_marker(pytest.mark.skip(reason=f"{mark.args[0]}; give --nightly"))


def shares_a_fixture(item: pytest.Item) -> bool:
    """True where a fixture of this test is kept for the other tests of its file."""
    info = getattr(item, "_fixtureinfo", None)  # pytest has no public name for it
    return info is not None and any(found[-1].scope == "module" for found in info.name2fixturedefs.values())


def longest_first(items: list[pytest.Item], duration_s: Mapping[str, float]) -> list[pytest.Item]:
    """The tests group by group, the groups by how long they took when they were last measured; first unknown files."""
    known = {file_of(name) for name in duration_s}
    groups: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("xdist_group")
        groups[mark.args[0] if mark else item.nodeid].append(item)

    def length_s(group: list[pytest.Item]) -> float:
        names = [item.nodeid for item in group]
        return sum(duration_s.get(name, 0) if file_of(name) in known else math.inf for name in names)

    return [item for group in sorted(groups.values(), key=length_s, reverse=True) for item in group]


def file_of(name: str) -> str:
    """The file of a test, by the test's name."""
    return name.partition("::")[0]


def merged(before: Mapping[str, float], measured_s: Mapping[str, float]) -> dict[str, float]:
    """Durations with those of the files that have just run replaced; what is quick is added up under its file."""
    ran = {file_of(name) for name in measured_s}
    found: Counter[str] = Counter({name: took_s for name, took_s in before.items() if file_of(name) not in ran})
    for name, took_s in measured_s.items():
        found[name if took_s >= FEWEST_S else file_of(name)] += took_s
    return {name: round(took_s, 1) for name, took_s in sorted(found.items())}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add what this part of a test took, under its name without the group that xdist appends."""
    _measured_s[re.sub(r"@[^\]]*$", "", report.nodeid)] += report.duration


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note the durations of the tests that ran, where that was asked for."""
    config = session.config
    if config.getoption("--write-durations") and not hasattr(config, "workerinput"):
        there = {name: took_s for name, took_s in json.loads(DURATIONS.read_text()).items() if is_there(name)}
        DURATIONS.write_text(json.dumps(merged(there, _measured_s), indent=0) + "\n")


def is_there(name: str) -> bool:
    """True where the file of this test still exists."""
    return (DURATIONS.parents[1] / file_of(name)).exists()
