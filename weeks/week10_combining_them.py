# %% [markdown]
# # Week 10. Combining them
#
# | | |
# |---|---|
# | Reading | about 80 minutes, with six short exercises in place |
# | Running | about a minute on two CPU cores; no GPU is needed |
# | You need | weeks 7 to 9: FSDP, tensor parallelism, pipelines |
# | You do not need | Megatron-LM, torchtitan |
# | Afterwards | lab 10, *two axes by hand, and a cost that chooses* |
#
# Weeks 3 to 9 split training in three ways: by the **batch** (data parallelism and FSDP), within
# each **matmul** (tensor parallelism), and by **layers** (pipelines). Each of them stops paying at
# some number of GPUs. Large runs use all three at once, and then two questions remain: which GPUs
# send what to each other, and how many GPUs to use for each kind of parallelism.
#
# **dp**, **tp** and **pp** are the numbers of ranks along the three dimensions of a mesh, and
# `dp · tp · pp = N`. **m** is the number of micro-batches of a pipeline in one step.

# %% [markdown]
# ## 1. The question
#
# > Given a model and a cluster, along which mesh dimensions should the GPUs be arranged, and which
# > dimension belongs on which link?
#
# Afterwards you can read a device mesh and say which of its groups span several nodes, train one
# model along three dimensions and get the results of one process, list what to check when four GPUs
# do the work of two, share a batch among unequal GPUs, and choose a plan by running your own
# program on paper.

# %% parameters tags=["parameters"]
network = "a100-100gbe-x2"  # section 6 chooses a plan for these two nodes of eight GPUs
seed = 0
# Llama 3 70B on 64 H100, tp = 8 and dp = 8: the step with tensor parallelism across eight nodes
# over the step with tensor parallelism within a node
predicted_wrong_order = None
# four A100 on PCIe, a model of GPT-2's size by DDP, two sequences of 1,024 tokens on each: the
# share of the step in which the GPUs compute
predicted_efficiency_percent = None
# four GPUs, one of them at half speed, equal shares of the batch: the speed of the four over that
# of four fast ones
predicted_slow_percent = None
# gradients 256 times too large, and AdamW: how far the loss is off after ten steps
predicted_loss_percent = None

# %% setup
import dataclasses
import math
import os

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import worldsize as ws
from worldsize import check, draw, emulate, hardware, ledger, quiz, units
from worldsize.check import CheckFailed
from worldsize.explore import explore
from worldsize.faults import SlowRank
from worldsize.models import Transformer, shape
from worldsize.timeline import Timeline

torch.set_num_threads(1)  # as the ranks do: they share the cores
predictions = ledger.Predictions("week10")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers: one from section 3, two from section 6, one from section 7.

# %% predict
predictions.ask("step, tp across nodes over tp inside", predicted_wrong_order, "times", section=3)
predictions.ask("efficiency, 4 A100 on PCIe", predicted_efficiency_percent, "%", section=6)
predictions.ask("speed, one GPU of 4 at half speed", predicted_slow_percent, "%", section=6)
predictions.ask(
    "loss, gradients 256 times too large",
    predicted_loss_percent,
    "%",
    section=7,
    choices=(0.001, 1, 50),
)

# %% [markdown]
# ## 3. Build it worse first
#
# ### Two kinds of links
#
# Before you arrange ranks, look at what connects them. To show all ranks at once, this section uses
# two small nodes of four H100s each, with the links of a full-sized node: NVLink inside, and one
# network adapter (NIC) for each GPU. The coloured path is that of a byte from a GPU to its
# counterpart in the other node.

# %% nodes
H100_NODES = hardware.cluster("h100-ndr")
SMALL_NODES = dataclasses.replace(
    H100_NODES, name="two-small-nodes", gpus_per_node=4, nics_per_node=4, num_nodes=2
)
draw.node(SMALL_NODES, ("gpu0", "node1.gpu0"))

# %% links
rates = {}
for name, place in (
    ("NVLink, 8 H100", "dgx-h100"),
    ("NVLink, 8 A100", "dgx-a100"),
    ("PCIe, 8 A100", "pcie-box"),
    ("network, a NIC for each GPU", "h100-ndr"),
    ("network, a NIC for a node", "a100-100gbe"),
    ("network, a NIC for a node", "a100-10gbe"),
):
    found = hardware.cluster(place)
    link = found.inter or found.intra
    rates[f"{name}: {link.name}"] = link.bandwidth_bytes_per_s
table = [
    {
        "link": name,
        "GB/s": round(rate / 1e9, 1),
        "times slower": round(max(rates.values()) / rate, 1),
    }
    for name, rate in rates.items()
]
draw.table(table, title="What links reach in one direction, published")

# %% [markdown]
# Over NVLink a GPU sends to its neighbours several times as fast as over the network to another
# node, and where the eight GPUs of a node share one adapter, each has an eighth of the network's
# rate. So the question is which communication stays inside a node.
#
# ### The device mesh
#
# A **device mesh** numbers the ranks along dimensions (also called axes), like the digits of a
# number. With `{"pp": 2, "dp": 2, "tp": 2}` the last dimension varies fastest:
# `rank = (pp · 2 + dp) · 2 + tp`. Ranks that differ in *one* coordinate only form a **process
# group** along that dimension, and the collectives of the dimension run in it. In the pictures
# frames are nodes, and each colour is a group:

# %% mesh_tp
MESH = {"pp": 2, "dp": 2, "tp": 2}
draw.mesh(MESH, groups="tp", ranks_per_node=4, title="Groups along tp")

# %% mesh_pp
draw.mesh(MESH, groups="pp", ranks_per_node=4, title="Groups along pp")

# %% [markdown]
# The TP groups lie within a node, on neighbouring ranks. The pipelines cross the network, each from
# a rank of one node to its counterpart in the other. Write `groups="dp"` in the cell above: where
# do the data-parallel groups lie?
#
# ### Your turn: how many nodes a group touches
#
# 7 minutes · medium
#
# Ranks fill the nodes in order. Given the sizes of the mesh dimensions, outermost first, how many
# nodes does a group along one dimension span? Take the group of rank 0.
#
# <details><summary>Hint</summary>
#
# Two neighbours along a dimension differ by the product of the sizes of all dimensions further
# *in*: for tp by 1, for dp by tp, for pp by dp · tp. Rank r is on node `r // gpus_per_node`.
#
# </details>


# %% nodes_touched tags=["turn"]
def nodes_touched(mesh, axis, gpus_per_node):
    """The number of nodes over which rank 0's group along `axis` is spread."""
    ### BEGIN SOLUTION
    names = list(mesh)
    step = math.prod(mesh[name] for name in names[names.index(axis) + 1 :])
    return len({place * step // gpus_per_node for place in range(mesh[axis])})
    ### END SOLUTION


# %% check_nodes_touched
with check.turn("nodes_touched"):
    for mesh, nodes in (
        (MESH, {"pp": 1, "dp": 1, "tp": 1}),
        ({"pp": 4, "dp": 4, "tp": 8}, {"pp": 4, "dp": 4, "tp": 1}),
        ({"tp": 8, "pp": 4, "dp": 4}, {"tp": 8, "pp": 2, "dp": 1}),
        ({"dp": 3, "tp": 4}, {"dp": 2, "tp": 1}),
    ):
        for axis, wanted in nodes.items():
            check.expect_close(
                float(nodes_touched(mesh, axis, 8)),
                wanted,
                f"the nodes of 8 GPUs that rank 0's group along {axis} of {mesh} touches",
                hint="How far apart are neighbours along the axis? On which nodes are they?",
            )
    print("Right, for eleven groups, one of which ends in the middle of a node.")

# %% [markdown]
# ### The wrong order of dimensions makes the step 1.9 times as long
#
# Now make the mistake. The program below trains layers of a large model along three dimensions with
# unmodified torch; section 4 explains it line by line. What matters here is that **the order of the
# dimensions is one line**, the dictionary. On paper it costs nothing to try both orders: Llama 3
# 70B on 64 H100s in eight nodes, tp = 8 and dp = 8, two micro-batches of one sequence on each dp
# rank.


# %% torchs_three
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

# %% cuts
ENTERING = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
LEAVING = ("attention.output", "mlp.down")


def mesh_of(sizes):
    """torch's device mesh with axes of these sizes, outermost first."""
    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


def cut(stage, mesh, **options):
    """Cut a stage's products along tp (week 8), and its weights along dp (week 7), in place."""
    plan = dict.fromkeys(ENTERING, ColwiseParallel()) | dict.fromkeys(LEAVING, RowwiseParallel())
    rows = (Replicate(),)  # what enters a half of a layer becomes a DTensor once, as in week 8
    once = PrepareModuleInput(input_layouts=rows, desired_input_layouts=rows)
    plan |= {"attention": once, "mlp": once}
    for layer in stage.layers.values():
        if mesh["tp"].size() > 1:
            parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=False, **options)
    fully_shard(stage, mesh=mesh["dp"], reshard_after_forward=False, **options)


def loss_of(logits, targets):
    """The mean loss over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


# %% adamw
def adamw(model):
    """AdamW as later steps have it: it makes its moments only at the end of the first one."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for weight in model.parameters():
        moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": torch.tensor(0.0), **moments}
    return optimizer


# %% llama_step
def llama_step(num_layers, sizes, axes, num_batches):
    """A step of so many layers of a Llama on paper, a sequence to a micro-batch, in bfloat16."""
    mesh = mesh_of(axes)
    place, num_stages = mesh.get_local_rank("pp"), axes["pp"]
    sizes, share = dataclasses.replace(sizes, num_layers=num_layers), num_layers // num_stages
    with torch.device("meta"):
        model = Transformer(sizes, layers=range(place * share, (place + 1) * share))
    cut(model, mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    model.to_empty(device="cpu")
    optimizer = adamw(model)
    tokens = torch.zeros(num_batches, sizes.context_length, dtype=torch.long)
    if num_stages == 1:
        for number in range(num_batches):
            model.set_requires_gradient_sync(number == num_batches - 1)
            model.set_reshard_after_backward(number == num_batches - 1)
            loss_of(model(tokens[[number]]), tokens[[number]]).backward()
    else:
        group, device = mesh.get_group("pp"), torch.device("cpu")
        stage = pipelining.PipelineStage(model, place, num_stages, device, group=group)
        schedule = pipelining.Schedule1F1B(stage, num_batches, loss_fn=loss_of)
        is_last = place == num_stages - 1
        schedule.step(*([tokens] if place == 0 else []), target=tokens if is_last else None)
    optimizer.step()


# %% network_bytes
def network_bytes(timeline, rank=0, gpus_per_node=8):
    """What a rank sent in groups that touch more than one node."""
    total = 0
    for event in timeline.of(rank):
        nodes = {each // gpus_per_node for each in (rank, *event.peers)}
        total += event.sent_bytes * (len(nodes) > 1)
    return total


# %% wrong_order
WIDE = shape("llama-3-70b")


def on_64(axes):
    """A step of all 80 layers on 64 H100 on paper, by a line through records of one and of two."""
    where = {"world_size": 64, "cluster": "h100-ndr-x8", "echo": False, "depths": (1, 2)}
    return ws.paper(llama_step, WIDE.num_layers, WIDE, axes, 2, **where)


def of_all_layers(run, figure):
    """A figure of a recorded timeline, by the same line."""
    one, two = (figure(run.runs[depth].timeline) for depth in (1, 2))
    return one + (WIDE.num_layers - 1) * (two - one)


def sent_along(axis):
    """The function of a timeline that gives what rank 0 sent along an axis."""
    return lambda timeline: timeline.bytes_sent_by_axis(0)[axis]


# %% orders
orders, table = {}, []
for name, axes in (
    ("tp innermost", {"pp": 1, "dp": 8, "tp": 8}),
    ("tp outermost", {"tp": 8, "pp": 1, "dp": 8}),
):
    run = orders[name] = on_64(axes)
    of_tp = [event for event in run.runs[1].timeline.of(0) if event.axis == "tp"]
    nodes = {rank // 8 for event in of_tp for rank in event.peers}
    row = {"order": name, "nodes of a tp group": len(nodes)}
    for what, figure in (
        ("along tp", sent_along("tp")),
        ("along dp", sent_along("dp")),
        ("across nodes", network_bytes),
    ):
        row[what] = f"{of_all_layers(run, figure) / 1e9:.0f} GB"
    row["waits_s"] = of_all_layers(run, lambda line: line.exposed_communication_s(0))
    table.append({**row, "step_s": run.step_s})
ratio = orders["tp outermost"].step_s / orders["tp innermost"].step_s
predictions.reveal("step, tp across nodes over tp inside", ratio)
draw.table(
    table, title="Llama 3 70B on 64 H100 in 8 nodes, two sequences for each dp rank, on paper"
)

# %% [markdown]
# With the same GPUs and the same shards, the step is nearly twice as long. What differs is *which
# links* carry the bytes, and which ranks wait. A tensor-parallel rank can do nothing until its
# all-reduce is complete, four times for each layer and micro-batch. The gathers and gradients of dp
# are sent while layers compute. So communication that **this program cannot hide** belongs on the
# fast link. (Asynchronous tensor parallelism hides part of it, week 8; torch's DTensor, run without
# a compiler, does not.)
#
# (Along tp the wrong order also sends more. Inside a node of H100s the switches do the adding, as
# in week 8; across the network the GPUs do.)
#
# Here each GPU had a NIC of its own. What if a node's eight GPUs share one? The recording does not
# depend on the cluster, so it can be priced again at once. The first row repeats the table above;
# the other three are for A100s, so compare them with each other:

# %% wrong_order_elsewhere
table = []
for place in ("h100-ndr-x8", "a100-hdr-x8", "a100-100gbe-x8", "a100-10gbe-x8"):
    found = {name: run.on(place).step_s for name, run in orders.items()}
    row = {"cluster": place, "tp innermost_s": found["tp innermost"]}
    row["tp outermost_s"] = found["tp outermost"]
    table.append({**row, "times": round(found["tp outermost"] / found["tp innermost"], 1)})
draw.table(table, title="The same two orders on other networks, on paper")

# %% [markdown]
# The wrong order is slower on all of them. At 10 Gb/s per node even the right order takes nearly
# seven times as long as with a NIC for each of the same GPUs: now the ranks wait for dp's weights
# and gradients. Whether dp should cross such a network at all is a question for section 6.

# %% [markdown]
# ## 4. Build it well
#
# ### Three dimensions, three calls of torch
#
# Nothing new is needed to train along three dimensions, only an order in which to split:
#
# 1. **pp** first, because it decides which layers a rank has at all;
# 2. **tp** next: `parallelize_module` replaces each weight with a DTensor of which a rank has a
#    shard;
# 3. **dp** last: `fully_shard` shards what is left on each rank, and the gradients with it.
#
# `cut` above does the last two. Each gets the submesh along which it communicates, `mesh["tp"]` or
# `mesh["dp"]`, and the pipeline gets `mesh.get_group("pp")`. Only dp splits the batch: all ranks of
# a TP group, and all stages of a pipeline, work on the same sequences.
#
# **Before you go on** (3 minutes): take `MESH` again, a model of two layers, and a batch of 16
# sequences. Which layer does rank 5 have, which sequences does it work on, which part of a weight
# does it multiply by, and which part does it store?
#
# <details><summary>Answer</summary>
#
# 5 = (1 · 2 + 0) · 2 + 1, so pp = 1, dp = 0, tp = 1. It has the second layer and the LM head. It
# works on the first half of the sequences, 0 to 7. It multiplies by the second half of each
# matmul's weight, as does rank 7 (dp = 1). Each of the two stores half of that half, and they
# gather it along dp.
#
# </details>


# %% batch
SIZES = shape("tiny")
NUM_STEPS, NUM_BATCHES = 2, 2


def batch(num_sequences=16, length=32):
    """Tokens of a few sequences, and the token that follows each."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(SIZES.vocab_size, (num_sequences, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def whole(tensor):
    """The tensor with the parts of all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def update_with(model):
    """AdamW for a model's weights; its loop over many tensors at once refuses a mix of kinds."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)


# %% train
def train(axes):
    """This rank's losses, and the whole gradients of its stage's weights in the last step."""
    torch.set_num_threads(1)
    mesh, num_stages = mesh_of(axes), axes["pp"]
    place, share = mesh.get_local_rank("pp"), SIZES.num_layers // num_stages
    model = Transformer(SIZES, layers=range(place * share, (place + 1) * share), seed=seed)
    cut(model, mesh)
    group, device = mesh.get_group("pp"), torch.device("cpu")
    stage = pipelining.PipelineStage(model, place, num_stages, device, group=group)
    schedule = pipelining.Schedule1F1B(stage, NUM_BATCHES, loss_fn=loss_of)
    optimizer, history = update_with(model), []
    mine = [part.chunk(axes["dp"])[mesh.get_local_rank("dp")] for part in batch()]
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        losses, is_last = [], place == num_stages - 1
        given = [mine[0]] if place == 0 else []
        schedule.step(*given, target=mine[1] if is_last else None, losses=losses)
        with ws.span("updated", kind="update"):
            optimizer.step()
        history += [torch.stack(losses).mean().item()] if is_last else []
    return history, {name: whole(one.grad) for name, one in model.named_parameters()}


# %% one_process
def train_alone():
    """The losses and the last gradients of one process with the whole batch."""
    model, history = Transformer(SIZES, seed=seed), []
    optimizer, (tokens, targets) = update_with(model), batch()
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    return history, {name: one.grad for name, one in model.named_parameters()}


alone = train_alone()

# %% [markdown]
# ### Losses, gradients and norms equal those of one process
#
# How do you know that three kinds of parallelism together still compute the same? torchtitan's
# protocol (`docs/converging.md`) compares with a run that is simple enough to trust, on the same
# tokens. Ours is a run on one process. Compare **three** things: the losses; every gradient; and
# the norm of all gradients. The loss of the second step also depends on an update of every weight.
# Section 7 shows a run in which the losses alone agree.


# %% compared
def norm_of(gradients):
    """The norm of all gradients together."""
    return sum(one.square().sum() for one in gradients.values()).item() ** 0.5


def compared(run):
    """How far a run's losses, gradients and norm are from one process's; all weights are there."""
    histories = [history for history, _ in run.values if history]  # of the last stages
    means = [sum(losses) / len(losses) for losses in zip(*histories, strict=True)]
    found = {name: one for _, part in run.values for name, one in part.items()}
    assert found.keys() == alone[1].keys()
    errors = [(found[name] - one).abs().max() / one.abs().max() for name, one in alone[1].items()]
    return {
        "losses differ by": max(abs(a - b) for a, b in zip(means, alone[0], strict=True)),
        "gradients differ by": max(errors).item(),
        "norm": norm_of(found),
    }


# %% three_axes
EIGHT = ws.run(train, MESH, world_size=8, cluster=SMALL_NODES, echo=False, timeout_s=240)
WIDER = {"pp": 2, "dp": 4, "tp": 2}
SIXTEEN = ws.run(train, WIDER, world_size=16, cluster="h100-ndr", echo=False, timeout_s=240)
runs, table = {"8 ranks": (MESH, EIGHT), "16 ranks": (WIDER, SIXTEEN)}, []
for name, (axes, run) in runs.items():
    row = {"run": name, "mesh": " ".join(f"{axis}{size}" for axis, size in axes.items())}
    found = compared(run)
    assert found["losses differ by"] < 1e-5 and found["gradients differ by"] < 1e-4
    row |= {key: f"{found[key]:.0e}" for key in ("losses differ by", "gradients differ by")}
    table.append({**row, "norm": f"{found['norm']:.4f}"})
table.append({"run": "one process", "mesh": "", "losses differ by": "", "gradients differ by": ""})
table[-1]["norm"] = f"{norm_of(alone[1]):.4f}"
draw.table(
    table,
    title="Two steps of the small transformer along three axes, emulated",
    note="Losses: the largest difference. Gradients: the largest error, over the weight's largest.",
)

# %% [markdown]
# Eight and sixteen ranks, in two nodes each, give the losses, the gradients and the norm of one
# process, up to rounding. Each component does its own averaging: the schedule divides by m, FSDP by
# dp, and nothing divides along tp, where ranks have parts of one sum.
#
# ### One step on one timeline
#
# The picture shows the last step on the eight ranks. Ranks 0 to 3 are the first stage, 4 to 7 the
# second. Orange under a short gap between two blue blocks is an all-reduce along tp, for which the
# rank waits. A longer gap is a pipeline bubble. The two orange blocks before a rank's first blue
# one belong to dp, which gathers weights (the second stage has received its first activation just
# before), and so do its last two: gradients are reduce-scattered after the last micro-batch's
# backward.


# %% steps_of
def steps_of(run, first=0):
    """The events of a run of `train` from this step on, without what came after its updates."""
    kept = []
    for rank in range(run.timeline.num_ranks):
        events = run.timeline.of(rank)
        ends_s = [0.0] + [event.end_s for event in events if event.name == "updated"]
        kept += [one for one in events if ends_s[first] <= one.start_s and one.end_s <= ends_s[-1]]
    return Timeline.of_events(kept)


draw.timeline(steps_of(EIGHT, NUM_STEPS - 1), title="Second step, 8 ranks, emulated")

# %% bytes_drawn
sent = steps_of(EIGHT, first=1)
draw.bytes_by_axis(sent, title="The second step on 8 ranks: bytes sent by axis, emulated")

# %% [markdown]
# Each event records its process group, and a group made from a mesh knows its dimension: so the
# bytes can be counted for each dimension. For this small model tp sends most, and pp least. (The
# first stage has the embedding and the last one the LM head, which are not split along tp here:
# they are two fifths of what dp sends.)
#
# There is one formula for each dimension, for a rank, a step, and elements of 4 bytes:
#
# - **tp**: each layer has 4 all-reduces for each micro-batch, 2 in forward and 2 in backward; an
#   all-reduce sends 2 (tp - 1)/tp times its tensor (week 8).
# - **pp**: one activation forward, or one gradient backward, for each micro-batch: its number of
#   tokens times the width (week 9).
# - **dp**: a rank's part of the weights is gathered once and its gradients are reduce-scattered
#   once: 2 (dp - 1)/dp times those weights' bytes (week 7; they stay gathered until the update).
#
# ### Your turn: the bytes along dp
#
# 7 minutes · medium
#
# `num_cut` weights of a stage are split along tp, `num_uncut` are replicated on each rank of a TP
# group. How many bytes does a rank send along dp in a step?
#
# <details><summary>Hint</summary>
#
# First, how many elements does a rank have before FSDP shards them? 1/tp of the weights that are
# split, and all of the others. Then count an all-gather and a reduce-scatter over dp ranks.
#
# </details>


# %% dp_sent_bytes tags=["turn"]
def dp_sent_bytes(num_cut, num_uncut, axes):
    """Bytes that a rank sends along dp in a step, for numbers of 4 bytes."""
    ### BEGIN SOLUTION
    of_a_rank = num_cut / axes["tp"] + num_uncut
    return 2 * 4 * of_a_rank * (axes["dp"] - 1) / axes["dp"]
    ### END SOLUTION


# %% check_dp_sent_bytes
def numbers_of_a_stage(num_layers=1):
    """The weights of the first stage that are cut along tp, and the others."""
    stage = Transformer(SIZES, layers=range(num_layers))
    weights = dict(stage.named_parameters())
    is_cut = {name: any(f".{part}." in name for part in ENTERING + LEAVING) for name in weights}
    counts = [
        sum(weights[name].numel() for name in weights if is_cut[name] is which)
        for which in (True, False)
    ]
    return tuple(counts)


with check.turn("dp_sent_bytes"):
    for axes, run in runs.values():
        given = numbers_of_a_stage()
        check.expect_close(
            float(dp_sent_bytes(*given, axes)),
            steps_of(run, first=1).bytes_sent_by_axis(0)["dp"],
            f"the bytes along dp of {given[0]:,} cut and {given[1]:,} other weights, {axes}",
            hint="2 (dp - 1)/dp of what a rank of the tensor group has, 4 bytes each.",
            rtol=0.01,
        )
    print("Right: what rank 0 sent on 8 ranks and on 16, within 1%.")

# %% [markdown]
# ### Which dimension on which link
#
# Three properties decide, and they do not all favour the same order:

# %% axis_properties
LLAMA = shape("llama-3-8b")


def axis_rows(axes, num_sequences=16):
    """What a rank sends along each axis in a step of Llama 3 8B, how often, and what hides it."""
    share = LLAMA.num_layers / axes["pp"]
    passed_bytes = 2 * LLAMA.context_length * LLAMA.width * num_sequences / axes["dp"]
    own = LLAMA.num_layer_parameters * share / axes["tp"]
    tp, dp, pp = (axes[axis] for axis in ("tp", "dp", "pp"))
    yield "tp", 4 * share * 2 * (tp - 1) / tp * passed_bytes, f"{4 * share:.0f} a micro-batch", "no"
    yield "dp", (2 + 4) * own * (dp - 1) / dp, f"{2 * share:.0f} a step", "yes, by layers"
    yield "pp", passed_bytes * (pp > 1), "1 a micro-batch and way", "yes, by micro-batches"


table = []
for axes in ({"tp": 8, "dp": 1, "pp": 2}, {"tp": 2, "dp": 4, "pp": 2}, {"tp": 1, "dp": 8, "pp": 2}):
    for axis, sent_bytes, often, hidden in axis_rows(axes):
        row = {"axis": f"{axis} = {axes[axis]}", "a rank sends_bytes": sent_bytes}
        if axes[axis] > 1:
            table.append({**row, "how often": often, "can other work hide it?": hidden})
draw.table(
    table,
    title="Llama 3 8B, 16 GPUs, a step of 16 sequences of 8,192 tokens, computed",
    note="dp: weights gathered in bfloat16, gradients scattered in float32; layers alone.",
)

# %% [markdown]
# Llama 3 orders its dimensions [TP, CP, PP, DP] from the inside out (Llama Team 2024, section
# 3.3.2; CP is week 8's context parallelism, which splits the sequence), by how much bandwidth and
# how little latency each needs: dp is outermost, because its messages are few, large and hidden.
# Narayanan et al. (2021, called SC21 here; sections 3.2 to 3.4) say the same in three takeaways:
# tensor parallelism up to the size of a node; then pipelines, just enough for the model to fit;
# then data parallelism.
#
# The table also shows what matters on a slow network: **pp sends least**. Where the network is much
# slower than the links inside a node, put pp across nodes; dp may stay inside.

# %% [markdown]
# ### Find the bug: the slow mesh
#
# 8 minutes · medium
#
# A colleague trains Llama 3 8B on two nodes of eight A100s; the GPUs of each node share one adapter
# of 100 Gb/s. The mesh is the one below, and the step takes longer than necessary. Run the check,
# look at the bytes that cross the network, and change the order of the dimensions. Keep their
# sizes.
#
# <details><summary>Hint</summary>
#
# Use your `nodes_touched`, or `draw.mesh(mesh_order(), groups="dp", ranks_per_node=8)`. Which
# dimension spans both nodes now? Which one sends least?
#
# </details>


# %% mesh_order tags=["turn"]
def mesh_order():
    """The axes of 16 ranks in two nodes of eight, outermost first."""
    ### BEGIN SOLUTION
    return {"pp": 2, "dp": 4, "tp": 2}
    ### INSTEAD
    # return {"dp": 4, "pp": 2, "tp": 2}
    ### END SOLUTION


# %% check_mesh_order
def tried_order(axes):
    """Two layers of Llama 3 8B on paper along these axes."""
    where = {"world_size": 16, "cluster": "a100-100gbe-x2", "echo": False}
    return ws.paper(llama_step, 2, LLAMA, axes, 2, **where)


with check.turn("mesh_order"):
    axes = mesh_order()
    if sorted(axes.items()) != [("dp", 4), ("pp", 2), ("tp", 2)]:
        raise CheckFailed("dp 4, pp 2 and tp 2, in some order", str(axes))
    outer, found = next(iter(axes)), tried_order(axes)
    if outer != "pp":
        crossing = units.format_bytes(network_bytes(found.timeline))
        raise CheckFailed(
            "the step to be as short as these sizes allow",
            f"{units.format_time_s(found.step_s)}; rank 0 sends {crossing} in groups on both nodes",
            "The outermost axis is the one that leaves the node. Which axis sends least?",
            picture=lambda: draw.mesh(axes, groups=outer, ranks_per_node=8, title="Your mesh"),
        )
    print(
        f"Right: {units.format_time_s(found.step_s)}, and rank 0 sends "
        f"{units.format_bytes(network_bytes(found.timeline))} in groups on both nodes."
    )

# %% [markdown]
# ## 5. Compare with the production oracle
#
# Everything above *is* torch's own: `parallelize_module`, `fully_shard` and
# `torch.distributed.pipelining`, unmodified. So the roles are reversed, as in torchtitan's
# protocol: the run with several dimensions is under test, and **FSDP alone** is the reference. Both
# run here for real, on four processes of this machine over Gloo, with the same tokens in each step:

# %% on_this_machine
REAL = {"world_size": 4, "backend": "gloo", "echo": False, "timeout_s": 240}
real, table = {}, []
for name, axes in (
    ("control: FSDP alone", {"pp": 1, "dp": 4, "tp": 1}),
    ("on trial: pipeline and tensor", {"pp": 2, "dp": 1, "tp": 2}),
):
    real[name] = compared(ws.run(train, axes, **REAL))
    row = {"run": name, "norm": f"{real[name]['norm']:.4f}"}
    row |= {key: f"{real[name][key]:.0e}" for key in ("losses differ by", "gradients differ by")}
    table.append(row)
    assert real[name]["gradients differ by"] < 1e-4
draw.table(table, title="Four ranks of this machine against one process, measured here")

# %% [markdown]
# Both agree with one process, and so with each other. Llama 3's team fixed several numerical issues
# after comparing training losses of parallel setups (section 3.3.2). Two rules make the comparison
# sharper: use the same tokens in each step of all runs, and compare gradients, not only losses.

# %% [markdown]
# ## 6. Formula, measurement, emulation, paper
#
# ### On PCIe the batch decides the efficiency of four GPUs
#
# A rule of thumb says that four GPUs connected by PCIe reach **70 to 85%** of four times one GPU's
# speed, and that something is wrong **under 60%**. For which model? Take one of GPT-2's size, 12
# layers of width 768 in bfloat16, with DDP on four A100s. Each GPU has 1, 2 or 4 sequences of 1,024
# tokens. Efficiency is week 3's: the share of the step in which a rank does not wait for messages.


# %% gpt2
GPT2 = dataclasses.replace(
    shape("small"),
    name="GPT-2's size",
    num_layers=12,
    width=768,
    num_heads=12,
    num_kv_heads=12,
    hidden_width=2048,
    vocab_size=32_000,
    context_length=1024,
)


# %% gpt2_step
def gpt2_step(num_sequences, num_accumulated=1, dtype=torch.bfloat16):
    """Two steps of DDP on paper, with so many sequences on each rank, so many times over."""
    torch.set_default_dtype(dtype)
    model = DistributedDataParallel(Transformer(GPT2))
    torch.set_default_dtype(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.zeros(num_sequences, GPT2.context_length, dtype=torch.long)
    for _ in range(2):
        for _ in range(num_accumulated - 1):
            with model.no_sync():
                loss_of(model(tokens), tokens).backward()
        loss_of(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% efficiency
def on_four(*given):
    """A run on paper of that step on four A100 that are joined by PCIe."""
    return ws.paper(gpt2_step, *given, world_size=4, cluster="pcie-box", echo=False)


FREE_LINK = {"latency_s": 0.0, "bandwidth_bytes_per_s": 1e18, "peak_bytes_per_s": 1e18}


def without_messages_s(run):
    """The seconds of the run's last step if messages took no time."""
    box = hardware.cluster("dgx-a100").without_latency()
    link = dataclasses.replace(box.intra, **FREE_LINK)
    return run.on(dataclasses.replace(box, gpu=run.cluster.gpu, intra=link)).step_s


def efficiency(run):
    """The share of the last step in which rank 0 does not wait for messages."""
    return without_messages_s(run) / run.step_s


# %% efficiencies
by_batch = {number: on_four(number) for number in (1, 2, 4)}
table = []
for number, run in by_batch.items():
    row = {"sequences a GPU": number, "step_s": run.step_s}
    row["waits_s"] = run.step_s - without_messages_s(run)
    row |= {"efficiency, PCIe": f"{efficiency(run):.1%}"}
    table.append({**row, "efficiency, NVLink": f"{efficiency(run.on('dgx-a100')):.1%}"})
predictions.reveal("efficiency, 4 A100 on PCIe", 100 * efficiency(by_batch[2]))
draw.table(
    table,
    title=f"DDP, {GPT2.num_parameters / 1e6:.0f} million parameters on four A100, on paper",
    note=f"A rank sends {units.format_bytes(by_batch[1].sent_bytes)} in any of these steps.",
)

# %% [markdown]
# So the rule holds here, and it is a statement about the **batch**: one sequence on each GPU is
# under 60% here, two are inside the range, and four are above it. The bytes do not depend on the
# batch, but the work does. Over NVLink the same program never falls below 95%. (This compares the
# work of *these* kernels with the waiting for *this* link: a different model has its own range.)
#
# With week 3's numbers, 10 ms of work and 8 ms of waiting, the efficiency is 10/18:

# %% ten_of_eighteen
print(f"10 ms of work, 8 ms of waiting: {10 / 18:.1%}")

# %% [markdown]
# ### Your turn: enough sequences
#
# 8 minutes · medium
#
# A rank works for `fixed_s` plus `each_s` for each sequence, and then waits for `waits_s`. What is
# the smallest number of sequences with at least the wanted efficiency? (The check fits a line
# through the work of 1 and of 4 sequences, and uses the waiting of 2.)
#
# <details><summary>Hint</summary>
#
# Efficiency e means work : waiting = e : (1 - e). So the work must be at least e/(1 - e) times the
# waiting. Solve for the number, and round up.
#
# </details>


# %% enough_sequences tags=["turn"]
def enough_sequences(wanted, fixed_s, each_s, waits_s):
    """The smallest number of sequences on a GPU with an efficiency of at least `wanted`."""
    ### BEGIN SOLUTION
    work_s = wanted / (1 - wanted) * waits_s
    return max(1, math.ceil((work_s - fixed_s) / each_s))
    ### END SOLUTION


# %% check_enough_sequences
with check.turn("enough_sequences"):
    work = {number: without_messages_s(run) for number, run in by_batch.items()}
    each_s = (work[4] - work[1]) / 3
    line = (work[1] - each_s, each_s, by_batch[2].step_s - work[2])
    for wanted in (0.5, 0.7, 0.85, 0.95):
        found, share = enough_sequences(wanted, *line), lambda n: line[0] + n * each_s
        reached = [share(n) / (share(n) + line[2]) for n in (found - 1, found)]
        if int(found) != found or found < 1 or reached[1] < wanted:
            hint = "Work over waiting must be at least e/(1 - e)."
            raise CheckFailed(f"{wanted:.0%} or more", f"{found} sequences: {reached[1]:.1%}", hint)
        if found > 1 and reached[0] >= wanted:
            fewer = f"{found - 1} sequences reach {reached[0]:.1%} already"
            raise CheckFailed(f"the smallest number for {wanted:.0%}", fewer)
    found = [enough_sequences(one, *line) for one in (0.7, 0.85, 0.95)]
    print("Right. Sequences a GPU for 70, 85 and 95%:", ", ".join(map(str, found)))

# %% [markdown]
# ### Under 60%: a checklist
#
# Suppose four GPUs do the work of two. Every line below is something that an earlier week measures.
# The times are for the model above with one sequence a GPU; the first row is the starting point.

# %% under_sixty
one, accumulated, wide = by_batch[1], on_four(1, 2), on_four(1, 1, torch.float32)
PAIRS = dataclasses.replace(
    hardware.cluster("pcie-box-10gbe"), name="two pairs", gpus_per_node=2, nics_per_node=1
)
table = []
for what, week, num_sequences, run in (
    ("as it is: one sequence a GPU", "", 1, one),
    ("four sequences", "3, 6", 4, by_batch[4]),
    ("twice one, gradients sent once", "3", 2, accumulated),
    ("NVLink", "2", 1, one.on("dgx-a100")),
    ("two nodes of two GPUs, 10 Gb/s between them", "2", 1, one.on(PAIRS)),
    ("weights and gradients in float32", "6", 1, wide),
):
    row = {"change": what, "week": week, "step_s": run.step_s}
    row["sequences a second"] = round(4 * num_sequences / run.step_s)
    table.append({**row, "efficiency": f"{efficiency(run):.1%}"})
draw.table(table, title="DDP on four A100 over PCIe, one change at a time, on paper")

# %% [markdown]
# Check in this order:
#
# 1. **Is one GPU fast?** Compute the MFU of a single GPU (week 1). Look at the last row: float32
#    sends twice the bytes, has a far better efficiency, and does less than half the work per
#    second. Slow compute hides communication.
# 2. **How much work is there for each message?** Count the sequences per GPU; accumulation
#    under `no_sync` does more work between messages (week 3).
# 3. **How many bytes are sent?** Use gradients in 16 bits (week 6), or compression (week 5).
# 4. **Over which link?** Fit the all-reduce's rate (week 2) and compare with the table of links. A
#    rate far below means that the bytes take a different path: through the host, or over the
#    network.
# 5. **Does anything overlap?** Use `timeline.overlap_fraction()`; check buckets, the order of
#    gradients, and unused parameters (week 3).
# 6. **Do all ranks arrive at the same time?** Use `timeline.critical_path()`: if it stays on one
#    rank, that rank is slow (week 4, and below).
# 7. **Is the wrong dimension across nodes?** Use `draw.bytes_by_axis`, and `draw.mesh` with
#    `ranks_per_node`.
# 8. **Are stages uneven, or micro-batches too few?** Use `timeline.bubble_fraction()` (week 9).
# 9. **Input and storage** are week 11.
#
# ### Uneven hardware
#
# The GPUs of a cluster are seldom as equal as on its data sheet. A GPU runs hot and slows down, or
# half of the nodes are of the previous generation. All ranks wait for the slowest, so with equal
# shares, four GPUs of which one has half the speed are no faster than four of half the speed. How
# much should each get?

# %% [markdown]
# ### Your turn: shares by speed
#
# 8 minutes · medium
#
# Give each rank an integer number of sequences, so that all `num_sequences` are assigned and the
# last rank to finish does so as early as possible. Rank r does `speeds[r]` sequences a second.
#
# <details><summary>Hint</summary>
#
# Rounding num_sequences · speed / sum(speeds) may give one too many or too few. Instead, assign the
# sequences one by one, each to the rank that would finish it first.
#
# </details>


# %% shares_of tags=["turn"]
def shares_of(num_sequences, speeds):
    """The number of sequences for each rank, so that the last one is done as early as possible."""
    ### BEGIN SOLUTION
    shares = [0] * len(speeds)
    for _ in range(num_sequences):
        first = min(range(len(speeds)), key=lambda rank: (shares[rank] + 1) / speeds[rank])
        shares[first] += 1
    return shares
    ### END SOLUTION


# %% check_shares_of
def earliest_s(num_sequences, speeds):
    """The earliest time by which these ranks together can have done so many sequences."""
    times_s = sorted(n / speed for speed in speeds for n in range(1, num_sequences + 1))
    return next(t for t in times_s if sum(int(t * v + 1e-9) for v in speeds) >= num_sequences)


with check.turn("shares_of"):
    for number, speeds in (
        (28, (2, 2, 2, 1)),
        (16, (3, 3, 1, 1)),
        (10, (1.5, 1, 1)),
        (3, (9, 1, 1)),
    ):
        shares = list(shares_of(number, speeds))
        if sum(shares) != number or any(share != int(share) or share < 0 for share in shares):
            hint = "Rounding each share by itself loses or adds sequences."
            raise CheckFailed(f"whole shares of {number} sequences", f"{shares}", hint)
        last_s = max(share / speed for share, speed in zip(shares, speeds, strict=True))
        if last_s > earliest_s(number, speeds) + 1e-9:
            best = f"{earliest_s(number, speeds):.2f} s for speeds {speeds}"
            raise CheckFailed(best, f"{last_s:.2f} s with {shares}", "Who is done last?")
    print("Right:", shares_of(28, (2, 2, 2, 1)), "for 28 sequences and speeds of 2, 2, 2, 1.")

# %% [markdown]
# Unequal shares need one more thing. DDP averages the *ranks'* gradients. If each is a mean over
# its own sequences, each of the slow rank's few sequences weighs twice as much as the others. So
# each loss is multiplied by the rank's share of the batch, times N, which is 1 for equal shares. In
# the emulation a sequence takes a fast GPU 1 ms, and rank 3 is half as fast.


# %% uneven
def uneven_step(shares, is_weighted=True):
    """The gradients of a step of DDP in which each rank has a share of the batch."""
    torch.set_num_threads(1)
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(Transformer(SIZES, seed=seed))
    mine = [part.split(shares)[rank] for part in batch(sum(shares))]
    emulate.spend(1e-3 * shares[rank])
    weight = shares[rank] * size / sum(shares) if is_weighted else 1.0
    (weight * loss_of(model(mine[0]), mine[1])).backward()
    return {name: one.grad for name, one in model.module.named_parameters()}


def error_of(run, num_sequences):
    """The largest error of a gradient from one process's, over the weight's largest."""
    model, (tokens, targets) = Transformer(SIZES, seed=seed), batch(num_sequences)
    loss_of(model(tokens), targets).backward()
    pairs = [(run.values[0][name], one.grad) for name, one in model.named_parameters()]
    return max(((found - right).abs().max() / right.abs().max()).item() for found, right in pairs)


# %% uneven_runs
SLOW, uneven_runs, table = [SlowRank(3, factor=2)], {}, []
for name, shares, faults, is_weighted in (
    ("four fast GPUs", (7, 7, 7, 7), [], True),
    ("rank 3 at half speed", (7, 7, 7, 7), SLOW, True),
    ("shares by speed", (8, 8, 8, 4), SLOW, True),
    ("shares by speed, plain means", (8, 8, 8, 4), SLOW, False),
):
    where = {"world_size": 4, "cluster": "dgx-a100", "compute": "none", "echo": False}
    run = ws.run(uneven_step, shares, is_weighted, faults=faults, **where)
    row = {"run": name, "shares": ", ".join(map(str, shares)), "step_s": run.timeline.end_s}
    uneven_runs[name] = run.timeline.end_s
    row["of four fast"] = f"{uneven_runs['four fast GPUs'] / run.timeline.end_s:.0%}"
    table.append({**row, "gradients differ by": f"{error_of(run, 28):.0e}"})
fast_s, slow_s = uneven_runs["four fast GPUs"], uneven_runs["rank 3 at half speed"]
predictions.reveal("speed, one GPU of 4 at half speed", 100 * fast_s / slow_s)
draw.table(table, title="28 sequences on four ranks, emulated; no other work is counted")

# %% [markdown]
# One slow GPU of four costs **half** of the throughput, not an eighth. With shares by speed the
# throughput is that of 3.5 GPUs, and all gradients are those of one process. With plain means the
# run is as fast, but its gradients are far off, and nothing else shows it.
#
# A pipeline is balanced differently: give the slow GPU fewer **layers** (week 9: the slowest stage
# sets the pace). A TP group cannot be balanced in practice, because torch shards into equal parts.
# So put a slow GPU where its share can be small, and arrange a mixed cluster so that each TP group
# has GPUs of one kind. It is often better to checkpoint and replace a broken GPU (week 12) than to
# balance the work around it.

# %% [markdown]
# ### Choosing a plan: your own program, on paper
#
# Return to the two nodes of eight GPUs, and train Llama 3 8B with all its 32 layers, in steps of 16
# sequences of 8,192 tokens. How many ranks should each dimension have? `llama_step` is a program,
# so run it on paper. Each layout is recorded with 2 and 3 layers for each stage, and extrapolated
# linearly to 32 layers.

# %% recorded
NUM_SEQUENCES = 16
LAYOUTS = [(1, 1), (2, 1), (1, 2), (2, 2)]  # tp, pp


def record(tp, pp):
    """A run on paper of 32 layers on 16 GPUs; the axis that sends least is outermost."""
    axes = {"pp": pp, "dp": 16 // tp // pp, "tp": tp}
    num_batches = NUM_SEQUENCES // axes["dp"]
    where = {"world_size": 16, "cluster": network, "echo": False, "depths": (2 * pp, 3 * pp)}
    tokens = NUM_SEQUENCES * LLAMA.context_length
    return ws.paper(llama_step, 32, LLAMA, axes, num_batches, tokens_per_step=tokens, **where)


records = {layout: record(*layout) for layout in LAYOUTS}

# %% on_networks
NETWORKS = ["h100-ndr-x2", "a100-hdr-x2", "a100-100gbe-x2", "a100-10gbe-x2"]
table = []
for (tp, pp), run in records.items():
    row = {"plan": f"tp{tp} pp{pp} dp{16 // tp // pp}", "m": NUM_SEQUENCES * tp * pp // 16}
    row |= {f"{place}_s": run.on(place).step_s for place in NETWORKS}
    table.append({**row, "held_bytes": run.peak_bytes})
fastest = {place: min(row[f"{place}_s"] for row in table) for place in NETWORKS}
draw.table(
    table,
    title="A step of Llama 3 8B on two nodes of eight GPUs, 16 sequences, on paper",
    note="Fastest: "
    + "; ".join(
        f"{place} " + next(row["plan"] for row in table if row[f"{place}_s"] == fastest[place])
        for place in NETWORKS
    ),
)

# %% [markdown]
# Read the table by columns. With a NIC for each GPU, **FSDP alone** is fastest: its gathers are
# hidden, and it has neither a bubble nor an all-reduce to wait for. Where eight GPUs share one
# adapter of 100 Gb/s, FSDP waits for its weights. With tp = 2 a rank has half as much to gather,
# and that is fastest. At 10 Gb/s only a pipeline's activations should cross the network: pipelines
# are eight times as fast as FSDP alone, although their bubble is a third of a step at m = 2, and a
# fifth at m = 4. So there is **no best plan for a model**, only one for a model on a given network
# with a given batch.
#
# `ws.plan` tries all legal layouts, drops those that do not fit, and sorts the rest by a cost that
# *you* give. Any function of a plan works. Here the cost is the time recorded above:


# %% planned
def on_paper(plan):
    """The seconds of a step by the record of this layout."""
    return records[plan.tp, plan.pp].on(plan.cluster).step_s


limits = {"micro_batch": 1, "num_chunks": 1, "recompute": "none", "zero_stage": 2, "cp": 1}
plans = ws.plan(
    LLAMA, network, on_paper, global_batch=NUM_SEQUENCES, tp=(1, 2), pp=(1, 2), **limits
)
print(plans.best)
plans.table()

# %% [markdown]
# The memory of `ws.plan` is estimated by a formula: 16 bytes for each parameter, sharded by ZeRO,
# and activations, all divided by tp. The recording has what your own program holds, and that is
# more: copies of the logits; activations between the halves of a layer, which `cut` replicates on
# every rank of tp; and, for m of 2 or more, gradients that FSDP keeps unsharded until the last
# micro-batch's backward. The MFU of `ws.plan` counts all of attention, as the literature does; a
# recording's MFU counts only what the causal mask leaves, and so is a little lower below.
#
# How accurate is paper? worldsize compares 40 published steps with the same steps on paper. Half of
# the sources are within 12.1%. A much simpler model does better on these steps: assume that every
# program reaches the same share of the peak, the median of the other sources', and half of the
# sources are within 4.5% (docs/paper.md). It cannot tell one layout from another, which is what
# paper is for here. MosaicML's rows on H100s are off by half, and those of ZeRO-3 by 37%
# on 384 GPUs and by 78% on 2,240, for reasons that the rows do not show. So trust the order of
# plans that are far apart. Treat two that are within a tenth of each other as equal until you have
# measured them.
#
# ### Explore
#
# The explorer uses the same recordings: choose the plan and the network. The bars show what the
# ranks of each plan hold at their peak, on paper.


# %% explored
def planned(tp=1, pp=1, cluster="a100-100gbe-x2"):
    """A plan for Llama 3 8B on two nodes: its step, its mesh, and what all four plans hold."""
    run, sizes = records[tp, pp].on(cluster), {"pp": pp, "dp": 16 // tp // pp, "tp": tp}
    axes = {axis: size for axis, size in sizes.items() if size > 1}
    title = "The axis that crosses the nodes"
    mesh = draw.mesh(axes, groups=next(iter(axes)), ranks_per_node=8, title=title)
    bars = {}
    for (each_tp, each_pp), each in records.items():
        chosen = ", chosen" if (each_tp, each_pp) == (tp, pp) else ""
        bars[f"tp{each_tp} pp{each_pp}{chosen}"] = {"held at the peak": each.peak_bytes}
    memory = draw.memory(bars, run.cluster.gpu.memory_bytes, "Held by a rank, on paper", "GPU")
    fits = "fits" if run.peak_bytes <= run.cluster.gpu.memory_bytes else "does NOT fit"
    took = f"{units.format_time_s(run.step_s)} a step on {cluster}"
    said = f"{took}, MFU {run.mfu_fraction:.0%}; it {fits} into the GPU's memory."
    return said, mesh, memory  # the sentence first: it stays in sight under the menus


# %% explore
explore(planned, tp=[1, 2], pp=[1, 2], cluster=NETWORKS)

# %% [markdown]
# Start at 100 Gb/s and go down to 10: which plans hardly slow down? Raise tp: what does it gain,
# and what does it cost? A plan that does not fit cannot be used, however fast it is. (A recording
# counts only tensors. CUDA, NCCL and the allocator need a few GB more, so 79 of 80 GB fit on paper
# only.)
#
# **Before you go on** (2 minutes): which of the four would still fit with sequences twice as long?
#
# <details><summary>Answer</summary>
#
# None. Activations and logits double. Recorded again after
# `LLAMA = dataclasses.replace(LLAMA, context_length=16_384)`, the plan with the least memory, tp2
# pp2, holds 90 GB. Recompute activations, split those between the halves of a layer too (week 8's
# sequence parallelism), or split the sequence (context parallelism).
#
# </details>
#
# ### A memory rule of one line finds five of ten published plans
#
# Narayanan et al. chose ten layouts for ten models (table 1). Their takeaways give a rule: as few
# stages as fit, then as little tensor parallelism as fits, with tp at most a node, and all other
# GPUs for dp. Here "fits" counts only the states, without ZeRO. We assume 18 bytes for each
# parameter (2 for the weight, 4 for a float32 gradient, 12 for Adam and the master weight; the
# paper does not say). Is that enough to find what they chose?
#
# **Before you run it** (3 minutes): what does the rule say for 39.1 billion parameters, on GPUs of
# 80 GB? And what for 76.1?
#
# <details><summary>Answer</summary>
#
# 18 · 39.1 = 704 GB, or 8.8 GPUs: a node of 8 is too small, so two stages, and with two stages tp
# must be at least 4.4: **tp8 pp2**. 18 · 76.1 = 1,370 GB, 17.1 GPUs: two stages of tp8 are 16, too
# few. Three would have enough memory, but 1,024 is not divisible by 24: **tp8 pp4**.
#
# </details>

# %% published
SC21 = [  # layers, width, heads, GPUs, batch; tp and pp as published
    (24, 2304, 24, 32, 512, 1, 1),
    (30, 3072, 32, 64, 512, 2, 1),
    (36, 4096, 32, 128, 512, 4, 1),
    (40, 6144, 48, 256, 1024, 8, 1),
    (48, 8192, 64, 512, 1536, 8, 2),
    (60, 10240, 80, 1024, 1792, 8, 4),
    (80, 12288, 96, 1536, 2304, 8, 8),
    (96, 16384, 128, 1920, 2160, 8, 16),
    (105, 20480, 128, 2520, 2520, 8, 35),
    (128, 25600, 160, 3072, 3072, 8, 64),
]


# %% by_rule
GPT = shape("gpt-1t")


def by_rule(layers, width, heads, num_gpus, num_sequences):
    """The plan with fewest stages, then least tp, whose states fit: 18 bytes for each parameter."""
    sizes = {"num_layers": layers, "width": width, "num_heads": heads, "num_kv_heads": heads}
    model = dataclasses.replace(GPT, **sizes, hidden_width=4 * width)
    return ws.plan(
        model,
        f"a100-hdr-x{num_gpus // 8}",
        lambda plan: 1000 * plan.pp + 10 * plan.tp,  # an order rather than seconds
        global_batch=num_sequences,
        memory=lambda plan: 18 * plan.most_parameters,
        **limits | {"recompute": "full", "zero_stage": 0},
    ).best


# %% rule_beside_published
table = []
for *sizes, tp, pp in SC21:
    plan = by_rule(*sizes)
    states = 18 * plan.model.num_parameters / (tp * pp)
    row = {"parameters": f"{plan.model.num_parameters / 1e9:,.1f} billion", "GPUs": sizes[3]}
    row |= {"by the rule": f"tp{plan.tp} pp{plan.pp}", "published": f"tp{tp} pp{pp}"}
    row["same"] = (plan.tp, plan.pp) == (tp, pp)
    table.append(
        {
            **row,
            "more than needed": round(tp * pp / plan.tp / plan.pp, 1),
            "published: states a GPU_bytes": states,
        }
    )
draw.table(
    table,
    title="SC21, table 1, beside the rule, computed",
    note="States in the last column: the mean over all stages.",
)

# %% [markdown]
# This one-line rule for memory finds five of the ten layouts, and none of the others is off by more
# than a factor of two. The rule leaves out two things. The small models would fit on fewer GPUs,
# but the authors split them further, within a node. The largest ones also have **activations**:
# under 1F1B the first stage holds the inputs of its layers for up to pp micro-batches. And the rule
# ignores time: it only says that model parallelism beyond what fits is not worth its cost, which is
# their second takeaway (section 3.3).
#
# ZeRO removes most of the states from the rule. The next cell looks at two runs that used it:

# %% with_zero
BLOOM = dataclasses.replace(
    GPT,
    num_layers=70,
    width=14336,
    num_heads=112,
    num_kv_heads=112,
    hidden_width=4 * 14336,
    vocab_size=250_880,
)
LARGE = shape("llama-3-405b")

# %% other_published
table = []
for run_name, model, tp, pp, dp, zero_stage in (
    ("BLOOM 176B, 384 A100", BLOOM, 4, 12, 8, 1),
    ("Llama 3 405B, 8,192 H100", LARGE, 8, 16, 64, 2),
    ("Llama 3 405B, 16,384 H100", LARGE, 8, 16, 128, 2),
):
    bytes_each = 2 + (2 if zero_stage < 2 else 2 / dp) + 12 / dp
    states_bytes = bytes_each * model.num_parameters / tp / pp
    kept_bytes = 2 * 2048 * model.width * 2  # BLOOM recomputes: inputs, two sequences
    if model is LARGE:
        kept_bytes = model.layer_activation_bytes(1, 8192) / tp  # nothing is recomputed
    row = {"run": run_name, "tp": tp, "pp": pp, "dp": dp, "states a GPU_bytes": states_bytes}
    row["fewest stages by states"] = math.ceil(states_bytes * pp / 80e9)
    table.append({**row, "first stage's activations_bytes": model.num_layers * kept_bytes})
draw.table(
    table,
    title="Published plans with ZeRO, computed",
    note="BLOOM's training README: ZeRO-1, two sequences, inputs kept whole. "
    "Llama Team 2024, table 4 and section 3.3: gradients and optimizer sharded, cut by tp.",
)

# %% [markdown]
# By states alone BLOOM could have had 4 stages and Llama 3 two. For Llama the activations decide:
# without recomputation the first stage holds as many activations as *all* layers keep for one
# micro-batch, whatever pp is (week 9), which is more than a GPU has; the team frees tensors early
# and balances the stages (section 3.3.2). The rule does not explain pp = 16. To do so, it would
# have to count time as well as memory: compute, bubble and exposed communication. In lab 10 you
# write a cost that counts this time. With a cost that has no fitted constant, worldsize's own bench
# finds 9 of 15 published layouts among the best five that their software allowed.

# %% [markdown]
# ### Formula and run compared

# %% formula_beside_run
table, num_first = [], numbers_of_a_stage()
for name, (axes, run) in runs.items():
    tokens_bytes = 4 * 16 // axes["dp"] * 32 * SIZES.width  # activations of a replica's sequences
    own = num_first[0] / axes["tp"] + num_first[1]
    formulas = {
        "tp": 4 * 2 * (axes["tp"] - 1) / axes["tp"] * tokens_bytes,
        "dp": 2 * 4 * own * (axes["dp"] - 1) / axes["dp"],
        "pp": tokens_bytes,
    }
    sent = steps_of(run, first=1).bytes_sent_by_axis(0)
    for axis, formula in formulas.items():
        found = sent[axis]
        row = {"quantity": f"{name}, along {axis}", "found": "emulated", "formula_bytes": formula}
        table.append({**row, "run_bytes": found, "error": f"{formula / found - 1:+.1%}"})
draw.table(table, title="Bytes that rank 0 sends in a step, formula beside run")

# %% [markdown]
# ## 7. When it breaks
#
# ### Two code paths scaled the gradients differently
#
# In April 2026 a user compared the gradient norms of torchtitan with and without a pipeline
# (pytorch/torchtitan, issue 2972). The losses agreed. The norms differed by a factor of thousands.
# The trainer has two code paths, which divide the sum of the losses by the number of tokens at
# different points: without a pipeline before the backward pass, with one afterwards, in the
# *printed* loss only. So the pipeline's gradients were those of the sum. An earlier bug of the same
# kind, gradients that were not divided by the number of micro-batches (pytorch, pull request 144352
# of January 2025), had not shown in loss curves either.
#
# Here is the second path, as it was. Read it, and find where it divides.


# %% step_as_it_was
def step_as_it_was(stage, tokens, targets, num_batches=4):
    """The mean loss of a step through a pipeline; None on all stages but the last."""

    def loss(logits, wanted):
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")

    schedule = pipelining.Schedule1F1B(stage, num_batches, loss_fn=loss, scale_grads=False)
    losses, given = [], [tokens] if stage.is_first else []
    schedule.step(*given, target=targets if stage.is_last else None, losses=losses)
    return (sum(losses) / targets.numel()).item() if stage.is_last else None


# %% ten_steps
def staged(step, num_steps):
    """The losses and the gradient's norms of some steps of AdamW through two stages."""
    torch.set_num_threads(1)
    place = dist.get_rank()
    model = Transformer(SIZES, layers=range(place, place + 1), seed=seed)
    stage = pipelining.PipelineStage(model, place, 2, torch.device("cpu"))
    optimizer, seen = update_with(model), []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = step(stage, *batch(num_sequences=8))
        square = sum(one.grad.square().sum() for one in model.parameters())
        dist.all_reduce(square)
        optimizer.step()
        seen.append((loss, square.sqrt().item()))
    return seen


# %% ten_steps_alone
def unstaged(num_steps):
    """The same in one process."""
    model, seen = Transformer(SIZES, seed=seed), []
    optimizer, (tokens, targets) = update_with(model), batch(num_sequences=8)
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        norm = norm_of({name: one.grad for name, one in model.named_parameters()})
        optimizer.step()
        seen.append((loss.item(), norm))
    return seen


# %% losses_beside_norms
TWO = {"world_size": 2, "cluster": "dgx-h100", "echo": False}
right, wrong = unstaged(10), ws.run(staged, step_as_it_was, 10, **TWO).values[1]
table = []
for number in (0, 4, 9):
    row = {"step": number + 1}
    row |= {
        "loss, one process": f"{right[number][0]:.5f}",
        "loss, stages": f"{wrong[number][0]:.5f}",
    }
    row |= {
        "norm, one process": f"{right[number][1]:.3f}",
        "norm, stages": f"{wrong[number][1]:.1f}",
    }
    table.append({**row, "norms, times": round(wrong[number][1] / right[number][1], 1)})
off = max(abs(b[0] / a[0] - 1) for a, b in zip(right, wrong, strict=True))
predictions.reveal("loss, gradients 256 times too large", 100 * off)
print(f"8 sequences of 32 tokens are {8 * 32}; the losses differ by at most {off:.1e}, relatively")
draw.table(table, title="Ten steps of AdamW, two stages beside one process, emulated")

# %% [markdown]
# **Gradients 256 times too large**, and the loss agrees to five digits over ten steps. AdamW
# divides each gradient by its own root mean square, so a constant factor cancels. Elsewhere it does
# not cancel: gradients in float16 overflow; a clipping threshold sees a different norm, and so does
# any alarm that watches the norm; and SGD takes steps that are 256 times too large.

# %% [markdown]
# ### Find the bug: the pipeline's gradients are 256 times too large
#
# 10 minutes · medium
#
# Fix the step, so that its gradients are those of the mean over all tokens, and so that the loss
# that it returns is the mean as well. The check compares the loss and the norm with those of one
# process.
#
# <details><summary>Hint</summary>
#
# Backward runs inside `schedule.step`, on what `loss` returns for each micro-batch. So divide
# there. By how many tokens: those of the micro-batch, or those of the step?
#
# </details>
#
# <details><summary>Hint</summary>
#
# With `scale_grads=False` nothing else divides. If each micro-batch's loss is already divided by
# the step's tokens, what is the sum of the losses?
#
# </details>


# %% fixed_step tags=["turn"]
def fixed_step(stage, tokens, targets, num_batches=4):
    """The mean loss of a step through a pipeline; None on all stages but the last."""

    ### BEGIN SOLUTION
    def loss(logits, wanted):
        total = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
        return total / targets.numel()

    schedule = pipelining.Schedule1F1B(stage, num_batches, loss_fn=loss, scale_grads=False)
    losses, given = [], [tokens] if stage.is_first else []
    schedule.step(*given, target=targets if stage.is_last else None, losses=losses)
    return sum(losses).item() if stage.is_last else None
    ### INSTEAD
    # def loss(logits, wanted):
    #     return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum")
    #
    # schedule = pipelining.Schedule1F1B(stage, num_batches, loss_fn=loss, scale_grads=False)
    # losses, given = [], [tokens] if stage.is_first else []
    # schedule.step(*given, target=targets if stage.is_last else None, losses=losses)
    # return (sum(losses) / targets.numel()).item() if stage.is_last else None
    ### END SOLUTION


# %% check_fixed_step
with check.turn("fixed_step"):
    found = ws.run(staged, fixed_step, 2, **TWO).values[1]
    for number, ((loss, norm), (right_loss, right_norm)) in enumerate(
        zip(found, right[:2], strict=True), start=1
    ):
        if abs(norm / right_norm - 1) > 1e-3:
            raise CheckFailed(
                f"a gradient norm of {right_norm:.4f} in step {number}, as in one process",
                f"{norm:.4f}, which is {norm / right_norm:.4g} times as much",
                "By how many tokens is the loss divided before backward runs?",
            )
        if abs(loss / right_loss - 1) > 1e-3:
            got = f"{loss:.6g}, which is {loss / right_loss:.4g} times as much"
            hint = "The gradients are right. What do the losses of the micro-batches add up to now?"
            raise CheckFailed(f"a mean loss of {right_loss:.4f} in step {number}", got, hint)
    print(f"Right: a norm of {norm:.4f} and a loss of {loss:.4f} in step 2, as in one process.")

# %% [markdown]
# **What it was**: two code paths, each with its own rule. **What finds it**: comparing the norm
# with that of one process, in the first step. The loss curve does not show it. That is why section
# 4 compared gradients.
#
# ### Several components average: divide exactly once
#
# On a mesh several components divide: the loss by its tokens, the schedule by m, FSDP by dp. A long
# thread on Megatron-LM (issue 673) asks whether the loss has to be multiplied by the size of the
# context-parallel group. It depends on **which component averages over which group**. If the
# gradients are averaged over dp · cp ranks, while the loss of each rank is a mean over its *own*
# part of the sequence, the result is right. If each rank's loss is a part of the sequence's mean,
# the averaging over cp divides once too often, and the factor cp corrects it. Problem 4 has the
# arithmetic.

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | 1.9 times the step | 70B on 64 H100, tp across nodes and dp inside | section 3 |
# | 2 (n - 1)/n of what a rank has | bytes along dp, and of an all-reduce along tp | section 4 |
# | 70 to 85% on four GPUs over PCIe | for GPT-2's size two sequences on each | section 6 |
# | N times the slowest speed | equal shares; shares by speed: the sum of the speeds | section 6 |
# | 18 bytes a parameter, fewest stages | finds five of SC21's ten plans | section 6 |

# %% [markdown]
# ## 8. Problems
#
# 1. 64 GPUs in nodes of 8, mesh `{"pp": 4, "dp": 4, "tp": 4}`. Which ranks are in the groups of
#    rank 21 along each dimension? Which of these groups span several nodes?
#
# <details><summary>Answer</summary>
#
# 21 = (1 · 4 + 1) · 4 + 1, so pp = 1, dp = 1, tp = 1. Along tp: 20, 21, 22, 23, inside node 2
# (ranks 16 to 23). Along dp: 17, 21, 25, 29, on nodes 2 and 3. Along pp: 5, 21, 37, 53, on nodes
# 0, 2, 4 and 6.
#
# </details>
#
# 2. A run on 1,024 GPUs has tp8 pp8 dp16 and a batch of 512 sequences, one to a micro-batch. It
#    moves to 2,048 GPUs with the same batch and dp32. How does the bubble of 1F1B change? By how
#    much does the step get shorter, if only the pipeline matters?
#
# <details><summary>Answer</summary>
#
# m goes from 32 to 16. The bubble goes from 7/39 = **17.9%** to 7/23 = **30.4%**. The step goes
# from the time of 39 micro-batches to that of 23: **1.70** times as fast on twice the GPUs. Llama 3
# saw the same effect when it went from 8,192 to 16,384 GPUs (section 3.3.2): 430 to 400 TFLOP/s.
#
# </details>
#
# 3. SC21's equation 3 counts 96 B s l h² (1 + s/6h + V/16lh) FLOPs a step, with recomputation. Its
#    trillion-parameter run has B = 3,072, s = 2,048, l = 128, h = 25,600, V = 51,200, and 163
#    TFLOP/s on each of 3,072 A100s (312 at most). How long is a step, and what is the MFU?
#
# <details><summary>Answer</summary>
#
# 96 · 3,072 · 2,048 · 128 · 25,600² · (1 + 0.0133 + 0.00098) = 5.14e19 FLOPs; divided by 3,072 ·
# 163e12 that is **102.6 s**. 163/312 = 52% is the *hardware's* utilisation (HFU): a quarter of the
# FLOPs are recomputation. MFU is 3/4 of it, **39%**.
#
# </details>
#
# 4. Let dp = 2 and cp = 2. Each of the four ranks has its part of the loss. The gradients are
#    averaged over all four ranks. (a) Each rank's loss is the mean over its own tokens. (b) It is
#    the sum over its own tokens, divided by the number of tokens of its whole sequence. What does
#    the average give in each case, if all parts have equally many tokens?
#
# <details><summary>Answer</summary>
#
# (a) The average of four means of equal parts is the mean of all: right. (b) Two ranks of a cp
# group *add up* to the mean of their sequence, so the four add up to the sum of two means. The
# average divides by 4 where it should divide by 2: **half** the gradient. Multiplied by cp, it is
# right.
#
# </details>
#
# 5. A cluster has 12 old GPUs of speed 1 and 4 new ones of speed 3. What is the speed with equal
#    shares, and with shares by speed? You may also leave GPUs out. Which is the best set for equal
#    shares?
#
# <details><summary>Answer</summary>
#
# Equal shares: 16 times the slowest, **16**. By speed: 12 + 12 = **24**. Equal shares on the 4 new
# ones alone: 12, less than 16. So with equal shares keep all; shares by speed gain half.
#
# </details>
#
# 6. Design: Llama 3 70B is trained with sequences of 8,192 tokens on 32 H100s in four nodes, with
#    one 400 Gb/s adapter for each GPU. States are 16 bytes for each parameter. Which layout would
#    you start from, and which would you compare it with on paper?
#
# <details><summary>Answer</summary>
#
# 70.6 billion parameters have 1,129 GB of states: 35 GB a GPU if sharded over all 32. That leaves
# 45 GB for activations. According to `layer_activation_bytes` a sequence keeps 2.7 GB a layer, 218
# GB in all, so its activations must be split by tp = 8 (27 GB) or recomputed (11 GB of inputs).
# Start with tp8 in a node and FSDP over the four nodes. Compare on paper with FSDP over 32 and full
# recomputation, and with tp8 pp2. What decides is whether a sequence's compute on a GPU hides the
# gathers of its weights.
#
# </details>

# %% [markdown]
# ## 9. Self-check
#
# First, compare your predictions with the results.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions follow. Every answer, right or wrong, has its own explanation.

# %% self_check
quiz.ask("week10", seed=seed)

# %% [markdown]
# ## To take with you
#
# - A mesh is a numbering of the ranks. The order of its dimensions decides which communication
#   crosses the network.
# - Communication that waits and cannot be hidden belongs on the fastest link: tp inside the node.
#   What can be hidden, or sends least, goes across nodes.
# - Compare losses, gradients and norms with one process, on the same tokens. A loss curve can hide
#   a factor of 256.
# - Efficiency is work divided by work plus waiting. Under 60%, look at the batch, the bytes, the
#   link, the overlap and the slowest rank, in this order.
# - All ranks wait for the slowest. Share the batch by speed, and weight each loss by its share.
# - A plan is right for a model, a network and a batch together. Run your own program on paper to
#   find it.
#
# **Now the lab**: [lab 10](../labs/lab10/lab10.ipynb). Train along two dimensions by hand, then
# write the cost that chooses a plan. Then **week 11**: find the bottleneck of someone else's
# program.
