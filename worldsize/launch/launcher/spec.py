"""The specification of a run: the function, its ranks, where they run, and their limits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from worldsize.faults import Fault
from worldsize.hardware import Cluster
from worldsize.launch.launcher.forkserver import Forkserver
from worldsize.launch.protocol.quota import Quota


@dataclass(frozen=True)
class Spec:
    """One run of `fn(*args, *each[rank])`. Arguments of `run` mean the same here; the others are for the autograder.

    `launcher` is "warm" (forked from a forkserver) or "torchrun" (torch's elastic agent). Ranks of a `forkserver` in a
    jail inherit nothing from this process. With `netns`, on Linux and as root, rank i joins from the network namespace
    `netns[i]`, as if it were a different machine, on the network device that `env["GLOO_SOCKET_IFNAME"]` names. On an
    emulated cluster, `keeps_exchanges` keeps the data of every message and collective as the run's `exchanges`.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    _: KW_ONLY
    world_size: int
    each: Sequence[Sequence[Any]] | None = None
    backend: str = "auto"
    timeout_s: float = 60
    stalled_s: float | None = 20
    echo: bool = True
    cluster: Cluster | str | None = None
    allow: Collection[str] | None = None
    compute: str | float = "flops"
    faults: Sequence[Fault] = ()
    memory: bool = False
    keeps_exchanges: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    launcher: str = "warm"
    forkserver: Forkserver | None = None
    netns: Sequence[str] | None = None
    quota: Quota = field(default_factory=Quota)
