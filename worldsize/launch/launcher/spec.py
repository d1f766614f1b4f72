"""What a run is: the function, its ranks, where they are, and what they may do and take."""

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
    """One run of `fn(*args, *each[rank])`. Arguments of `run` mean the same here; others are for the course's engine.

    `launcher` is "warm", forks of a forkserver, or "torchrun", torch's own elastic agent. Ranks of a `forkserver` in a
    jail see nothing of this process. With `netns`, on Linux and as root, rank i joins from the network namespace
    `netns[i]`, as if it were another machine, on the network device that `env["GLOO_SOCKET_IFNAME"]` names. On an
    emulated cluster, a run that `keeps_exchanges` has what went over the wire as its `exchanges`.
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
