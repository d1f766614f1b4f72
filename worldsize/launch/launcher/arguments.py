"""What is refused before anything starts, each with a sentence on what would be right."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from worldsize.launch.protocol import process

_BACKENDS = ("auto", "gloo", "nccl")
_MAX_TIMEOUT_S = 1_000_000  # 11 days; the kernel's own clocks for waiting end soon after
# what one rank takes on its own before it does anything, measured with torch 2.13 on Linux
RANK_BYTES = {"warm": 54 << 20, "torchrun": 230 << 20}


def refuse_bad_arguments(
    world_size: int, each: Sequence[Sequence[Any]] | None, backend: str, env: Mapping[str, str]
) -> None:
    """Nothing, when these arguments of `run` can be used.

    Raises:
        ValueError: one of them cannot.
    """
    if not isinstance(world_size, int) or isinstance(world_size, bool) or world_size < 1:
        raise ValueError(f"world_size is the number of ranks, a whole number from 1 up; got {world_size!r}")
    if each is not None:
        _refuse_bad_each(each, world_size)
    if backend not in _BACKENDS:
        raise ValueError(f"backend {backend!r} is not known; use one of {', '.join(_BACKENDS)}")
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValueError(f"env holds text by name; got {name!r}: {value!r}")


def _refuse_bad_each(each: Sequence[Sequence[Any]], world_size: int) -> None:
    if not isinstance(each, list | tuple) or not all(isinstance(args, list | tuple) for args in each):
        raise ValueError(
            "each is a list with one tuple of arguments a rank; for one argument a rank, write [(a0,), (a1,)]"
        )
    if len(each) != world_size:
        raise ValueError(f"each holds one tuple of arguments a rank; got {len(each)} for {world_size} ranks")


def refuse_bad_timeout(timeout_s: float) -> None:
    """Nothing, when `timeout_s` is a time to wait.

    Raises:
        ValueError: it is not.
    """
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise ValueError(f"timeout_s is a number of seconds above 0, at most {_MAX_TIMEOUT_S}; got {timeout_s!r}")


def refuse_bad_networks(netns: Sequence[str], world_size: int, is_plain: bool) -> None:
    """Nothing, when every rank can join from its network namespace; `is_plain`: by the warm launcher, not emulated.

    Raises:
        ValueError: it cannot.
    """
    if not is_plain:
        raise ValueError("netns is for real ranks of the warm launcher; leave out cluster, nursery and launcher")
    if isinstance(netns, str) or len(netns) != world_size:
        raise ValueError(f"netns names one network namespace a rank; got {netns!r} for {world_size} ranks")
    for name in netns:
        if not name or set("/,") & set(name) or not os.path.exists(os.path.join(process.NETWORKS, name)):
            raise ValueError(f"there is no network namespace {name!r}; on Linux `ip netns add {name}` makes one")
    if os.geteuid() != 0:
        raise ValueError("only root may enter network namespaces; run this as root, or leave out netns")


def refuse_too_many(world_size: int, launcher: str) -> None:
    """Nothing, when this machine's free memory holds so many ranks, as far as that can be known.

    Raises:
        ValueError: it does not.
    """
    free_bytes, each_bytes = free_memory_bytes(), RANK_BYTES[launcher]
    if free_bytes is not None and world_size * each_bytes > free_bytes:
        raise ValueError(
            f"{world_size} ranks take at least {world_size * each_bytes / 2**30:.1f} GB of memory and "
            f"{free_bytes / 2**30:.1f} GB are free; start at most {free_bytes // each_bytes}"
        )


def free_memory_bytes() -> int | None:
    """The memory that this process and its children may still take, in bytes; None where the system does not say."""
    frees = [free for free in (_free_of_machine(), _free_of_group()) if free is not None]
    return min(frees, default=None)


def _free_of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # macOS tells only how much there is in all
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if sys.platform == "darwin" else None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")), None)


def _free_of_group() -> int | None:
    """What the control group of a container leaves, files that it has cached counted as free."""
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        cached = re.search(r"^inactive_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(limit) - int(used) + int(cached[1] if cached else 0) if limit.isdigit() else None


def refuse_missing_gpus(world_size: int, backend: str, num_gpus: int) -> None:
    """Nothing, when there is a GPU for every rank or none is asked for.

    Raises:
        ValueError: NCCL is asked for and there are too few.
    """
    if backend == "nccl" and num_gpus < world_size:
        found = f"{num_gpus} CUDA device{'' if num_gpus == 1 else 's'}"
        raise ValueError(
            f"NCCL needs a GPU for every rank: {world_size} ranks, and this machine has {found}. "
            "Leave backend='auto' (Gloo on the CPU) or start fewer ranks."
        )
