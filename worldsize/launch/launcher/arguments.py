"""Validation of arguments before anything starts; each error says what would be right."""

from __future__ import annotations

import math
import operator
import os
import re
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldsize.emulate.protocol.operations import refuse_unknown
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.protocol import process

_BACKENDS = ("auto", "gloo", "nccl")
_LAUNCHERS = ("warm", "torchrun")
_MAX_TIMEOUT_S = 1_000_000  # 11 days; the kernel's own limits on waiting are not much higher
# the memory of one rank before it does anything, measured with torch 2.13 on Linux
RANK_BYTES = {"warm": 16 << 20, "torchrun": 230 << 20}
# the launcher's open files per rank: for a warm rank its socket, its pipe, its call log, and both ends of the socket
# to an emulated cluster
_RANK_FILES = {"warm": 5, "torchrun": 2}
_SPARE_FILES = 32  # for starting ranks and for other files that this process opens meanwhile


def refuse_bad_spec(spec: Spec) -> None:
    """Raise ValueError unless a run can start from this specification.

    Raises:
        ValueError: an argument is wrong, or this machine cannot hold that many ranks.
    """
    whole_world_size(spec.world_size)
    if spec.each is not None:
        _refuse_bad_each(spec.each, spec.world_size)
    if spec.backend not in _BACKENDS:
        raise ValueError(f"backend {spec.backend!r} is not known; use one of {', '.join(_BACKENDS)}")
    _refuse_bad_env(spec.env)
    refuse_bad_timeout(spec.timeout_s, spec.stalled_s)
    if spec.launcher not in _LAUNCHERS:
        raise ValueError(f"launcher {spec.launcher!r} is not known; use one of {', '.join(_LAUNCHERS)}")
    if spec.cluster is not None and (spec.launcher != "warm" or spec.backend != "auto"):
        raise ValueError("an emulated cluster has its own backend and launcher; leave out backend and launcher")
    if spec.cluster is None and spec.faults:
        raise ValueError("faults are for an emulated cluster; name one, such as cluster='dgx-h100'")
    if spec.allow is not None:
        _refuse_bad_allow(spec)
    if spec.netns is not None:
        is_plain = spec.launcher == "warm" and spec.cluster is None and spec.forkserver is None
        refuse_bad_networks(spec.netns, spec.world_size, is_plain)
    refuse_too_many(spec.world_size, spec.launcher)


def whole_world_size(world_size: Any) -> int:
    """Convert the number of ranks to a Python `int`, also from a NumPy integer.

    Raises:
        ValueError: it is not a whole number, 1 or more.
    """
    try:
        number = 0 if isinstance(world_size, bool) else operator.index(world_size)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"world_size must be a whole number, 1 or more; got {world_size!r}")
    return number


def _refuse_bad_allow(spec: Spec) -> None:
    refuse_unknown(spec.allow or ())
    if spec.cluster is None and spec.backend == "nccl":
        raise ValueError("allow works only with Gloo or on an emulated cluster; leave out backend, or name a cluster")


def _refuse_bad_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(f"env must map names to strings; got {name!r}: {value!r}")


def _refuse_bad_each(each: Sequence[Sequence[Any]], world_size: int) -> None:
    if not isinstance(each, list | tuple) or not all(isinstance(args, list | tuple) for args in each):
        raise ValueError(
            "each must be a list with one tuple of arguments per rank; for one argument per rank, write [(a0,), (a1,)]"
        )
    if len(each) != world_size:
        raise ValueError(f"each must hold one tuple of arguments per rank; got {len(each)} for {world_size} ranks")


def refuse_bad_timeout(timeout_s: float, stalled_s: float | None) -> None:
    """Raise ValueError unless both are valid durations; `stalled_s=None` turns the detection of stalls off."""
    if not _is_time(timeout_s) or timeout_s > _MAX_TIMEOUT_S:
        raise ValueError(f"timeout_s must be a number of seconds above 0, at most {_MAX_TIMEOUT_S}; got {timeout_s!r}")
    if stalled_s is not None and not _is_time(stalled_s):
        raise ValueError(f"stalled_s must be a number of seconds above 0, or None; got {stalled_s!r}")


def _is_time(time_s: Any) -> bool:
    return isinstance(time_s, int | float) and not isinstance(time_s, bool) and not math.isnan(time_s) and time_s > 0


def refuse_bad_networks(netns: Sequence[str], world_size: int, is_plain: bool) -> None:
    """Raise ValueError unless every rank can join from its network namespace.

    `is_plain`: the ranks are real ones of the warm launcher, outside any jail.
    """
    if not is_plain:
        raise ValueError(
            "netns works only for real ranks of the warm launcher; leave out cluster, forkserver and launcher"
        )
    if isinstance(netns, str) or len(netns) != world_size:
        raise ValueError(f"netns must name one network namespace per rank; got {netns!r} for {world_size} ranks")
    for name in netns:
        if not name or set("/,") & set(name) or not os.path.exists(os.path.join(process.NETWORKS, name)):
            raise ValueError(f"there is no network namespace {name!r}; on Linux `ip netns add {name}` makes one")
    if os.geteuid() != 0:
        raise ValueError("only root may enter network namespaces; run this as root, or leave out netns")


def refuse_too_many(world_size: int, launcher: str) -> None:
    """Raise ValueError if this machine is known to lack the memory or open files for `world_size` ranks."""
    _refuse_too_large(world_size, launcher)
    _make_room_for_files(world_size, launcher)


def _refuse_too_large(world_size: int, launcher: str) -> None:
    free_bytes, each_bytes = free_memory_bytes(), RANK_BYTES[launcher]
    if free_bytes is not None and world_size * each_bytes > free_bytes:
        raise ValueError(
            f"{world_size} ranks need at least {world_size * each_bytes / 2**30:.1f} GB of memory, but only "
            f"{free_bytes / 2**30:.1f} GB are free; start at most {free_bytes // each_bytes}"
        )


def _make_room_for_files(world_size: int, launcher: str) -> None:
    """Raise this process's limit on open files to what its ranks need, or raise ValueError if it may not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"  # a jail has the first, macOS the other
    others = len(os.listdir(folder)) + _SPARE_FILES
    needed = others + world_size * _RANK_FILES[launcher]
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard == resource.RLIM_INFINITY or needed <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    most = max(0, (hard - others) // _RANK_FILES[launcher])
    raise ValueError(
        f"{world_size} ranks need {needed} open files, but this process may have {hard}; start at most {most}, or "
        "raise the limit (ulimit -n)"
    )


def free_memory_bytes() -> int | None:
    """The bytes of memory available to this process and its children; None if the system does not report it."""
    frees = [free for free in (_free_of_machine(), _free_of_group()) if free is not None]
    return min(frees, default=None)


def _free_of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # macOS reports only the total
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if sys.platform == "darwin" else None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _free_of_group() -> int | None:
    """The bytes that the container's control group leaves free; cached files count as free."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        cached = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(limit) - int(used) + int(cached[1] if cached else 0) if limit.isdigit() else None


def refuse_missing_gpus(world_size: int, backend: str, num_gpus: int) -> None:
    """Raise ValueError if the backend is NCCL and there are fewer GPUs than ranks."""
    if backend == "nccl" and num_gpus < world_size:
        found = f"{num_gpus} CUDA device{'' if num_gpus == 1 else 's'}"
        raise ValueError(
            f"NCCL needs a GPU for every rank: {world_size} ranks, and this machine has {found}. "
            "Leave backend='auto' (Gloo on the CPU) or start fewer ranks."
        )
