"""The machine of a measurement: processor, GPUs, clocks, versions, and the speed of a matrix product."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from importlib import metadata
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

_SIZE = 1024  # of a matrix; 2 * 1024^3 flops a product
_NUM_PRODUCTS = 5


class Machine(BaseModel):
    """The machine; rates in flops a second, clocks in MHz, 0 where they cannot be read."""

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
    """A description of this machine as it is now."""
    gpus = _gpus()
    return Machine(
        system=platform.platform(),
        processor=_first("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        num_cores=_num_cores(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
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
    """The best of five products of two 1024 x 1024 float32 matrices on the CPU, in flops a second."""
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


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first(path: str, name: str) -> str:
    """The value of the first line `name: value` in a file; empty when there is none."""
    if not os.path.exists(path):
        return ""
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "")


def _gpus() -> list[tuple[str, float]]:
    """Every GPU's name and clock, from the driver's own tool: no ranks could be forked after torch had asked."""
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
