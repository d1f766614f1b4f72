"""Training steps and saves that no calibration has measured: run for real, and predicted from a calibration alone."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import worldsize as ws
from worldsize.calibrate import Calibration
from worldsize.models import Transformer
from worldsize.models.shapes import Shape

_NUM_SKIPPED = 3  # the first steps make an optimizer's state, and DDP cuts its buckets
_LENGTH, _VOCABULARY = 64, 512


@dataclass(frozen=True)
class Run:
    """A training program: its ranks, a network of a kind, its width, layers and batch, its optimizer."""

    num_ranks: int
    kind: str
    width: int
    num_layers: int
    batch: int
    optimizer: str

    def __str__(self) -> str:
        ranks = "2 ranks" if self.num_ranks == 2 else "1 rank"
        return f"{ranks}, {self.kind} {self.width} x {self.num_layers}, batch {self.batch}, {self.optimizer}"


RUNS = (
    Run(1, "mlp", 128, 4, 32, "sgd"),
    Run(1, "mlp", 256, 4, 128, "adamw"),
    Run(1, "mlp", 512, 3, 256, "sgd"),
    Run(1, "mlp", 768, 4, 64, "adamw"),
    Run(1, "norms", 192, 3, 128, "adamw"),
    Run(1, "norms", 384, 2, 256, "sgd"),
    Run(1, "transformer", 128, 2, 4, "sgd"),
    Run(1, "transformer", 256, 2, 8, "adamw"),
    Run(2, "mlp", 256, 4, 128, "sgd"),
    Run(2, "mlp", 512, 4, 256, "sgd"),
    Run(2, "mlp", 1024, 3, 128, "sgd"),
    Run(2, "norms", 256, 2, 256, "adamw"),
    Run(2, "transformer", 192, 2, 8, "sgd"),
)
SAVES = ((256, 3), (768, 3), (1536, 3))  # width and layers of an MLP


@dataclass(frozen=True)
class HeldOut:
    """A run with its best step, on the wall and of a rank's CPU time, and the predicted one."""

    name: str
    num_ranks: int
    measured_s: float
    cpu_s: float
    predicted_s: float

    @property
    def error(self) -> float:
        """The relative error, below 0 where too little was predicted."""
        return self.predicted_s / self.measured_s - 1

    @property
    def cpu_share(self) -> float:
        """The share of the best step in which its rank had a core; well below 1 on a busy machine."""
        return self.cpu_s / self.measured_s


def steps(calibration: Calibration, runs: Sequence[Run] = RUNS, num_steps: int = 20) -> Iterator[HeldOut]:
    """Each run as it was measured, and as it is predicted by pricing its record on the calibrated cluster."""
    for one in runs:
        paper = ws.paper(program, one, 2, world_size=one.num_ranks, cluster=calibration.cluster, echo=False)
        real = ws.run(
            program, one, num_steps, world_size=one.num_ranks, backend="gloo", echo=False, stalled_s=None, timeout_s=120
        ).values
        walls = [max(times) for times in zip(*(walls for walls, _ in real), strict=True)][_NUM_SKIPPED:]
        best_s = min(walls)
        cpu_s = min(max(times) for times in zip(*(cpus[_NUM_SKIPPED:] for _, cpus in real), strict=True))
        yield HeldOut(str(one), one.num_ranks, best_s, cpu_s, paper.step_s)


def saves(calibration: Calibration, num_times: int = 5) -> Iterator[HeldOut]:
    """Each save of a network's state until it is on the disk, and as it is predicted by its bytes."""
    disk = calibration.storage
    for width, num_layers in SAVES:
        state = mlp(width, num_layers).state_dict()
        times_s, cpu_s = [], []
        with tempfile.TemporaryDirectory() as folder:
            for number in range(num_times):
                path = Path(folder, str(number))
                start_s, start_cpu_s = time.perf_counter(), time.process_time()
                with path.open("wb") as file:
                    torch.save(state, file)
                    file.flush()
                    os.fsync(file.fileno())
                times_s.append(time.perf_counter() - start_s)
                cpu_s.append(time.process_time() - start_cpu_s)
            predicted_s = disk.latency_s + path.stat().st_size / disk.write_bytes_per_s
        yield HeldOut(f"a save, mlp {width} x {num_layers}", 1, min(times_s), min(cpu_s), predicted_s)


def program(run: Run, num_steps: int) -> tuple[list[float], list[float]]:
    """Train, and give the seconds of every step on the wall and of this rank's CPU time."""
    torch.set_num_threads(1)
    take_cores()
    torch.manual_seed(0)
    model: nn.Module
    if run.kind == "transformer":
        model = Transformer(
            Shape(
                name="held out",
                num_layers=run.num_layers,
                width=run.width,
                num_heads=4,
                num_kv_heads=4,
                hidden_width=4 * run.width,
                vocab_size=_VOCABULARY,
                context_length=_LENGTH,
                source="made up (2026)",
            )
        )
        x = torch.arange(run.batch * _LENGTH).view(run.batch, _LENGTH) % _VOCABULARY
    else:
        model = mlp(run.width, run.num_layers) if run.kind == "mlp" else norms(run.width, run.num_layers)
        x = torch.randn(run.batch, run.width)
    if dist.get_world_size() > 1:
        model = nn.parallel.DistributedDataParallel(model)
    kind: Any = torch.optim.AdamW if run.optimizer == "adamw" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=1e-3)
    walls, cpus = [], []
    for _ in range(num_steps):
        dist.barrier()
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        out = model(x)
        loss = nn.functional.cross_entropy(out.flatten(0, 1), x.flatten()) if out.dim() > 2 else out.square().mean()
        loss.backward()
        optimizer.step()
        walls.append(time.perf_counter() - start_s)
        cpus.append(time.process_time() - start_cpu_s)
    return walls, cpus


def mlp(width: int, num_layers: int) -> nn.Module:
    """Linear layers with ReLU."""
    return nn.Sequential(*(one for _ in range(num_layers) for one in (nn.Linear(width, width), nn.ReLU())))


def norms(width: int, num_layers: int) -> nn.Module:
    """Layers of a norm and an MLP four times as wide."""
    parts = (
        one
        for _ in range(num_layers)
        for one in (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
    )
    return nn.Sequential(*parts)


def take_cores() -> None:
    """Put this process's threads before other work, where the system lets it: others' work is not what is predicted."""
    with suppress(OSError, AttributeError):
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), os.SCHED_RR, os.sched_param(1))
