"""The job that a launcher sends to every rank, along with the function."""

from __future__ import annotations

import os
import sys

from worldsize import hardware, source
from worldsize.cores import num_cores
from worldsize.emulate.protocol.messages import Emulated
from worldsize.launch.launcher.pickling import Carried
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.protocol.messages import RunFunction, WorkingDirectory
from worldsize.memory.capacity import Capacity


def jobs_of(
    spec: Spec, carried: Carried, is_local: bool = True, store: str = "", emulated: Emulated | None = None
) -> list[RunFunction]:
    """Each rank's job; ranks in a jail (`is_local` false) see nothing of this process."""
    ours = os.environ if is_local else {}  # which may have changed since the forkserver started
    env = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo", **ours, **spec.env}
    sources = source.cell_sources(carried.filenames) if is_local else {}
    capacity = None
    if spec.memory and spec.cluster is not None:
        cluster = hardware.cluster(spec.cluster) if isinstance(spec.cluster, str) else spec.cluster
        capacity = Capacity(cluster.gpu.memory_bytes, cluster.gpu.name, spec.world_size)
    num_threads = max(1, num_cores() // spec.world_size)
    return [
        RunFunction(
            rank=rank,
            world_size=spec.world_size,
            backend=spec.backend,
            timeout_s=spec.timeout_s,
            num_threads=num_threads,
            env=env,
            sources=sources,
            store=store,
            network=spec.netns[rank] if spec.netns else "",
            place=WorkingDirectory(os.getcwd(), list(sys.path)) if is_local else None,
            emulated=emulated,
            counts_memory=spec.memory,
            capacity=capacity,
            allow=None if emulated or spec.allow is None else sorted(spec.allow),
        )
        for rank in range(spec.world_size)
    ]
