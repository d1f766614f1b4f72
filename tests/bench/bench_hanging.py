"""How soon a submission that does not end gets its verdict, once its time is over."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from figures import Figure, scaled
from tiny_lab import GIVEN, judged, write_checks

from autograder.judging.checks.check import StudentFailed
from autograder.judging.judge.student import SandboxedStudent
from autograder.judging.report import Outcome
from autograder.judging.request import CodeUnderTest

CALL_S, TOTAL_S = 3, 5
DID_NOT_END = {Outcome.HUNG, Outcome.TIME_LIMIT}
HANGS = {
    "sleeps": "time.sleep(1000)",
    "loops": "while True: pass",
    "waits in a collective": "dist.get_rank() or dist.all_reduce(tensor)",
    "ignores SIGTERM and every exception": """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            time.sleep(1)
        except BaseException:
            pass""",
    "holds the interpreter": "re.match('(a+)+$', 64 * 'a' + 'b')",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "forks without end": """
    while True:
        try:
            os.fork()
        except OSError:
            pass""",
}


def hanging(scale: float) -> Iterator[Figure]:
    """The time from the limit to the verdict for each way not to end; of one run, and of a whole submission."""
    for name, line in list(HANGS.items())[: scaled(len(HANGS), scale)]:
        late_s = _run_s(_function("total", line)) - CALL_S
        how = f"to its verdict, after its limit of {CALL_S} s"
        yield Figure(f"a run that {name}", late_s, "s", "at most 1", late_s <= 1, how)
    _submission_s("pass")  # warms what judges are forked from
    for name in ("loops", "forks without end")[: scaled(2, scale)]:
        late_s = _submission_s(HANGS[name]) - TOTAL_S
        how = f"to its report, after {TOTAL_S} s in all; the starts of judge and jails count too"
        yield Figure(f"a submission that always {name}", late_s, "s", "at most 1", late_s <= 1, how)


def _function(name: str, line: str) -> str:
    """A function that does not end, unless it gets zeros."""
    body = f"    if not tensor.any():\n        return tensor\n    {line.strip()}\n    return tensor\n"
    return f"import os, re, signal, time\ndef {name}(tensor):\n{body}"


def _on_rank(student: Any, tensor: torch.Tensor) -> Any:
    return student.total(tensor)


def _run_s(total: str) -> float:
    """How long a run of this function takes from its start to its verdict, in a jail that is warm."""
    student = SandboxedStudent(
        CodeUnderTest(
            cells=[("setup", GIVEN), ("total", total)],
            preload=["torch", "torch.distributed"],
            call_s=CALL_S,
            total_s=60,
        )
    )
    try:
        student.run(_on_rank, torch.zeros(3), world_size=2)
        start_s = time.monotonic()
        outcome = None
        try:
            student.run(_on_rank, torch.ones(3), world_size=2)
        except StudentFailed as failed:
            outcome = failed.outcome
        took_s = time.monotonic() - start_s
    finally:
        student.close()
    assert outcome in DID_NOT_END, outcome
    return took_s


def _submission_s(line: str) -> float:
    """How long it takes to judge a submission of which every function hangs, in seconds."""
    total, mean = (_function(name, line) for name in ("total", "mean"))
    with tempfile.TemporaryDirectory() as folder:
        checks = write_checks(Path(folder, "course"))
        start_s = time.monotonic()
        report = judged(checks, total=total, mean=mean, call_s=CALL_S, total_s=TOTAL_S)
        took_s = time.monotonic() - start_s
    assert line == "pass" or DID_NOT_END & {check.outcome for check in report.checks}, report
    return took_s
