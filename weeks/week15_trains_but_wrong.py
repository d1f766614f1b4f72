# %% [markdown]
# # Week 15. Trains, but wrong
#
# | | |
# |---|---|
# | Reading and doing | about two hours: seven short exercises, three bugs to find |
# | Running | about a minute on two CPU cores; no GPU is needed |
# | You need | weeks 1 to 3 and 7: all-reduce, DDP, sharded states |
# | You do not need | a cluster: every fault of this week appears on two to four ranks |
# | Afterwards | lab 15, *name the fault* |
#
# A crash leaves a traceback, and a hang leaves a stack. This week is about programs that leave
# neither: the loss falls, the run ends, and the model is not the one that the program was meant to
# train. Such a fault is called **silent**. Weeks 1 to 14 met some of them one by one. Now you learn
# to look for them systematically, before the run and not after it.

# %% [markdown]
# ## 1. The question
#
# > A distributed run ends with a good loss. How do you find out whether it trained what you wrote?
#
# Afterwards you can compare replicas without sending them, derive how large a wrong gradient is,
# say why AdamW hides a constant factor on the gradient and SGD does not, and test a parallel
# program against one rank with a tolerance that is measured instead of chosen.

# %% parameters tags=["parameters"]
seed = 0
# one tensor of a transformer is not averaged over four ranks: largest distance between the loss
# curves of the right and of the faulty run, in percent of the loss
predicted_distance_percent = None
# AdamW gets four times the gradient in every step: how far apart the weights end, in percent of
# the distance that training has moved them
predicted_adamw_percent = None
# four ranks that all draw the same batch: noise of the averaged gradient, in multiples of the
# noise with four different batches
predicted_noise_ratio = None
# the last bit of each weight is changed at the start: the relative distance of the two runs after
# step 40 over that after step 1, each time for the tensor that is furthest apart
predicted_growth = None

# %% setup
import hashlib
import itertools
import math
import os
import statistics
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

# %% setup_torch
import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# %% setup_course
import worldsize as ws
from worldsize import check, draw, ledger, models, quiz, text, units
from worldsize.check import CheckFailed

DDP = nn.parallel.DistributedDataParallel
torch.set_num_threads(1)  # as the ranks do: they share the cores
predictions = ledger.Predictions("week15")
TOKENS, SIZES = text.tokens(), models.shape("tiny")
REAL = {"backend": "gloo", "echo": False}
FOUR = {"world_size": 4, **REAL}
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers: how far apart two curves are, how much AdamW hides, what
# equal batches cost, and how fast a rounding error grows.

# %% predict
predictions.ask("distance of the loss curves", predicted_distance_percent, "%", section=3)
predictions.ask("four times the gradient, AdamW", predicted_adamw_percent, "%", section=5)
predictions.ask("noise, the same batch on four ranks", predicted_noise_ratio, "times", section=5)
predictions.ask("growth of a last bit in 40 steps", predicted_growth, "times", section=7)

# %% [markdown]
# ## 3. A run that trains the wrong model
#
# The small transformer learns the text of *Alice* on four ranks, with DDP and AdamW. The weight of
# its last norm, 64 of the model's 130,000 parameters, was frozen at first. One of two runs
# unfreezes it before `DDP(...)`, the other **after** it. Everything else is the same.


# %% by_adamw
def by_adamw(parameters):
    return torch.optim.AdamW(parameters, lr=3e-3, foreach=False)


# %% train_text
def train_text(is_late=False, make=by_adamw, num_steps=20, starts=None):
    """The mean loss, the weights and, by SGD, the gradients of each step."""
    torch.set_num_threads(1)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    inner = models.Transformer(SIZES, seed=seed)
    if starts:
        starts(inner)
    inner.norm.weight.requires_grad_(not is_late)
    model = DDP(inner)
    inner.norm.weight.requires_grad_(True)
    optimizer, generator = make(inner.parameters()), torch.Generator().manual_seed(seed)
    losses, weights, gradients = [], [], []
    for _ in range(num_steps):
        tokens, targets = text.batch(TOKENS, 16, 32, generator)
        mine = slice(rank, None, world_size)
        loss = F.cross_entropy(model(tokens[mine]).flatten(0, 1), targets[mine].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(total := loss.detach().clone())
        losses.append(total.item() / world_size)
        weights.append({name: one.detach().clone() for name, one in inner.named_parameters()})
        if make is not by_adamw:
            gradients.append({name: one.grad.clone() for name, one in inner.named_parameters()})
    return losses, weights, gradients


# %% two_runs
runs = {"run A": ws.run(train_text, True, **FOUR), "run B": ws.run(train_text, False, **FOUR)}
losses = {name: run.values[0][0] for name, run in runs.items()}
draw.curves(losses, y_label="mean loss of four ranks", title="Two runs on text, measured here")

# %% [markdown]
# Which of the two is wrong? Decide before you go on. The next cell computes the difference.

# %% two_runs_apart
apart = [abs(a - b) / b for a, b in zip(losses["run A"], losses["run B"], strict=True)]
changes = [abs(b - a) / a for a, b in itertools.pairwise(losses["run B"][5:])]
print(f"from one step to the next, run B changes by {statistics.mean(changes):.1%} on average")
print(f"last losses: {losses['run A'][-1]:.4f} and {losses['run B'][-1]:.4f}")
predictions.reveal("distance of the loss curves", 100 * max(apart))

# %% [markdown]
# Run A is the wrong one. The two curves are much closer to each other than each is to itself one
# step later. The mean loss of all ranks says that *some* model learns. It does not say that all
# ranks train the same one.
#
# ### One tensor differs on all four replicas
#
# What happened inside? Data parallelism keeps a copy of the model on each rank. Copies stay equal
# because they start equal and get the same update. DDP records in its constructor which parameters
# *require* a gradient, and averages only the gradients of those. A tensor that it has not recorded
# gets the gradient of the rank's own batch:
#
# ```text
#            rank 0     rank 1     rank 2     rank 3
# embedding  averaged   averaged   averaged   averaged     equal after each step
# layers     averaged   averaged   averaged   averaged     equal after each step
# norm       own        own        own        own          four different tensors
# head       averaged   averaged   averaged   averaged     equal after each step
# ```
#
# The next cell measures the drift: the distance from rank 0 of each rank's norm weight, and of all
# other tensors.


# %% drift
def relative(one, other):
    """The norm of the difference of two tensors, over the norm of the second."""
    return ((one - other).norm() / other.norm()).item()


def flat(named, leave_out=()):
    """All tensors of a step in one, but for some names."""
    return torch.cat([one.flatten() for name, one in named.items() if name not in leave_out])


on_ranks = [weights for _, weights, _ in runs["run A"].values]
drifts = {
    f"norm, rank {rank}": [
        100 * relative(mine["norm.weight"], first["norm.weight"])
        for mine, first in zip(on_ranks[rank], on_ranks[0], strict=True)
    ]
    for rank in (1, 2, 3)
}
drifts["all others, rank 3"] = [
    100 * relative(flat(mine, ["norm.weight"]), flat(first, ["norm.weight"]))
    for mine, first in zip(on_ranks[3], on_ranks[0], strict=True)
]
draw.curves(drifts, y_label="distance from rank 0, %", title="Replicas of run A, measured here")

# %% [markdown]
# The three lines rise from the first step on and stay up. The fourth is exactly zero. So the ranks
# compute gradients of four slightly different models and average them as if there were only one.
# Rank 0 writes the checkpoint, and the other three norm weights are lost.
#
# Nothing in the log shows this. To detect it, you have to **compare the replicas**.

# %% [markdown]
# ## 4. Compare replicas without sending them
#
# To compare four copies of a model of 16 GB on one rank, 48 GB must be sent to it. But the question
# is only whether they are equal, and for that a **digest** is enough: a few bytes that are computed
# from all bytes of a tensor, and that differ if the tensors do.
#
# ### Your turn: a digest
#
# 4 minutes · easy
#
# Return 16 hexadecimal digits of the SHA-256 of a tensor's bytes. The tensor may be a transpose,
# and it may be in bfloat16, which NumPy does not support.
#
# <details><summary>Hint</summary>
#
# `tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()` returns the bytes in order. (For
# a tensor on a GPU, add `.cpu()`.) `hashlib.sha256(content).hexdigest()` returns 64 digits.
# </details>


# %% fingerprint tags=["turn"]
def fingerprint(tensor):
    """16 hexadecimal digits that depend on every bit of a tensor."""
    ### BEGIN SOLUTION
    content = tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(content).hexdigest()[:16]
    ### END SOLUTION


# %% check_fingerprint
with check.turn("fingerprint"):
    given = torch.linspace(-1, 1, 100).reshape(10, 10)
    changed = given.clone()
    changed[7, 3] = torch.nextafter(changed[7, 3], torch.tensor(2.0))
    made = (given, given.clone(), changed, given.T, given.bfloat16())
    digests = [fingerprint(one) for one in made]
    if not isinstance(digests[0], str) or len(digests[0]) != 16:
        raise CheckFailed("a text of 16 digits", repr(digests[0]), "hexdigest()[:16]")
    if digests[0] != digests[1]:
        hint = "Take the tensor's content: Python's `hash` and `id` differ for a copy."
        raise CheckFailed("the same digest of a tensor and its copy", digests[:2], hint)
    if digests[0] == digests[2]:
        hint = "A sum or a rounded text loses it; take the bytes."
        raise CheckFailed("a different digest after one last bit has changed", "the same", hint)
    if digests[0] == digests[3]:
        raise CheckFailed("a different digest of the transpose", "the same", "Order counts.")
    if digests[0].lower() not in hashlib.sha256(given.numpy().tobytes()).hexdigest():
        hint = "Python's `hash` of the bytes is a different one in each process."
        raise CheckFailed("16 of the digits of SHA-256", digests[0], hint)
    print(f"Right. One last bit among 100 numbers: {digests[0]} and {digests[2]}.")

# %% [markdown]
# The next cell compares the bytes of such digests with those of the weights themselves. From here
# on the lesson uses its own digest function, which works like yours:


# %% digest_costs
def digest_of(tensor):
    """Eight bytes of a tensor's SHA-256, as text."""
    content = tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(content).digest()[:8].hex()


def digests_of(run):
    """By rank and step, the digest of each tensor."""
    return [
        [{name: digest_of(one) for name, one in step.items()} for step in steps]
        for _, steps, _ in run.values
    ]


table = []
for name in ("tiny", "llama-3-8b", "llama-3-405b"):
    shape = models.shape(name)
    num_tensors = 9 * shape.num_layers + 3  # of each layer, embedding, last norm, head
    row = {"model": name, "tensors": num_tensors, "weights in bfloat16": 2 * shape.num_parameters}
    row = {**row, "digests": 8 * num_tensors}
    row |= {key: units.format_bytes(row[key]) for key in ("weights in bfloat16", "digests")}
    table.append(row)
draw.table(table, title="What a rank sends to be compared, computed")

# %% [markdown]
# For the largest model the digests take a few kilobytes, so sending them costs almost nothing.
# Computing them costs more, because each byte of the weights must be read: a small program can do
# that in every step, a large one only at intervals. Digests of each tensor after each step turn
# "the loss looks odd" into "this tensor, in this step".
#
# ### Your turn: the first tensor that drifts
#
# 7 minutes · medium
#
# `of_ranks[rank][step][name]` is a digest. Find the first step, counted from 0, in which any tensor
# differs between ranks, and the first tensor that differs there, in the order of the dictionary.
# Return `(step, name)`, or `None` if all are equal.
#
# <details><summary>Hint</summary>
#
# Loop over the steps, then over rank 0's names. A set of the ranks' digests has one element if they
# are equal.
# </details>


# %% first_drift tags=["turn"]
def first_drift(of_ranks):
    """The step and the name of the first tensor that differs between ranks, or None."""
    ### BEGIN SOLUTION
    for step, named in enumerate(of_ranks[0]):
        for name in named:
            if len({steps[step][name] for steps in of_ranks}) > 1:
                return step, name
    return None
    ### END SOLUTION


# %% check_first_drift
with check.turn("first_drift"):
    made = [[{"a": "0", "b": "0"} for _ in range(3)] for _ in range(3)]
    made[2][1]["b"] = made[1][2]["a"] = "1"
    both = [[{**step, "a": step["b"]} for step in steps] for steps in made]
    for what, of_ranks, expected in (
        ("rank 2's b in step 1, rank 1's a in step 2", made, (1, "b")),
        ("only rank 1's a in step 2", made[:2], (2, "a")),
        ("only the middle rank's a in step 2", [made[0], made[1], made[0]], (2, "a")),
        ("rank 2's a and b in step 1", both, (1, "a")),
        ("rank 0 alone", made[:1], None),
        ("run A", digests_of(runs["run A"]), (0, "norm.weight")),
        ("run B", digests_of(runs["run B"]), None),
    ):
        found = first_drift(of_ranks)
        if found != expected:
            hint = "Steps outside, names inside; any rank may be the one that differs."
            raise CheckFailed(f"{expected} for {what}", found, hint)
    print("Right. Run A: norm.weight, in the first step. Run B: 20 steps equal to the bit.")

# %% [markdown]
# ### Digests are too strict between different world sizes
#
# Run B is **bitwise equal** on all ranks, in every step. That is not luck. In an all-reduce like
# week 2's ring, each element of the sum is computed on one rank, in one order, and then copied to
# the others. Replicas that start equal, get bitwise equal gradients and use the same optimizer stay
# bitwise equal. So between replicas that step with the result of *the same all-reduce* a digest is
# the right test: a single different bit is a fault. (If each rank gathers all gradients and adds
# them up in its own order, last bits differ without a fault. Lab 15 has such a program, and because
# of it the audit of section 5 allows replicas a difference of 1e-5.)
#
# Between runs with *different world sizes* a digest is too strict. One rank takes the mean over 16
# sequences; four ranks take means over four each, and then the mean of those. A float32 sum is
# rounded to 24 bits after each addition, and a different order rounds differently:

# %% order_of_sums
numbers = torch.tensor([1.0, 2.0**-24, 2.0**-24, 2.0**-24])
one_by_one = ((numbers[0] + numbers[1]) + numbers[2]) + numbers[3]
in_pairs = (numbers[0] + numbers[1]) + (numbers[2] + numbers[3])
print(f"one by one: {one_by_one.item():.10f}, in pairs: {in_pairs.item():.10f}")

# %% [markdown]
# So we need a second measure, which says *how far apart* two tensors are, still without sending
# them. Take a random direction $r$ with independent elements of mean 0 and variance 1. The
# projection $r \cdot a$ is one number. For two tensors with difference $d = a - b$,
#
# $$\mathrm{E}\,(r \cdot a - r \cdot b)^2 = \mathrm{E}\,(r \cdot d)^2
# = \sum_{ij} d_i d_j\, \mathrm{E}\, r_i r_j = |d|^2$$
#
# The mean of the squares over several directions estimates the squared distance between two tensors
# of any size. Eight projections and a norm are 72 bytes in float64, which keeps the rounding of the
# projection itself out of the result. All ranks draw the directions from one seed. (The function
# below draws eight whole directions at once, so it is for small tensors; lab 15 draws them in
# blocks.)


# %% projections
def projections(tensor, num=8):
    """Eight random projections of a tensor; the directions depend on its size only."""
    values = tensor.detach().flatten().double()
    generator = torch.Generator().manual_seed(len(values))
    return torch.randn(num, len(values), generator=generator, dtype=torch.float64) @ values


# %% [markdown]
# ### Your turn: how far apart
#
# 4 minutes · easy
#
# From the projections of two tensors and the norm of the second, estimate $|a - b| / |b|$.
#
# <details><summary>Hint</summary>
#
# Take the square root of the mean of the squared differences, and divide it by the norm.
# </details>


# %% estimated_distance tags=["turn"]
def estimated_distance(of_one, of_other, norm):
    """The relative distance of two tensors, from their projections."""
    ### BEGIN SOLUTION
    return (of_one - of_other).square().mean().sqrt() / norm
    ### END SOLUTION


# %% check_estimated_distance
with check.turn("estimated_distance"):
    hint = "Square, mean, root, and then over the norm. No absolute values."
    made = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0.0, 2.0, 3.0, 2.0])
    found = float(estimated_distance(*made, 2.0))
    check.expect_close(found, math.sqrt(5 / 4) / 2, "the distance from four projections", hint)
    generator, ratios = torch.Generator().manual_seed(seed), []
    for size in range(1000, 1200):
        other = torch.randn(size, generator=generator)
        one = other + 0.01 * torch.randn(size, generator=generator)
        estimate = estimated_distance(projections(one), projections(other), other.norm())
        ratios.append(float(estimate) / relative(one, other))
    low, high = sorted(ratios)[10], sorted(ratios)[-11]
    check.expect_close(statistics.mean(ratios), 1.0, "estimate over truth", hint, atol=0.1)
    print(f"Right. Of 200 estimates, 90% lie between {low:.2f} and {high:.2f} times the truth.")

# %% [markdown]
# Eight numbers are enough to distinguish 1e-7 from 1e-2. The next cell applies both measures to the
# training of section 3: between replicas, and between four ranks and one.

# %% both_measures
alone = ws.run(train_text, world_size=1, **REAL)


def row_of(what, one, other):
    """What a digest and eight projections say of two sets of weights."""
    one, other = flat(one), flat(other)
    projected = (projections(one) - projections(other)).square().mean().sqrt() / other.norm()
    row = {"compared": what, "digests": "equal" if digest_of(one) == digest_of(other) else "differ"}
    return {**row, "by projections": f"{projected:.1g}", "true": f"{relative(one, other):.1g}"}


right, faulty = ([one[1] for one in runs[name].values] for name in ("run B", "run A"))
single = alone.values[0][1]
table = [
    row_of("run B, rank 3 and rank 0, step 20", right[3][-1], right[0][-1]),
    row_of("run A, rank 3 and rank 0, step 20", faulty[3][-1], faulty[0][-1]),
    row_of("4 ranks and 1 rank, step 1", right[0][0], single[0]),
    row_of("4 ranks and 1 rank, step 20", right[0][-1], single[-1]),
]
draw.table(table, title="Equal, rounded differently, or wrong, measured here")

# %% [markdown]
# Read the second column. Digests differ in three rows, and only one of the three is a fault. The
# third column separates them: the fault is thousands of times as large as the rounding. Is rounding
# always that small? Section 7 measures it, because a test between world sizes needs to know.

# %% [markdown]
# ## 5. Seven families of silent faults
#
# `ws.run(program, world_size=2, audit=True)` does in each step what section 4 did by hand, for
# weights, gradients, inputs, buffers and optimizer states, and compares the records of all ranks
# after the run. It is the production oracle of this week. Its reports count steps from 1. Each
# family below has a small program with a switch that selects the fault or the repair. Before each
# run, predict what the audit will report.


# %% small_program
def network():
    """Two linear layers, with the same weights on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch_of(step, rank=None, num=8):
    """A rank's batch: rows of eight numbers, and the largest of the first four as the class."""
    rank = dist.get_rank() if rank is None else rank
    rows = torch.randn(num, 8, generator=torch.Generator().manual_seed(1000 * step + rank))
    return rows, rows[:, :4].argmax(1)


def audited(program, *given, world_size=2):
    """What the audit finds in a run of a program."""
    return ws.run(program, *given, world_size=world_size, audit=True, **REAL).audit


def worst(audit):
    """The first finding in one line."""
    return audit.findings[0].what if audit.findings else "nothing found"


# %% [markdown]
# ### a. Gradients that are never reduced
#
# DDP sets up its reduction in its *forward*, for the parameters that its *constructor* recorded. So
# there are three ways to bypass it: call the wrapped module (`model.module(...)`, as people do to
# call one of its methods), unfreeze or replace a layer afterwards, or end an accumulation inside
# `no_sync`.


# %% unreduced
def unreduced(fault=None):
    """Three steps of DDP, or of something that looks like it."""
    inner = network()
    inner[2].bias.requires_grad_(fault != "unfrozen late")
    model = DDP(inner)
    inner[2].bias.requires_grad_(True)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    called = inner if fault == "module called" else model
    for step in range(3):
        rows, classes = batch_of(step)
        optimizer.zero_grad()
        with model.no_sync() if fault == "no_sync" else nullcontext():
            loss = F.cross_entropy(called(rows), classes)
        loss.backward()
        optimizer.step()


bypassed = audited(unreduced, "module called")
print(bypassed)

# %% unreduced_table
table = [{"fault": "module called", "audit": worst(bypassed)}]
for fault in ("unfrozen late", "no_sync", None):
    table.append({"fault": fault or "none: repaired", "audit": worst(audited(unreduced, fault))})
draw.table(table, title="Gradients that nobody reduces, audited here")

# %% [markdown]
# A report gives the line, the evidence and a cure. The cure is short in all three cases: call the
# wrapper; wrap the model after the last change to it; run the last forward pass outside `no_sync`.
#
# The third case is easy to write by mistake. First, this function computes in one process the
# gradient that accumulation must give:


# %% accumulated_alone
def accumulated_alone():
    """The last gradient of two steps over four batches of each of two ranks, in one process."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        for number, rank in itertools.product(range(4), range(2)):
            rows, classes = batch_of(4 * step + number, rank)
            (F.cross_entropy(model(rows), classes) / 8).backward()
        optimizer.step()
    return torch.cat([one.grad.flatten() for one in model.parameters()])


# %% [markdown]
# ### Find the bug: accumulating four batches for one step
#
# 6 minutes · medium
#
# A colleague accumulates four batches. All but the last should run inside `no_sync`, including the
# forward pass, as week 3 requires. The loss falls. Run the check, and read what the audit says.
#
# <details><summary>Hint</summary>
#
# From which number does `enumerate` count, and which number does the last batch get?
# </details>


# %% accumulate tags=["turn"]
def accumulate(model, batches):
    """Leave in `grad` the mean over all batches and ranks; the last backward pass sends."""
    for number, (rows, classes) in enumerate(batches):
        ### BEGIN SOLUTION
        is_last = number == len(batches) - 1
        ### INSTEAD
        # is_last = number == len(batches)
        ### END SOLUTION
        with nullcontext() if is_last else model.no_sync():
            loss = F.cross_entropy(model(rows), classes) / len(batches)
            loss.backward()


# %% check_accumulate
def accumulating(step_of):
    """Two steps of four batches each; return the last gradient."""
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        step_of(model, [batch_of(4 * step + number) for number in range(4)])
        optimizer.step()
    return torch.cat([one.grad.flatten() for one in model.parameters()])


with check.turn("accumulate"):
    run = ws.run(accumulating, accumulate, world_size=2, audit=True, **REAL)
    off = relative(*run.values)
    if run.audit.is_wrong or off > 0:
        got = f"they differ by {off:.0%}; the audit: {worst(run.audit)}"
        raise CheckFailed("equal gradients on both ranks", got, "Does any forward run outside?")
    hint = "The mean over the batches of all ranks: divide by their number, once."
    check.expect_close(run.values[0], accumulated_alone(), "the gradient", hint, atol=1e-6)
    print("Right. Equal gradients on both ranks, and the audit finds nothing.")

# %% [markdown]
# ### b. Constant factors on the gradient
#
# All-reduce sums. The mean over ranks needs exactly one division. If it is forgotten, the gradient
# is N times too large. With SGD that acts as a learning rate N times too large, which you may
# notice. And with AdamW? For a weight $w$ with gradient $g$, whose running mean is $m$ and that of
# $g^2$ is $v$, a learning rate $\eta$, a weight decay $\lambda$ and a small $\epsilon$, a step
# subtracts
#
# $$\Delta = \eta \left( \frac{m}{\sqrt{v} + \epsilon} + \lambda w \right)$$
#
# (AdamW's bias correction, which matters in the first steps, does not depend on $g$.) Multiply
# every $g$ by $c$. Then $m$ becomes $cm$ and $\sqrt v$ becomes $c \sqrt v$, and
#
# $$\frac{cm}{c\sqrt{v} + \epsilon} = \frac{m}{\sqrt{v} + \epsilon / c}$$
#
# **The factor cancels, except in $\epsilon$.** A sum instead of a mean over 1,000 ranks divides
# $\epsilon$ by 1,000 and does nothing else. Weight decay in AdamW does not depend on the gradient
# at all. In the older Adam it is added to the gradient, where the factor makes it relatively
# weaker. And clipping compares a norm with a constant. The next cells run seven optimizers on four
# ranks, each with the sum and with the mean:

# %% optimizers
SGD, ADAM, ADAMW = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
OPTIMIZERS = {  # the class, its options, and the norm to which gradients are clipped
    "SGD": (SGD, {"lr": 0.1}, None),
    "SGD, clipped to 0.1": (SGD, {"lr": 0.1}, 0.1),
    "AdamW": (ADAMW, {"lr": 0.01, "weight_decay": 0.0}, None),  # by default it is 0.01
    "AdamW, weight decay 0.1": (ADAMW, {"lr": 0.01, "weight_decay": 0.1}, None),
    "Adam, weight decay 0.1": (ADAM, {"lr": 0.01, "weight_decay": 0.1}, None),
    "AdamW, epsilon 1e-2": (ADAMW, {"lr": 0.01, "weight_decay": 0.0, "eps": 1e-2}, None),
    "AdamW, clipped to 0.5": (ADAMW, {"lr": 0.01, "weight_decay": 0.0}, 0.5),
}


# %% summed
def weights_after(name, is_mean, num_steps=30):
    """All weights after some steps with the sum or the mean of the ranks' gradients."""
    kind, options, max_norm = OPTIMIZERS[name]
    model = network()
    optimizer = kind(model.parameters(), **options, foreach=False)
    for step in range(num_steps):
        rows, classes = batch_of(step)
        optimizer.zero_grad()
        F.cross_entropy(model(rows), classes).backward()
        flat_gradient = torch.cat([one.grad.flatten() for one in model.parameters()])
        dist.all_reduce(flat_gradient)
        if is_mean:
            flat_gradient /= dist.get_world_size()
        parts = flat_gradient.split([one.numel() for one in model.parameters()])
        for one, part in zip(model.parameters(), parts, strict=True):
            one.grad.copy_(part.view_as(one))
        if max_norm:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


# %% sums_and_means
def sums_and_means():
    """For each optimizer, how far the weights with the sum end from those with the mean."""
    begin, found = nn.utils.parameters_to_vector(network().parameters()).detach(), {}
    for name in OPTIMIZERS:
        mean, total = (weights_after(name, is_mean) for is_mean in (True, False))
        found[name] = ((total - mean).norm() / (mean - begin).norm()).item()
    return found


# %% summed_table
found = ws.run(sums_and_means, **FOUR).values[0]
predictions.reveal("four times the gradient, AdamW", 100 * found["AdamW"])
rows = [
    {"optimizer": name, "apart": f"{units.significant(100 * one)}%"} for name, one in found.items()
]
title = "Sum for mean on four ranks: distance over the distance trained, measured here"
draw.table(rows, title=title)

# %% [markdown]
# With plain SGD the two runs end far apart. With AdamW, with or without weight decay, they end in
# the same place, so that no curve will ever show the factor. The same holds for SGD when *every*
# step is clipped: only the direction is left. Three things reveal the factor: a large epsilon,
# decay that is added to the gradient (the older Adam), and clipping that acts on only some of the
# steps.
#
# ### Your turn: when epsilon shows
#
# 5 minutes · easy
#
# A parameter has the same gradient $g > 0$ in each step, so that $m = g$ and $\sqrt v = g$. By what
# ratio does a factor $c$ on the gradient change the update $m / (\sqrt v + \epsilon)$?
#
# <details><summary>Hint</summary>
#
# Write the update with $cg$ and divide it by the update with $g$. The ratio is between 1 and $c$.
# </details>


# %% update_ratio tags=["turn"]
def update_ratio(gradient, factor, epsilon):
    """AdamW's update with a gradient times the factor, over the update with the gradient."""
    ### BEGIN SOLUTION
    scaled = factor * gradient
    return scaled / (scaled + epsilon) * (gradient + epsilon) / gradient
    ### END SOLUTION


# %% check_update_ratio
with check.turn("update_ratio"):
    hint = "c g / (c g + epsilon), over g / (g + epsilon)."
    for gradient, factor, epsilon, expected in (
        (1.0, 4.0, 0.0, 1.0),
        (1e-8, 4.0, 1e-8, 1.6),
        (1e-12, 4.0, 1e-8, 3.9988),
        (3e-3, 64.0, 1e-3, 1.3264),
    ):
        what = f"the ratio for g = {gradient}, c = {factor}, epsilon = {epsilon}"
        found = float(update_ratio(gradient, factor, epsilon))
        check.expect_close(found, expected, what, hint, rtol=1e-3)
    shown = update_ratio(7.5e-7, 4, 1e-8)
    print(f"Right. With c = 4 and epsilon 1e-8, a gradient of 7.5e-7 has a ratio of {shown:.3f}.")

# %% [markdown]
# The audit does not look at the update. It compares the gradient after each rank's backward pass
# with the one that the optimizer gets, and so finds the factor with any optimizer. (Where every
# step is clipped, the factor is gone before the step, and there is nothing to find.)

# %% summed_audited
print(audited(lambda: weights_after("AdamW", False, 3), world_size=4))
print("\nrepaired:", worst(audited(lambda: weights_after("AdamW", True, 3), world_size=4)))

# %% [markdown]
# ### c. All-reduces that autograd does not see
#
# Some losses need a quantity of the whole batch: a mean, a variance, all pairs. So the loss
# contains an all-reduce. `dist.all_reduce` writes the sum into the tensor, and **autograd does not
# see it**.
#
# Each rank has $a_r(\theta)$. The loss is $\varphi(s)$ of the mean $s = \frac{1}{N} \sum_r a_r$. By
# the chain rule,
#
# $$\frac{d\varphi}{d\theta} = \varphi'(s) \cdot \frac{1}{N} \sum_r \frac{da_r}{d\theta}$$
#
# On rank $r$, autograd's record of the forward pass (its **tape**) holds $a_r / N$, and then
# $\varphi$; the all-reduce between them left no entry, so backward treats it as the identity. The
# rank gets $\varphi'(s) \cdot \frac{1}{N} \frac{da_r}{d\theta}$: the right derivative, but of its
# own term only. DDP averages over ranks, dividing by $N$ **again**. The optimizer gets
#
# $$\frac{1}{N} \sum_r \varphi'(s) \cdot \frac{1}{N} \frac{da_r}{d\theta}
# = \frac{1}{N} \cdot \frac{d\varphi}{d\theta}$$
#
# The *value* of the loss is right on every rank. Only the gradient is N times too small. If this is
# the whole loss, AdamW hides that, too. If it is one of two terms of the loss, that term's weight
# is N times too small, and nothing shows it.
#
# torch gives one hint: the first backward pass through such a tensor warns that "an autograd kernel
# was not registered" for `c10d::allreduce_`. That is one line in a long log, and `echo=False` hides
# it here. Search your own logs for it.


# %% blind_spot
def blind_mean(values):
    """The mean over all ranks; autograd sees this rank's part only."""
    mean = values.mean() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean


def loss_of_mean(mean_of):
    """The value and the gradient of a loss of the whole batch's mean, under DDP."""
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    loss = (mean_of(model(batch_of(0)[0])) - 1).square()
    loss.backward()
    optimizer.step()
    return loss.item(), torch.cat([one.grad.flatten() for one in model.parameters()])


def whole_batch(num_ranks=4):
    """The same of all ranks' rows, in one process."""
    model = network()
    rows = torch.cat([batch_of(0, rank)[0] for rank in range(num_ranks)])
    loss = (model(rows).mean() - 1).square()
    loss.backward()
    return loss.item(), torch.cat([one.grad.flatten() for one in model.parameters()])


# %% blind_spot_measured
true_loss, true_gradient = whole_batch()
blind = ws.run(loss_of_mean, blind_mean, audit=True, **FOUR)
for rank in (0, 3):
    loss, gradient = blind.values[rank]
    ratio = (true_gradient.norm() / gradient.norm()).item()
    print(f"rank {rank}: loss {loss:.6f} of {true_loss:.6f}, gradient too small by {ratio:.3f}")
print(blind.audit)

# %% [markdown]
# ### Your turn: a mean that autograd sees
#
# 5 minutes · medium
#
# Return the mean over all ranks of `values.mean()` so that the gradient under DDP is right.
# `torch.distributed.nn.functional.all_reduce(tensor)` returns the sum as a new tensor, and its
# backward pass all-reduces the gradient. (torch 2.13 warns that it will be removed in favour of
# `torch.distributed._functional_collectives.all_reduce(tensor, "sum", dist.group.WORLD)`, which has
# the same backward pass, but only for sums. You may use either.)
#
# <details><summary>Hint</summary>
#
# One line is enough: all-reduce the rank's mean and divide by the number of ranks. Then each rank's
# derivative arrives N times, once from every rank's loss, and DDP's division by N is correct.
# </details>


# %% seen_mean tags=["turn"]
def seen_mean(values):
    """The mean over all ranks, with its gradient."""
    ### BEGIN SOLUTION
    total = torch.distributed.nn.functional.all_reduce(values.mean())
    return total / dist.get_world_size()
    ### END SOLUTION


# %% check_seen_mean
with check.turn("seen_mean"):
    run = ws.run(loss_of_mean, seen_mean, audit=True, **FOUR)
    loss, gradient = run.values[0]
    check.expect_close(loss, true_loss, "the loss", "The sum over ranks, divided by their number.")
    ratio = (true_gradient.norm() / gradient.norm()).item()
    hint = "dist.all_reduce is invisible to autograd; torch.distributed.nn.functional is not."
    check.expect_close(ratio, 1.0, "the true gradient's norm over this one's", hint)
    check.expect_close(gradient, true_gradient, "the gradient", hint, atol=1e-6)
    print(f"Right. Loss and gradient are those of the whole batch; audit: {worst(run.audit)}.")

# %% [markdown]
# ### d. Data that repeat
#
# Three faults leave every tensor right and every replica equal. All ranks read the **same batch**:
# no sampler, or one generator with one seed. All epochs have the **same order**: the program never
# calls `set_epoch`. All ranks draw the **same random numbers**, for dropout, crops or noise.
#
# What does the first one cost? If each rank has its own batch of independent samples, the averaged
# gradient is the true one plus noise. The variances of independent batches add, so the mean of $N$
# has $1/\sqrt N$ of the noise of one. Equal batches have equal noise, and averaging does not reduce
# it. The next cells measure four ranks with one, two and four *distinct* batches, in 200 trials
# each:


# %% noise
def noise(num_distinct, num_trials=200):
    """How far an averaged gradient is from its mean over trials, root mean square."""
    model, gradients = network(), []
    for trial in range(num_trials):
        rows, classes = batch_of(trial, dist.get_rank() % num_distinct)
        model.zero_grad()
        F.cross_entropy(model(rows), classes).backward()
        gradients.append(torch.cat([one.grad.flatten() for one in model.parameters()]))
    averaged = torch.stack(gradients)
    dist.all_reduce(averaged)
    averaged /= dist.get_world_size()
    return (averaged - averaged.mean(0)).square().sum(1).mean().sqrt().item()


# %% noise_measured
noises = ws.run(lambda: [noise(num) for num in (1, 2, 4)], **FOUR).values[0]
predictions.reveal("noise, the same batch on four ranks", noises[0] / noises[2])
table = []
for num, one in zip((1, 2, 4), noises, strict=True):
    row = {"distinct batches": num, "noise": round(one, 4)}
    row |= {"over that of 4": round(one / noises[2], 2), "√(4/distinct)": round(2 / num**0.5, 2)}
    table.append(row)
draw.table(table, title="Noise of the averaged gradient of four ranks, measured here")

# %% [markdown]
# With one distinct batch the job pays for four GPUs and gets the gradient of one. The learning rate
# was scaled for a batch four times as large (week 4), so it is also too high for the effective
# batch.


# %% data_faults
def same_batch(is_repaired):
    """DDP on rows that depend on the step, or on step and rank."""
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(3):
        rows, classes = batch_of(step, dist.get_rank() if is_repaired else 0)
        optimizer.zero_grad()
        F.cross_entropy(model(rows), classes).backward()
        optimizer.step()


def same_order(is_repaired):
    """Return the order of the samples in each of two epochs."""
    data = TensorDataset(torch.arange(12))
    sampler = DistributedSampler(data, seed=seed)
    loader, orders = DataLoader(data, batch_size=3, sampler=sampler), []
    for epoch in range(2):
        if is_repaired:
            sampler.set_epoch(epoch)
        orders.append([one for (batch,) in loader for one in batch.tolist()])
    return orders


# %% data_faults_too
def same_draws(is_repaired):
    """DDP with dropout; the ranks' generators are in one state, or not."""
    torch.manual_seed(seed)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 4)))
    optimizer = SGD(model.parameters(), lr=0.1)
    if is_repaired:
        torch.manual_seed(seed + dist.get_rank())
    for step in range(3):
        rows, classes = batch_of(step)
        optimizer.zero_grad()
        F.cross_entropy(model(rows), classes).backward()
        optimizer.step()


table = []
for program in (same_batch, same_order, same_draws):
    row = {"program": program.__name__, "audit": worst(audited(program, False))}
    table.append({**row, "repaired": worst(audited(program, True))})
print("rank 0's two epochs:", *ws.run(same_order, False, world_size=2, **REAL).values[0])
draw.table(table, title="Data that repeat, audited here")

# %% [markdown]
# ### Find the bug: two workers share a seed
#
# 7 minutes · medium
#
# Every worker of every data-parallel rank needs its own random numbers, and new ones in each epoch.
# (Tensor-parallel ranks must draw the same numbers for a tensor of which each holds a copy.) A
# colleague adds up everything that may differ. Run the check, and find two workers with the same
# seed.
#
# <details><summary>Hint</summary>
#
# Compare rank 1's worker 0 with rank 0's worker 1. Treat epoch, rank and worker as the digits of a
# number: multiply each by how many values the later ones can take together.
# </details>


# %% seed_for tags=["turn"]
def seed_for(epoch, rank, worker, num_ranks, num_workers):
    """A different seed for each epoch, rank and worker."""
    ### BEGIN SOLUTION
    return (epoch * num_ranks + rank) * num_workers + worker
    ### INSTEAD
    # return epoch + rank + worker
    ### END SOLUTION


# %% check_seed_for
with check.turn("seed_for"):
    for num_epochs, num_ranks, num_workers in ((3, 4, 2), (2, 3, 5), (5, 1, 8), (2, 12, 16)):
        places = [
            (epoch, rank, worker)
            for epoch in range(num_epochs)
            for rank in range(num_ranks)
            for worker in range(num_workers)
        ]
        seeds = [seed_for(*place, num_ranks, num_workers) for place in places]
        num_twice = len(seeds) - len(set(seeds))
        if num_twice:
            first = next(place for n, place in enumerate(places) if seeds[n] in seeds[:n])
            other = places[seeds.index(seeds[places.index(first)])]
            got = f"{len(set(seeds))}; (epoch, rank, worker) {other} and {first} share one"
            raise CheckFailed(f"{len(seeds)} different seeds", got, "A sum forgets what it is of.")
    print("Right. Every epoch, rank and worker has a seed of its own.")

# %% [markdown]
# ### e. Races
#
# An asynchronous call returns at once, with a handle. Until `wait()` returns, the tensor belongs to
# the transfer. A program that reads it earlier gets the old values, the new ones, or a mixture. How
# often the result is right depends on sizes, load and backend.


# %% too_early
def too_early(is_repaired, num_tries=20, size=1000):
    """How often a sum that is read right after an asynchronous all-reduce is the right one."""
    num_right = 0
    for number in range(num_tries):
        tensor = torch.full((size,), float(number + 1))
        work = dist.all_reduce(tensor, async_op=True)
        if is_repaired:
            work.wait()
        total = tensor.sum().item()
        work.wait()
        num_right += total == dist.get_world_size() * size * (number + 1)
    return num_right


EMULATED = {"world_size": 2, "cluster": "dgx-h100", "echo": False}
table = []
for name, given in (("real ranks, Gloo", {"world_size": 2, **REAL}), ("emulated", EMULATED)):
    row = {"two ranks": name}
    for what, is_repaired in (("read at once", False), ("after wait()", True)):
        counts = ws.run(too_early, is_repaired, **given).values
        row[what] = " and ".join(f"{num} of 20" for num in counts)
    table.append(row)
draw.table(table, title="Right results on rank 0 and rank 1, measured here")

# %% too_early_audited
print(audited(too_early, False, 3))
print("\nrepaired:", worst(audited(too_early, True, 3)))

# %% [markdown]
# The audit's finding does not depend on which side wins the race. It sees that an operator accesses
# memory that a transfer still uses. On GPUs the race is between two streams, and the result depends
# on which of them is faster.
#
# ### Find the bug: divided too early
#
# 5 minutes · easy
#
# Transfers overlap if the program starts all of them before it waits for the first. A colleague
# starts one for each gradient, divides, and then waits for all. Run the check on emulated ranks,
# where a value that is read early is never right.
#
# <details><summary>Hint</summary>
#
# Which of the two may use a gradient between the start of its transfer and `wait()`: the program or
# the transfer?
# </details>


# %% overlapped tags=["turn"]
def overlapped(gradients):
    """Average each gradient over the ranks in place; all transfers are under way at once."""
    works = [dist.all_reduce(one, async_op=True) for one in gradients]
    ### BEGIN SOLUTION
    for work, one in zip(works, gradients, strict=True):
        work.wait()
        one /= dist.get_world_size()
    ### INSTEAD
    # for one in gradients:
    #     one /= dist.get_world_size()
    # for work in works:
    #     work.wait()
    ### END SOLUTION


# %% check_overlapped
def averaged(average):
    """Three gradients of different sizes after this rank has averaged them."""
    made = [torch.full((1000 * n,), float(n + dist.get_rank())) for n in (1, 2, 3)]
    average(made)
    return made


with check.turn("overlapped"):
    run = ws.run(averaged, overlapped, audit=True, **EMULATED)
    hint = "Wait for a gradient's transfer before you touch the gradient."
    for n, one in zip((1, 2, 3), run.values[1], strict=True):
        check.expect_close(one.mean().item(), n + 0.5, f"the mean of gradient {n}", hint)
    if run.audit.is_wrong:
        raise CheckFailed("an audit that finds nothing", worst(run.audit), hint)
    print("Right. Three transfers at once, each waited for before its gradient is touched.")

# %% [markdown]
# ### f. Optimizers with old tensors, and partial norms
#
# `fully_shard` replaces each parameter with a new, sharded one (week 7). An optimizer that was made
# *before* that holds the old ones. They get no gradient, `step()` skips them, and nothing reports
# it. And a norm that a rank computes from its own shards is the norm of only a part of the
# gradient.


# %% other_tensors
def other_tensors(fault=None):
    """Three steps of FSDP2; return the losses on one batch, and the first norm used to clip."""
    model, losses, norms = network(), [], []
    if fault == "made first":
        optimizer = SGD(model.parameters(), lr=0.5)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    if fault != "made first":
        optimizer = SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        rows, classes = batch_of(0)
        model.zero_grad()
        loss = F.cross_entropy(model(rows), classes)
        loss.backward()
        if fault == "own shards":
            shards = [one.grad.to_local() for one in model.parameters()]
            norm = torch.stack([one.norm() for one in shards]).norm()
            for one in shards:
                one *= min(1.0, 0.1 / norm.item())
        else:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()
        optimizer.step()
        losses.append(round(loss.item(), 4))
        norms.append(norm.item())
    return losses, norms[0]


# %% other_tensors_table
table, norms_of = [], {}
for fault in ("made first", "own shards", None):
    run = ws.run(other_tensors, fault, world_size=2, audit=True, **REAL)
    norms_of[fault] = [norm for _, norm in run.values]
    row = {"fault": fault or "none: repaired", "rank 0's losses": str(run.values[0][0])}
    row["norms"] = " and ".join(f"{norm:.4f}" for _, norm in run.values)
    table.append({**row, "audit": worst(run.audit)})
draw.table(table, title="FSDP2 with other tensors, audited here")

# %% [markdown]
# In the first row the loss does not change at all, which you may notice. Accelerate's developers
# encountered this order and wrote that it "doesn't result in a working training loop" (pull request
# 3394, 2025). A related fault is harder to see (pytorch, issue 149205): the optimizer is made after
# `fully_shard`, but also after a first forward pass; the report says that in larger models only
# some parameters might be affected. In the second row each rank clips by its own norm, which is too
# small, so that shards of one gradient are scaled by different factors. The squares of the two
# norms add up to the square of the true one:

# %% norms_add_up
parts, whole = norms_of["own shards"], norms_of[None][0]
sum_of_squares = math.hypot(*parts) ** 2 / whole**2
print(f"√({parts[0]:.4f}² + {parts[1]:.4f}²) = {math.hypot(*parts):.4f} of {whole:.4f}")

# %% [markdown]
# ### g. Checkpoints that are silently not loaded
#
# DDP's `state_dict()` has the keys of the wrapper: `module.0.weight`. A plain model expects
# `0.weight`. `load_state_dict` would raise, unless the program passes `strict=False`, perhaps to
# get past an error with a different cause. Then no key matches, nothing is loaded, and the model is
# evaluated, or trained further, with its random initial weights.


# %% loaded_into_nothing
def loaded(path, is_repaired):
    """Train by DDP, save, load into a plain model; return the loss of both on one batch."""
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.5)
    for step in range(20):
        rows, classes = batch_of(step)
        optimizer.zero_grad()
        F.cross_entropy(model(rows), classes).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save((model.module if is_repaired else model).state_dict(), path)
    dist.barrier()
    plain = network()
    plain.load_state_dict(torch.load(path), strict=is_repaired)
    rows, classes = batch_of(99, 0, num=500)
    with torch.no_grad():
        return [F.cross_entropy(one(rows), classes).item() for one in (model.module, plain)]


# %% loaded_table
table = []
with tempfile.TemporaryDirectory() as folder:
    for name, is_repaired in (("DDP's keys, strict=False", False), ("module's keys, strict", True)):
        path = str(Path(folder) / "state.pt")
        run = ws.run(loaded, path, is_repaired, world_size=2, audit=True, **REAL)
        row = {"saved and loaded": name, "loss, trained": round(run.values[0][0], 3)}
        row["loss, loaded"] = round(run.values[0][1], 3)
        table.append({**row, "audit": worst(run.audit)})
draw.table(table, title="A state that fits nothing, audited here")

# %% [markdown]
# With `strict=False`, `load_state_dict` *returns* the keys that are missing and those that are
# unexpected. Look at them, or do not use `strict=False`.

# %% [markdown]
# ## 6. The mean of means is not the mean over all tokens
#
# DDP averages the ranks' gradients, and each rank counts equally. If each rank's loss is a mean
# over its own tokens, and the ranks have different numbers of tokens, then the mean of the means is
# not the mean over all tokens. With $n_r$ tokens on rank $r$ and $L_r$ the sum of their losses,
#
# $$\frac{1}{N} \sum_r \frac{L_r}{n_r} \quad\text{instead of}\quad
# \frac{\sum_r L_r}{\sum_r n_r}$$
#
# A token on rank $r$ has $\bar n / n_r$ times the weight that it should, where $\bar n$ is the mean
# of all $n_r$. The same happens with micro-batches on one rank, if the program takes the mean of
# each and then the mean of these. Texts differ in length and are padded, so their numbers of tokens
# differ.


# %% uneven
COUNTS = (10, 90, 40, 60)  # rows on each rank


def uneven_rows(rank):
    """A rank's rows, `COUNTS[rank]` of them, shifted by rank, and their classes."""
    rows, classes = batch_of(0, rank, COUNTS[rank])
    return rows + 0.3 * rank, classes


def sum_and_count(model, rank):
    """The sum of a rank's losses, and their number."""
    rows, classes = uneven_rows(rank)
    return F.cross_entropy(model(rows), classes, reduction="sum"), len(rows)


# %% on_ranks_by
def gradient_of(model):
    return torch.cat([one.grad.flatten() for one in model.parameters()])


def on_ranks_by(loss_from=None):
    """The gradient under DDP with a loss made from a rank's sum and count, or the rank's mean."""
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=0.1)
    if loss_from:
        loss = loss_from(*sum_and_count(model, dist.get_rank()))
    else:
        rows, classes = uneven_rows(dist.get_rank())
        loss = F.cross_entropy(model(rows), classes)
    loss.backward()
    optimizer.step()
    return gradient_of(model)


# %% over_all_rows
def over_all_rows():
    """The gradient of the mean over all rows of all ranks, in one process."""
    model = network()
    total = sum(sum_and_count(model, rank)[0] for rank in range(len(COUNTS)))
    (total / sum(COUNTS)).backward()
    return gradient_of(model)


def in_micro_batches():
    """The same rows as four micro-batches of one process, each with the mean of its own."""
    model = network()
    for rank in range(len(COUNTS)):
        total, count = sum_and_count(model, rank)
        (total / count / len(COUNTS)).backward()
    return gradient_of(model)


# %% uneven_measured
true_gradient_of_rows = over_all_rows()
mean_of_means = ws.run(on_ranks_by, audit=True, **FOUR)
table = []
for name, gradient in (
    ("4 ranks, the mean of means", mean_of_means.values[0]),
    ("1 rank, 4 micro-batches, the mean of means", in_micro_batches()),
):
    off = relative(gradient, true_gradient_of_rows)
    table.append({"how": name, "gradient is off by": f"{off:.1%}"})
draw.table(table, title="10, 90, 40 and 60 rows against all 200 at once, measured here")

# %% uneven_audited
print(mean_of_means.audit)
by_hand = audited(on_ranks_by, lambda total, count: total / count, world_size=4)
print("\nthe same with the mean written as total / count:", worst(by_hand))

# %% [markdown]
# Both rows are off by the same amount. Accumulation and data parallelism share the fault and the
# cure: count all tokens of the step first, over micro-batches **and** ranks, and divide each sum by
# that count. (The last line shows a limit of the audit. It recognizes the means that torch's losses
# take, but not one that the program writes as a division.)
#
# ### Your turn: the right weight
#
# 7 minutes · medium
#
# Return a loss whose gradient, after DDP has averaged it, is that of the mean over all rows of all
# ranks.
#
# <details><summary>Hint</summary>
#
# All-reduce the count (a number without a gradient, so `dist.all_reduce` is fine). DDP also divides
# by the number of ranks, which is not wanted here: undo it.
# </details>


# %% loss_over_all tags=["turn"]
def loss_over_all(total, count):
    """A rank's loss from the sum of its losses and their number."""
    ### BEGIN SOLUTION
    count_of_all = torch.tensor(float(count))
    dist.all_reduce(count_of_all)
    return total * dist.get_world_size() / count_of_all
    ### END SOLUTION


# %% check_loss_over_all
with check.turn("loss_over_all"):
    run = ws.run(on_ranks_by, loss_over_all, audit=True, **FOUR)
    ratio = (run.values[0].norm() / true_gradient_of_rows.norm()).item()
    hint = "Divide by the rows of all ranks; then undo DDP's division by the number of ranks."
    check.expect_close(ratio, 1.0, "the gradient's norm over the true one's", hint, rtol=1e-3)
    check.expect_close(run.values[0], true_gradient_of_rows, "the gradient", hint, atol=1e-6)
    print(f"Right. The gradient of all 200 rows; audit: {worst(run.audit)}.")

# %% [markdown]
# **This fault has occurred in practice.** On 10 July 2023 an issue in Hugging Face's Transformers
# (24725) described it for gradient accumulation, with samples of 11 and 101 tokens. The first token
# of each has no target, so 10 and 100 are left, and a token of the short sample gets ten times the
# gradient of a token of the long sample. In October 2024 other users found that losses with and
# without accumulation did not match. The team wrote that the right loss is the total over all
# batches of a step, divided by the number of all tokens that are not padding, and shipped a fix
# within a day (*Fixing Gradient Accumulation*, blog; pull request 34191). On 18 October an issue
# reported that **DDP still had the fault** (34242): the fix counted the tokens of a rank's
# micro-batches and not those of all ranks. Pull request 34373 added the count over all ranks as an
# option, which was off by default until pull request 39395 of July 2025.

# %% published_weights
counts = (11 - 1, 101 - 1)
weights = [1 / len(counts) / count for count in counts]
ratio = weights[0] / weights[1]
print(f"weights of a token: {weights[0]:.3f} and {weights[1]:.3f}, {ratio:.0f} to 1")
print("issue 24725 says: 10 times")

# %% [markdown]
# ## 7. Differential testing: compare four ranks with one
#
# The audit works by rules. One question needs none: **does the program on four ranks compute what
# it computes on one?** Both runs get the same global batch. Any difference larger than rounding is
# a fault, of whatever family. `ws.compare` runs both and reports the first step and the first
# tensor that differ:


# %% compared_program
def plain_training(fault=None, num_steps=5):
    """Data-parallel training by hand on one global batch of 32 rows a step."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    for step in range(num_steps):
        rows, classes = (one[rank::world_size] for one in batch_of(step, 0, num=32))
        optimizer.zero_grad()
        F.cross_entropy(model(rows), classes).backward()
        for name, one in model.named_parameters():
            dist.all_reduce(one.grad)
            one.grad /= world_size
            if name == fault:
                one.grad /= world_size
        optimizer.step()


# %% compared
for what, program in (
    ("right", plain_training),
    ("one gradient divided twice", lambda: plain_training("0.weight")),
):
    print(f"{what}: {ws.compare(program, world_sizes=(1, 4))}")

# %% [markdown]
# The second report names the layer and the factor. The weights were equal before the step, so this
# gradient is where the fault starts.
#
# ### How much is rounding?
#
# Many tests compare with a tolerance such as 1e-5. Where does that number come from? Rounding
# starts at $2^{-24}$, 6e-8, and grows, because each step computes its gradient at slightly
# different weights. To see how fast, change the **last bit** of each weight, once, before the first
# step, and train again. The next cells do this with the training of section 3, on one rank, with
# SGD:


# %% nudged
def nudge(model):
    """Move each weight to a neighbouring number, up or down at random."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for one in model.parameters():
            goes_up = torch.rand(one.shape, generator=generator) < 0.5
            limit = torch.where(goes_up, torch.tensor(math.inf), torch.tensor(-math.inf))
            one.copy_(torch.nextafter(one, limit))


# %% growth
def largest(ones, others):
    """The relative distance of the tensors that are furthest apart."""
    return max(relative(one, others[name]) for name, one in ones.items())


def by_sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.5)


# %% growth_measured
def on_rank_0(**changed):
    """What rank 0 has at each step of the training by SGD."""
    found = train_text(make=by_sgd, num_steps=40, **changed)
    return found if dist.get_rank() == 0 else None


reference = ws.run(on_rank_0, world_size=1, **REAL).values[0]
nudged = ws.run(lambda: on_rank_0(starts=nudge), world_size=1, **REAL).values[0]
table, noise_after = [], {}
for step in (1, 2, 5, 10, 20, 40):
    noise_after[step] = [
        largest(nudged[kind][step - 1], reference[kind][step - 1]) for kind in (1, 2)
    ]
    row = {"step": step, "weights after it": f"{noise_after[step][0]:.1g}"}
    row["gradients in it"] = f"{noise_after[step][1]:.1g}"
    table.append({**row, "within 1e-5": "yes" if max(noise_after[step]) < 1e-5 else "no"})
predictions.reveal("growth of a last bit in 40 steps", noise_after[40][0] / noise_after[1][0])
draw.table(table, title="Last bits changed at the start, relative distances, measured here")

# %% [markdown]
# Nothing is wrong in either run, and yet after some steps a tolerance of 1e-5 would call one of
# them wrong. **The effect of rounding depends on the step, the model, the optimizer and the
# precision. So measure it**: run the reference twice, once with its last bits changed, and allow
# ten times the distance between the two runs.
#
# ### Your turn: is it more than rounding?
#
# 4 minutes · easy
#
# `off` is the distance of a program from the reference, `rounding` the distance of the reference
# from itself with its last bits changed. Return whether `off` is more than ten times `rounding`.
# `rounding` may be 0 by chance, so an `off` of at most `least` never counts as wrong. An `off` that
# is NaN always does.
#
# <details><summary>Hint</summary>
#
# Each comparison with NaN is false, `<=` as well as `>`. So test which distances are right, and
# negate that.
# </details>


# %% is_off tags=["turn"]
def is_off(off, rounding, least=32 * 2.0**-23):
    """Whether a distance is more than what rounding can do."""
    ### BEGIN SOLUTION
    return not off <= max(10 * rounding, least)
    ### END SOLUTION


# %% check_is_off
with check.turn("is_off"):
    for off, rounding, expected in (
        (9e-4, 1e-4, False),
        (2e-3, 1e-4, True),
        (3e-6, 0.0, False),
        (1e-5, 0.0, True),
        (1e-5, 5e-6, False),
        (math.nan, 1e-4, True),
    ):
        found = is_off(off, rounding)
        if bool(found) is not expected:
            hint = "Right is what is at most the larger of ten times the rounding and `least`."
            what = f"{expected} for a distance of {off:g}, rounding {rounding:g}"
            raise CheckFailed(what, found, hint)
    print("Right. Rounding is measured, has a least value, and excuses no NaN.")

# %% [markdown]
# The next cell compares both programs of section 3 on four ranks with the reference on one, using
# both tolerances:

# %% judged
table = []
for name, is_late in (("right", False), ("norm unfrozen late", True)):
    on_four = ws.run(lambda is_late=is_late: on_rank_0(is_late=is_late), **FOUR).values[0]
    for step in (1, 10, 40):
        off, rounding = largest(on_four[2][step - 1], reference[2][step - 1]), noise_after[step][1]
        row = {"4 ranks": name, "step": step, "gradients apart": f"{off:.1g}"}
        row |= {"last bits": f"{rounding:.1g}", "1e-5 says": "wrong" if off > 1e-5 else "right"}
        table.append({**row, "10 × last bits": "wrong" if off > 10 * rounding else "right"})
draw.table(table, title="Four ranks against one, two tolerances, measured here")

# %% [markdown]
# The fixed tolerance calls the right program wrong in later steps. The measured one gives the right
# answer in all rows. `ws.compare` works in this way, with the same `least`. TTrace (H. Jiang et al.
# 2025, arXiv 2506.09280) does something similar for Megatron: it aligns tensors with those of a
# trusted implementation, derives tolerances from an analysis of rounding, and found 11 known faults
# and 3 new ones.
#
# ### Formula and measurement compared
#
# The next cell compares the derived sizes of this week's faults with the measured ones:

# %% formula_beside_run
blind_ratio = (blind.values[0][1].norm() / true_gradient.norm()).item()
numbers = (
    ("gradient of an all-reduced loss, 4 ranks, of the true one", 1 / 4, blind_ratio),
    ("noise with 1 distinct batch of 4, times", math.sqrt(4), noises[0] / noises[2]),
    ("noise with 2 distinct batches of 4, times", math.sqrt(2), noises[1] / noises[2]),
    ("a rank's share of a squared norm, summed over ranks", 1.0, sum_of_squares),
)
table = []
for what, formula, measured in numbers:
    row = {"quantity": what, "formula": round(formula, 4), "measured": round(measured, 4)}
    table.append({**row, "error": f"{formula / measured - 1:+.1%}"})
draw.table(table, title="Sizes of faults, formula beside measurement")

# %% [markdown]
# ## 8. What an audit costs, and what it cannot see
#
# An audit sends nothing. Each rank computes a norm and eight projections of each weight and
# gradient, and watches the operators. The next cell measures what this costs in CPU time for the
# small transformer, with 512 tokens a step:


# %% audit_costs
def cpu_per_step(num_steps=5):
    """CPU seconds of a step of the small transformer on this rank."""
    torch.set_num_threads(1)
    model = models.Transformer(SIZES, seed=seed)
    optimizer = ADAMW(model.parameters(), lr=1e-3, foreach=False)
    generator = torch.Generator().manual_seed(seed)
    for step in range(num_steps + 1):
        if step == 1:  # the first one is slower
            begin_s = time.process_time()
        tokens, targets = text.batch(TOKENS, 16, 32, generator)
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    return (time.process_time() - begin_s) / num_steps


table, plain_s = [], None
for name, every in (("none", False), ("each step", True), ("each 10th step", 10)):
    step_s = ws.run(cpu_per_step, world_size=1, audit=every, **REAL).values[0]
    plain_s = plain_s or step_s
    table.append({"audit": name, "CPU of a step_s": step_s, "times": round(step_s / plain_s, 2)})
draw.table(table, title="What an audit costs, 512 tokens a step, measured here")

# %% [markdown]
# The operators of such a small model take a few microseconds each, and the audit looks at every
# one, even in steps that it does not compare. That is most of its cost here. With 26 million
# parameters, also on 512 tokens, a step takes 1.3 times its CPU time, and 1.1 times if only every
# 20th step is audited (the library's documentation, *Audit: find training that runs and is wrong*).
# So audit every one of the first steps of a new program, and only some steps of a long run.
#
# **An audit that finds nothing is not a proof.** An audit compares ranks with each other, and
# checks a program against rules that hold for any program. A fault that is *equal* on all ranks and
# breaks no rule is invisible to it. The next cell has two such faults:


# %% unseen
def unseen(fault=None):
    """DDP by the book, with a fault that all ranks share."""
    model = DDP(network())
    optimizer = SGD(model.parameters(), lr=1.0 if fault == "learning rate" else 0.1)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for step in range(4):
        rows, classes = (one[rank::world_size] for one in batch_of(step, 0, num=32))
        if fault == "classes":
            classes = (classes + 1) % 4
        optimizer.zero_grad()
        F.cross_entropy(model(rows), classes).backward()
        optimizer.step()


table = []
for fault in ("learning rate", "classes"):
    row = {"fault": fault, "audit": worst(audited(lambda fault=fault: unseen(fault)))}
    found = ws.compare(unseen, lambda fault=fault: unseen(fault), world_sizes=(2, 2)).first
    row["against a right program"] = f"{found.kind} of {found.name}, step {found.step}"
    table.append(row)
itself = ws.compare(lambda: unseen("classes"), world_sizes=(1, 2))
print("other classes, against the same program on one rank:", itself)
draw.table(table, title="Faults that all ranks share, measured here")

# %% [markdown]
# The audit finds neither of them. The comparison with the same program on one rank finds nothing
# either, because that run has the same fault. An independent program finds both, and the kind of
# tensor that differs first says where to look. In the first row a *weight* differs while all
# gradients before it were equal, so the fault is in the optimizer. In the second a *gradient*
# differs while the weights and the outputs of all modules are equal, so the fault is in the
# targets, the loss or the backward pass.
#
# ### When it breaks: BLOOM's layer norms drifted apart
#
# BLOOM's 176 billion parameters were trained from 11 March 2022 on. In each group of four
# tensor-parallel ranks, all four hold a copy of each LayerNorm's weights, and the copies should be
# equal. On 24 March the team found that they were not (chronicles of the training,
# `bigscience-workshop/bigscience`, `train/tr11-176B-ml/chronicles.md`, entries of 24 to 30 March):
# the optimizer clipped gradients on one tensor-parallel rank and not on the others. "This doesn't
# impact the model while it's training", they wrote, since each rank learns its own weights. It
# would matter once the four are merged into one. When they found it, the run was past step 17,235.
#
# They wrote a test that compares the copies, repaired the optimizer, and made the copies equal
# before each forward pass. On 28 March, past step 20,448, they restarted from corrected weights,
# ran four steps and compared again: of one kind of norm only 60% were in sync. There was at least
# one **more** fault, older than the first: all checkpoints of an earlier model of 104 billion
# parameters had it. So they kept making the copies equal in each step.
#
# That repair had its own fault. It all-reduced, and then divided by 4. On 30 March they replaced
# both with an all-reduce with `AVG`, since "`all_reduce` is not an `AutoGrad` function, but
# division is": gradients had been a quarter of what they should be. That is family c.
#
# **What finds it** with this week's tools: comparing digests between the ranks that hold copies, in
# the step after the first clipping.
#
# ### More published silent faults
#
# | What | What the source says | Source |
# |---|---|---|
# | `.module` called | three trainers; no error, no warning | minimind, issue 853, 2026 |
# | no `set_epoch` | the Trainer did not call it | transformers, issue 4398, 2020 |
# | workers draw equal NumPy numbers | repaired by pull request 56488 | pytorch, issue 5059, 2018 |
# | the same in public projects | in over 95% of those with such draws | tanelp.github.io, 2021 |
# | optimizer after FSDP2's forward | parameters not updated | pytorch, issue 149205, 2025 |
# | all-reduce in the loss | gradient off by 1/world_size | lightly, issue 1977, 2026 |
# | `strict=False` | no error, and meaningless output | pytorch/examples, issue 1029, 2022 |
#
# TrainCheck (Y. Jiang et al., OSDI 2025, abstract) reproduced 20 silent errors of real programs,
# inferred rules from runs, and detected 18 of them within one iteration.

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | 0 bits | how much replicas that share one all-reduce differ; one bit is a fault | section 4 |
# | 8 B and 72 B | a digest; a norm and eight projections, of a tensor of any size | section 4 |
# | ε/c | replaces ε: all that a factor c on the gradient changes in AdamW | section 5 |
# | 1/N | gradient of a loss with `dist.all_reduce` in it, under DDP | section 5 |
# | 1/√d | noise with d distinct batches, however many ranks | section 5 |
# | n̄/n | weight of a token on a rank with n tokens, of n̄ on average | section 6 |
# | 10 × a last bit | tolerance between world sizes, measured for step and optimizer | section 7 |

# %% [markdown]
# ## 9. Problems
#
# **1.** A job has 512 ranks and sums gradients without dividing. AdamW has $\epsilon$ = 1e-8. How
# large is the constant gradient at which the update changes by 1%? And with $\epsilon$ = 1e-4?
#
# <details><summary>Answer</summary>
#
# The ratio is about $1 + \epsilon/g \cdot (1 - 1/c)$, and $1/c$ is negligible. It is 1.01 at
# $g = 100\,\epsilon$: at 1e-6 and 1e-2. With $\epsilon$ = 1e-4, any gradient below 1e-2 shows the
# factor clearly.
# </details>
#
# **2.** From embeddings that `dist.all_gather` collected, each of eight ranks computes the same
# contrastive loss over all pairs. Each rank puts its own embedding back into the list, so that its
# gradient flows. By what factor is the gradient wrong under DDP?
#
# <details><summary>Answer</summary>
#
# Every rank computes the same loss, but its tape reaches only its own embedding. The sum over ranks
# of these parts is the true gradient. DDP takes the mean, so the factor is **1/8**. Multiply the
# loss by 8, or use a gather that has a gradient.
# </details>
#
# **3.** A data loader gives 16 ranks four distinct batches, because its sampler was made for 4
# ranks. By what factor is the noise of the gradient larger than intended? What is the effective
# batch?
#
# <details><summary>Answer</summary>
#
# $\sqrt{16/4}$ = **2**. The effective batch is a quarter of the intended one.
# </details>
#
# **4.** Three micro-batches have 500, 1,000 and 1,500 target tokens. Under the mean of means, how
# many times its right weight does a token of the first one have?
#
# <details><summary>Answer</summary>
#
# $\bar n$ = 1,000, so 1,000/500 = **2**. Tokens of the third have 2/3 of theirs.
# </details>
#
# **5.** Two ranks hold halves of a gradient with norms 3 and 4. Both clip to norm 1 by their own
# norm. What is the norm of the whole gradient afterwards, and what has happened to its direction?
#
# <details><summary>Answer</summary>
#
# Each half has norm 1, the whole $\sqrt 2$ instead of 1. The halves were scaled by 1/3 and 1/4
# instead of both by 1/5: the direction has turned towards the first half.
# </details>
#
# **6.** *Design.* You may spend 1% of a run of 1,000 GPUs on checks for silent faults. Which checks
# do you choose?
#
# <details><summary>Answer</summary>
#
# Before the run, audit a few ranks for a few hundred steps, with two epochs of tiny data, and save
# and load a checkpoint; compare the program on 1 and 4 ranks with a reference of a few lines, with
# a measured tolerance. During the run, compare digests of each tensor every few hundred steps (this
# sends kilobytes, but reads all weights), and compute the gradient of every thousandth step twice
# (week 12). At each checkpoint, load it in a new process and compare the next loss. Measure what
# each check costs, and choose the intervals so that all checks together stay below 1%.
# </details>

# %% [markdown]
# ## 10. Self-check
#
# First, compare your predictions with the results.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions follow. Every answer, right or wrong, has its own explanation.

# %% self_check
quiz.ask("week15", seed=seed)

# %% [markdown]
# ## To take with you
#
# - The mean loss of all ranks says that some model learns. It does not say which one.
# - Replicas that step with the result of one all-reduce are bitwise equal. Compare digests.
# - Between world sizes, compare distances, with a tolerance from a run whose last bits were
#   changed.
# - AdamW hides a constant factor on the gradient, and so does clipping in every step. A large
#   epsilon, decay that is added to the gradient, and clipping in only some of the steps reveal it.
# - `dist.all_reduce` inside a loss is invisible to autograd: under DDP the gradient is 1/N of the
#   right one.
# - Equal batches, equal orders and equal seeds leave all replicas equal. Count the distinct ones.
# - Divide by the tokens of all ranks and micro-batches.
# - To find a fault that is equal on all ranks, compare with an independently written program.
#
# **Further reading.** TrainCheck: Y. Jiang et al., *Training with Confidence*, OSDI 2025 (arXiv
# 2506.14813), on rules that are inferred from runs. TTrace: H. Jiang et al. 2025 (arXiv
# 2506.09280), on tolerances that are derived.
#
# **Now the lab**: lab 15, *name the fault*. You write the rules of your own audit, name the faults
# of programs that you have not seen, and repair two of them.
