"""What a batch of measurements keeps when its harness is killed at random moments and started again."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from figures import Figure, scaled
from processes import are_gone
from tiny_project import NAME, hand_in, make_course, program

from autograder.bench.batch import read_batch

NUM_KILLS, SEED = 10, 8
STUDENTS = ("anna", "ben")
COMMAND = [
    *(str(Path(sys.executable).with_name("autograder")), "bench", NAME, "--submissions=handed", "--out=out"),
    *("--no-grade", "--steps=6", "--batch=32", "--width=4", "--repeats=2", "--world-sizes=2"),
]


@dataclass
class Trial:
    """What was found after one kill and what followed."""

    num_kept: int
    num_lost: int
    is_whole: bool
    num_left: int


def cutting(scale: float) -> Iterator[Figure]:
    """Whether timings that had ended before a kill are, every one of them, in the results afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-cutting-") as folder:
        root = make_course(Path(folder, "start"))
        for student in STUDENTS:
            hand_in(root / "handed" / student, program(root), root)
        begun_s = time.monotonic()
        num_timings = len(_timings(_finished(shutil.copytree(root, Path(folder, "undisturbed")))))
        duration_s = time.monotonic() - begun_s
        num_kills = scaled(NUM_KILLS, scale)
        moments = random.Random(SEED)
        trials = [
            _trial(shutil.copytree(root, Path(folder, f"cut{number}")), moments.uniform(0, duration_s), num_timings)
            for number in range(num_kills)
        ]
    kept = sum(one.num_kept for one in trials)
    how = f"{num_kills} kills at random moments of {duration_s:.0f} s; {kept} timings had ended before"
    for name, value in (
        ("bench killed and started again: ended timings lost", sum(one.num_lost for one in trials)),
        ("bench killed: results not whole", sum(not one.is_whole for one in trials)),
        ("bench killed: processes left", sum(one.num_left for one in trials)),
    ):
        yield Figure(name, value, "", "0", value == 0, how)


def _trial(root: Path, at_s: float, num_timings: int) -> Trial:
    with open(root / "said.txt", "w") as said:
        harness = subprocess.Popen(COMMAND, cwd=root, stdout=said, stderr=said)
    time.sleep(at_s)  # the moment itself is what is drawn
    family = psutil.Process(harness.pid).children(recursive=True) if harness.poll() is None else []
    started = [one.pid for one in family]
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    num_left = 0 if are_gone(started, within_s=20) else sum(map(psutil.pid_exists, started))
    before = _timings(root)
    after = _timings(_finished(root))
    lost = [one for one in before if one not in after]
    return Trial(len(before), len(lost), len(after) == num_timings, num_left)


def _finished(root: Path) -> Path:
    done = subprocess.run(COMMAND, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(read_batch(root / "out")) == set(STUDENTS)
    return root


def _timings(root: Path) -> list[dict]:
    """All timings that lie below a batch's folder: of measurements that are done, and of the one that was cut off."""
    found = [one.model_dump() for result in read_batch(root / "out").values() for one in result.timings]
    for path in (root / "out").glob("*/timings-*"):
        lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
        found += [json.loads(line)["timing"] for line in lines]
    return found
