"""Recording of torch.profiler's results as events of a run's timeline."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from worldsize.event import COMMUNICATION, Event
from worldsize.launch.worker import spans

_BACKWARD = "autograd::engine::evaluate_function"
_BACKENDS = ("gloo:", "nccl:")
# operations whose tensor has the size that nccl-tests counts
_WHOLE = ("all_reduce", "broadcast", "recv", "reduce", "send")
_ITEM_BYTES = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::Half": 2, "c10::BFloat16": 2}

_is_profiling = False


@contextmanager
def profile() -> Iterator[None]:
    """Record the operations inside the block with torch.profiler, as events of the run's timeline.

    On stream "compute": the outermost operations, of kind "backward" inside autograd's backward, otherwise "compute".
    On "communication": the backend's operations, including DDP's, with names like "gloo:all_reduce" and without peers.
    On "cuda N": the kernels of a GPU. Only the last 20,000 events are kept. A nested `profile` does nothing, and
    neither does one in an emulated run, whose events are in virtual time.
    """
    global _is_profiling
    if _is_profiling or not spans.is_on():
        yield
        return
    import torch

    profiler = torch.profiler.profile(record_shapes=True, acc_events=True)
    with _quiet():
        profiler.start()
    _is_profiling = True
    try:
        yield
    finally:
        _is_profiling = False
        with _quiet():
            profiler.stop()
        for e in events_of(profiler, rank=0):
            spans.keep("profile", e.stream, e.kind, e.name, e.start_s, e.end_s, e.size_bytes)


def events_of(profiler: Any, rank: int) -> list[Event]:
    """Convert a stopped `torch.profiler.profile` to events, in seconds of `time.monotonic` like spans.

    For a timeline, subtract the start of the run from both times.
    """
    ahead_ns = _clock_ahead_ns()
    found = profiler.profiler.kineto_results.events()
    ordered = sorted(found, key=lambda one: (one.start_ns(), -one.end_ns()))
    return [
        Event(
            rank,
            stream,
            kind,
            one.name(),
            (one.start_ns() - ahead_ns) / 1e9,
            (one.end_ns() - ahead_ns) / 1e9,
            _size_bytes(one),
        )
        for one, stream, kind in _classified(ordered)
    ]


def _classified(ordered: Iterable[Any]) -> Iterator[tuple[Any, str, str]]:
    """Yield the operations that become events, with stream and kind; `ordered` is by start, then longest first."""
    backward_ns: dict[int, int] = {}  # thread -> end of its current backward
    busy_ns: dict[int, int] = {}  # thread -> end of its current outermost operation
    for one in ordered:
        name, thread, start_ns, end_ns = one.name(), one.start_thread_id(), one.start_ns(), one.end_ns()
        if "CUDA" in str(one.device_type()):
            yield one, f"cuda {one.device_resource_id()}", COMMUNICATION if "nccl" in name.lower() else "compute"
        elif name.startswith(_BACKENDS):
            yield one, COMMUNICATION, COMMUNICATION
        elif name.startswith(_BACKWARD):
            backward_ns[thread] = max(end_ns, backward_ns.get(thread, 0))
        elif name.startswith("aten::") and start_ns >= busy_ns.get(thread, 0):
            busy_ns[thread] = end_ns
            yield one, "compute", "backward" if start_ns < backward_ns.get(thread, 0) else "compute"


def _size_bytes(one: Any) -> int:
    """The bytes of the tensor that the backend moves if that is the operation's size, otherwise 0."""
    backend, _, op = one.name().partition(":")
    shapes, dtypes = one.shapes(), one.dtypes()
    if f"{backend}:" not in _BACKENDS or op not in _WHOLE or not shapes or not dtypes:
        return 0
    size_bytes = _ITEM_BYTES.get(dtypes[0], 0)
    for length in shapes[0]:
        size_bytes *= length
    return size_bytes


def _clock_ahead_ns() -> int:
    """The nanoseconds by which the system clock, which the profiler uses, is ahead of the monotonic clock."""
    tries = [(time.monotonic_ns(), time.time_ns(), time.monotonic_ns()) for _ in range(5)]
    before_ns, system_ns, after_ns = min(tries, key=lambda times_ns: times_ns[2] - times_ns[0])  # the least interrupted
    return system_ns - (before_ns + after_ns) // 2


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep stderr empty: torch 2.13 writes a line to it for each start and stop of its profiler."""
    with contextlib.ExitStack() as stack:
        kept = os.dup(2)
        stack.callback(os.close, kept)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, nowhere)
        os.dup2(nowhere, 2)
        stack.callback(os.dup2, kept, 2)
        yield
