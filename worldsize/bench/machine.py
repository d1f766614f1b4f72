"""The machine of a measurement: processor, GPUs, clocks, versions, matmul speed, and what else was running on it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch
from pydantic import BaseModel, ConfigDict

from worldsize.cores import cores, num_cores

_SIZE = 1024  # of a matrix; 2 * 1024^3 flops a product
_NUM_PRODUCTS = 5
_LOOK_S = 0.2  # 20 ticks of a kernel that counts hundredths of a second

MIN_BUSY_CORES = 0.5  # less can be one short hiccup: 0.1 s of one core within a look
MAX_BUSY_SHARE = 0.5  # of the cores that ranks leave free: "cores" are often hyper-threads, two on each real core


class Machine(BaseModel):
    """The machine; rates in FLOP/s, clocks in MHz, 0 if they cannot be read."""

    model_config = ConfigDict(extra="forbid")

    system: str
    processor: str
    num_cores: int
    memory_bytes: int
    clock_mhz: float
    gpus: list[str]
    gpu_clocks_mhz: list[float]
    matrix_flops_per_s: float  # float32, one process, all its threads
    python: str
    torch: str
    cuda: str
    nccl: str
    worldsize: str


def describe() -> Machine:
    """Describe this machine as it is now."""
    gpus = _gpus()
    return Machine(
        system=platform.platform(),
        processor=processor(),
        num_cores=num_cores(),
        memory_bytes=memory_bytes(),
        clock_mhz=float(_first("/proc/cpuinfo", "cpu MHz") or 0),
        gpus=[name for name, _ in gpus],
        gpu_clocks_mhz=[clock for _, clock in gpus],
        matrix_flops_per_s=matrix_flops_per_s(),
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        nccl=_nccl(),
        worldsize=metadata.version("worldsize"),
    )


def matrix_flops_per_s(num_threads: int | None = None) -> float:
    """Return the FLOP/s of the fastest of five matmuls of 1024 x 1024 float32 matrices on the CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        left, right = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
        times_s = []
        for _ in range(_NUM_PRODUCTS):
            start_s = time.perf_counter()
            torch.mm(left, right)
            times_s.append(time.perf_counter() - start_s)
        return 2 * _SIZE**3 / min(times_s)
    finally:
        torch.set_num_threads(before)


def busy_cores() -> float | None:
    """Return how many of this process's cores other work keeps busy in the next 0.2 s, while this thread sleeps.

    None if the system does not report it.
    """
    try:
        before = psutil.cpu_times(percpu=True)
        time.sleep(_LOOK_S)
        after = psutil.cpu_times(percpu=True)
    except (OSError, psutil.Error, RuntimeError, ValueError, NotImplementedError):  # as systems and containers differ
        return None
    seen, ours = min(len(before), len(after)), cores()
    if ours[-1] >= seen:
        ours = range(seen)  # the container lists only its own cores, numbered from 0
    spent = [_spent_s(before[core], after[core]) for core in ours]
    shares = [busy_s / (busy_s + idle_s) for busy_s, idle_s in spent if busy_s + idle_s > 0]
    # a container may use only part of the machine's cores: others' work slows it by its share
    return sum(shares) / len(shares) * min(len(shares), num_cores()) if shares else None


def busy_limit_cores(num_cores: int, num_needed: int) -> float:
    """Return how many of a machine's cores other work may keep busy while ranks need `num_needed` cores."""
    return max(MIN_BUSY_CORES, MAX_BUSY_SHARE * (num_cores - num_needed))


def _spent_s(before: Any, after: Any) -> tuple[float, float]:
    """The seconds that a core was busy, or taken away by a hypervisor, and the seconds that it was idle."""
    counted = set(after._fields) - {"guest", "guest_nice"}  # these two are part of user and nice
    spent_s = {name: max(0.0, getattr(after, name) - getattr(before, name)) for name in counted}
    idle_s = spent_s.pop("idle") + spent_s.pop("iowait", 0.0)
    return sum(spent_s.values()), idle_s


def processor() -> str:
    """The processor's name."""
    return _first("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def memory_bytes() -> int:
    """The bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _first(path: str, name: str) -> str:
    """The value of the first line `name: value` in a file; empty if there is none."""
    if not os.path.exists(path):
        return ""
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def _gpus() -> list[tuple[str, float]]:
    """Every GPU's name and clock, from the driver's tool: after asking torch, this process could not fork ranks."""
    if not (tool := shutil.which("nvidia-smi")):
        return []
    query = [tool, "--query-gpu=name,clocks.sm", "--format=csv,noheader,nounits"]
    said = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    rows = [line.rpartition(", ") for line in said.stdout.splitlines() if ", " in line]
    return [(name, float(clock) if clock.replace(".", "").isdigit() else 0.0) for name, _, clock in rows]


def _nccl() -> str:
    if not torch.version.cuda:
        return ""
    from torch.cuda import nccl

    return ".".join(map(str, nccl.version()))
