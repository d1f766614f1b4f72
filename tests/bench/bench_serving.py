"""Lab 4's reference parameter server on real sockets: what a straggler costs the others, beside all-reduce."""

from __future__ import annotations

import statistics
import time
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from figures import Figure, scaled
from repository import ROOT

import worldsize as ws
from autograder.authoring.known_answers import solution_cells

LAB = ROOT / "solutions" / "lab04" / "lab04.py"
_NUM_WORKERS, _STEP_S, _SLOW_FACTOR, _NUM_STEPS, _NUM_TIMES = 3, 0.02, 5, 12, 5
_NUM_ELEMENTS = 10_000


def serving(scale: float) -> Iterator[Figure]:
    """The speed that fast workers keep beside one that is five times slower: with the server, and with all-reduce."""
    functions, num_times = reference(), scaled(_NUM_TIMES, scale)
    for name, fast_s in (("server", _served_s), ("all-reduce", _reduced_s)):
        # interleaved, so that what else this machine does hits both alike
        pairs = [(fast_s(functions, 1), fast_s(functions, _SLOW_FACTOR)) for _ in range(num_times)]
        kept = statistics.median(without_s / with_s for without_s, with_s in pairs)
        goal, met = ("at least 0.9", kept >= 0.9) if name == "server" else ("about 0.2", None)
        how = f"{_NUM_WORKERS} workers, Gloo, median of {num_times} pairs"
        yield Figure(f"speed kept by fast workers, {name}", kept, "", goal, met, how)


def reference() -> Any:
    """The functions of lab 4's solution."""
    module = types.ModuleType("reference")
    exec("import torch\nimport torch.distributed as dist", module.__dict__)
    for source in solution_cells(LAB).values():
        if source.startswith("def "):  # one answer is in words
            exec(source, module.__dict__)
    return module


def _served_s(functions: Any, slow_factor: float) -> float:
    """Seconds in which the fast workers did their steps, the mean."""
    run = ws.run(
        _on_server,
        functions.run_server,
        functions.run_worker,
        slow_factor,
        world_size=_NUM_WORKERS + 1,
        backend="gloo",
        echo=False,
    )
    return statistics.mean(run.values[1:-1])


def _on_server(run_server: Any, run_worker: Any, slow_factor: float) -> float:
    rank = dist.get_rank()
    torch.set_num_threads(1)
    dist.barrier()
    start_s = time.perf_counter()
    if rank == 0:
        run_server(torch.zeros(_NUM_ELEMENTS), lambda weights, gradient: weights.sub_(gradient), _NUM_STEPS, _NUM_STEPS)
    else:
        step_s = _STEP_S * (slow_factor if rank == _NUM_WORKERS else 1)

        def gradient_of(weights: torch.Tensor) -> torch.Tensor:
            time.sleep(step_s)
            return weights / 100

        run_worker(torch.zeros(_NUM_ELEMENTS), gradient_of, _NUM_STEPS)
    return time.perf_counter() - start_s


def _reduced_s(_functions: Any, slow_factor: float) -> float:
    """The same with an all-reduce in every step."""
    run = ws.run(_all_reduced, slow_factor, world_size=_NUM_WORKERS, backend="gloo", echo=False)
    return statistics.mean(run.values[:-1])


def _all_reduced(slow_factor: float) -> float:
    torch.set_num_threads(1)
    is_slow = dist.get_rank() == _NUM_WORKERS - 1
    dist.barrier()
    start_s, gradient = time.perf_counter(), torch.zeros(_NUM_ELEMENTS)
    for _ in range(_NUM_STEPS):
        time.sleep(_STEP_S * (slow_factor if is_slow else 1))
        dist.all_reduce(gradient)
    return time.perf_counter() - start_s
