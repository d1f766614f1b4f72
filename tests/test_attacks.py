"""Each attack in `attacks/` earns nothing, is named for what it is, spoils no other check, leaves nothing behind."""

import contextlib
import json
import os
import re
import site
import sys
import tempfile
import uuid
from functools import partial
from pathlib import Path

import pytest
from tiny_lab import GIVEN, MEAN, ROOT, message, needs_jail, once, outcomes, write_checks

from autograder.judge import judge
from autograder.verdict import Outcome, Report

pytestmark = needs_jail
ATTACKS = {path.stem: path for path in sorted(Path(__file__).with_name("attacks").glob("*.py"))}
ALONE = {"patched_torch": Outcome.PASSED, "exits_quietly": Outcome.CRASHED}  # these act at once, on all that is near
CHECKS = """
import torch

from autograder.checks import points
from worldsize.check import expect_close


def on_rank(student, name, shard):
    return getattr(student, name)(shard)


def expect_sum(student, rng, name, divisor=1):
    shards = [(torch.randn(3, generator=rng),) for _ in range(2)]
    for value in student.run(on_rank, name, world_size=2, each=shards):
        expect_close(value, (shards[0][0] + shards[1][0]) / divisor, "the result")
"""
PAIR = """
@points(1, cell="check")
def check_{name}(student, rng):
    '''The attack earns this.'''
    expect_sum(student, rng, "{name}")


@points(1, cell="check")
def check_after_{name}(student, rng):
    '''An honest function earns this right after it.'''
    expect_sum(student, rng, "mean", divisor=2)
"""


def run_together(names: list[str], folder: Path) -> None:
    """Writes the report on one submission that holds all these attacks, and what it left on this machine."""
    marker = f"worldsize{uuid.uuid4().hex}"
    checks = write_checks(folder, CHECKS + "".join(PAIR.format(name=name) for name in names))
    cells = [("setup", GIVEN), ("mean", MEAN)]
    for name in names:
        source = ATTACKS[name].read_text().replace("MARKER", marker)
        cells.append((name, re.sub(r"\btotal\(", f"{name}(", source)))
    report = judge(checks, cells, call_s=5, total_s=200)
    (folder / "report.json").write_text(report.model_dump_json())
    (folder / "leftovers.json").write_text(json.dumps(leftovers(marker)))


def leftovers(marker: str) -> list[str]:
    """Files and processes of this machine that carry the marker in their name, text or command line."""
    folders = [os.getcwd(), tempfile.gettempdir(), "/dev/shm", os.path.expanduser("~"), *site.getsitepackages()]
    folders += [sys.prefix, str(ROOT / "worldsize"), str(ROOT / "autograder"), str(ROOT / "solutions")]
    found = []
    for folder in filter(os.path.isdir, folders):
        for path in Path(folder).iterdir():
            with contextlib.suppress(OSError):
                if marker in path.name or (path.suffix in (".py", ".pth", ".ini") and marker in path.read_text()):
                    found.append(str(path))
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if marker.encode() in path.read_bytes():
                found.append(str(path))
    return found


@pytest.fixture
def grade(tmp_path_factory, monkeypatch):
    """The report on these attacks, and what they left behind; made once a test run."""

    def read(names: list[str]) -> tuple[Report, list[str]]:
        monkeypatch.setenv("WORLDSIZE_TEST_SECRET", "hush")
        folder = once(tmp_path_factory.getbasetemp(), f"attacks_{names[0]}", partial(run_together, names))
        report = Report.model_validate_json((folder / "report.json").read_text())
        return report, json.loads((folder / "leftovers.json").read_text())

    return read


@pytest.mark.parametrize("name", ATTACKS)
def test_attack(grade, name):
    report, left = grade([name] if name in ALONE else [other for other in ATTACKS if other not in ALONE])
    declared = re.match(r"# outcome: (.+)\n# .+\.\n\n# %% total\n", ATTACKS[name].read_text())
    assert declared, "an attack begins with its outcome and a sentence on what it does"
    told = message(report, f"check_{name}")
    assert outcomes(report)[f"check_{name}"] in declared[1].split(" or "), told
    assert outcomes(report)[f"check_after_{name}"] == ALONE.get(name, Outcome.PASSED)
    assert "LEAKED" not in told and "hush" not in told
    assert not report.is_fault and left == []


def test_there_are_many_attacks():
    assert len(ATTACKS) >= 16
