"""The processor cores available to this process."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Count the cores that this process may use: those that it may run on, within its container's limit."""
    return max(1, math.floor(min(len(cores()), _quota_cores())))


def cores() -> Sequence[int]:
    """List the cores that this process may run on."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _quota_cores() -> float:
    """Return the CPU seconds per second that this process's control groups grant; infinite without a limit."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # cgroups version 1, or version 2
        mounts = [_GROUPS / controllers, _GROUPS / "cpu"] if controllers else [_GROUPS]
        mount = next((mount for mount in mounts if mount.exists()), _GROUPS)
        folder = mount / path.lstrip("/")  # a group's ancestors limit it too, and a container may see only the root
        quotas += [_quota_of(group) for group in (folder, *folder.parents) if group.is_relative_to(mount)]
    return min(quotas)


def _quota_of(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():  # version 2
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return math.inf if quota in ("max", "-1") else float(quota) / float(period)
    except (OSError, ValueError):
        return math.inf
