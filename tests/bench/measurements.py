"""Measure every figure that the project claims: `make bench` prints one table and writes build/bench.json.

`python tests/bench speed culprits` measures those parts alone; `--smallest` runs a sixth of them, another sixth for
each commit, or those named, once as small as each can be, which judges no goal and fails where a part breaks.

A speed is a ratio of two things measured in the same run, or a time with the goal beside it; nothing here is a test.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import bench_auditing
import bench_budgets
import bench_calibrating
import bench_compressing
import bench_cutting
import bench_diagnosing
import bench_enduring
import bench_fuzzing
import bench_grading
import bench_hanging
import bench_honest
import bench_killing
import bench_launching
import bench_lots
import bench_overlapping
import bench_pipelining
import bench_planning
import bench_predicting
import bench_quizzing
import bench_recording
import bench_reducing
import bench_regrading
import bench_serving
import bench_sharding
import bench_similarity
import bench_splitting
import bench_surviving
import bench_training
import bench_viewing
import cloudpickle
import psutil
import published
import torch
from bench_launching import first_all_reduce
from figures import Figure, median_s, scaled
from launching import run
from repository import ROOT
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rings import ring_all_reduce, ring_all_reduce_cpu_s

import worldsize as ws
from autograder.grading.verify import cases, commit_seed, try_case
from autograder.sandbox import Sandbox, probe
from worldsize import draw, hardware
from worldsize.draw.picture import SCREEN_DPI
from worldsize.units import GIB, format_bytes


def emulating(scale: float) -> Iterator[Figure]:
    """How long 64 ranks take for a ring all-reduce by hand on an emulated cluster, and how true its time is."""
    num_ranks = scaled(64, scale, least=4)
    wide = dataclasses.replace(hardware.DGX_H100, gpus_per_node=num_ranks)
    ws.run(ring_all_reduce, 2, world_size=2, cluster=wide, echo=False)  # as in a kernel, ranks are warm from here on
    first_s, first_cpu_s = time.monotonic(), time.process_time()
    run = ws.run(
        ring_all_reduce_cpu_s, 1 << 18, world_size=num_ranks, cluster=wide, compute="none", echo=False, timeout_s=300
    )
    took_s, launcher_cpu_s = time.monotonic() - first_s, time.process_time() - first_cpu_s
    formula_s = (
        2 * (num_ranks - 1) * (wide.intra.latency_s + (1 << 20) / (num_ranks * wide.intra.bandwidth_bytes_per_s))
    )
    error = abs(run.timeline.end_s / formula_s - 1)
    yield Figure(
        f"emulated ring, {num_ranks} ranks of 1 MB", took_s, "s", "at most 6", took_s <= 6, "by hand, ranks warm"
    )
    yield Figure(
        "and its processor time", launcher_cpu_s + sum(run.values), "s", "", None, "of the launcher and of all ranks"
    )
    yield Figure(
        "emulated ring against its formula", error, "", "under 1e-6", error < 1e-6, f"relative error, {num_ranks} ranks"
    )


def emulating_many(scale: float) -> Iterator[Figure]:
    """How long 256 ranks take for a ring all-reduce by hand, and how much memory this machine then uses more."""
    num_ranks = scaled(256, scale, least=8)
    wide = dataclasses.replace(hardware.DGX_H100, gpus_per_node=num_ranks)
    with PeakMemory() as memory:
        first_s = time.monotonic()
        run = ws.run(
            ring_all_reduce, 1 << 14, world_size=num_ranks, cluster=wide, compute="none", echo=False, timeout_s=300
        )
        took_s = time.monotonic() - first_s
    assert all(run.values)
    yield Figure(
        f"emulated ring, {num_ranks} ranks of 64 kB", took_s, "s", "at most 60", took_s <= 60, "one run, by hand"
    )
    yield Figure(
        "and its memory", memory.gib, "GiB", "at most 8", memory.gib <= 8, "used more on this machine at worst"
    )


class PeakMemory:
    """How much more memory this machine uses at worst, read ten times a second."""

    gib = 0.0

    def __enter__(self) -> PeakMemory:
        self._before, self._is_over = psutil.virtual_memory().used, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._is_over.wait(0.1):
            self.gib = max(self.gib, (psutil.virtual_memory().used - self._before) / GIB)

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()


def publishing(_scale: float) -> Iterator[Figure]:
    """How far published NCCL figures are from the model's, and the plot of both in build/collectives.png."""
    found = published.compared()
    curve = published.median_error(one for one in found if one.name.startswith("vtrain_ar_A100"))
    large = published.median_error(one for one in found if one.size_bytes > published.SMALL_BYTES)
    small = [one for one in found if one.size_bytes <= published.SMALL_BYTES]
    print(published.report(found))
    published.PICTURE.parent.mkdir(exist_ok=True)
    published.PICTURE.write_bytes(published.picture(found).png())
    yield Figure(
        "published A100 curve against the model", 100 * curve, "%", "at most 15", curve <= 0.15, "median error"
    )
    how = f"median error, more than {format_bytes(published.SMALL_BYTES, binary=True)}"
    yield Figure("published large sizes against it", 100 * large, "%", "at most 2", large <= 0.02, how)
    worst = abs(published.worst(small).error_fraction)
    how = f"median error, the others; {100 * worst:.0f}% at worst"
    yield Figure("published small sizes against it", 100 * published.median_error(small), "%", "", None, how)


def drawing(scale: float) -> Iterator[Figure]:
    """How long a slider's redraw of a large pipeline takes: 32 ranks, 64 micro-batches, forward and backward."""
    run, num_times = pipeline(32, 64), scaled(21, scale)
    redraw_s = median_s(lambda: draw.timeline(run).png(SCREEN_DPI), num_times, clock=time.process_time)
    how = f"processor time, median of {num_times}"
    yield Figure("redraw of 4096 blocks", 1e3 * redraw_s, "ms", "at most 60", redraw_s <= 0.06, how)


def pipeline(num_ranks: int, num_pieces: int) -> ws.Timeline:
    """All forwards, then all backwards, of a stage a rank; a backward takes twice as long."""
    last_s = num_ranks + num_pieces - 1
    return ws.Timeline.of_events(
        event
        for rank in range(num_ranks)
        for piece in range(num_pieces)
        for start_s, back_s in [(rank + piece, 3 * last_s - 2 * (rank + piece + 1))]
        for event in (
            ws.Event(rank, "compute", "forward", f"forward {piece}", start_s, start_s + 1),
            ws.Event(rank, "compute", "backward", f"backward {piece}", back_s, back_s + 2),
        )
    )


def sandboxing(scale: float) -> Iterator[Figure]:
    """What the sandbox costs on top of the same run outside it."""
    num_times = scaled(10, scale)
    outside_s = median_s(lambda: ws.run(first_all_reduce, world_size=2, backend="gloo"), num_times)
    cloudpickle.register_pickle_by_value(bench_launching)  # a jail sees no tests to import it from
    started_s = median_s(lambda: _open_jail().close(), num_times)
    with _open_jail() as sandbox:
        inside = lambda: run(first_all_reduce, world_size=2, backend="gloo", forkserver=sandbox.forkserver)  # noqa: E731
        inside_s = median_s(inside, num_times)
    yield Figure("a sandbox opened and closed", started_s, "s", "", None, f"median of {num_times}; {probe()}")
    yield Figure("a run in the sandbox", inside_s, "s", "", None, f"2 ranks, median of {num_times}")
    yield Figure("sandbox over no sandbox", inside_s / outside_s, "times", "", None, "same run, 2 ranks")


def _open_jail() -> Sandbox:
    sandbox = Sandbox()
    sandbox.forkserver.wait_until_warm()
    return sandbox


def grading(scale: float) -> Iterator[Figure]:
    """How long one honest submission of lab 1 takes to judge."""
    solution = cases(ROOT, "lab01")[0]
    findings, num_times = [], scaled(3, scale)
    grade_s = median_s(lambda: findings.append(try_case(ROOT, solution)), num_times)
    is_full = all(not finding.problems for finding in findings)
    yield Figure("judging one submission of lab 1", grade_s, "s", "", None, f"median of {num_times}, sandbox on")
    yield Figure("honest answer at full marks", float(is_full), "yes=1", "1", is_full, f"{num_times} judgings")


def exploring(scale: float) -> Iterator[Figure]:
    """How long after the press of a key a browser shows an explorer's new result."""
    test = [sys.executable, "-m", "pytest", "-q", "-m", "", "tests/browser/test_exploring.py", "-k", "redraws"]
    num_moves = scaled(50, scale, least=2)
    env = {**os.environ, "WORLDSIZE_MOVES": str(num_moves)}
    subprocess.run(test, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL)
    for name, times_ms in json.loads((ROOT / "build" / "exploring.json").read_text()).items():
        took_ms = statistics.median(times_ms)
        yield Figure(
            f"slider to picture, {name}", took_ms, "ms", "under 150", took_ms < 150, f"median of {num_moves}, browser"
        )


def demo(scale: float) -> Iterator[Figure]:
    """How long `make demo` takes once it is set up; it has no smaller size, and CI runs it anyway."""
    if not scale:
        return
    start_s = time.monotonic()
    command = [sys.executable, "-m", "autograder", "demo"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    took_s = time.monotonic() - start_s
    yield Figure("make demo after set-up", took_s, "s", "under 120", took_s < 120, "one run")


def main() -> None:
    """Print the table and write build/bench.json; exit with 1 if a part broke or, at full size, a goal is missed."""
    console = Console()
    names, is_smallest = {word for word in sys.argv[1:] if word != "--smallest"}, "--smallest" in sys.argv
    if unknown := names - {part.__name__ for part in PARTS}:
        sys.exit(f"No such part: {', '.join(sorted(unknown))}; there are {', '.join(part.__name__ for part in PARTS)}.")
    sixth = PARTS[commit_seed(ROOT) % 6 :: 6] if is_smallest else PARTS
    wanted = [part for part in PARTS if part.__name__ in names] if names else sixth
    figures: list[Figure] = []
    broken, took_s = [], {}
    for part in track(wanted, "Measuring", console=console):
        start_s = time.monotonic()
        try:
            found = list(part(0.0 if is_smallest else 1.0))
            figures += [dataclasses.replace(one, goal="", met=None) for one in found] if is_smallest else found
        except Exception:  # what the other parts measured is worth minutes
            broken.append(part.__name__)
            console.print_exception()
        took_s[part.__name__] = time.monotonic() - start_s
    table = Table("figure", "value", "goal", "met", "how", title=f"{os.cpu_count()} cores, torch {torch.__version__}")
    for one in figures:
        met = {True: "yes", False: "NO", None: ""}[one.met]
        table.add_row(one.name, f"{one.value:.3g} {one.unit}", one.goal, met, one.how)
    console.print(table)
    longest = sorted(took_s.items(), key=lambda one: -one[1])
    console.print("seconds by part: " + ", ".join(f"{name} {taken:.0f}" for name, taken in longest))
    if broken:
        console.print(f"broke, and measured nothing: {', '.join(broken)}")
    out = ROOT / "build" / "bench.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([dataclasses.asdict(figure) for figure in figures], indent=1) + "\n")
    sys.exit(bool(broken) or any(figure.met is False for figure in figures))


PARTS: list[Callable[[float], Iterator[Figure]]] = [
    bench_launching.speed,
    bench_launching.printing,
    bench_launching.repeats,
    bench_launching.culprits,
    bench_launching.orphans,
    emulating,
    emulating_many,
    publishing,
    drawing,
    sandboxing,
    grading,
    exploring,
    bench_fuzzing.fuzzing,
    bench_grading.throughput,
    bench_hanging.hanging,
    bench_killing.killing,
    bench_honest.honest,
    bench_lots.drawing_lots,
    bench_quizzing.quizzing,
    bench_quizzing.blueprints,
    bench_reducing.reducing,
    bench_overlapping.overlapping,
    bench_sharding.sharding,
    bench_pipelining.pipelining,
    bench_splitting.splitting,
    bench_serving.serving,
    bench_training.training,
    bench_viewing.viewing,
    bench_compressing.compressing,
    bench_enduring.enduring,
    bench_surviving.surviving,
    bench_planning.planning,
    bench_diagnosing.diagnosing,
    bench_recording.recording,
    bench_predicting.predicting,
    bench_calibrating.calibrating,
    bench_regrading.regrading,
    bench_similarity.similarity,
    bench_cutting.cutting,
    bench_auditing.auditing,
    bench_budgets.budgets,
    demo,
]
