# %% [markdown]
# # Week 3. DDP from first principles
#
# | | |
# |---|---|
# | Reading and doing | about 100 minutes: four short exercises, two bugs to find, an explorer |
# | Running | about a minute on two CPU cores; GPUs are used if there are enough |
# | You need | [week 2](week02_all_reduce_from_scratch.ipynb): the bytes and time of an all-reduce |
# | You do not need | torch's `DistributedDataParallel`, or how autograd works inside |
# | Afterwards | lab 3, *write DDP* |
#
# Last week you took the all-reduce apart. This week is about **when** to call it. Torch's answer is
# `DistributedDataParallel`, **DDP** for short: one line around a model. By the end you know what
# that line does, and when it cannot help.
#
# This week uses two models: a small network of linear layers (an MLP), whose times fit into a
# formula, and the course's **transformer**, in Llama's shape, which every later week uses.

# %% [markdown]
# ## 1. The question
#
# > A gradient has to travel before it can be used. How much of that time can a training step hide?
#
# Afterwards you can read from a timeline what is hidden and what is not, choose the size of a
# bucket, and say from two numbers how large a batch must be so that a second GPU pays.

# %% parameters tags=["parameters"]
world_size = 2  # ranks in the experiments on this machine: 2 or 4
# "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
backend = "auto"
cluster = "pcie-box"  # the emulated cluster of the pictures; the tables name their own
seed = 0
# 10 ms of compute, then 8 ms of communication: the share of compute
predicted_efficiency_percent = None
# the same 10 ms and 8 ms, cut into 8 layers and overlapped as well as can be
predicted_overlapped_percent = None
# what a second A100 on PCIe 4 adds to a step in bfloat16: 12,288 rows on each, 4M weights
predicted_pcie_percent = None
# rows of the whole batch, up to which two such GPUs lose to one, however large the model
predicted_rows = None

# %% setup
import math
import os
import statistics
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import worldsize as ws
from worldsize import check, draw, emulate, hardware, ledger, models, operators, pricing, quiz, text
from worldsize.explore import explore

DDP = nn.parallel.DistributedDataParallel
TOKENS = text.tokens()
predictions = ledger.Predictions("week03")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers, and waits. A *row* is one sample of a linear layer's input:
# an image, or one token of a text. A step of B rows is one forward and one backward pass over them.

# %% predict
predictions.ask("efficiency, 10 ms and then 8 ms", predicted_efficiency_percent, "%", section=3)
predictions.ask(
    "efficiency, the same in 8 layers, overlapped", predicted_overlapped_percent, "%", section=4
)
predictions.ask("PCIe adds to a step of 12,288 rows", predicted_pcie_percent, "%", section=6)
predictions.ask("rows up to which two GPUs always lose", predicted_rows, "rows", section=6)

# %% [markdown]
# ## 3. Build it worse first
#
# ### One call for each parameter
#
# Start with the loop of week 1: run backward, then all-reduce the gradients one after the other.
# The MLP has four linear layers, so it has eight parameters: four weights and four biases. The
# transformer has four layers and 39 parameters; its rows are the bytes of a real text, in sequences
# of 256.


# %% models
def device():
    """This rank's device."""
    on_gpus = dist.is_initialized() and dist.get_backend() == "nccl"
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")


def mlp(width=512, dtype=torch.float32):
    """Four linear layers, with the same weights on every rank."""
    torch.manual_seed(seed)
    pairs = [(nn.Linear(width, width, dtype=dtype), nn.Tanh()) for _ in range(4)]
    return nn.Sequential(*[layer for pair in pairs for layer in pair]).to(device())


def model_and_inputs(which, num_rows):
    """An MLP of this width, or the "transformer", and this rank's rows: vectors, or text."""
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    if which == "transformer":
        model = models.Transformer(models.shape("small"), seed=seed).to(device())
        tokens, _ = text.batch(TOKENS, num_rows // 256, 256, generator)
        return model, tokens.to(device())
    rows = torch.randn(num_rows, which, generator=generator).to(device())
    return mlp(which), rows.requires_grad_()  # as if from a layer below


# %% one_call_each
def one_call_each(model):
    """Average every gradient over all ranks, in place, one by one."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def one_call(model):
    """Send all gradients in one tensor; to time a step, the copy back is not needed."""
    dist.all_reduce(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))


def no_call(model):
    """Send nothing: one GPU alone."""


# %% [markdown]
# A harness runs training steps with forward and backward marked, and does not count the first step.
# `emulate.elapsed()` is the rank's own clock: virtual time on an emulated cluster, otherwise the
# machine's.


# %% harness
def timed_steps(synchronise, which, num_rows, repeats, num_skipped=1):
    """Seconds of each step on this rank, without the first ones, which open connections."""
    torch.set_num_threads(1)
    model, rows = model_and_inputs(which, num_rows)
    times_s = []
    for _ in range(num_skipped + repeats):
        model.zero_grad()
        start_s = emulate.elapsed()
        with ws.span("forward", kind="forward"):
            loss = model(rows).square().mean()
        with ws.span("backward", kind="backward"):
            loss.backward()
        synchronise(model)
        next(model.parameters()).grad[0, 0].item()  # reading it waits for a GPU
        times_s.append(emulate.elapsed() - start_s)
    return times_s[num_skipped:]


# %% naive
WAYS = {"a call each": one_call_each, "one call": one_call, "no call": no_call}
EMULATED = {"world_size": 2, "cluster": cluster, "echo": False}
REAL = {"world_size": world_size, "backend": backend, "echo": False}


def calls_of(run):
    """Name and bytes of rank 0's collectives, in order."""
    return [(one.name, one.size_bytes) for one in run.timeline.of(0) if one.kind == "communication"]


runs = {name: ws.run(timed_steps, way, 512, 256, 1, **EMULATED) for name, way in WAYS.items()}
rows = []
for name, way in WAYS.items():
    values = ws.run(timed_steps, way, 512, 256, 7, **REAL).values
    here_s = statistics.median(map(max, zip(*values, strict=True)))
    rows.append((name, len(calls_of(runs[name])) // 2, runs[name].values[0][0], here_s))
columns = ("256 rows", "all-reduces a step", "emulated_s", "measured here_s")
draw.table(rows, title=f"A step of the MLP, emulated on {cluster} and here", columns=columns)

# %% naive_emulated
timelines = {name: run.timeline for name, run in runs.items()}
draw.timelines(timelines, title=f"Two steps, emulated on {cluster}")

# %% [markdown]
# On the emulated cluster both versions send the same bytes, one of them with eight latencies and
# the other with one. (In the measured column all ranks share one machine with everything else that
# runs on it.) In both, the link is idle while the GPU works, and the GPU is idle while the link
# works. Copying everything into one **flat** tensor saves latencies, but sending cannot begin
# before the last gradient is ready.
#
# ### Communication efficiency
#
# **Exposed** communication is not hidden behind computing. The **communication efficiency** of a
# step is the share of its time in which the GPU computes,
#
# $$\text{efficiency} = \frac{\text{compute}}{\text{compute} + \text{exposed communication}}$$
#
# In week 1 all communication was exposed. A step of 10 ms of compute followed by 8 ms of
# communication has an efficiency of $10 / 18$. Emulate exactly that, on a link made for it: 1 GB/s
# with no latency, so that 8 MB between two ranks take 8 ms. Instead of a model, `emulate.spend`
# makes each rank work for a given time.

# %% by_hand
LINK = hardware.Link("by hand, 1 GB/s", 0.0, 1e9, "made for this lesson, 2026", kind="pcie")
BY_HAND = hardware.Cluster(
    name="by hand", gpu=hardware.A100, gpus_per_node=2, intra=LINK, library="gloo"
)
FORWARD_S, BACKWARD_S, GRADIENT_BYTES = 0.010 / 3, 0.020 / 3, 8_000_000


def step_in_outline(num_parts, is_overlapped):
    """A step without a model: gradients travel during the next part's backward or at the end."""
    with ws.span("forward", kind="forward"):
        emulate.spend(FORWARD_S)
    gradients, under_way = torch.ones(num_parts, GRADIENT_BYTES // 4 // num_parts), []
    for part in gradients:
        with ws.span("backward", kind="backward"):
            emulate.spend(BACKWARD_S / num_parts)
        if is_overlapped:
            under_way.append(dist.all_reduce(part, async_op=True))
    if not is_overlapped:
        under_way = [dist.all_reduce(gradients, async_op=True)]
    for work in under_way:
        work.wait()


# %% ten_over_eighteen
def outline(num_parts, is_overlapped, where=BY_HAND):
    """The timeline of such a step."""
    options = {"world_size": 2, "cluster": where, "compute": "none", "echo": False}
    return ws.run(step_in_outline, num_parts, is_overlapped, **options).timeline


apart = outline(1, is_overlapped=False)
compute_s = FORWARD_S + BACKWARD_S
print(f"formula:  10 / (10 + 8) = {10 / 18:.1%}")
print(f"emulated: {apart.end_s * 1e3:.2f} ms a step, {compute_s / apart.end_s:.1%} of it compute")
assert abs(compute_s / apart.end_s - 10 / 18) < 1e-9
predictions.reveal("efficiency, 10 ms and then 8 ms", 100 * compute_s / apart.end_s)

# %% [markdown]
# ## 4. Build it well
#
# ### When is a gradient ready?
#
# A gradient is ready long before the end of backward. Backward goes through the layers from the
# last to the first, and the gradient of the last layer is complete when the others have hardly
# begun. Torch can call your code at that moment: a **hook** on a parameter runs right after its
# gradient has been added to `grad`.
#
# The model contains each of the awkward cases: a layer whose weight is **tied** to the first
# layer's, a **frozen** layer, and a branch that this step does not use.


# %% hooks
class Awkward(nn.Module):
    """A model with a tied, a frozen and an unused layer."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.unused = nn.Linear(4, 4, bias=False)

    def forward(self, rows):
        return self.frozen(self.tied(torch.tanh(self.second(self.first(rows)))))


# %% arrivals
def arrivals(model, loss_of):
    """Seconds from the start of backward to each gradient, by name, in order of arrival."""
    came = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(
                lambda _, name=name: came.append((name, time.perf_counter()))
            )
    loss, start_s = loss_of(model), time.perf_counter()
    loss.backward()
    return {name: time_s - start_s for name, time_s in came}


# %% awkward_arrivals
awkward = Awkward()
print("parameters:    ", ", ".join(name for name, _ in awkward.named_parameters()))
print("gradients came:", ", ".join(arrivals(awkward, lambda model: model(torch.ones(2, 4)).sum())))

# %% [markdown]
# Compare the two lists:
#
# - They come in **reverse order**: `second` before `first`.
# - The **tied** weight is one parameter under two names, and is listed once. Its hook runs once,
#   when both uses have been added. So it comes last, although the tied layer's backward is the
#   first of all.
# - The **frozen** weight has no gradient, and takes no hook (torch refuses one).
# - The hook of the **unused** weight never runs. Code that waits for it waits forever (section 7).
#
# Now time the transformer's gradients, on two thousand bytes of text:

# %% transformer_arrivals
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(seed)
some_tokens, some_targets = text.batch(TOKENS, 8, 256, generator)


def loss_of(model, tokens=some_tokens, targets=some_targets):
    """The mean loss over all tokens."""
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


transformer = models.Transformer(models.shape("small"), seed=seed)
loss_of(transformer).backward()  # the first pass is slower
came_s = arrivals(transformer, loss_of)
rows, size_of = [], {name: one.nbytes for name, one in transformer.named_parameters()}
backward_s = max(came_s.values())
for part in ("head", "layers.3", "layers.2", "layers.1", "layers.0", "embedding"):
    of_part = [name for name in came_s if name.startswith(part)]
    last_s = max(came_s[name] for name in of_part)
    rows.append((part, sum(size_of[name] for name in of_part), last_s, last_s / backward_s))
columns = ("part", "gradients_bytes", "complete after_s", "of backward_fraction")
draw.table(rows, title="The small transformer's gradients, measured here", columns=columns)

# %% [markdown]
# ### Your turn: when is a bucket full?
#
# 3 minutes · easy
#
# Gradients travel in groups. A **bucket** is such a group, sent in one all-reduce. When is it
# ready? `came_s` has the time in seconds at which each gradient came; a parameter that the step did
# not use is missing from it, and its bucket is never full: `math.inf`.
#
# <details><summary>Hint</summary>
#
# A bucket waits for its last gradient. `came_s.get(name, math.inf)` has an answer for every name.
# </details>


# %% full_at tags=["turn"]
def full_at(names, came_s):
    """Seconds until all gradients of a bucket, a list of names, are there."""
    ### BEGIN SOLUTION
    return max(came_s.get(name, math.inf) for name in names)
    ### END SOLUTION


# %% check_full_at
with check.turn("full_at"):
    hint = "The bucket waits for its last gradient; one that never comes takes math.inf."
    known_s = {"head": 1.0, "layer 1": 2.5, "layer 0": 4.0}
    check.expect_close(full_at(["head"], known_s), 1.0, "the time of the head", hint)
    two, lost = ["layer 1", "head"], ["head", "unused"]
    check.expect_close(full_at(two, known_s), 2.5, "the time of layer 1 and the head", hint)
    check.expect_close(full_at(lost, known_s), math.inf, "the time with one unused", hint)
    order = list(came_s)
    for name, bucket in (
        ("ten gradients", order[:10]),
        ("nine and the last", order[:9] + order[-1:]),
    ):
        share = full_at(bucket, came_s) / backward_s
        print(f"the first {name}: full after {share:.0%} of backward")
    print("Right. One late gradient holds up the whole bucket.")

# %% [markdown]
# So buckets are filled in the order in which gradients arrive: from the last layer to the first.
# Then the first bucket leaves while backward still has most of its work to do.
#
# ### Overlap
#
# So begin to send while backward is still working. Take the step above, of 10 ms and 8 ms, in eight
# layers. When a layer's gradients are ready, an all-reduce starts with `async_op=True`: the call
# returns at once, with a handle to wait for at the end.

# %% overlapped
hidden = outline(8, is_overlapped=True)
predictions.reveal("efficiency, the same in 8 layers, overlapped", 100 * compute_s / hidden.end_s)
both = {"one call at the end": apart, "eight calls, overlapped": hidden}
draw.timelines(both, title="10 ms of compute, 8 ms of communication, emulated")

# %% [markdown]
# ### Your turn: what is exposed
#
# 8 minutes · medium
#
# You get two lists of (start, end), in seconds: when the GPU works, and when the link is busy.
# Within a list nothing overlaps. How many seconds of the second list does the first one not cover?
#
# <details><summary>Hint</summary>
#
# Two intervals (a, b) and (c, d) have `min(b, d) - max(a, c)` seconds in common, or none if that is
# negative. From each busy interval of the link, subtract what it has in common with any work.
# </details>


# %% exposed_s tags=["turn"]
def exposed_s(working, sending):
    """Seconds of sending in which no work is under way."""
    ### BEGIN SOLUTION
    total_s = 0.0
    for start, end in sending:
        covered = [min(end, stop) - max(start, begin) for begin, stop in working]
        total_s += end - start - sum(one for one in covered if one > 0)
    return total_s
    ### END SOLUTION


# %% check_exposed_s
with check.turn("exposed_s"):
    hint = "Each second of sending is covered by some work or exposed; intervals apart share none."
    for working, sending, expected in (
        ([(0.0, 10.0)], [(10.0, 18.0)], 8.0),
        ([(0.0, 10.0)], [(4.0, 7.0), (8.0, 12.0)], 2.0),
        ([(0.0, 2.0), (4.0, 6.0), (7.0, 9.0)], [(1.0, 5.0)], 2.0),
    ):
        what = f"what is exposed of {sending} beside work at {working}"
        check.expect_close(exposed_s(working, sending), expected, what, hint)
    events = hidden.of(0)
    working = [(one.start_s, one.end_s) for one in events if one.kind in ("forward", "backward")]
    sending = [(one.start_s, one.end_s) for one in events if one.kind == "communication"]
    found_s, wanted_s = exposed_s(working, sending), hidden.exposed_communication_s(0)
    check.expect_close(found_s, wanted_s, "the exposed seconds of the picture above", hint)
    print(f"Right. {found_s * 1e3:.2f} ms of 8 are exposed: 10 / (10 + 2.17) is 82%.")

# %% [markdown]
# What decides now? The first gradients are ready after forward and an eighth of backward. From then
# on the link has 8 ms of work without a break. Let $F$ be the compute of the forward pass, $W$ that
# of the backward pass, and let $n$ equal parts take $c$ seconds each on the link. The link can send
# part $k$ when it is ready and part $k - 1$ has been sent:
#
# $$e_k = \max\!\left(F + \tfrac{k}{n} W,\; e_{k-1}\right) + c,
# \qquad \text{step} = \max(F + W,\; e_n)$$
#
# If a part takes longer to send than to compute, the link is never idle again, and the step takes
# $F + W/n + n c$. If it takes less, the link waits for each part, and only the last one is exposed:
# $F + W + c$. So
#
# - **overlap hides at most the backward pass**, less its first part;
# - with more parts, less stays exposed, but each part costs a latency.


# %% formula
def overlapped_s(forward_s, backward_s, num_parts, part_s):
    """Seconds of a step whose gradients leave in equal parts, each as soon as it is ready."""
    through_s = 0.0
    for part in range(1, num_parts + 1):
        through_s = max(forward_s + part / num_parts * backward_s, through_s) + part_s
    return max(forward_s + backward_s, through_s)


rows = []
for num_parts in (1, 2, 4, 8, 16):
    wanted_s = overlapped_s(FORWARD_S, BACKWARD_S, num_parts, 0.008 / num_parts)
    got_s = outline(num_parts, is_overlapped=True).end_s
    rows.append((num_parts, wanted_s, got_s, f"{wanted_s / got_s - 1:+.1%}", compute_s / got_s))
columns = ("parts", "formula_s", "emulated_s", "error", "efficiency_fraction")
draw.table(rows, title="10 ms of compute, 8 ms of communication", columns=columns)

# %% [markdown]
# With ever smaller parts the step approaches $F + 8$ ms, 11.3 ms, and no less: 8 ms do not fit
# behind 6.7 ms of backward. Real links also have a latency, so a part should be a bucket of many
# small parameters or of several layers, as many gradients as fit into a given number of bytes.
#
# ### How large should a bucket be?
#
# If it is too small, each bucket pays its latency; if it is too large, the first one fills late.
# Take two models in bfloat16, layer by layer: sixteen linear layers, and a Llama of 1.1 billion
# parameters (*TinyLlama*: 22 layers of width 2,048; Zhang et al. 2024, arXiv 2401.02385, and the
# README of `jzhang38/TinyLlama`). Everything is computed from the formulas; nothing runs. A GPU
# computes at the rate that large matmuls were measured to reach on it (`worldsize.operators`).

# %% layers
TINY_LLAMA = replace(
    models.shape("llama-2-7b"),
    name="tiny-llama-1.1b",
    num_layers=22,
    width=2048,
    num_kv_heads=4,
    hidden_width=5632,
    context_length=2048,
    source="README of jzhang38/TinyLlama, 2024",
)
LINEAR, LLAMA = (2048 * 2049, 2 * 2048**2), TINY_LLAMA
LAYERS = {  # from the first to the last: parameters, and forward operations for each row
    "16 linear layers": [LINEAR] * 16,
    "Llama of 1.1B": [
        (LLAMA.num_embedding_parameters, 0),
        *[(LLAMA.num_layer_parameters, LLAMA.layer_flops(2048))] * 22,
        (LLAMA.num_head_parameters, LLAMA.head_flops),
    ],
}
PLACES = {
    "A100, PCIe 4": (hardware.A100_PCIE, hardware.PCIE4),
    "A100, NVLink 3": (hardware.A100, hardware.NVLINK3),
    "H100, InfiniBand": (hardware.H100, hardware.IB_NDR),
}


# %% buckets
def step_in_buckets(model, place, num_rows, num_ranks, bucket_bytes):
    """The computed timeline of a step on one rank of a ring."""
    (gpu, link), layers = PLACES[place], LAYERS[model]
    rate = operators.flops_per_s("matmul", "bfloat16", gpu)
    forward_s = sum(flops for _, flops in layers) * num_rows / rate
    events, now_s = [ws.Event(0, "compute", "forward", "forward", 0.0, forward_s)], forward_s
    link_free_s, waiting_bytes = 0.0, 0
    for layer, (num_parameters, flops) in reversed(list(enumerate(layers))):
        ready_s = now_s + 2 * flops * num_rows / rate
        events.append(ws.Event(0, "compute", "backward", f"{layer}", now_s, ready_s))
        now_s, waiting_bytes = ready_s, waiting_bytes + 2 * num_parameters
        if waiting_bytes >= bucket_bytes or layer == 0:
            start_s, chunk_bytes = max(now_s, link_free_s), waiting_bytes / num_ranks
            message_s = link.latency_s + chunk_bytes / link.bandwidth_bytes_per_s
            link_free_s, kind = start_s + 2 * (num_ranks - 1) * message_s, "communication"
            events.append(ws.Event(0, kind, kind, "bucket", start_s, link_free_s))
            waiting_bytes = 0
    return ws.Timeline.of_events(events)


# %% buckets_explored
def explored(
    model="Llama of 1.1B", place="A100, PCIe 4", rows=2048, num_ranks=8, bucket_bytes=25_000_000
):
    """The picture of such a step, and what it leaves exposed."""
    step = step_in_buckets(model, place, rows, num_ranks, bucket_bytes)
    title = f"{model}, {rows:,} rows a GPU, {num_ranks} ranks, computed"
    exposed = step.exposed_communication_s(0)
    facts = {"step_s": step.end_s, "exposed_s": exposed}
    return draw.timeline(step, title), facts | {"efficiency_fraction": 1 - exposed / step.end_s}


explore(
    explored,
    model=list(LAYERS),
    place=list(PLACES),
    rows=(512, 65_536, "x2"),
    num_ranks=(2, 1024, "x2"),
    bucket_bytes=(1_000_000, 400_000_000, "x1.3"),
)

# %% [markdown]
# Move one control at a time. Above how many rows is nearly all of the communication hidden, for
# each model and link? How many ranks make small buckets expensive, and why? The table gives the
# best sizes according to the same formula:

# %% best_bucket
rows = []
for name, place, num_rows, num_ranks in (
    ("16 linear layers", "A100, NVLink 3", 1024, 8),
    ("16 linear layers", "A100, PCIe 4", 8192, 8),
    ("16 linear layers", "H100, InfiniBand", 8192, 64),
    ("Llama of 1.1B", "A100, PCIe 4", 8192, 8),
    ("Llama of 1.1B", "H100, InfiniBand", 8192, 64),
    ("Llama of 1.1B", "H100, InfiniBand", 8192, 1024),
):
    largest, num_layers = LAYERS[name][1][0] * 2, len(LAYERS[name])  # bytes of a layer's gradients
    step_s = {
        layers: step_in_buckets(name, place, num_rows, num_ranks, layers * largest).end_s
        for layers in (1, 2, 3, 4, 6, 8, 12, num_layers)
    }
    best = min(step_s, key=step_s.get)
    steps_s = step_s[best], step_s[1], step_s[num_layers]
    rows.append((name, num_rows, place, num_ranks, f"{best} of {num_layers} layers", *steps_s))
columns = ("model", "rows", "link", "ranks", "best", "step_s", "a bucket each layer_s")
draw.table(rows, title="The best bucket, computed", columns=(*columns, "one bucket_s"))

# %% [markdown]
# Among eight ranks, buckets of one to four layers are best: the first leaves early, and there are
# few latencies to pay. In a ring of 64 ranks an all-reduce has 126 of them, 1.8 ms on InfiniBand,
# and it is best to send the small layers of the first model all together. In a ring of 1,024 that
# is true of the Llama's layers, too. Torch's default is 25 MiB (`bucket_cap_mb`).
#
# Which gradients share a bucket, and what happens to those that never come, is the topic of lab 3.
#
# ## 5. Compare with the production oracle
#
# ### The same training
#
# `DDP(model)` does all of it. Does it train the same model as the plain loop, and as one process?
# The next cell trains the tiny transformer on real text and real ranks, in float64 as in week 1.


# %% train_text
def train_text(num_steps, uses_ddp):
    """The loss of the whole batch of 16 sequences at each step."""
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    module = models.Transformer(models.shape("tiny"), seed=seed).double().to(device())
    model = DDP(module) if uses_ddp else module
    generator, losses = torch.Generator().manual_seed(seed), []
    for _ in range(num_steps):
        batch = text.batch(TOKENS, 16, 64, generator)
        tokens, targets = (one.chunk(size)[rank].to(device()) for one in batch)
        loss = loss_of(model, tokens, targets)
        module.zero_grad()
        loss.backward()
        if not uses_ddp:
            one_call_each(module)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter -= 0.3 * parameter.grad
        dist.all_reduce(total := loss.detach().clone())
        losses.append(total.item() / size)
    return losses


# %% same_training
alone = REAL | {"world_size": 1}
losses = {
    "one process": ws.run(train_text, 25, False, **alone).values[0],
    "plain loop": ws.run(train_text, 25, False, **REAL).values[0],
    "torch's DDP": ws.run(train_text, 25, True, **REAL).values[0],
}
first, *others = (torch.tensor(one) for one in losses.values())
assert all(torch.allclose(first, one, atol=1e-9) for one in others)
title = "A transformer on text: the same batch on one process and on several, measured here"
draw.curves(losses, y_label="loss of the whole batch", title=title, difference_from="one process")

# %% [markdown]
# ### What DDP sends
#
# Unmodified DDP runs on the emulated cluster too, where every operation is recorded. Here are three
# steps of the MLP, with buckets of 1 MiB for its 4.2 MB of gradients:


# %% ddp_on_the_wire
def ddp_steps(which, num_rows, num_steps):
    """Seconds of each step with torch's DDP on this rank."""
    torch.set_num_threads(1)
    model, rows = model_and_inputs(which, num_rows)
    parallel, times_s = DDP(model, bucket_cap_mb=1), []
    for _ in range(num_steps):
        parallel.zero_grad()
        start_s = emulate.elapsed()
        with ws.span("forward", kind="forward"):
            loss = parallel(rows).square().mean()
        with ws.span("backward", kind="backward"):
            loss.backward()
        next(parallel.parameters()).grad[0, 0].item()  # reading it waits for a GPU
        times_s.append(emulate.elapsed() - start_s)
    return times_s


ddp = ws.run(ddp_steps, 512, 1024, 3, **EMULATED)
for name, size_bytes in calls_of(ddp):
    print(f"{name:<11} {size_bytes:>9,} B")

# %% [markdown]
# Read it from the top:
#
# - An **all-gather** and a **broadcast** of a few bytes: do all ranks have parameters of the same
#   shapes?
# - A **broadcast** of all parameters: every rank starts from rank 0's weights.
# - The first step: **one all-reduce of everything**. By default DDP does not use buckets yet. It
#   records the order in which gradients become ready, and rank 0 shares that order: two small
#   broadcasts.
# - From the second step on: **buckets**, in the recorded order. A layer has 1,050,624 bytes, its
#   weight alone 1 MiB. Torch closes a bucket once it has *reached* the cap, so here a bucket may be
#   larger than the cap. (Lab 3 has a different rule: never above the cap, unless a single parameter
#   is.)
#
# ### Your turn: count the bytes that DDP sends
#
# 5 minutes · easy
#
# `timeline.of(0)` gives the events of rank 0. An all-reduce is an event whose `name` is
# `"all_reduce"` and whose `kind` is `"communication"`; its `size_bytes` are those of the tensor.
# How many all-reduces are there, and how many bytes do they have together?
#
# <details><summary>Hint</summary>
#
# Collect the sizes of the right events in a list; then `len` and `sum`.
# </details>


# %% reduced tags=["turn"]
def reduced(timeline):
    """The number of all-reduces of rank 0, and their bytes."""
    ### BEGIN SOLUTION
    events = [one for one in timeline.of(0) if one.kind == "communication"]
    sizes_bytes = [one.size_bytes for one in events if one.name == "all_reduce"]
    return len(sizes_bytes), sum(sizes_bytes)
    ### END SOLUTION


# %% check_reduced
with check.turn("reduced"):
    hint = "Broadcasts and all-gathers do not count, and every step counts."
    for what, run, num, size_bytes in (
        ("two steps with a call each", runs["a call each"], 16, 2 * 4_202_496),
        ("two steps of one GPU", runs["no call"], 0, 0),
        ("three steps of DDP", ddp, 9, 3 * 4_202_496),
    ):
        found = torch.tensor([float(number) for number in reduced(run.timeline)])
        expected = torch.tensor([float(num), float(size_bytes)])
        check.expect_close(found, expected, f"the number and the bytes in {what}", hint)
    print("Right. Whole or in buckets, each step all-reduces the bytes of its gradients once.")

# %% [markdown]
# So buckets do not reduce the bytes sent. They save time:

# %% ddp_overlaps
text_run = ws.run(ddp_steps, "transformer", 1024, 3, **EMULATED)
rows = []
for name, run in {"MLP": ddp, "transformer": text_run}.items():
    first_s, _, third_s = run.values[0]
    rows.append((name, first_s, third_s, run.timeline.overlap_fraction(0)))
columns = ("model", "step 1, one bucket_s", "step 3, buckets_s", "overlapped_fraction")
draw.table(rows, title=f"torch's DDP, 1,024 rows, emulated on {cluster}", columns=columns)

# %% ddp_drawn
draw.timeline(ddp.timeline, title=f"torch's DDP and the MLP, emulated on {cluster}")

# %% [markdown]
# ### Other options of DDP
#
# | Option | what it changes |
# |---|---|
# | `with ddp.no_sync():` | nothing is sent, and gradients add up |
# | `find_unused_parameters=True` | looks for unused parameters after each forward |
# | `static_graph=True` | promises that every step uses the same parameters in the same order |
# | `broadcast_buffers=True` (default) | gives all ranks rank 0's buffers before each forward |
# | `gradient_as_bucket_view=True` | gradients live in the buckets: one copy less |
#
# Count what four of them send. The model now has a `BatchNorm`, so it has buffers.


# %% options_on_the_wire
def two_steps(is_silent, options):
    """Take two steps with DDP, the first of them inside `no_sync` if `is_silent`."""
    torch.manual_seed(seed)
    parallel = DDP(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)), **options)
    inputs = torch.randn(4, 8)
    with parallel.no_sync() if is_silent else nullcontext():
        parallel(inputs).square().mean().backward()
    parallel(inputs).square().mean().backward()


rows = []
for name, is_silent, options in (
    ("default", False, {}),
    ("first step in no_sync", True, {}),
    ("find_unused_parameters", False, {"find_unused_parameters": True}),
    ("static_graph", False, {"static_graph": True}),
    ("broadcast_buffers=False", False, {"broadcast_buffers": False}),
):
    calls = calls_of(ws.run(two_steps, is_silent, options, **EMULATED, compute="none"))
    sizes = ", ".join(str(size) for call, size in calls if call == "all_reduce")
    rows.append((name, sizes, sum(call == "broadcast" for call, _ in calls)))
columns = ("option", "all-reduces, bytes", "broadcasts")
draw.table(rows, title="Two steps of DDP on the wire, emulated", columns=columns)

# %% [markdown]
# The model's parameters have 160 elements, 640 bytes. `no_sync` leaves out one all-reduce, and the
# buffers of the next forward. `find_unused_parameters` adds a small one to each step, one int32 for
# each of the six parameters: did any rank use it? (It also walks through the graph after each
# forward.) `static_graph` asks that once, in the first step. Without `broadcast_buffers` the
# buffers are sent neither at the start nor before each forward. The order of the gradients, two
# broadcasts, is shared in the first and the last row only.
#
# ## 6. Formula, measurement, emulation, paper
#
# ### What a second GPU adds
#
# Give each GPU a batch of B rows: **weak scaling**, in which each does what one did before. A
# linear layer with P weights takes 2 P FLOPs for each row forward and 4 P backward (one matmul for
# the gradient of its input, one for that of its weights). Its gradient has 2 P bytes in
# **bfloat16**, and in an all-reduce each of N ranks sends $2(N-1)/N$ times that. Let R be the
# FLOP/s that the GPU really reaches, β the link's bytes per second, and L the seconds that even an
# empty all-reduce takes. With nothing overlapped:
#
# $$\frac{\text{communication}}{\text{compute}}
# = \frac{L + \frac{2(N-1)}{N} \cdot 2P/\beta}{6 P B / R}
# = \underbrace{\frac{L R}{6 P B}}_{\text{latency}} +
# \underbrace{\frac{2}{3B} \cdot \frac{N-1}{N} \cdot \frac{R}{\beta}}_{\text{bytes}}$$
#
# Look at the second term. **P cancels.** A larger model has more gradients and more FLOPs in the
# same proportion. What counts is the batch, and $R/\beta$: the FLOPs that the GPU does while the
# link moves a byte. Among many ranks, communication takes as long as compute at
# **$B = \frac{2}{3} R/\beta$ rows on each GPU**; between two ranks at half of that.
#
# A rule of thumb says: a second GPU over PCIe adds 20 to 40% to the step of a small model, over
# NVLink 5 to 10%. When does that hold? For three widths of the MLP, one program runs a step alone
# and a step with one all-reduce after backward. It runs **on paper** (`ws.paper`): its tensors have
# shapes but no data, so that 12,288 rows in bfloat16 cost nothing here. Each kernel is priced,
# including those between the matmuls, and one recording can be priced on any cluster.


# %% machine
class Machine(NamedTuple):
    """In the formulas' terms: R, the latency of an all-reduce, beta."""

    flops_per_s: float
    latency_s: float
    bytes_per_s: float

    @property
    def ratio(self):
        """R/beta: operations while the link moves a byte."""
        return self.flops_per_s / self.bytes_per_s


def described(where, dtype="bfloat16"):
    """Two GPUs of a described cluster: what they reach, and a priced all-reduce."""
    link = where.intra if where.num_nodes == 1 else where.inter
    latency_s = pricing.price("all_reduce", 4, range(2), where).time_s
    rate = operators.flops_per_s("matmul", dtype, where.gpu)
    return Machine(rate, latency_s, link.bandwidth_bytes_per_s)


def added_fraction(num_weights, num_rows, machine, num_bytes=2):
    """The time that a second GPU adds without overlap, as a fraction of a step on one GPU."""
    communication_s = machine.latency_s + num_bytes * num_weights / machine.bytes_per_s
    return communication_s / (6 * num_weights * num_rows / machine.flops_per_s)


# %% steps_on_paper
def steps_on_paper(cases, dtype=torch.bfloat16):
    """For each width and number of rows, a step alone and one with an all-reduce after it."""
    made = {width: mlp(width, dtype) for width, _ in cases}
    for width, num_rows in cases:
        model, rows = made[width], torch.zeros(num_rows, width, dtype=dtype, requires_grad=True)
        for name, synchronise in (("alone", no_call), ("together", one_call)):
            with ws.span(f"{name} {width} {num_rows}", kind="forward"):
                model.zero_grad()
                model(rows).square().mean().backward()
            synchronise(model)


def step_times_s(run):
    """Seconds of each step by name; one lasts until the next begins."""
    starts_s = {}
    for event in run.timeline.of(0):
        if event.kind == "forward":
            starts_s.setdefault(event.name, event.start_s)
    ends_s = [*starts_s.values(), run.timeline.end_s][1:]
    return {name: end_s - starts_s[name] for name, end_s in zip(starts_s, ends_s, strict=True)}


# %% rule_of_thumb
WIDTHS, ROWS = (512, 1024, 2048), 12_288
ON_PAPER = {"world_size": 2, "cluster": "pcie-box", "echo": False}
recorded = ws.paper(steps_on_paper, [(width, ROWS) for width in WIDTHS], **ON_PAPER)
table, added = [], {}
for name in ("pcie-box", "dgx-a100", "dgx-h100"):
    steps_s = step_times_s(recorded.on(name))
    for width in WIDTHS:
        num_weights, where = 4 * width * (width + 1), hardware.cluster(name)
        alone_s, together_s = (steps_s[f"{one} {width} {ROWS}"] for one in ("alone", "together"))
        added[name, width] = together_s / alone_s - 1
        size_bytes = 2 * num_weights
        rate = size_bytes / pricing.price("all_reduce", size_bytes, range(2), where).time_s
        formula = added_fraction(num_weights, ROWS, described(where))
        mfu = 6 * num_weights * ROWS / where.gpu.peak_flops_per_s["bfloat16"] / together_s
        table.append((name, f"{num_weights / 1e6:.1f}M", rate, formula, added[name, width], mfu))
predictions.reveal("PCIe adds to a step of 12,288 rows", 100 * added["pcie-box", 1024])
columns = ("cluster", "weights", "all-reduce_bytes_per_s", "added, formula_fraction")
columns += ("added, on paper_fraction", "mfu_fraction")
title = "A second GPU, 12,288 rows on each in bfloat16, without overlap"
draw.table(table, title=title, columns=columns)

# %% [markdown]
# Look at the second row of PCIe and of the A100's NVLink, a model of four million weights: there
# the rule of thumb holds for both at once. In the third rows, with four times as many weights, the
# share hardly changes over PCIe, because bytes decide there, and P cancels. Over NVLink it falls:
# that was *latency*, which a larger model pays only once. So the rule is right only for one size of
# model, one batch and one GPU. Where bytes decide, PCIe 4 and NVLink 3 differ by the ratio of their
# links, ten, and not by four.
#
# On PCIe the formula is too high, because the kernels between the matmuls make the compute longer.
# On the A100's NVLink it is too low for the larger models, because at these sizes NCCL is well
# below the link's rate of 240 GB/s. The table gives the rows for which each half of the rule holds,
# by the second term alone:

# %% where_it_holds
table = []
for name, low, high in (("pcie-box", 0.2, 0.4), ("dgx-a100", 0.05, 0.1), ("dgx-h100", 0.05, 0.1)):
    parts = []
    for dtype, num_bytes in (("bfloat16", 2), ("float32", 4)):
        ratio = described(hardware.cluster(name), dtype).ratio
        few, many = (num_bytes / 6 * ratio / share for share in (high, low))
        parts += round(ratio), f"{few:,.0f} to {many:,.0f}"
    table.append((name, f"{low:.0%} to {high:.0%}", *parts))
columns = ("cluster", "adds", "R/β, bfloat16", "rows, bfloat16", "R/β, float32", "rows, float32")
title = "Rows on each of two GPUs for which the rule holds, computed"
draw.table(table, title=title, columns=columns)

# %% [markdown]
# All three need about seven times as many rows in bfloat16 as in float32, although a gradient has
# half the bytes: the faster GPUs compute, the more a link limits them.
#
# ### Rows, images, tokens
#
# The formula counts rows, and a sample can have many. A convolution uses each weight at every
# pixel, a transformer at every token. The rows of a sample are its forward FLOPs divided by twice
# the number of parameters. The last two columns give the samples in 2/3 R/β rows, at which
# communication among many ranks takes as long as compute:

# %% rows_of_a_sample
SAMPLES = {
    "MLP, vectors of 512": (mlp(512), torch.zeros(1, 512)),
    "small ResNet, 8 x 8 pixels": (models.small_resnet(width=32), torch.zeros(1, 1, 8, 8)),
    "small transformer, 256 tokens": (transformer, some_tokens[:1]),
}
table = []
for name, (model, sample) in SAMPLES.items():
    with FlopCounterMode(display=False) as counted:
        model(sample)
    num_parameters = sum(one.numel() for one in model.parameters())
    table.append((name, num_parameters, counted.get_total_flops()))
table.append(("Llama of 1.1B, 2,048 tokens", LLAMA.num_parameters, LLAMA.flops(2048, 2048) / 3))
rows, places = [], ("pcie-box", "dgx-a100")
ratios = [described(hardware.cluster(place)).ratio for place in places]
for name, num_parameters, flops in table:
    of_sample = round(flops / (2 * num_parameters), 1)
    enough = [math.ceil(2 / 3 * ratio / of_sample) for ratio in ratios]
    rows.append((name, num_parameters, of_sample, *enough))
columns = ("sample", "parameters", "rows", *(f"samples, {place}" for place in places))
title = "Rows of a sample (counted), and samples for 2/3 R/β (computed)"
draw.table(rows, title=title, columns=columns)

# %% [markdown]
# ### Your turn: rows that hide everything
#
# 6 minutes · medium
#
# With overlap the question is different: how many rows on each GPU make the *backward pass* as long
# as the all-reduce, so that nearly all of it can be hidden? `num_bytes` is the size of one element
# of a gradient. Leave out latencies.
#
# <details><summary>Hint</summary>
#
# Backward takes 4 P B / R seconds. The all-reduce sends 2 (N - 1)/N times `num_bytes` P bytes. Set
# the two times equal and solve for B: P cancels.
# </details>


# %% rows_to_hide tags=["turn"]
def rows_to_hide(num_ranks, num_bytes, flops_per_s, bytes_per_s):
    """Rows on each GPU whose backward pass takes as long as the all-reduce."""
    ### BEGIN SOLUTION
    sent = 2 * (num_ranks - 1) / num_ranks * num_bytes  # bytes for each weight
    return sent / bytes_per_s * flops_per_s / 4
    ### END SOLUTION


# %% check_rows_to_hide
with check.turn("rows_to_hide"):
    hint = "Backward is 4 operations a weight and row. How often does the ring send each gradient?"
    for num_ranks, num_bytes, expected in ((2, 2, 1000.0), (2, 4, 2000.0), (64, 2, 1968.75)):
        found = rows_to_hide(num_ranks, num_bytes, 200e12, 100e9)
        what = f"the rows for {num_ranks} ranks, {num_bytes} bytes, 200 TFLOP/s and 100 GB/s"
        check.expect_close(found, expected, what, hint)
    print("Right. Among many ranks in bfloat16 it is R/β rows on each GPU:")
    for name in ("pcie-box", "dgx-a100", "dgx-h100"):
        machine = described(hardware.cluster(name))
        enough = rows_to_hide(1024, 2, machine.flops_per_s, machine.bytes_per_s)
        print(f"{enough:>9,.0f} rows on {name}")

# %% [markdown]
# ### When two are slower than one
#
# Now keep the whole batch at B rows and give each of two GPUs half of it: **strong scaling**. One
# GPU takes $6PB/R$. Two take half of that, and the communication. With s bytes for each element of
# the gradient, two are faster when
#
# $$\frac{3PB}{R} > L + \frac{sP}{\beta} \quad\Longleftrightarrow\quad
# P > P^* = \frac{L}{3B/R - s/\beta},
# \quad\text{if}\quad B > B^* = \frac{s}{3} \cdot \frac{R}{\beta}$$
#
# So there are two ways to lose. A **model below P\*** cannot pay for the latency. And with a
# **batch up to B\***, which is $\frac{2}{3} R/\beta$ rows in bfloat16 and $\frac{4}{3} R/\beta$ in
# float32, two lose with *any* model: its gradients take longer to send than half of the work takes.


# %% break_even
def break_even_weights(num_rows, machine, num_bytes=2):
    """The number of weights from which two GPUs are faster than one; infinity if they never are."""
    saved_s = 3 * num_rows / machine.flops_per_s - num_bytes / machine.bytes_per_s  # of each weight
    return machine.latency_s / saved_s if saved_s > 0 else math.inf


def crossing(curves):
    """The bytes of gradients from which two ranks are faster than one: 0 always, infinity never."""
    crossed = [size for size, _, new in draw.crossovers(curves) if new == "two ranks"]
    is_always = all(curves["two ranks"][size] < one for size, one in curves["one rank"].items())
    return crossed[0] if crossed else 0.0 if is_always else math.inf


def from_weights(num_weights):
    return "never" if math.isinf(num_weights) else f"{num_weights / 1e3:,.0f}K"


# %% break_even_on_paper
SIZES, BATCHES = (64, 128, 256, 512, 1024), (2048, 8192)
cases = [(width, num // ranks) for num in BATCHES for width in SIZES for ranks in (1, 2)]
split = ws.paper(steps_on_paper, cases, **ON_PAPER)
two_nodes = replace(hardware.cluster("a100-10gbe"), name="2 x 10 Gb/s", gpus_per_node=1)
rows = []
for where in (hardware.cluster("dgx-a100"), hardware.cluster("pcie-box"), two_nodes):
    steps_s, machine = step_times_s(split.on(where)), described(where)
    for num in BATCHES:
        curves = {"one rank": {}, "two ranks": {}}
        for width in SIZES:
            size_bytes = 8 * width * (width + 1)
            curves["one rank"][size_bytes] = steps_s[f"alone {width} {num}"]
            curves["two ranks"][size_bytes] = steps_s[f"together {width} {num // 2}"]
        sizes = break_even_weights(num, machine), crossing(curves) / 2
        rows.append((where.name, num, round(2 / 3 * machine.ratio), *map(from_weights, sizes)))
least = 2 / 3 * described(hardware.cluster("pcie-box")).ratio
predictions.reveal("rows up to which two GPUs always lose", least)
columns = ("cluster", "rows", "B*", "P*, formula", "P*, on paper")
title = "Two A100 or one, a batch of so many rows in bfloat16, computed and on paper"
draw.table(rows, title=title, columns=columns)

# %% [markdown]
# "Never" on paper means: at no size that was tried. The formula is right where two GPUs never win,
# and its P\* is an upper bound. For wide layers (first row) it is a third too high, for narrow ones
# six to sixteen times as high: in bfloat16 the matmuls are so fast that the activations between
# them take most of the time, and each of two GPUs has only half of those.
#
# Now do the same on this machine, in float32. First measure what the formula needs: R from a step
# of one rank, L and β from two all-reduces.


# %% this_machine
def probe():
    """Flops a second of a step here, and the seconds of an all-reduce of 4 bytes and of 8 MB."""
    step_s, medians_s = min(timed_steps(no_call, 512, 256, 7)), []
    for num_elements in (1, 2_000_000):
        tensor, times_s = torch.ones(num_elements, device=device()), []
        for _ in range(12):
            dist.barrier()
            start_s = time.perf_counter()
            dist.all_reduce(tensor)
            tensor[0].item()  # reading it waits for a GPU
            times_s.append(time.perf_counter() - start_s)
        medians_s.append(statistics.median(times_s[2:]))
    return step_s, *medians_s


HERE_TWO = REAL | {"world_size": 2}
step_s, small_s, large_s = ws.run(probe, **HERE_TWO).values[0]
HERE = Machine(6 * 4 * 512 * 513 * 256 / step_s, small_s, 8e6 / max(large_s - small_s, 1e-9))
print(f"here: {HERE.flops_per_s / 1e9:.0f} Gflop/s a rank, {HERE.bytes_per_s / 1e9:.1f} GB/s,")
print(f"{small_s * 1e6:.0f} µs for an all-reduce of one number")


# %% break_even_here
def one_and_two(widths, num_rows, repeats):
    """By bytes of gradients: seconds of one rank with all rows, and of two with half of them."""
    curves = {"one rank": {}, "two ranks": {}}
    for width in widths:
        size_bytes = 16 * width * (width + 1)
        ways = ((no_call, num_rows), (one_call, num_rows // 2))
        for name, (way, num) in zip(curves, ways, strict=True):
            dist.barrier()
            curves[name][size_bytes] = statistics.median(timed_steps(way, width, num, repeats))
    return curves


curves = ws.run(one_and_two, (16, 32, 64, 128, 256, 512), 256, 9, **HERE_TWO).values[0]
by_formula, by_run = break_even_weights(256, HERE, num_bytes=4), crossing(curves) / 4
print(f"256 rows, P* by the formula: {from_weights(by_formula)}; measured: {from_weights(by_run)}")
title = f"One rank or two, a batch of 256 rows, measured here, {os.cpu_count()} cores"
draw.cost(curves, title=title, x_label="bytes of gradients")

# %% [markdown]
# Where the lines cross is the break-even size of *this* machine. Left of it a second process costs
# more than it gains; if they never cross, it does so at every size. Do not expect the formula to
# agree: small steps are full of work that is not a matmul, and on a shared machine L is mostly the
# time that the scheduler takes to wake a rank.
#
# ### The large model, on paper
#
# Unmodified DDP now trains the Llama of 1.1 billion parameters on 64 GPUs, in bfloat16 with AdamW:
# once with one sequence of 2,048 tokens on each GPU, and once with eight. Each program is recorded
# once, and priced on three clusters: NVLink and InfiniBand, and eight A100 nodes with one adapter
# of 100 Gb/s each. The time that a step would take with free messages is its compute; the rest is
# exposed communication.


# %% llama_steps
def llama_steps(num_sequences):
    """Two steps of DDP, with so many sequences on each rank."""
    torch.set_default_dtype(torch.bfloat16)
    model = DDP(models.Transformer(LLAMA), gradient_as_bucket_view=True)
    torch.set_default_dtype(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.zeros(num_sequences, 2048, dtype=torch.long)
    for _ in range(2):
        loss_of(model, tokens, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


def compute_s_of(run):
    """Seconds of the run's last step if messages took no time."""
    where = run.cluster.without_latency()
    free = {"latency_s": 0.0, "bandwidth_bytes_per_s": 1e18, "peak_bytes_per_s": 1e18}
    intra, inter = replace(where.intra, **free), replace(where.inter, **free)
    return run.on(replace(where, intra=intra, inter=inter)).step_s


# %% llama_on_paper
llama_runs, rows = {}, []
for num in (1, 8):
    options = {"world_size": 64, "cluster": "h100-ndr-x8", "tokens_per_step": 64 * num * 2048}
    recorded = ws.paper(llama_steps, num, **options, echo=False)
    for where in ("h100-ndr-x8", "a100-hdr-x8", "a100-100gbe-x8"):
        run = llama_runs[num, where] = recorded.on(where)
        alone_s, rate = compute_s_of(run), round(run.tokens_per_s_per_gpu)
        fractions = alone_s / run.step_s, run.mfu_fraction
        rows.append((where, num * 2048, run.step_s, run.step_s - alone_s, *fractions, rate))
columns = ("64 GPUs of", "tokens a GPU", "step_s", "exposed_s", "efficiency_fraction")
columns += ("mfu_fraction", "tokens/s a GPU")
draw.table(rows, title="DDP of a Llama of 1.1B, on paper", columns=columns)

# %% [markdown]
# With one sequence on each GPU, nearly everything is hidden over InfiniBand, while with one adapter
# of 100 Gb/s for eight GPUs less than a quarter of the step is compute. Eight sequences take five
# to six times as long to compute (in larger kernels, and with one optimizer step as before) and
# send the same bytes: 90% of the step is then compute even over 100 Gb/s.
#
# Efficiency is not MFU. On the H100s communication costs next to nothing, and yet the GPU reaches
# only a quarter to two fifths of its peak, because of small kernels, the optimizer step and memory
# traffic. How far is paper from a real run? TinyLlama's authors report 24,000 tokens a second on
# each of 16 A100s, with 16,384 tokens a GPU, using FSDP with fused kernels (README of
# `jzhang38/TinyLlama`).

# %% published
paper_rate = llama_runs[8, "a100-hdr-x8"].tokens_per_s_per_gpu
off = paper_rate / 24_000 - 1
print(f"tokens/s a GPU: on paper {paper_rate:,.0f}, published 24,000, error {off:+.0%}")

# %% [markdown]
# ### Side by side
#
# One table has everything: measured here, emulated, on paper. The compute of each row is that of
# the same program without messages; `overlapped_s` from section 4 adds n equal parts, each taking
# as long as its all-reduce. So the error is that of the *exposed* communication.


# %% side_by_side
COMPARED = ("step", "how", "compute_s", "formula_s", "run_s", "error", "efficiency_fraction")


def compared(what, how, alone_s, run_s, num_parts, part_s):
    """A row: a step by the formula, with a third of the compute in forward, and by a run."""
    formula_s = overlapped_s(alone_s / 3, 2 * alone_s / 3, num_parts, part_s)
    error = f"{formula_s / run_s - 1:+.0%}"
    return what, how, alone_s, formula_s, run_s, error, alone_s / run_s


def three_ways(which, num_rows, repeats):
    """Seconds of a step alone, with one all-reduce at the end, and with DDP: the quickest ones."""
    times_s = []
    for _ in range(repeats):
        ways_s = [timed_steps(way, which, num_rows, 1)[0] for way in (no_call, one_call)]
        times_s.append((*ways_s, ddp_steps(which, num_rows, 3)[-1]))
    return [min(one) for one in zip(*times_s, strict=True)]


# %% small_models
SMALL_BYTES = {512: 16 * 512 * 513, "transformer": sum(size_of.values())}
table = []
for which, where, num_rows in (
    ("transformer", None, 512),
    (512, hardware.cluster("pcie-box"), 1024),
    ("transformer", hardware.cluster("pcie-box"), 1024),
    (512, two_nodes, 1024),
):
    options = HERE_TWO if where is None else EMULATED | {"cluster": where}
    how = "measured here" if where is None else f"emulated, {where.name}"
    repeats = 5 if where is None else 1
    alone_s, *ways_s = ws.run(three_ways, which, num_rows, repeats, **options).values[0]
    for way, num_parts, run_s in zip(("at the end", "DDP"), (1, 4), ways_s, strict=True):
        part_bytes = SMALL_BYTES[which] / num_parts
        part_s = HERE.latency_s + part_bytes / HERE.bytes_per_s
        if where is not None:
            part_s = pricing.price("all_reduce", part_bytes, range(2), where).time_s
        name = f"{'MLP' if which == 512 else which}, {way}"
        table.append((*compared(name, how, alone_s, run_s, num_parts, part_s), None))

# %% side_by_side_table
for (num, name), run in llama_runs.items():
    if name != "a100-hdr-x8":
        size_bytes = 2 * LLAMA.num_parameters
        num_parts = math.ceil(size_bytes / (25 * 2**20))
        part_s = pricing.price("all_reduce", size_bytes / num_parts, range(64), run.cluster).time_s
        given = (compute_s_of(run), run.step_s, num_parts, part_s)
        row = compared(f"Llama, {num * 2048:,} tokens, DDP", f"on paper, {name}", *given)
        table.append((*row, run.mfu_fraction))
draw.table(table, title="A step, by formula and by run", columns=(*COMPARED, "mfu_fraction"))

# %% [markdown]
# The emulated rows and those on InfiniBand agree with the formula within 2%: once the compute of a
# step is known, a latency, a rate and the times at which parts are ready give the rest. On PCIe DDP
# hides more than half of the MLP's all-reduce. Between two nodes on 10 Gb/s there is hardly any
# compute to hide behind, and there are four latencies instead of one: the gradients must become
# smaller, or be sent less often (`no_sync`; week 5). On a machine without GPUs the core that sends
# cannot compute, so nothing can be hidden, and whatever else runs here counts as well.
#
# ## 7. When it breaks
#
# ### The loud failure: a parameter that no rank used
#
# A model has two heads, and each step uses one of them. In one process that is no problem. Under
# DDP:


# %% two_heads
class TwoHeads(nn.Module):
    """A body and two heads; a step uses one of them."""

    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

    def forward(self, rows, head):
        return self.heads[head](torch.tanh(self.body(rows)))


# %% unused_parameter
def train_heads(chosen, options):
    """The sum of the second head's gradient after steps with heads chosen[r % 2]."""
    torch.manual_seed(seed)
    model = TwoHeads().to(device())
    parallel = DDP(model, **options)
    for head in chosen[dist.get_rank() % 2]:
        parallel.zero_grad()
        parallel(torch.ones(2, 4, device=device()), head).sum().backward()
    return model.heads[1].weight.grad.sum().item()


try:
    ws.run(train_heads, [[0, 0], [0, 0]], {}, **REAL, timeout_s=20)
except ws.RunError as report:
    print(str(report).partition("\nRank")[0])  # the other ranks failed alike

# %% [markdown]
# **Symptom**: the *second* step fails, not the one at fault, with "Expected to have finished
# reduction in the prior iteration". **Cause**: the hooks of the unused head never ran, its bucket
# never filled, and backward ended without an error. Only the next forward finds the reduction
# unfinished. **Fix**: use every parameter, freeze those that are not trained, or set
# `find_unused_parameters=True` and pay for the small all-reduce that you saw above.
#
# (Many reports quote the same text, such as pytorch/pytorch issue 43259.)

# %% unused_parameter_found
found = {"find_unused_parameters": True}
values = ws.run(train_heads, [[0, 1], [0, 0]], found, **HERE_TWO).values
on_both = " and ".join(f"{value:.2f}" for value in values)
print(f"only rank 0 uses the second head in the second step: its gradient on both is {on_both}")

# %% [markdown]
# The ranks used different heads, and both have the same gradient: rank 1 contributed zeros.
#
# ### The silent variant: a rank without a gradient makes no call
#
# The plain loop has its own trap: *skip what has no gradient*.


# %% skipping
def skip_what_is_none(chosen):
    """The heads' gradients after a step, averaged by a loop that skips missing ones."""
    torch.manual_seed(seed)
    model = TwoHeads()
    model(torch.ones(2, 4), chosen[dist.get_rank()]).sum().backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    with_gradient = [
        (name, one.grad) for name, one in model.heads.named_parameters() if one.grad is not None
    ]
    return {name: gradient.flatten() for name, gradient in with_gradient}


mixed = ws.run(skip_what_is_none, [0, 1], **EMULATED)
for rank, gradients in enumerate(mixed.values):
    shown = (f"head {name} {numbers[0]:.2f} ..." for name, numbers in gradients.items())
    print(f"rank {rank}:", *shown)

# %% [markdown]
# **Symptom**: none. No error, no hang. **Cause**: collectives have no names. Rank 0's call for its
# first head met rank 1's call for its second one, the sizes matched, and two different layers were
# averaged with each other. With heads of different sizes it would have hung, as in week 2. **Fix**:
# every rank makes the same calls in the same order, whatever parameters it used; for a missing
# gradient it sends zeros.
#
# ### Find the bug: accumulation that sends everything
#
# 8 minutes · medium
#
# A colleague adds up the gradients of four small batches before each update, and wraps all but the
# last in `no_sync`, so that a step sends its gradients once. The gradients are right and nothing
# fails. Yet the step is no faster than without `no_sync`. Run the check, look at the bytes sent,
# and repair the function.
#
# <details><summary>Hint</summary>
#
# DDP decides in its *forward* whether the next backward will send. Is the forward call inside
# `no_sync`?
# </details>


# %% accumulated_step tags=["turn"]
def accumulated_step(parallel, batches):
    """Leave in `grad` the mean over all batches and ranks, and send it once."""
    for number, rows in enumerate(batches, 1):
        is_last = number == len(batches)
        ### BEGIN SOLUTION
        with nullcontext() if is_last else parallel.no_sync():
            loss = parallel(rows).square().mean() / len(batches)
            loss.backward()
        ### INSTEAD
        # loss = parallel(rows).square().mean() / len(batches)
        # with nullcontext() if is_last else parallel.no_sync():
        #     loss.backward()
        ### END SOLUTION


# %% check_accumulated_step
def accumulate(step):
    """The gradients that a step leaves from four batches of 8 rows."""
    model, rows = model_and_inputs(64, 32)
    step(DDP(model), rows.detach().chunk(4))
    return torch.cat([one.grad.flatten() for one in model.parameters()])


def whole_batch(parallel, batches):
    parallel(torch.cat(batches)).square().mean().backward()


with check.turn("accumulated_step"):
    found = ws.run(accumulate, accumulated_step, **EMULATED)
    wanted = ws.run(accumulate, whole_batch, **EMULATED)
    hint = "They must be those of the four batches in one piece."
    check.expect_close(found.values[0], wanted.values[0], "the gradients", hint, atol=1e-6)
    sent, once = (
        sum(size for name, size in calls_of(run) if name == "all_reduce") for run in (found, wanted)
    )
    hint = f"All {sent // once} backward passes send. What decides that is not inside `no_sync`."
    check.expect_close(sent, once, "the bytes all-reduced in a step", hint)
    print(f"Right. The same gradients, and {sent:,} bytes on the wire instead of {4 * once:,}.")

# %% [markdown]
# This bug shows only in the bytes sent and in the time. The gradients are right: whether a sum is
# averaged once or after every batch, the mean is the same.
#
# **It has happened.** On 13 January 2023 a maintainer of SpeechBrain reported that with certain
# recipes training on several GPUs was *slower* than on one (speechbrain/speechbrain, issue 1802).
# Putting the forward pass inside `no_sync` made it work, and he did not see why. In June a second
# developer found the reason: DDP prepares the synchronisation when the forward pass runs, as its
# documentation says. In November 2024 modded-nanogpt got the same fix (KellerJordan/modded-nanogpt,
# pull request 31).
#
# What does it cost? The documentation of Hugging Face's Accelerate has measured it (*Gradient
# synchronization*, concept guides): T4 GPUs, four batches for each update. A batch took 2.00 s
# without `no_sync` and 2.13 s with `no_sync` around backward alone, on two nodes; with forward
# inside, 0.91 s. On one node with two GPUs it was 0.50, 0.50 and 0.41 s.
#
# **How this week's tools find it**: compare the bytes of the all-reduces in one step with those of
# the gradients. You wrote the function in section 5.

# %% [markdown]
# ### Find the bug: two models instead of one
#
# 8 minutes · medium
#
# A layer has a method that computes its loss, and a colleague trains it under DDP. The loss falls
# on both ranks. Yet nothing is averaged, and each rank trains its own model on half of the data.
# Run the check, read what the audit of the run found, and repair the function.
#
# <details><summary>Hint</summary>
#
# DDP prepares the reduction in its own `forward`. Who calls it here?
# </details>


# %% scored_layer
class ScoredLayer(nn.Module):
    """A layer, and the loss with which it learns to add up a row."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, rows):
        return self.layer(rows)

    def loss_of(self, rows):
        """The mean square of what is missing to the sums of the rows."""
        return (self(rows) - rows.sum(1, keepdim=True)).square().mean()


# %% losses_of_steps tags=["turn"]
def losses_of_steps(parallel, batches):
    """The loss of each batch of this rank, after each of which SGD takes a step."""
    optimizer, losses = torch.optim.SGD(parallel.parameters(), lr=0.05), []
    for rows in batches:
        ### BEGIN SOLUTION
        loss = (parallel(rows) - rows.sum(1, keepdim=True)).square().mean()
        ### INSTEAD
        # loss = parallel.module.loss_of(rows)
        ### END SOLUTION
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# %% check_losses_of_steps
def train_scored():
    """The first and the last loss of this rank, and its weights after 16 steps."""
    torch.manual_seed(seed)
    parallel = DDP(ScoredLayer())
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = losses_of_steps(parallel, torch.randn(16, 8, 4, generator=generator))
    return losses[0], losses[-1], parallel.module.layer.weight.detach().flatten()


with check.turn("losses_of_steps"):
    run = ws.run(train_scored, **EMULATED, audit=True)
    for rank, (first, last, _) in enumerate(run.values):
        print(f"rank {rank}: loss {first:.3f} in the first step, {last:.3f} in the last one")
    hint = "; ".join(f"audit: {finding.what}" for finding in run.audit.findings)
    of_ranks = [weights for _, _, weights in run.values]
    check.expect_close(of_ranks[1], of_ranks[0], "rank 1's weights, as on rank 0", hint)
    print("Right. Both ranks have the same weights after 16 steps.")

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | 10/18 = 55.6% | 10 ms of compute and 8 ms exposed; overlapped in 8 parts 82% | section 4 |
# | 2/3 of the compute | overlap hides at most the backward pass | section 4 |
# | 2/3 R/β rows a GPU | bfloat16: communication takes as long as compute | section 6 |
# | R/β rows a GPU | backward hides it: 11,000 on PCIe 4, 1,100 on NVLink 3 (A100) | section 6 |
# | 2/3 R/β rows in all | up to here two GPUs lose to one: 7,100 on PCIe 4 | section 6 |
# | 25 MiB | torch's buckets; more ranks ask for larger ones | section 4 |

# %% [markdown]
# ## 8. Problems
#
# **1.** Forward takes 12 ms, backward 24 ms, the all-reduce 30 ms in all, split into six equal
# buckets without latency. How long is the step, how much is exposed, and what is the efficiency?
#
# <details><summary>Answer</summary>
#
# A bucket takes 5 ms to send and 4 ms to compute, so the link is never idle: 12 + 4 + 30 = 46 ms.
# Compute is 36 ms, so 10 ms are exposed: 36/46 = 78%. Without overlap it would be 36/66 = 55%.
# </details>
#
# **2.** How short can the same step become with more and more buckets? And how long is it with six
# buckets on a link of twice the speed?
#
# <details><summary>Answer</summary>
#
# The first bucket is ready ever sooner after forward: 12 + 30 = 42 ms at best, 86%. With the fast
# link a bucket takes 2.5 ms, less than it computes: only the last one is exposed, 36 + 2.5 = 38.5
# ms, 94%.
# </details>
#
# **3.** In Accelerate's table a batch takes 2.00 s without `no_sync`, and 0.91 s when three of four
# batches send nothing. If nothing is hidden, how long are compute and all-reduce? What would a
# batch take if eight were accumulated?
#
# <details><summary>Answer</summary>
#
# t + c = 2.00 and t + c/4 = 0.91 give c = 1.45 s and t = 0.55 s: an efficiency of 27%, and of 60%
# with four. With eight: 0.55 + 1.45/8 = 0.73 s, 75%.
# </details>
#
# **4.** A model has a tied embedding of 0.5 GB and 3 GB of other gradients. Its output layer is
# the first in backward. Why can the embedding's gradient not leave early, and what does that do to
# the exposed time on a link that is just fast enough?
#
# <details><summary>Answer</summary>
#
# Its gradient is complete when the last of its two uses has been added, at the input, at the very
# end of backward. So at least the time to send 0.5 GB is exposed, a seventh of all communication,
# however fast backward feeds the link before. Untied, the head's part could leave first.
# </details>
#
# **5.** You have 8 A100s on PCIe 4 and train a transformer with 1,024 tokens a sequence in
# bfloat16. How many sequences on each GPU do you want?
#
# <details><summary>Answer</summary>
#
# R/β is 10,700 rows, times (N - 1)/N = 7/8: 9,350 tokens, so ten sequences, if memory allows (and
# if the bridge carries eight links at once, which this formula assumes). If not, accumulate under
# `no_sync`: the bytes are sent once for several backward passes. Only the last of these hides any
# communication, so that is worse than one large batch, and much better than small steps.
# </details>
#
# **6.** *Design.* A team trains a model of 300 million parameters on 16 nodes of one A100 each,
# joined by 10 Gb/s (β = 1.17 GB/s), with 4,096 tokens on each GPU. They ask whether to buy 25 Gb/s
# adapters or GPUs of twice the speed. What do you say?
#
# <details><summary>Answer</summary>
#
# Compute: 6 · 0.3e9 · 4,096 / 256e12 = 29 ms. The all-reduce: 2 · 15/16 · 0.6 GB / 1.17 GB/s = 960
# ms. Faster GPUs gain 14 of 990 ms. The adapters bring 990 ms down to 385 + 29, 2.4 times as fast,
# and still compute is only 7% of it. First of all, accumulate gradients, which costs nothing: 32
# micro-batches under `no_sync` take 920 ms of compute for each 960 ms of communication, 49%, at a
# batch 32 times as large. If the batch may not grow, this network is too slow for DDP, and week 5
# is next.
# </details>
#
# ## 9. Self-check
#
# First, compare your predictions with the results.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions follow. Every answer, right or wrong, has its own explanation.

# %% self_check
quiz.ask("week03", seed=seed)

# %% [markdown]
# ## To take with you
#
# - Gradients become ready from the last layer to the first. Send them while backward works on the
#   rest.
# - A bucket is a compromise: small ones begin early, large ones pay fewer latencies.
# - Overlap hides communication behind the backward pass, and no more than that.
# - What a second GPU adds depends on the rows and on R/β; the size of the model matters for the
#   latency only.
# - Two GPUs lose to one if the model is below P\*, and with any model if the batch is below B\*.
# - All ranks make the same calls in the same order. The gradient of a parameter that one rank did
#   not use is still sent.
# - The bytes sent show what the loss does not: compare them with the bytes of your gradients.
#
# **Now the lab**: [lab 3, write DDP](../labs/lab03/lab03.ipynb). Then [week 4, synchronous or
# asynchronous](week04_synchronous_or_asynchronous.ipynb): must every rank wait for all others?
