"""Measures every figure that the project claims: `make bench` prints one table and writes build/bench.json.

A speed is a ratio of two things measured in the same run, or a time with the goal beside it; nothing here is a test.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import track
from rich.table import Table

import worldsize as ws
from autograder.sandbox import Sandbox, probe
from autograder.verify import cases, try_case

ROOT = Path(__file__).parent.parent
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group()
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Figure:
    """One measured figure; `met` is None where the project claims no goal."""

    name: str
    value: float
    unit: str
    goal: str
    met: bool | None
    how: str


def first_all_reduce() -> None:
    """What the launching figures run on every rank."""
    dist.all_reduce(torch.ones(1))


def launching() -> Iterator[Figure]:
    """How soon ranks have made their first all-reduce, warm and by torchrun."""
    ws.run(first_all_reduce, world_size=4)  # starts the nursery
    warm_s = _median_s(lambda: ws.run(first_all_reduce, world_size=4), 10)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "first.py")
        script.write_text(SCRIPT)
        torchrun_s = _median_s(lambda: ws.torchrun(script, nproc_per_node=4), 3)
    yield Figure("run, 4 ranks, second call on", warm_s, "s", "at most 0.2", warm_s <= 0.2, "median of 10")
    yield Figure("torchrun, 4 ranks", torchrun_s, "s", "", None, "median of 3, same machine and minute")
    ratio = torchrun_s / warm_s
    yield Figure("run is faster than torchrun", ratio, "times", "at least 30", ratio >= 30, "the two above")


def sandboxing() -> Iterator[Figure]:
    """What the sandbox costs on top of the same run outside it."""
    outside_s = _median_s(lambda: ws.run(first_all_reduce, world_size=2, backend="gloo"), 10)
    with Sandbox() as sandbox:
        sandbox.nursery.wait_until_warm()
        inside = lambda: ws.run(first_all_reduce, world_size=2, backend="gloo", nursery=sandbox.nursery)  # noqa: E731
        inside_s = _median_s(inside, 10)
    yield Figure("a run in the sandbox", inside_s, "s", "", None, f"2 ranks, median of 10; {probe()}")
    yield Figure("sandbox over no sandbox", inside_s / outside_s, "times", "", None, "same run, 2 ranks")


def grading() -> Iterator[Figure]:
    """How long one honest submission of lab 1 takes to judge."""
    solution = cases(ROOT, "lab01")[0]
    findings = []
    grade_s = _median_s(lambda: findings.append(try_case(ROOT, solution)), 3)
    is_full = all(not finding.problems for finding in findings)
    yield Figure("judging one submission of lab 1", grade_s, "s", "", None, "median of 3, sandbox on")
    yield Figure("honest answer at full marks", float(is_full), "yes=1", "1", is_full, "3 of 3 judgings")


def demo() -> Iterator[Figure]:
    """How long `make demo` takes once it is set up."""
    start_s = time.monotonic()
    command = [sys.executable, "-m", "autograder", "demo"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    took_s = time.monotonic() - start_s
    yield Figure("make demo after set-up", took_s, "s", "under 120", took_s < 120, "one run")


def main() -> None:
    """Prints the table and writes build/bench.json; ends with 1 when a goal is missed."""
    console = Console()
    parts: list[Callable[[], Iterator[Figure]]] = [launching, sandboxing, grading, demo]
    figures = [figure for part in track(parts, "Measuring", console=console) for figure in part()]
    table = Table("figure", "value", "goal", "met", "how", title=f"{os.cpu_count()} cores, torch {torch.__version__}")
    for one in figures:
        met = {True: "yes", False: "NO", None: ""}[one.met]
        table.add_row(one.name, f"{one.value:.3g} {one.unit}", one.goal, met, one.how)
    console.print(table)
    out = ROOT / "build" / "bench.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([asdict(figure) for figure in figures], indent=1) + "\n")
    sys.exit(any(figure.met is False for figure in figures))


def _median_s(do: Callable[[], object], num_times: int) -> float:
    times_s = []
    for _ in range(num_times):
        start_s = time.perf_counter()
        do()
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s)


if __name__ == "__main__":
    main()
