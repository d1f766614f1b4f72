"""What a launcher hands to every rank of a function, besides the function."""

from __future__ import annotations

import os
import sys
from typing import Any

from worldsize.launch.protocol import source


def job_of(
    world_size: int, backend: str, timeout_s: float, env: dict[str, str], is_local: bool = True
) -> dict[str, Any]:
    """The job as JSON fields; ranks in a jail (`is_local` false) see nothing of this process."""
    ours = os.environ if is_local else {}  # which may have changed since the nursery started
    job: dict[str, Any] = {
        "world_size": world_size,
        "backend": backend,
        "timeout_s": timeout_s,
        "num_threads": max(1, (os.cpu_count() or 1) // world_size),
        "env": {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo", **ours, **env},
        "sources": source.cell_sources() if is_local else {},
    }
    return job | {"cwd": os.getcwd(), "path": sys.path} if is_local else job
