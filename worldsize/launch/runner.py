"""`run`: a function on real ranks, from a script or a notebook cell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from worldsize.emulate.server import Emulation
from worldsize.faults import Fault
from worldsize.hardware import Cluster
from worldsize.launch.display import live
from worldsize.launch.launcher import arguments, elastic, forkserver
from worldsize.launch.launcher.forked import ForkedCrew
from worldsize.launch.launcher.job import job_of
from worldsize.launch.launcher.pickling import carry
from worldsize.launch.protocol.process import NETWORKS_OF_RANKS
from worldsize.launch.protocol.quota import Quota
from worldsize.launch.reports.result import Run

_LAUNCHERS = ("warm", "torchrun")
_AMPLE = Quota()
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
    compute: str | float = "flops",
    faults: Sequence[Fault] = (),
    nursery: forkserver.Nursery | None = None,
    netns: Sequence[str] | None = None,
    quota: Quota = _AMPLE,
) -> Run:
    """A `Run` of `fn(*args, *each[rank])` on `world_size` ranks, each in a process of its own.

    The default process group is up when the function starts: NCCL when there is a GPU for every rank, Gloo otherwise.
    The function may be defined in a notebook cell. It may return numbers, strings, lists, tuples, dicts with string
    keys, and tensors. With `echo`, what ranks print appears as it comes. `launcher="torchrun"` starts the ranks by
    torch's own elastic agent instead of a warm process, some seconds slower.

    With `cluster`, such as `hardware.DGX_H100` or "dgx-h100", the ranks exchange the same data on an emulated cluster,
    and the run's timeline is in that cluster's virtual time; `allow` then names the operations that may be used, and
    `compute` how the ranks' own work is priced: by its "flops" on the cluster's GPU at half of the peak, as "measured"
    on this machine, by a number as that times what is measured (0.01 for a device a hundred times faster), or not at
    all ("none"). `faults` are what goes wrong there: those of `worldsize.faults`.

    With `netns`, on Linux and as root, rank i joins from the network namespace `netns[i]`, as if it were another
    machine; `env={"GLOO_SOCKET_IFNAME": ...}` then names the network device, which is `lo` otherwise.

    Raises:
        ValueError: an argument is wrong, this machine cannot hold so many ranks, or the function cannot be carried.
        RankFailed: a rank raised, exited or was killed; names the culprit.
        RunTimeout: the ranks were not done after `timeout_s` seconds, or for `stalled_s` seconds every rank that was
            not done waited in one call; says who waits for whom.
        RunStopped: the stop button was pressed.
    """
    arguments.refuse_bad_arguments(world_size, each, backend, env or {})
    arguments.refuse_bad_timeout(timeout_s)
    if launcher not in _LAUNCHERS:
        raise ValueError(f"launcher {launcher!r} is not known; use one of {', '.join(_LAUNCHERS)}")
    if cluster is not None and (launcher != "warm" or backend != "auto"):
        raise ValueError("an emulated cluster has a backend and a launcher of its own; leave out backend and launcher")
    if cluster is None and (allow is not None or faults):
        raise ValueError("allow and faults are for an emulated cluster; name one, such as cluster='dgx-h100'")
    env = dict(env or {})
    if netns is not None:
        arguments.refuse_bad_networks(netns, world_size, launcher == "warm" and cluster is None and nursery is None)
        env[NETWORKS_OF_RANKS] = ",".join(netns)
    arguments.refuse_too_many(world_size, launcher)
    payloads = carry(fn, args, each, world_size)
    if launcher == "torchrun":
        if backend == "nccl":
            arguments.refuse_missing_gpus(world_size, backend, forkserver.shared().num_gpus)
        job = job_of(world_size, backend, timeout_s, env)
        return elastic.run_function(payloads, job, timeout_s, stalled_s, live.choose_view(echo), quota)
    emulation = None if cluster is None else Emulation(world_size, cluster, allow, compute, faults, quota.value_bytes)
    with _one_at_a_time:
        nursery = nursery or forkserver.shared()
        arguments.refuse_missing_gpus(world_size, backend, nursery.num_gpus)
        crew = ForkedCrew(nursery, live.choose_view(echo), quota, emulation)
        try:
            crew.start(payloads, backend, timeout_s, env)
            return crew.outcome(crew.listen(timeout_s, stalled_s))
        finally:
            crew.close()
