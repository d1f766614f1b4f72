"""The launcher's figures: how soon, how sure, and what is left behind; rows of `make bench`."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from failures import CASES, NUM_RANKS, Case
from figures import Figure, median_s, scaled
from kernels import Kernel, kernel
from processes import are_gone, told_pids, wait_until

import worldsize as ws

SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group()
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


def first_all_reduce() -> None:
    """What the launching figures run on every rank."""
    dist.all_reduce(torch.ones(1))


def speed(scale: float) -> Iterator[Figure]:
    """How soon ranks have made their first all-reduce, warm and by torchrun; a function in a cell of a real kernel."""
    with tempfile.TemporaryDirectory() as folder, kernel(Path(folder)) as notebook:
        warm_s = _warm_s(notebook, scaled(10, scale))
        script = Path(folder, "first.py")
        script.write_text(SCRIPT)
        torchrun_s = median_s(lambda: ws.torchrun(script, nproc_per_node=4, echo=False), scaled(3, scale))
    yield Figure("run, 4 ranks, cell, second call on", warm_s, "s", "at most 0.2", warm_s <= 0.2, "median of 10")
    yield Figure("torchrun, 4 ranks", torchrun_s, "s", "", None, "median of 3, same machine and minute")
    ratio = torchrun_s / warm_s
    yield Figure("run is faster than torchrun", ratio, "times", "at least 30", ratio >= 30, "the two above")


def _warm_s(notebook: Kernel, num_times: int) -> float:
    cell = notebook.run(f"""
import json, time, torch, torch.distributed as dist, worldsize as ws
def on_rank():
    dist.all_reduce(torch.ones(1))
    return time.monotonic()
def once():
    start_s = time.monotonic()
    return max(ws.run(on_rank, world_size=4).values) - start_s
once()
print("times", json.dumps([once() for _ in range({num_times})]))
""")
    return statistics.median(json.loads(cell.text.rpartition("times ")[2]))


def printing(scale: float) -> Iterator[Figure]:
    """How long a line takes from a rank's print to the cell, and what 100 MB of lines do to the kernel."""
    with tempfile.TemporaryDirectory() as folder, kernel(Path(folder)) as notebook:
        for name, call in (("run", "ws.run(on_rank, world_size=2)"), ("torchrun", "ws.torchrun('p.py')")):
            worst_s = _print_latency_s(notebook, Path(folder), call)
            yield Figure(
                f"a print appears in the cell, {name}", worst_s, "s", "under 0.5", worst_s < 0.5, "worst of 20"
            )
        sent, grown, took_s = _flood(notebook, scaled(100, scale))
    yield Figure(
        "100 MB printed: the kernel grows", grown / 2**20, "MB", "under 50", grown < 50 << 20, f"{took_s:.1f} s"
    )
    yield Figure("100 MB printed: sent to the browser", sent / 2**20, "MB", "", None, "the first 256 kB and the end")


PRINTS = """
import time
def on_rank():
    for _ in range(10):
        time.sleep(0.2)
        print("at", time.monotonic(), flush=True)
"""


def _print_latency_s(notebook: Kernel, folder: Path, call: str) -> float:
    (folder / "p.py").write_text(PRINTS + "for _ in range(2): on_rank()\n")
    notebook.run("import worldsize as ws\n" + PRINTS)
    cell = notebook.start(call)
    late_s: list[float] = []

    def read() -> bool:
        arrived_s = time.monotonic()
        printed = [line.split(" at ")[1] for line in cell.text.splitlines() if " at " in line]
        late_s.extend(arrived_s - float(text) for text in printed[len(late_s) :])
        return cell.is_done

    notebook.wait(cell, read)
    assert len(late_s) == 20, cell.text
    return max(late_s)


def _flood(notebook: Kernel, num_mb: int) -> tuple[int, int, float]:
    """Bytes sent to the front end, bytes that the kernel grew, seconds that it took."""
    notebook.run(f"def flood():\n    for _ in range({10 * num_mb}): print(('x' * 99 + chr(10)) * 1000)")
    before, start_s = notebook.process.memory_info().rss, time.monotonic()
    cell = notebook.run("run = ws.run(flood, world_size=1)")
    took_s = time.monotonic() - start_s
    return len(cell.text), notebook.process.memory_info().rss - before, took_s


def culprits(scale: float) -> Iterator[Figure]:
    """The bank of failures, ten times over: is the right rank named with the cause, and how soon after a hang."""
    right, late_s, wrong = 0, [0.0], set()
    num_times = scaled(10, scale)
    for _ in range(num_times):
        for name, case in CASES.items():
            is_right, after_s = _try(case)
            right += is_right
            wrong |= set() if is_right else {name}
            late_s += [after_s] if case.hangs else []
    total, hangs = num_times * len(CASES), sum(case.hangs for case in CASES.values())
    how = f"{len(CASES)} cases {num_times} times" + (f"; wrong: {', '.join(sorted(wrong))}" if wrong else "")
    yield Figure("culprit and cause named right", right, "runs", f"{total} of {total}", right == total, how)
    worst_s = max(late_s)
    yield Figure(
        "hang explained after its timeout", worst_s, "s", "at most 2", worst_s <= 2, f"worst of {num_times * hangs}"
    )


def _try(case: Case, timeout_s: float = 2.0) -> tuple[bool, float]:
    start_s = time.monotonic()
    try:
        ws.run(case.fn, world_size=NUM_RANKS, backend="gloo", timeout_s=timeout_s, echo=False)
    except ws.RunError as error:
        after_s = time.monotonic() - start_s - timeout_s
        is_told = all(words in str(error) for words in (*case.words, case.with_cause))
        return error.failures[0].rank in case.culprits and is_told, after_s
    return False, 0.0


def repeats(scale: float) -> Iterator[Figure]:
    """What fifty launches in a row leave open, and how the launcher grows."""
    ws.run(first_all_reduce, world_size=2, echo=False)
    me = psutil.Process()

    def held() -> tuple[int, int, int]:
        return me.num_fds(), me.num_threads(), len(me.children(recursive=True))

    for _ in range(5):
        ws.run(first_all_reduce, world_size=2, echo=False)
    before, before_bytes = held(), me.memory_info().rss
    num_launches = scaled(50, scale)
    for _ in range(num_launches):
        ws.run(first_all_reduce, world_size=2, echo=False)
    leaked = sum(after - one for after, one in zip(held(), before, strict=True))
    grown = (me.memory_info().rss - before_bytes) / 2**20
    yield Figure(
        f"{num_launches} launches: files, threads, processes left", leaked, "", "0", leaked == 0, "2 ranks each"
    )
    yield Figure(f"{num_launches} launches: the launcher grows", grown, "MB", "under 5", grown < 5, "resident memory")


# a rank reports its process and that of a child, then ends in one of seven ways
ENDS = """
import os, signal, subprocess, sys, time
from pathlib import Path

def on_rank(folder, way, rank):
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    path = Path(folder, f"{rank}.tmp")
    path.write_text(f"{os.getpid()} {child.pid} {os.getppid()}")
    path.rename(path.with_suffix(".pids"))
    while len(list(Path(folder).glob("*.pids"))) < 2:  # or the end of one could keep the other from reporting
        time.sleep(0.01)
    if way == "success":
        return
    if way == "exception" and rank == "1":
        raise ValueError("no data")
    while True:
        signal.pause()
"""
WAYS = ("success", "exception", "interrupt", "timeout", "kernel restart", "kernel killed", "agent killed")
CALLS = {
    "run": "ws.run(on_rank, {folder!r}, {way!r}, world_size=2, each=[['0'], ['1']], timeout_s={timeout_s}, echo=False)",
    "torchrun": "ws.torchrun({script!r}, {folder!r}, {way!r}, nproc_per_node=2, timeout_s={timeout_s}, echo=False)",
}


def orphans(scale: float) -> Iterator[Figure]:
    """How many processes of a hundred launches are left two seconds after each has ended in one of seven ways."""
    num_launches, left = 0, []
    with tempfile.TemporaryDirectory() as folder, kernel(Path(folder)) as notebook:
        script = Path(folder, "ends.py")
        script.write_text(ENDS + "on_rank(sys.argv[1], sys.argv[2], os.environ['RANK'])\n")
        for launcher, num_rounds in (("run", scaled(10, scale)), ("torchrun", scaled(5, scale, least=0))):
            for way in WAYS * num_rounds:
                if way in WAYS[:1]:
                    notebook.run("import worldsize as ws\n" + ENDS)
                reports = Path(tempfile.mkdtemp(dir=folder))
                timeout_s = 4 if (way, launcher) == ("timeout", "run") else 12 if way == "timeout" else 60
                fields = {"folder": str(reports), "way": way, "script": str(script), "timeout_s": timeout_s}
                if not _ends_clean(notebook, CALLS[launcher].format(**fields), way, reports):
                    left.append(f"{launcher} {way}")
                num_launches += 1
    how = f"{num_launches} launches, 7 ways, 2 ranks and a child each" + (f"; left by {left}" if left else "")
    yield Figure("launches that leave an orphan after 2 s", len(left), "", "0", not left, how)


def _ends_clean(notebook: Kernel, code: str, way: str, folder: Path) -> bool:
    cell = notebook.start("import worldsize as ws\n" + ENDS + code)
    pids = told_pids(folder, 2)
    parents = {int(path.read_text().split()[2]) for path in folder.glob("*.pids")}
    end: dict[str, Callable[[], object]] = {
        "interrupt": notebook.manager.interrupt_kernel,
        "kernel restart": lambda: notebook.manager.restart_kernel(now=True),
        "kernel killed": notebook.process.kill,
        "agent killed": lambda: [psutil.Process(pid).kill() for pid in parents],
    }
    if way in end:
        end[way]()
    if way.startswith("kernel"):
        is_clean = are_gone(pids, within_s=2)
        if way == "kernel killed":
            wait_until(lambda: not notebook.manager.is_alive(), 5)
            notebook.manager.restart_kernel(now=True)
        notebook.client.wait_for_ready(timeout=60)
        return is_clean
    notebook.wait(cell, lambda: cell.is_done)
    return are_gone(pids - parents if "ws.run" in code and way != "agent killed" else pids, within_s=2)
