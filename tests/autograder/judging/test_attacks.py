"""Each attack in `attacks/` earns nothing, is named for what it is, spoils no other check, leaves nothing behind.

The title of an attack's cell says its form. `total`: a function that the judge asks for a sum over ranks. `ring`: one
that is to build it from sends and receives on an emulated cluster. `submission`: `hand_in(folder, notebook)` writes a
submission for nbgrader, given the released notebook as JSON.
"""

import contextlib
import json
import os
import re
import site
import sqlite3
import sys
import tempfile
import uuid
from functools import partial
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import Gradebook
from repository import ROOT
from tiny_class import CONFIG, RIGHT, note
from tiny_lab import (
    GIVEN,
    MEAN,
    NAME,
    answered,
    make_course,
    message,
    needs_jail,
    once,
    outcomes,
    release,
    write_checks,
)

from autograder.judging.report import Outcome, Report
from autograder.judging.request import JudgeRequest, judge

pytestmark = needs_jail
HEAD = re.compile(r"# outcome: (.+)\n# .+\.\n\n# %% (total|ring|submission)\n")
ATTACKS = {path.stem: path.read_text() for path in sorted((ROOT / "tests/attacks").glob("*.py"))}
FORMS = {name: found[2] for name, text in ATTACKS.items() if (found := HEAD.match(text))}
# these act at once, on all that is near
ALONE = {"patched_torch": Outcome.PASSED, "exits_quietly": Outcome.CRASHED}
FUNCTIONS = [name for name, form in FORMS.items() if form != "submission" and name not in ALONE]
HANGING = [name for name in FUNCTIONS if "time limit" in ATTACKS[name].splitlines()[0]]
ENDING = [name for name in FUNCTIONS if name not in HANGING]
SUBMISSIONS = [name for name, form in FORMS.items() if form == "submission"]
HANGS_S, ENDS_S = 5, 60  # the limits of a call: what ends by itself has time for it, also on a busy machine
NUM_RANKS, NUM_ITEMS = 4, 64
RING = """
def ring(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    parts = list(tensor.clone().chunk(world_size))
    for step in range(2 * world_size - 2):
        is_reducing = step < world_size - 1
        work = dist.isend(parts[(rank - step + (not is_reducing) * world_size) % world_size], (rank + 1) % world_size)
        place = (rank - step - 1) % world_size
        part = torch.empty_like(parts[place])
        dist.recv(part, (rank - 1) % world_size)
        work.wait()
        parts[place] = parts[place] + part if is_reducing else part
    return torch.cat(parts)
"""
CHECKS = f"""
import torch

from autograder.judging.checks.check import points
from worldsize.check import CheckFailed, expect_close
from worldsize.faults import SilentError

NUM_RANKS, NUM_ITEMS = {NUM_RANKS}, {NUM_ITEMS}


def on_rank(student, name, *tensors):
    return [getattr(student, name)(tensor) for tensor in tensors]


def expect_total(student, rng, name, divisor=1):
    for _ in range(2 if name.startswith("cached") else 1):
        each = [tuple(torch.randn(2, 3, generator=rng)) for _ in range(2)]
        for values in student.run(on_rank, name, world_size=2, each=each):
            for number, value in enumerate(values):
                expect_close(value, (each[0][number] + each[1][number]) / divisor, "the result")


def expect_ring(student, rng, name):
    each = [(torch.randn(NUM_ITEMS, generator=rng),) for _ in range(NUM_RANKS)]
    run = student.emulated(on_rank, name, world_size=NUM_RANKS, each=each, allow={{"send", "recv"}})
    for rank, (value,) in enumerate(run.values):
        expect_close(value, sum(tensor for tensor, in each), "the sum")
        needed = 2 * (NUM_RANKS - 1) / NUM_RANKS * 4 * NUM_ITEMS
        expect_close(run.timeline.bytes_sent(rank), needed, f"the bytes that rank {{rank}} sends")
    fault = SilentError(int(torch.randint(NUM_RANKS, (), generator=rng)), 0, int(torch.randint(99, (), generator=rng)))
    options = dict(world_size=NUM_RANKS, each=each, allow={{"send", "recv"}}, faults=[fault])
    spoiled = student.emulated(on_rank, name, **options).values
    if all(torch.equal(after[0], before[0]) for after, before in zip(spoiled, run.values)):
        raise CheckFailed("a sum of what came over the wire", "one that a changed message does not change")
"""
PAIR = """
@points(1, cell="check")
def check_{name}(student, rng):
    '''The attack earns this.'''
    expect_{form}(student, rng, "{name}")


@points(1, cell="check")
def check_after_{name}(student, rng):
    '''An honest function earns this right after it.'''
    {honest}
"""
HONEST = {"total": 'expect_total(student, rng, "mean", divisor=2)', "ring": 'expect_ring(student, rng, "ring")'}


def run_together(names: list[str], folder: Path) -> None:
    """Writes the report on one submission that holds all these attacks, and what it left on this machine."""
    marker = f"worldsize{uuid.uuid4().hex}"
    pairs = [PAIR.format(name=name, form=FORMS[name], honest=HONEST[FORMS[name]]) for name in names]
    cells = [("setup", GIVEN), ("mean", MEAN), ("ring", RING)]
    for name in names:
        source = ATTACKS[name].replace("MARKER", marker)
        cells.append((name, re.sub(rf"\b{FORMS[name]}\(", f"{name}(", source)))
    call_s = HANGS_S if names == HANGING else ENDS_S
    report = judge(
        JudgeRequest(checks=write_checks(folder, CHECKS + "".join(pairs)), cells=cells, call_s=call_s, total_s=500)
    )
    (folder / "report.json").write_text(report.model_dump_json())
    (folder / "leftovers.json").write_text(json.dumps(leftovers(marker)))


def batch_of(name: str) -> list[str]:
    """The attacks that are judged in one submission with this one."""
    if name in ALONE:
        return [name]
    return HANGING if name in HANGING else ENDING[ENDING.index(name) % 2 :: 2]  # two that run side by side


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
    """The report on the submission that holds an attack, and what it left behind; made once a test run."""

    def read(name: str) -> tuple[Report, list[str]]:
        monkeypatch.setenv("WORLDSIZE_TEST_SECRET", 4000 * "hush")  # so much that it stays in freed memory
        names = batch_of(name)
        folder = once(tmp_path_factory.getbasetemp(), f"attacks_{names[0]}", partial(run_together, names))
        report = Report.model_validate_json((folder / "report.json").read_text())
        return report, json.loads((folder / "leftovers.json").read_text())

    return read


def declared(name: str) -> list[str]:
    found = HEAD.match(ATTACKS[name])
    assert found, "an attack begins with its outcome and a sentence on what it does"
    return found[1].split(" or ")


def with_its_batch(name: str):
    """The attack, on the worker of those that are judged with it."""
    return pytest.param(name, marks=pytest.mark.xdist_group(f"attacks_{batch_of(name)[0]}"))


@pytest.mark.parametrize("name", [with_its_batch(name) for name in sorted(set(ATTACKS) - set(SUBMISSIONS))])
def test_attack(grade, name):
    wanted = declared(name)
    report, left = grade(name)
    told = message(report, f"check_{name}")
    assert outcomes(report)[f"check_{name}"] in wanted, told
    after = outcomes(report)[f"check_after_{name}"]
    assert after == ALONE.get(name, Outcome.PASSED), message(report, f"check_after_{name}")
    assert "LEAKED" not in told and "hush" not in told
    assert not report.is_fault and left == []


def grade_class(root: Path) -> None:
    """Grades a class in which everybody but one attacks, by nbgrader."""
    marker = f"worldsize{uuid.uuid4().hex}"
    make_course(root)
    with open(root / "nbgrader_config.py", "a") as file:
        file.write(CONFIG)
    for name in SUBMISSIONS:
        folder = root / "submitted" / name / NAME
        folder.mkdir(parents=True)
        namespace: dict = {}
        exec(ATTACKS[name].replace("MARKER", marker), namespace)
        namespace["hand_in"](folder, json.loads(nbformat.writes(release(root))))
    folder = root / "submitted" / "zz_honest" / NAME
    folder.mkdir(parents=True)
    nbformat.write(answered(release(root), RIGHT), folder / f"{NAME}.ipynb")
    for command in (f"generate_assignment {NAME} --force", f"autograde {NAME}"):
        note(root, command)
    copies = {"submitted", "autograded"}  # where what was handed in may lie as it is
    found = [str(path) for path in root.rglob("*") if marker in path.name and not copies & set(path.parts)]
    (root / "leftovers.json").write_text(json.dumps([*leftovers(marker), *found]))


@pytest.fixture(scope="module")
def attacked_class(tmp_path_factory):
    return once(tmp_path_factory.getbasetemp(), "attacked_class", grade_class)


def score(root: Path, student: str) -> float:
    with Gradebook(f"sqlite:///{root}/gradebook.db") as book:
        return book.find_submission(NAME, student).score


@pytest.mark.parametrize("name", SUBMISSIONS)
def test_submission(attacked_class, name):
    wanted = declared(name)
    folder = attacked_class / "autograded" / name / NAME
    record = nbformat.read(folder / f"{NAME}.ipynb", as_version=4).metadata.worldsize
    outcome = Outcome.MALFORMED if "malformed" in record else record.checks[0].outcome
    assert outcome in wanted
    assert score(attacked_class, name) == 0
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    assert not [path for path in files if path.is_symlink() or path.suffix == ".py" or path.stat().st_size > 20 << 20]


def test_the_class_is_graded_and_nothing_is_left(attacked_class):
    log = (attacked_class / "autograde.log").read_text()
    assert log.startswith("0\n"), log
    assert score(attacked_class, "zz_honest") == 5
    assert json.loads((attacked_class / "leftovers.json").read_text()) == []
    with contextlib.closing(sqlite3.connect(attacked_class / "gradebook.db")) as base:
        assert base.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall() == []


def test_there_are_many_attacks():
    assert len(FORMS) == len(ATTACKS) >= 60
