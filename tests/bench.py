"""Measures every figure that the project claims: `make bench` prints one table and writes build/bench.json.

`python tests/bench.py speed culprits` measures those parts alone.

A speed is a ratio of two things measured in the same run, or a time with the goal beside it; nothing here is a test.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import bench_launching
import torch
from bench_launching import first_all_reduce
from figures import Figure, median_s
from rich.console import Console
from rich.progress import track
from rich.table import Table
from test_emulate import ring_all_reduce

import worldsize as ws
from autograder.sandbox import Sandbox, probe
from autograder.verify import cases, try_case
from worldsize import hardware

ROOT = Path(__file__).parent.parent


def emulating() -> Iterator[Figure]:
    """How long 64 ranks take for a ring all-reduce by hand on an emulated cluster, and how true its time is."""
    wide = dataclasses.replace(hardware.DGX_H100, gpus_per_node=64)
    first_s = time.monotonic()
    run = ws.run(ring_all_reduce, 1 << 18, world_size=64, cluster=wide, compute="none", echo=False, timeout_s=300)
    took_s = time.monotonic() - first_s
    formula_s = 2 * 63 * (wide.intra.latency_s + (1 << 20) / (64 * wide.intra.bandwidth_bytes_per_s))
    error = abs(run.timeline.end_s / formula_s - 1)
    yield Figure("emulated ring, 64 ranks of 1 MB", took_s, "s", "at most 6", took_s <= 6, "one run, by hand")
    yield Figure("emulated ring against its formula", error, "", "under 1e-6", error < 1e-6, "relative error, 64 ranks")


def sandboxing() -> Iterator[Figure]:
    """What the sandbox costs on top of the same run outside it."""
    outside_s = median_s(lambda: ws.run(first_all_reduce, world_size=2, backend="gloo"), 10)
    with Sandbox() as sandbox:
        sandbox.nursery.wait_until_warm()
        inside = lambda: ws.run(first_all_reduce, world_size=2, backend="gloo", nursery=sandbox.nursery)  # noqa: E731
        inside_s = median_s(inside, 10)
    yield Figure("a run in the sandbox", inside_s, "s", "", None, f"2 ranks, median of 10; {probe()}")
    yield Figure("sandbox over no sandbox", inside_s / outside_s, "times", "", None, "same run, 2 ranks")


def grading() -> Iterator[Figure]:
    """How long one honest submission of lab 1 takes to judge."""
    solution = cases(ROOT, "lab01")[0]
    findings = []
    grade_s = median_s(lambda: findings.append(try_case(ROOT, solution)), 3)
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
    wanted = [part for part in PARTS if part.__name__ in sys.argv[1:] or not sys.argv[1:]]
    figures = [figure for part in track(wanted, "Measuring", console=console) for figure in part()]
    table = Table("figure", "value", "goal", "met", "how", title=f"{os.cpu_count()} cores, torch {torch.__version__}")
    for one in figures:
        met = {True: "yes", False: "NO", None: ""}[one.met]
        table.add_row(one.name, f"{one.value:.3g} {one.unit}", one.goal, met, one.how)
    console.print(table)
    out = ROOT / "build" / "bench.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([dataclasses.asdict(figure) for figure in figures], indent=1) + "\n")
    sys.exit(any(figure.met is False for figure in figures))


PARTS: list[Callable[[], Iterator[Figure]]] = [
    bench_launching.speed,
    bench_launching.printing,
    bench_launching.repeats,
    bench_launching.culprits,
    bench_launching.orphans,
    emulating,
    sandboxing,
    grading,
    demo,
]

if __name__ == "__main__":
    main()
