"""Project 1's reference, fed by the harness, against torch's DDP with torch's own loader, on real ranks in turns."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from figures import Figure, scaled
from repository import ROOT
from torch.utils.flop_counter import FlopCounterMode

import worldsize as ws
from autograder.authoring import programs
from worldsize import bench
from worldsize.bench import ScriptHere, Task, TrainingSpec
from worldsize.bench.machine import matrix_flops_per_s
from worldsize.bench.program import play_on

REFERENCE = ROOT / "solutions" / "project1" / "train.py"
_NUM_WARMUP, _NUM_TIMES = 4, 6
_PLAIN = """
import json, sys, time
import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from worldsize import images
from worldsize.bench import Task

task, num_warmup = Task(**json.loads(sys.argv[1])), int(sys.argv[2])
dist.init_process_group()
model = task.model()
parallel, optimizer = DistributedDataParallel(model), task.optimizer(model)
data = TensorDataset(*(torch.cat([one, one]) for one in images.load_digits()))
loader = DataLoader(data, task.batch_size // dist.get_world_size(), sampler=DistributedSampler(data), drop_last=True)
for step, (pixels, labels) in zip(range(task.num_steps), loader):
    if step == num_warmup:
        start_s = time.perf_counter()
    optimizer.zero_grad()
    functional.cross_entropy(parallel(pixels), labels).backward()
    optimizer.step()
if dist.get_rank() == 0:
    print((time.perf_counter() - start_s) / (task.num_steps - num_warmup))
"""


def training(scale: float) -> Iterator[Figure]:
    """A step of the reference as a share of one of DDP's, and how near both are to what the cores can do."""
    task, num_times = Task(), scaled(_NUM_TIMES, scale)
    with tempfile.TemporaryDirectory() as folder:
        ours, plain = Path(folder, "train.py"), Path(folder, "plain.py")
        ours.write_text(programs.solved(REFERENCE))
        plain.write_text(_PLAIN)
        program, ours_s, theirs_s = ScriptHere(ours), [], []
        for repeat in range(num_times):
            window_s = bench.attempt(program, TrainingSpec(task, 2), repeat).record.window_s(_NUM_WARMUP)
            assert window_s
            ours_s.append(window_s / (task.num_steps - _NUM_WARMUP))
            args = [str(plain), task.model_dump_json(), str(_NUM_WARMUP)]
            run = ws.run(play_on, 1, *args, world_size=2, backend="gloo", echo=False)
            theirs_s.append(float(json.loads(run.output[0].split()[-1])))
    how = f"Gloo, 2 ranks, best of {num_times} trainings each, in turns"
    yield Figure("a step of project 1's reference", 1e3 * min(ours_s), "ms", "", None, how)
    yield Figure("a step of DDP with torch's loader", 1e3 * min(theirs_s), "ms", "", None, how)
    share = min(theirs_s) / min(ours_s)
    yield Figure("the reference's speed over it", share, "times", "at least 0.9", share >= 0.9, how)
    rate = flops_of(task) / min(ours_s) / (2 * matrix_flops_per_s(1))
    yield Figure("of two cores' matrix products", rate, "", "", None, "flops of a step; small convolutions on the CPU")


def flops_of(task: Task) -> float:
    """The floating-point operations of one step on the whole batch."""
    model = task.model()
    images, labels = bench.Batches(0, task.batch_size).batch(0)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(model(images), labels).backward()
    return counter.get_total_flops()
