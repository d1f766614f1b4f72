# %% [markdown]
# # Week 1. Why one GPU is not enough
#
# | | |
# |---|---|
# | Reading | about 60 minutes |
# | Running | about a minute on two CPU cores; no GPU is needed, and GPUs are used where there are enough of them |
# | You need | to have trained a network in PyTorch on one device: `loss.backward()`, `optimizer.step()` |
# | You do not need | to have run anything on two processes or two GPUs |
# | Afterwards | lab 1, *average the gradients* |
#
# You have trained on one GPU. This week you train on two processes, then on four, and get **the same model, step by
# step**. Every later week makes this faster, smaller or safer.
#
# Some words first. A **rank** is one process of a training job, usually with one GPU of its own; ranks are numbered
# from 0. The **world size** is the number of ranks. A **collective** is a call that all ranks make together, such
# as `all_reduce`: each gives a tensor, each gets the sum of all of them.

# %% [markdown]
# ## 1. The question
#
# > What must several processes tell each other, so that together they train exactly the model that one process would
# > have trained? And what does that talk cost?

# %% parameters tags=["parameters"]
world_size = 2  # ranks in the small experiments
backend = "auto"  # "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
seed = 0
predicted_years = None  # to train GPT-3 on one A100
predicted_memory_gb = None  # to train a model of 7.5 billion parameters with Adam
predicted_hours = None  # between two unexpected stops of a job on 16,384 GPUs
predicted_speedup = None  # of two ranks over one, for the small network below, on this machine

# %% setup
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

import worldsize as ws
from worldsize import draw, images, ledger, models, quiz, units

folder = Path("build/week01")
folder.mkdir(parents=True, exist_ok=True)
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# Put a number in place of each `None` above **before you go on**. A guess that is ten times off teaches more than a
# number read afterwards. The ledger keeps your prediction, and refuses to change it once the result is known.

# %% predict
ledger.predict("GPT-3 on one A100", predicted_years, "years")
ledger.predict("memory of a 7.5B model", predicted_memory_gb, "GB")
ledger.predict("between two stops of 16,384 GPUs", predicted_hours, "hours")
ledger.predict("speed-up of 2 ranks", predicted_speedup, "times")

# %% [markdown]
# ## 3. Build it worse first
#
# ### One GPU: the time
#
# Training a transformer costs about six floating-point operations for each parameter and each token: two in the
# forward pass (one multiplication, one addition), four in the backward pass, which computes two gradients.
#
# $$\text{FLOPs} \approx 6 \, N \, D \qquad N \text{ parameters}, \; D \text{ tokens}$$
#
# (Kaplan et al. 2020, *Scaling Laws for Neural Language Models*, section 2.1.) GPT-3 has 175 billion parameters and
# saw 300 billion tokens (Brown et al. 2020, table 2.1). An A100 computes at most 312 TFLOP/s in bf16 (NVIDIA A100
# data sheet, without sparsity); the best matrix product that was measured on one reached 271.2 TFLOP/s
# (`stas00/ml-engineering`, compute/accelerator).

# %% time_to_train
gpt3_parameters, gpt3_tokens = 175e9, 300e9
gpt3_flops = 6 * gpt3_parameters * gpt3_tokens
for source, flops_per_s in {"data sheet": 312e12, "best measured": 271.2e12}.items():
    print(f"{units.format_count(gpt3_flops)} FLOPs, {source}: {units.format_time_s(gpt3_flops / flops_per_s)}")
ledger.result("GPT-3 on one A100", gpt3_flops / 312e12 / units.YEAR)

# %% [markdown]
# Decades, on a GPU that never waits for anything. It was 34 days on 1,024 A100s: Narayanan et al. 2021 (*Efficient
# Large-Scale Language Model Training on GPU Clusters Using Megatron-LM*, section 5.1) count eight operations
# instead of six, because they compute the forward pass twice to save memory, and reach 140 TFLOP/s on each GPU.

# %% time_on_a_cluster
cluster_s = 8 * gpt3_parameters * gpt3_tokens / (1024 * 140e12)
print(f"1,024 A100s at 140 TFLOP/s: {units.format_time_s(cluster_s)}")

# %% [markdown]
# ### One GPU: the memory
#
# Four things fill memory while a network trains.
#
# - **Weights**: what the network is.
# - **Gradients**: one number for each weight.
# - **Optimizer state**: Adam keeps two more numbers for each weight, the running means of the gradient and of its
#   square.
# - **Activations**: what the forward pass keeps because the backward pass needs it. They grow with the batch.
#
# Do not believe it: count the bytes. Torch calls a hook for every tensor that the forward pass keeps.


# %% count_activations
def activation_bytes(model, batch):
    """Bytes that the forward pass keeps for the backward pass, weights not counted."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(batch).sum()
    assert loss.requires_grad  # alive until here, and with it all that was kept
    return sum(kept.values())


# %% [markdown]
# The other three need no trick: add up the tensors. The network is a small convolutional one, the images are 1,797
# handwritten digits of 8 by 8 pixels (UCI *Optical Recognition of Handwritten Digits*, shipped with scikit-learn).

# %% count_memory
pixels, labels = images.load_digits()


def memory_parts(batch_size):
    """Bytes by what they are for, after one step of Adam on this many images."""
    model = models.vision_net(width=32, seed=seed)
    optimizer = torch.optim.Adam(model.parameters())
    kept = activation_bytes(model, pixels[:batch_size])
    F.cross_entropy(model(pixels[:batch_size]), labels[:batch_size]).backward()
    optimizer.step()
    state = [tensor for tensors in optimizer.state.values() for tensor in tensors.values()]
    return {
        "weights": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.grad.nbytes for p in model.parameters()),
        "optimizer state": sum(tensor.nbytes for tensor in state),
        "activations": kept,
    }


measured = {f"batch of {size}": memory_parts(size) for size in (4, 16, 64)}
draw.memory(measured, title="A small network, bytes counted")

# %% [markdown]
# Weights, gradients and optimizer state stay as they are; activations grow with the batch. In a small network on
# images the activations win. In a large language model the rest does.
#
# Mixed-precision training with Adam holds **16 bytes for each parameter**: 2 for the bf16 weight, 2 for its
# gradient, and 12 for the optimizer, which keeps a 4-byte weight of its own and two 4-byte means (Rajbhandari et
# al. 2020, *ZeRO*, section 3.1).


# %% memory_of_large_models
def model_bytes(num_parameters):
    """Bytes by part, for mixed-precision Adam, activations not counted."""
    return {
        "weights": 2 * num_parameters,
        "gradients": 2 * num_parameters,
        "optimizer state": (4 + 4 + 4) * num_parameters,
    }


sizes = {"1.5B (GPT-2)": 1.5e9, "7.5B": 7.5e9, "13B": 13e9}
ledger.result("memory of a 7.5B model", sum(model_bytes(7.5e9).values()) / units.GB)
large = {label: model_bytes(num_parameters) for label, num_parameters in sizes.items()}
draw.memory(large, 80 * units.GB, "Mixed-precision Adam, computed", "one A100 or H100")

# %% [markdown]
# And activations come on top. For *s* tokens, *b* sequences, width *h* and *a* heads, a transformer layer keeps
#
# $$\text{bytes} = s \, b \, h \, \Big( 34 + 5 \frac{a s}{h} \Big)$$
#
# (Korthikanti et al. 2022, *Reducing Activation Recomputation in Large Transformer Models*, equation 1). GPT-3 has
# 96 layers of width 12,288 with 96 heads, and reads 2,048 tokens at a time. A single sequence:

# %% activations_of_gpt3
s, b, h, a, num_layers = 2048, 1, 12288, 96, 96
layer_bytes = s * b * h * (34 + 5 * a * s / h)
all_bytes = num_layers * layer_bytes
print(f"activations: {units.format_bytes(layer_bytes)} a layer, {units.format_bytes(all_bytes)} in all")
print(f"weights, gradients, optimizer: {units.format_bytes(sum(model_bytes(gpt3_parameters).values()))}")

# %% [markdown]
# ### Four pillars
#
# One GPU is too slow, and too small. Four ideas carry everything that follows in this course.
#
# | Pillar | What is split | What is said | Answers |
# |---|---|---|---|
# | **Data parallelism**, with all-reduce | the batch; each rank has the model | gradients, once a step | too slow |
# | **Model and tensor parallelism** | the model, between or in its layers | activations, often | too small |
# | **Parameter server or all-reduce** | the sum: one server, or a part each | the same gradients | how to talk |
# | **Fault tolerance** | nothing: it keeps the job alive | checkpoints, heartbeats | too many parts to trust |
#
# *Parameter server or all-reduce* takes one line. Let *S* be the size of the gradients and *N* the world size.
# A server takes *S* from each rank and sends *S* back: $2 N S$ over its one link. In a ring, each rank sends
# $2 (N - 1) / N \cdot S$, which never passes $2 S$ (week 2 derives it, and you write it).

# %% who_carries_the_bytes
gradient_bytes = 25_557_032 * 4  # ResNet-50 in fp32; number of parameters: torchvision documentation
for num_ranks in (2, 8, 64, 512):
    server = units.format_bytes(2 * num_ranks * gradient_bytes)
    ring = units.format_bytes(2 * (num_ranks - 1) / num_ranks * gradient_bytes)
    print(f"{num_ranks:4} ranks: server link {server:>8}, each link of a ring {ring:>8}")

# %% [markdown]
# *Fault tolerance* takes one division. Llama 3 405B was trained on 16,384 H100s. In 54 days the job stopped
# unexpectedly 419 times (Llama team 2024, *The Llama 3 Herd of Models*, section 3.3.4).

# %% hours_between_stops
hours_between_stops = 54 * 24 / 419
gpu_years = 16_384 * 54 * units.DAY / 419 / units.YEAR
print(f"one stop every {hours_between_stops:.1f} hours, though each GPU has one in {gpu_years:.1f} years")
ledger.result("between two stops of 16,384 GPUs", hours_between_stops)

# %% [markdown]
# ### Several ranks that never talk
#
# Now run something. Here is the first idea that everyone has: start several processes, give each a part of the
# data, and let them train.
#
# Each rank draws the *same* batch of 256 (same generator, same seed) and takes *its own* equal part of it. 256
# divides by every world size of this lesson. Lab 1 asks what to do when it does not.

# %% the_pieces
BATCH_SIZE, LEARNING_RATE, STEPS = 256, 0.3, 30


def part_of_batch(step, rank, world_size):
    """Indices of this rank's equal part of the batch of this step."""
    chooser = torch.Generator().manual_seed(step)
    batch = torch.randint(1797, (BATCH_SIZE,), generator=chooser)  # the same on every rank
    return batch.chunk(world_size)[rank]


def start():
    """This rank's device, model and optimizer; every rank starts from the same weights."""
    torch.set_num_threads(1)  # one rank, one core
    on_gpus = dist.get_backend() == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    model = models.vision_net(width=32, seed=seed).to(device)
    return device, model, torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


# %% [markdown]
# `ws.run` runs a function on real ranks: separate processes, joined by `torch.distributed`. The function is an
# ordinary one, and what each rank returns comes back as a list.
#
# This one trains without any talk. The last lines are only there to watch: they ask how far each rank's weights are
# from the mean of all ranks.


# %% never_talk
def train_apart(pixels, labels):
    """The distance of this rank's weights from the mean of all ranks' weights, after each step."""
    device, model, optimizer = start()
    distances = []
    for step in range(STEPS):
        mine = part_of_batch(step, dist.get_rank(), dist.get_world_size())
        loss = F.cross_entropy(model(pixels[mine].to(device)), labels[mine].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
        mean = weights.clone()
        dist.all_reduce(mean)
        distances.append((weights - mean / dist.get_world_size()).norm().item())
    return distances


apart = ws.run(train_apart, pixels, labels, world_size=4, backend=backend)
distances = {f"rank {rank}": values for rank, values in enumerate(apart.values)}
draw.curves(distances, y_label="distance from the mean", title="Four ranks that never talk")

# %% [markdown]
# The same start, different data: after one step they differ already, and nothing brings them together again. These
# are four models, each trained on a quarter of the data. **Nothing was gained by running them at once.**
#
# ### Several ranks that all talk to rank 0
#
# So they must talk. What must they say? Look at the gradient of the batch. The loss is a mean over *B* images, so
# the gradient is one too; with *N* equal parts, it is the mean of the means:
#
# $$g = \frac{1}{B} \sum_{i=1}^{B} g_i
#     = \frac{1}{N} \sum_{r=1}^{N} \Big( \underbrace{
#       \frac{N}{B} \sum_{i \in \text{part } r} g_i}_{\text{gradient of rank } r} \Big)$$
#
# That can be checked in one process, before anything is launched.


# %% mean_of_means
def gradient(indices):
    """The gradient of the mean loss over these images, as one long vector."""
    model = models.vision_net(width=32, seed=seed)
    F.cross_entropy(model(pixels[indices]), labels[indices]).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


whole = gradient(part_of_batch(0, 0, 1))
parts = [gradient(part_of_batch(0, rank, 4)) for rank in range(4)]
mean = torch.stack(parts).mean(dim=0)
print(f"largest gradient {whole.abs().max():.3f}, largest difference {(whole - mean).abs().max():.1e}")
assert torch.allclose(whole, mean, atol=1e-6)

# %% [markdown]
# The difference is rounding: float32 keeps about seven digits, and the sums are taken in another order.
#
# So each rank must learn the mean of all gradients. The obvious way: everyone sends to rank 0, rank 0 averages and
# sends the result back. Here it is, one parameter at a time, on 16 MB of gradients and four ranks.


# %% through_rank_0
def through_rank_0(gradients):
    """Seconds to average the gradients by way of rank 0."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.barrier()  # all start together
    start_s = time.perf_counter()
    for gradient in gradients:
        inbox = [torch.empty_like(gradient) for _ in range(world_size)] if rank == 0 else None
        with ws.span("gather", kind="communication"):
            dist.gather(gradient, inbox, dst=0)
        if rank == 0:
            with ws.span("mean", kind="compute"):
                torch.mean(torch.stack(inbox), dim=0, out=gradient)
        with ws.span("send back", kind="communication"):
            dist.broadcast(gradient, src=0)
    return time.perf_counter() - start_s


gradients = [torch.full((1_000_000,), float(number)) for number in range(4)]
star = ws.run(through_rank_0, gradients, world_size=4, backend="gloo")
draw.timeline(star.timeline, title="Through rank 0")

# %% [markdown]
# Read the rows. All gradients pass through rank 0, which adds them up alone. The long *send back* bars of the
# others are mostly waiting: they have called, and rank 0 has not. With more ranks, rank 0 receives more, and the
# others wait longer.

# %% [markdown]
# ## 4. Build it well
#
# ### One call: all-reduce
#
# `dist.all_reduce` gives every rank the sum of all ranks' tensors, with no rank in the middle. How it does so is
# week 2. Here is the same mean, on the same tensors.


# %% by_all_reduce
def by_all_reduce(gradients):
    """Seconds to average the gradients with one all-reduce for each."""
    dist.barrier()
    start_s = time.perf_counter()
    for gradient in gradients:
        with ws.span("all-reduce", kind="communication"):
            dist.all_reduce(gradient)
        with ws.span("divide", kind="compute"):
            gradient /= dist.get_world_size()
    return time.perf_counter() - start_s


direct = ws.run(by_all_reduce, gradients, world_size=4, backend="gloo")
print(f"through rank 0: {max(star.values) * 1e3:6.1f} ms")
print(f"by all-reduce:  {max(direct.values) * 1e3:6.1f} ms")
draw.timeline(direct.timeline, title="By all-reduce")

# %% [markdown]
# One run of each, on a machine that does other things too: run the cells again before you quote a ratio. Every rank
# now does the same work, and no rank waits for one that has more to do.
#
# ### The four steps of data parallelism
#
# 1. **Split**: each rank takes its part of the batch.
# 2. **Compute**: forward and backward on that part, with the whole model.
# 3. **Synchronise**: all ranks average their gradients.
# 4. **Update**: each rank steps its own optimizer. Same weights, same gradient: the weights stay the same.
#
# Step 3 is the only one that you did not have before. Step 4 needs no talk at all.


# %% four_steps
def train_together(pixels, labels, steps):
    """This rank's weights after some steps of data-parallel training."""
    device, model, optimizer = start()
    for step in range(steps):
        with ws.span("split", kind="data"):
            mine = part_of_batch(step, dist.get_rank(), dist.get_world_size())
            x, y = pixels[mine].to(device), labels[mine].to(device)
        with ws.span("forward", kind="forward"):
            loss = F.cross_entropy(model(x), y)
        with ws.span("backward", kind="backward"):
            optimizer.zero_grad()
            loss.backward()
        with ws.span("synchronise", kind="communication"):
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        with ws.span("update", kind="update"):
            optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


together = ws.run(train_together, pixels, labels, 4, world_size=world_size, backend=backend)
assert all(torch.equal(weights, together.values[0]) for weights in together.values)
draw.timeline(together.timeline, title=f"{world_size} ranks, 4 steps")

# %% [markdown]
# The `assert` holds bit for bit: after four steps, every rank has the same weights. Where *synchronise* is longer
# on one rank than on another, that rank is waiting: a collective ends when the last rank has come.
#
# ### With torchrun
#
# `ws.run` is for short experiments. Real jobs are scripts, started by `torchrun`: it starts the ranks and tells
# each one through the environment who it is (`RANK`, `LOCAL_RANK`, `WORLD_SIZE`). The magic `%%torchrun` hands a
# whole cell to it, with torchrun's own flags. The cell runs in new processes: it knows nothing of this notebook's
# variables.

# %% load_magic
# %load_ext worldsize

# %% torchrun_cell
# %%torchrun --nproc-per-node 2
import os

import torch
import torch.distributed as dist

gpus = torch.cuda.device_count() >= int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpus else torch.device("cpu")
dist.init_process_group("nccl" if gpus else "gloo", device_id=device if gpus else None)
gift = torch.tensor(float(dist.get_rank() + 1), device=device)
dist.all_reduce(gift)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}, {dist.get_backend()}: 1 + 2 = {gift.item():.0f}")
dist.destroy_process_group()

# %% [markdown]
# ### One rank, two ranks, four ranks
#
# Now the promise of this week: **N ranks with a batch of B/N train the same model as one rank with a batch of B.**
# The training program is a script in three parts. First, who am I, and on which device?

# %% script_who_am_i
# %%writefile build/week01/train_digits.py
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

from worldsize import models

folder, backend, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
world_size = int(os.environ["WORLD_SIZE"])
on_gpus = backend != "gloo" and torch.cuda.device_count() >= world_size
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
torch.backends.cudnn.allow_tf32 = False  # plain float32 on GPUs, so that curves can be compared
torch.set_num_threads(1)  # one rank, one core: else one rank would take them all
dist.init_process_group("nccl" if on_gpus else "gloo", device_id=device if on_gpus else None)
rank = dist.get_rank()

# %% [markdown]
# Second, the four steps, with a clock around them.

# %% script_four_steps
# %%writefile -a build/week01/train_digits.py

pixels, labels = torch.load(f"{folder}/digits.pt", map_location=device)
model = models.vision_net(width=32, seed=seed).to(device)  # the same seed: the same start on every rank
losses, step_times_s = [], []
for step in range(40):
    start_s = time.perf_counter()
    chooser = torch.Generator().manual_seed(step)  # 1. split
    mine = torch.randint(len(pixels), (256,), generator=chooser).chunk(world_size)[rank].to(device)
    loss = F.cross_entropy(model(pixels[mine]), labels[mine])  # 2. compute
    model.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # 3. synchronise
        parameter.grad /= world_size
        parameter.data -= 0.3 * parameter.grad  # 4. update: plain SGD, written out
    total_loss = loss.detach().clone()
    dist.all_reduce(total_loss)  # only to report the loss of the whole batch
    losses.append(total_loss.item() / world_size)
    step_times_s.append(time.perf_counter() - start_s)

# %% [markdown]
# Third, rank 0 writes down what happened. If every rank wrote the file, they would overwrite each other.

# %% script_report
# %%writefile -a build/week01/train_digits.py

if rank == 0:
    report = {"losses": losses, "step_times_s": step_times_s[5:], "backend": dist.get_backend()}  # warm-up left out
    with open(f"{folder}/{world_size}_ranks.json", "w") as file:
        json.dump(report, file)
dist.destroy_process_group()

# %% [markdown]
# Run it under real torchrun. With two GPUs or more, the counts are those that the GPUs can serve, on NCCL.
# Otherwise it is one, two and four ranks on CPU cores, on Gloo.

# %% one_two_four
torch.save((pixels, labels), folder / "digits.pt")
num_gpus = torch.cuda.device_count()
use_gpus = num_gpus >= 2 and backend != "gloo"
rank_counts = [n for n in (1, 2, 4) if n <= num_gpus] if use_gpus else [1, 2, 4]
reports = {}
for n in rank_counts:
    arguments = [str(folder), "nccl" if use_gpus else "gloo", str(seed)]
    job = ws.torchrun(folder / "train_digits.py", *arguments, nproc_per_node=n)
    reports[n] = json.loads((folder / f"{n}_ranks.json").read_text())
    step_s = statistics.median(reports[n]["step_times_s"])
    where = f"world size {n} on {reports[n]['backend']}"
    print(f"{where}: {units.format_time_s(step_s)} a step, job {job.duration_s:.1f} s")

# %% same_curve
losses = {f"{n} rank{'s' if n > 1 else ''}": report["losses"] for n, report in reports.items()}
for label, values in losses.items():
    assert torch.allclose(torch.tensor(values), torch.tensor(losses["1 rank"]), atol=1e-5), label
draw.curves(losses, title="The same batch, split: the same curve", difference_from="1 rank")

# %% [markdown]
# The curves lie on each other: upper panel, thick to thin. The lower panel shows what is left of the difference:
# rounding in the seventh digit, because float32 sums depend on the order in which they are taken.
#
# ### The other way to split: an assembly line
#
# Data parallelism needs the whole model on every rank. When that does not fit, split the model: rank 0 holds the
# first layers, rank 1 the next, and so on. A batch passes through them like a car through a factory.
#
# The two pictures below are **computed, not measured**. With one batch, three of four ranks are idle at any time.
# Cut the batch into small pieces, and the ranks overlap: with *p* stages and *m* pieces they are busy for *m* /
# (*m* + *p* − 1) of the time. Week 9 builds it.


# %% assembly_line
def assembly_line(num_stages, num_pieces):
    """The timeline of a forward pass of one second of work a stage, cut into pieces."""
    piece_s = 1 / num_pieces
    return ws.Timeline.of_events(
        ws.Event(stage, "main", "forward", f"{piece + 1}", (stage + piece) * piece_s, (stage + piece + 1) * piece_s)
        for stage in range(num_stages)
        for piece in range(num_pieces)
    )


print(f"busy: {1 / (1 + 4 - 1):.0%} with 1 piece, {8 / (8 + 4 - 1):.0%} with 8 pieces")
draw.timeline(assembly_line(4, 1), title="Computed, one piece")

# %% assembly_line_in_pieces
draw.timeline(assembly_line(4, 8), title="Computed, eight pieces")

# %% [markdown]
# ## 5. Compare with the production oracle
#
# Torch does all this in one line: `DistributedDataParallel` averages the gradients during the backward pass. Lab 3
# has you write it. For now it is the judge: the same data, the same start, and its weights must be ours.


# %% against_ddp
def train_ddp(pixels, labels, steps):
    """This rank's weights after the same steps, with torch's own data parallelism."""
    device, model, optimizer = start()
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    for step in range(steps):
        mine = part_of_batch(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        F.cross_entropy(parallel(pixels[mine].to(device)), labels[mine].to(device)).backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


ours = ws.run(train_together, pixels, labels, 20, world_size=world_size, backend=backend).values[0]
theirs = ws.run(train_ddp, pixels, labels, 20, world_size=world_size, backend=backend).values[0]
assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
print(f"largest weight {ours.abs().max():.3f}, largest difference from DDP {(ours - theirs).abs().max():.1e}")

# %% [markdown]
# ## 6. Formula and measurement
#
# ### How much faster?
#
# **Amdahl**: the work is fixed, a batch cut ever finer. If a fraction *s* of it cannot be split, *N* ranks are
#
# $$\text{speed-up} = \frac{1}{s + (1 - s)/N}$$
#
# times as fast, and never more than 1/*s* times. (Amdahl 1967, *Validity of the Single Processor Approach*, AFIPS.)
#
# **Gustafson**: the time is fixed, and the batch grows with the ranks. If a fraction *s* of the time is not split,
# *N* ranks do *s* + (1 − *s*) *N* times the work. (Gustafson 1988, *Reevaluating Amdahl's Law*, CACM 31.)


# %% two_laws
def amdahl(num_ranks, serial):
    return 1 / (serial + (1 - serial) / num_ranks)


def gustafson(num_ranks, serial):
    return serial + (1 - serial) * num_ranks


ranks = range(1, 65)
laws = {
    "ideal": list(ranks),
    "Gustafson, 5% serial": [gustafson(n, 0.05) for n in ranks],
    "Amdahl, 5% serial": [amdahl(n, 0.05) for n in ranks],
}
draw.curves(laws, y_label="times faster, or times the work", x_label="number of ranks", title="The same 5%, two laws")

# %% [markdown]
# Now the measurement. The batch of 256 was fixed, so this is Amdahl's case.

# %% measured_scaling
step_times_s = {n: report["step_times_s"] for n, report in reports.items()}
where = reports[1]["backend"]
draw.scaling(step_times_s, title=f"Measured here, {where}, {os.cpu_count()} cores")

# %% [markdown]
# A formula is worth something when it predicts a run that it has not seen. Take *s* from one and two ranks alone,
# predict the other rows, and compare.

# %% held_out
median_s = {n: statistics.median(times) for n, times in step_times_s.items()}
speedups = {n: median_s[1] / median_s[n] for n in rank_counts}
ledger.result("speed-up of 2 ranks", speedups[2])
serial = draw.amdahl_fit({2: speedups[2]})
print(f"serial fraction from 1 and 2 ranks: {serial:.1%}")
print("ranks   formula   measured   error of the formula")
for n in rank_counts:
    formula = amdahl(n, serial)
    print(f"{n:5} {formula:9.2f} {speedups[n]:10.2f} {formula / speedups[n] - 1:+10.0%}")

# %% [markdown]
# Amdahl's law knows no machine. It assumes a processor for every rank: if you have fewer than four cores, four
# ranks share them, and the error in the last row is that missing hardware.
#
# It knows no talk either. If two ranks were slower than one here, no *s* from 0 to 1 explains it: averaging cost
# more than splitting saved. With a network this small, or a machine this busy, that happens. Week 3 finds the size
# at which a second GPU begins to pay.
#
# ### On hardware that you do not have
#
# **Predicted, not measured.** An all-reduce of *S* bytes over links of bus bandwidth $\beta$ takes about
#
# $$\text{time} = \frac{2 (N-1)}{N} \, \frac{S}{\beta}$$
#
# Take the gradients of ResNet-50, eight GPUs, and published bandwidths. Communication efficiency is compute /
# (compute + communication): for 90%, a step must compute nine times as long as it talks.

# %% predicted_elsewhere
bus_bandwidth = {  # bytes/s in an all-reduce
    "8 A100, NVLink 3": 202.52e9,  # measured at 64 MiB: VIA-Research/vTrain, trace/a100/AR_GPU8_1M_1024M_LUT
    "8 GPUs, PCIe Gen4": 24e9,  # NVIDIA GTC24 S62129, as reproduced in stas00/ml-engineering, network/benchmarks
    "8 nodes, 100 Gbit/s Ethernet": 10e9,  # the same slide
}
print("predicted, not measured          all-reduce   compute for 90% efficiency")
for fabric, bytes_per_s in bus_bandwidth.items():
    time_s = 2 * 7 / 8 * gradient_bytes / bytes_per_s
    print(f"{fabric:<30} {units.format_time_s(time_s):>12} {units.format_time_s(9 * time_s):>12}")

# %% [markdown]
# ### Five numbers to ask of any run
#
# - **Throughput**: samples per second.
# - **Scaling efficiency**: speed-up over the number of ranks.
# - **Communication efficiency**: compute / (compute + communication).
# - **Memory utilisation**: bytes in use over bytes there are.
# - **Recovery time**: from the report of a failure until the job is past the step at which it struck.
#
# Four of them are one line each.

# %% key_metrics
n = 2
throughput = BATCH_SIZE / median_s[n]
scaling_efficiency = speedups[n] / n
communication_efficiency = 1 - together.timeline.share("communication")
capacity_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
if use_gpus:
    capacity_bytes = torch.cuda.get_device_properties(0).total_memory
memory_utilisation = sum(memory_parts(BATCH_SIZE // n).values()) / capacity_bytes
print(f"throughput                {throughput:,.0f} images/s")
print(f"scaling efficiency        {scaling_efficiency:.0%}")
print(f"communication efficiency  {communication_efficiency:.0%}")
print(f"memory utilisation        {memory_utilisation:.3%} of {units.format_bytes(capacity_bytes)}")

# %% [markdown]
# The fifth needs a failure. This job saves its weights every 5 steps; rank 1 dies in step 13. Then the same job
# starts again, finds the checkpoint, and does the lost steps once more.


# %% fragile_job
def fragile(pixels, labels, path, dies):
    """The step that this start began from."""
    device, model, optimizer = start()
    saved = {"step": 0, "model": model.state_dict()}
    if os.path.exists(path):
        saved = torch.load(path, map_location=device)
    model.load_state_dict(saved["model"])
    for step in range(saved["step"], 14):
        if dies and step == 13 and dist.get_rank() == 1:
            raise RuntimeError("this rank's GPU fell off the bus")
        mine = part_of_batch(step, dist.get_rank(), dist.get_world_size())
        F.cross_entropy(model(pixels[mine].to(device)), labels[mine].to(device)).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and (step + 1) % 5 == 0:
            torch.save({"step": step + 1, "model": model.state_dict()}, path)
    return saved["step"]


# %% recovery_time
checkpoint = folder / "checkpoint.pt"
checkpoint.unlink(missing_ok=True)
try:
    ws.run(fragile, pixels, labels, str(checkpoint), True, world_size=2, backend=backend)
except ws.RankFailed as failure:
    print(failure)
failed_s = time.perf_counter()
again = ws.run(fragile, pixels, labels, str(checkpoint), False, world_size=2, backend=backend)
recovery_time_s = time.perf_counter() - failed_s
lost = 13 - again.values[0]
print(f"recovery time             {recovery_time_s:.2f} s, of which {lost} steps were done a second time")

# %% [markdown]
# ## 7. When it breaks
#
# ### The loud failure: a rank that finishes early
#
# Rank 0 has three batches, the others have four: a data set that does not divide evenly. In its fourth step, rank 1
# calls `all_reduce`, and rank 0 never does.


# %% one_batch_short
def one_batch_short():
    """The number of batches that this rank got through."""
    num_batches = 3 if dist.get_rank() == 0 else 4
    for _ in range(num_batches):
        gradient = torch.ones(1, device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(gradient)
        gradient.item()
    return num_batches


try:
    ws.run(one_batch_short, world_size=world_size, backend=backend, timeout_s=3)
except ws.RunTimeout as report:
    print(report)

# %% [markdown]
# **Symptom**: no error, no output, and the job hangs: on GPUs at full utilisation, because a waiting NCCL kernel
# spins. **Cause**: a collective is a promise of *all* ranks, and one of them did not keep it. **Fix**: every rank
# makes the same calls in the same order, also at the end of the data. Ask of a hang not *who waits*, but *who is
# missing*: the report names both.
#
# ### The quiet failure: the sum instead of the mean
#
# Leave out one line, `gradient /= world_size`. Every rank still has the same weights, so nothing looks wrong.


# %% sum_instead_of_mean
def train_with(pixels, labels, divisor):
    """The loss of the whole batch at each step, when the summed gradients are divided by this number."""
    device, model, optimizer = start()
    losses = []
    for step in range(STEPS):
        mine = part_of_batch(step, dist.get_rank(), dist.get_world_size())
        loss = F.cross_entropy(model(pixels[mine].to(device)), labels[mine].to(device))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= divisor
        optimizer.step()
        dist.all_reduce(total := loss.detach().clone())
        losses.append(total.item() / dist.get_world_size())
    return losses


outcome = {
    name: ws.run(train_with, pixels, labels, divisor, world_size=4, backend=backend).values[0]
    for name, divisor in {"mean": 4, "sum": 1}.items()
}
draw.curves(outcome, title="Four ranks: mean and sum of the gradients")

# %% [markdown]
# **Symptom**: training that was stable on one GPU is wild on several, and worse the more you use. **Cause**: the
# sum of *N* gradients is *N* times their mean, so the learning rate is *N* times as large. **Fix**: divide by the
# world size.
#
# A loss that stays near ln 10 is that of a network which guesses among ten digits:

# %% loss_of_a_guess
print(f"loss of guessing one of ten: {torch.tensor(10.0).log():.3f}; last loss with the sum: {outcome['sum'][-1]:.3f}")

# %% [markdown]
# Adam would hide it: it divides by the size of the gradient, so a factor of *N* nearly cancels. A bug that one
# optimizer shows and another hides is best caught as you did above: by comparing with one process.

# %% [markdown]
# ## 8. Self-check
#
# First, your predictions beside the results. A ratio far from 1 is where to read again.

# %% predictions_beside_results
ledger.show()

# %% [markdown]
# Five questions. Each answer has its own explanation, also the wrong ones.

# %% self_check
quiz.ask("week01")

# %% [markdown]
# ## To take with you
#
# - One GPU is too slow (decades) and too small (16 bytes for each parameter, activations on top).
# - Data parallelism: split, compute, synchronise, update. Ranks say one thing, once a step: the mean of their
#   gradients.
# - N ranks of batch B/N train the model of one rank of batch B, up to rounding. If yours do not, look for the sum
#   that should be a mean, for different starting weights, or for ranks that see the same data.
# - Speed-up has a ceiling: what is not split (Amdahl), and the hardware that is really there.
# - A collective waits for every rank. One that does not come stops all.
#
# **Now the lab**: [lab 1, average the gradients](../labs/lab01/lab01.ipynb). There the batch does not divide
# evenly, ranks start from different weights, and some gradients are missing.
