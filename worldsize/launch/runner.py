"""`run`: a function on real ranks, from a script or a notebook cell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from worldsize.hardware import Cluster
from worldsize.launch import elastic, limits, live, warm
from worldsize.launch.emulated import Emulation
from worldsize.launch.forked import ForkedCrew
from worldsize.launch.job import job_of
from worldsize.launch.outcome import Run

_LAUNCHERS = ("warm", "torchrun")
_one_at_a_time = threading.RLock()  # runs share the nursery's socket


def run(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    each: Sequence[Sequence[Any]] | None = None,
    backend: str = "auto",
    timeout_s: float = 60,
    stalled_s: float | None = 20,
    env: Mapping[str, str] | None = None,
    echo: bool = True,
    launcher: str = "warm",
    cluster: Cluster | str | None = None,
    allow: Collection[str] | None = None,
    compute: str = "flops",
    nursery: warm.Nursery | None = None,
    max_value_bytes: int = 1 << 34,
) -> Run:
    """A `Run` of `fn(*args, *each[rank])` on `world_size` ranks, each in a process of its own.

    The default process group is up when the function starts: NCCL when there is a GPU for every rank, Gloo otherwise.
    The function may be defined in a notebook cell. It may return numbers, strings, lists, tuples, dicts with string
    keys, and tensors. With `echo`, what ranks print appears as it comes. `launcher="torchrun"` starts the ranks by
    torch's own elastic agent instead of a warm process, some seconds slower.

    With `cluster`, such as `hardware.DGX_H100` or "dgx-h100", the ranks exchange the same data on an emulated cluster,
    and the run's timeline is in that cluster's virtual time; `allow` then names the operations that may be used, and
    `compute` how the ranks' own work is priced: by its "flops" on the cluster's GPU at half of the peak, as "measured"
    on this machine, or not at all ("none").

    Raises:
        ValueError: an argument is wrong, this machine cannot hold so many ranks, or the function cannot be carried.
        RankFailed: a rank raised, exited or was killed; names the culprit.
        RunTimeout: the ranks were not done after `timeout_s` seconds, or for `stalled_s` seconds every rank that was
            not done waited in one call; says who waits for whom.
        RunStopped: the stop button was pressed.
    """
    limits.refuse_bad_arguments(world_size, each, backend, env or {})
    limits.refuse_bad_timeout(timeout_s)
    if launcher not in _LAUNCHERS:
        raise ValueError(f"launcher {launcher!r} is not known; use one of {', '.join(_LAUNCHERS)}")
    if cluster is not None and (launcher != "warm" or backend != "auto"):
        raise ValueError("an emulated cluster has a backend and a launcher of its own; leave out backend and launcher")
    if cluster is None and allow is not None:
        raise ValueError("allow restricts runs on an emulated cluster; name one, such as cluster='dgx-h100'")
    limits.refuse_too_many(world_size, launcher)
    payloads = [limits.carry(fn, (*args, *(each[rank] if each else ()))) for rank in range(world_size)]
    if launcher == "torchrun":
        if backend == "nccl":
            limits.refuse_missing_gpus(world_size, backend, warm.shared().num_gpus)
        job = job_of(world_size, backend, timeout_s, dict(env or {}))
        return elastic.run_function(payloads, job, timeout_s, stalled_s, live.choose_view(echo), max_value_bytes)
    emulation = None if cluster is None else Emulation(world_size, cluster, allow, compute)
    with _one_at_a_time:
        nursery = nursery or warm.shared()
        limits.refuse_missing_gpus(world_size, backend, nursery.num_gpus)
        crew = ForkedCrew(nursery, live.choose_view(echo), max_value_bytes, emulation)
        try:
            crew.start(payloads, backend, timeout_s, dict(env or {}))
            return crew.outcome(crew.listen(timeout_s, stalled_s))
        finally:
            crew.close()
