"""A quiz for 500 students in every format: how long it takes, and how much memory all its processes have."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from figures import Figure, scaled
from quiz_banks import write_bank, write_roster
from repository import ROOT

from autograder.quiz.blueprint import Blueprint, BlueprintCell, read_blueprints
from autograder.quiz.forms import deal
from autograder.quiz.whole_bank import read_bank
from autograder.tables.roster import Student
from worldsize.quiz import Question

_MB = 1e6
_NUM_STUDENTS, _NUM_QUESTIONS, _NUM_KEYS = 500, 24, 200


def quizzing(scale: float) -> Iterator[Figure]:
    """The command as an instructor runs it, on a bank of questions of every kind."""
    num_students = scaled(_NUM_STUDENTS, scale, least=3)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bank, roster = write_bank(folder / "bank"), write_roster(folder / "roster.csv", num_students)
        command = [sys.executable, "-m", "autograder", "quiz", "make", "--bank", bank, "--roster", roster]
        command += ["--out", folder / "quiz", "--count", str(_NUM_QUESTIONS), "--seed", "1"]
        start_s = time.monotonic()
        with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE) as process:
            peak = _Peak(process.pid)
            assert process.stdout
            output = process.stdout.read()
        took_s, peak_mb = time.monotonic() - start_s, peak.mb
        assert process.returncode == 0, output
        num_files = sum(path.is_file() for path in (folder / "quiz").rglob("*"))
    how = f"{num_students} students, {_NUM_QUESTIONS} questions, {num_files} files"
    yield Figure("a quiz in every format", took_s, "s", "under 60", took_s < 60, how)
    how = "of all processes, whatever else this machine did"
    yield Figure("and its processor time", sum(peak.worked_s.values()), "s", "", None, how)
    yield Figure("and its memory", peak_mb, "MB", "under 500", peak_mb < 500, "all processes, shared pages once")


def blueprints(scale: float) -> Iterator[Figure]:
    """Every shipped blueprint by many keys: whether all forms are in time, and have questions of the same cells."""
    bank, num_keys = read_bank(ROOT / "quizzes"), scaled(_NUM_KEYS, scale, least=2)
    for name, blueprint in read_blueprints(ROOT / "quizzes").items():
        weeks = range(1, 15) if name == "weekly" else ()
        asked = [blueprint.model_copy(update={"weeks": (week,)}) for week in weeks] or [blueprint]
        yield _by_keys(name, asked, bank, num_keys)


def _by_keys(name: str, asked: list[Blueprint], bank: list[Question], num_keys: int) -> Figure:
    """The longest of the forms of a blueprint; met where every one is in time and as hard as the others."""
    least, most, num_makeups = float("inf"), 0.0, set[int]()
    for blueprint in asked:
        makeups = set()
        for key in range(num_keys):
            (form,) = deal(blueprint, bank, [Student("ada")], f"key {key}".encode())
            least, most = min(least, form.minutes), max(most, form.minutes)
            cells = sorted(BlueprintCell.of(variant.question) for variant in form.variants)
            makeups.add((tuple(cells), form.out_of))
        num_makeups.add(len(makeups))
    limit = asked[0].minutes
    assert limit is not None
    how = f"{num_keys} keys x {len(asked)}; from {least:g} min; by week and difficulty {max(num_makeups)} make-up"
    is_met = most <= limit and num_makeups == {1}
    return Figure(f"longest form of {name}", most, "min", f"at most {limit:g}", is_met, how)


class _Peak:
    """Memory and processor time of a process and its children, read five times a second until it ends."""

    def __init__(self, pid: int) -> None:
        self.mb = 0.0
        self.worked_s: dict[int, float] = {}  # by process
        self._process = psutil.Process(pid)
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            try:
                tree = [self._process, *self._process.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            self.mb = max(self.mb, sum(map(self._mb, tree)))
            time.sleep(0.2)

    def _mb(self, process: psutil.Process) -> float:
        try:
            found, worked = process.memory_full_info(), process.cpu_times()
        except psutil.Error:  # it has ended
            return 0.0
        self.worked_s[process.pid] = worked.user + worked.system
        return getattr(found, "pss", found.uss) / _MB  # shared pages count once, where the system knows
