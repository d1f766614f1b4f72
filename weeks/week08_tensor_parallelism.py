# %% [markdown]
# # Week 8. Tensor parallelism
#
# | | |
# |---|---|
# | Reading | about 80 minutes, with six short exercises in place |
# | Running | about a minute on two CPU cores; GPUs are used if there are enough |
# | You need | [week 2](week02_all_reduce_from_scratch.ipynb) for the collectives, and week 7 |
# | You do not need | torch's DTensor, Megatron-LM |
# | Afterwards | lab 8, *a tensor-parallel transformer block by hand* |
#
# Data parallelism and ZeRO shard what training *stores*, and every rank still computes whole
# matmuls. **Tensor parallelism** splits the matmuls themselves: each GPU multiplies the same tokens
# by a part of a weight, and the partial results are combined. Shoeybi et al. 2019 (*Megatron-LM*,
# section 3) found a pair of splits that needs only one all-reduce for two matmuls.
#
# **N** is the number of ranks, **d** the width of the model, **F** the hidden width of its MLP,
# **B** the number of tokens that go through the model at a time. All N ranks work on the same B
# tokens.

# %% [markdown]
# ## 1. The question
#
# > How can several GPUs share a single matmul, what must they send each other to do so, and when is
# > that faster than one GPU?
#
# Afterwards you can split every part of a transformer, say which collective each split costs in
# forward and in backward, and compute up to how many ranks it pays on a given link.

# %% parameters tags=["parameters"]
world_size = 2  # ranks in the experiments on this machine: 2 or 4
# "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
backend = "auto"
cluster = "dgx-a100"  # the emulated cluster of most sections; a table for another cluster names it
seed = 0
# 12 layers of width 512, 8 sequences of 512 tokens in bfloat16, on 2 GPUs: MiB that each sends in
# forward
predicted_sent_mib = None
# the same model on two A100 with NVLink: the share of the forward pass that is communication
predicted_share_percent = None
# how many times as many bytes a layer sends once its norms are cut along the sequence, too
predicted_sequence_ratio = None
# a layer of Llama 3 8B, forward and backward, 8,192 tokens: how many times as fast on 8 H100 as on
# one
predicted_speed_up = None

# %% setup
import dataclasses
import math
import os
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F

import worldsize as ws
from worldsize import check, draw, hardware, ledger, memory, operators, pricing, quiz
from worldsize.check import CheckFailed
from worldsize.models import Transformer, shape

Path("build/week08").mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)  # as the ranks do: they share the cores
predictions = ledger.Predictions("week08")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers. All weights and activations are bfloat16.

# %% predict
predictions.ask("sent in forward, 12 layers of 512", predicted_sent_mib, "MiB", section=6)
predictions.ask(
    "communication in that forward, 2 A100",
    predicted_share_percent,
    "%",
    section=6,
    choices=(2, 6, 25),
)
predictions.ask("bytes with norms cut over without", predicted_sequence_ratio, "times", section=4)
predictions.ask("speed-up of a Llama layer, 8 H100", predicted_speed_up, "times", section=6)

# %% [markdown]
# ## 3. Build it worse first
#
# ### Two ways to split one matmul: by columns and by rows
#
# Multiply B rows of d elements by a weight of d × F. There are two ways to give each rank a part of
# the weight, here for two ranks:
#
# ```text
#  by columns                              by rows
#
#   rows      weight    outputs             rows       weight      outputs
#            ┌──┬──┐   ┌──┬──┐                        ┌─────┐
#  ┌─────┐   │  │  │   │  │  │            ┌──┬──┐     │  0  │    ┌─────┐   ┌─────┐
#  │     │ · │ 0│ 1│ = │ 0│ 1│            │ 0│ 1│  ·  ├─────┤  = │  0  │ + │  1  │
#  └─────┘   │  │  │   └──┴──┘            └──┴──┘     │  1  │    └─────┘   └─────┘
#            └──┴──┘                                  └─────┘
#  reads whole rows,                       reads its columns of the rows,
#  gives its columns of the outputs        gives a partial sum of every output
# ```
#
# (Weights are laid out as in Megatron's paper, with a row for each *input*. torch's `Linear` stores
# the transpose.) A split by columns needs no communication to compute, and leaves each rank with
# some of the outputs: an **all-gather** completes them. A split by rows needs inputs that are
# already split, and leaves each rank with a partial sum of every output: an **all-reduce** adds
# them up.


# %% cuts
WIDTH, HIDDEN, NUM_ROWS = 256, 1024, 512
NUM_RANKS = 4  # where ranks are emulated
EMULATED = {"world_size": NUM_RANKS, "cluster": cluster, "echo": False}
PASS_BYTES = 2 * NUM_ROWS * WIDTH * (NUM_RANKS - 1) / NUM_RANKS


def mine(whole, dim):
    """This rank's part of a tensor that is cut along `dim`."""
    return whole.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


def gathered(part):
    """The whole tensor, of which each rank has some columns."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, part)
    return torch.cat(parts, dim=1)


def product(inputs, weight, cut):
    """The whole product of whole inputs by a weight of which each rank uses its part."""
    if cut == "columns":
        return gathered(inputs @ mine(weight, dim=1))
    partial = mine(inputs, dim=1) @ mine(weight, dim=0)
    dist.all_reduce(partial)
    return partial


# %% [markdown]
# ### The MLP, with a collective after every matmul
#
# The MLP of a transformer is two matmuls with a nonlinearity in between: d → F → d, here with
# F = 4d and ReLU. Each can be split either way. Run all four combinations for real, and compare
# them with one process.


# %% example
def example(dtype=torch.float32):
    """Rows and the two weights of an MLP, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(NUM_ROWS, WIDTH, generator=generator)
    first = torch.randn(WIDTH, HIDDEN, generator=generator) / math.sqrt(WIDTH)
    second = torch.randn(HIDDEN, WIDTH, generator=generator) / math.sqrt(HIDDEN)
    return rows.to(dtype), first.to(dtype), second.to(dtype)


def in_one_process():
    """The MLP's outputs, and the gradients of both weights and of the rows, by autograd alone."""
    rows, first, second = (tensor.requires_grad_() for tensor in example())
    outputs = (rows @ first).relu() @ second
    (outputs.square().sum() / 2).backward()
    return outputs.detach(), first.grad, second.grad, rows.grad


# %% naive_mlp
def naive_mlp(cut_of_first, cut_of_second, dtype=torch.float32):
    """The MLP's outputs, with what each product gives made whole on every rank."""
    torch.set_num_threads(1)
    rows, first, second = example(dtype)
    hidden = product(rows, first, cut_of_first).relu()
    return product(hidden, second, cut_of_second)


CUTS = [(one, other) for one in ("columns", "rows") for other in ("columns", "rows")]
REAL = {"world_size": world_size, "backend": "gloo", "echo": False}
wanted = in_one_process()
for two_cuts in CUTS:
    run = ws.run(naive_mlp, *two_cuts, **REAL)
    difference = max((whole_mlp - wanted[0]).abs().max().item() for whole_mlp in run.values)
    print(f"{' then '.join(two_cuts):<20} differs from one process by at most {difference:.0e}")
    assert difference < 1e-4

# %% [markdown]
# All four are right. Now count what they send, on four emulated ranks in bfloat16. **S** is the
# size of the MLP's output, 2Bd bytes; the last column divides by $S (N-1)/N$, what a ring needs to
# gather or to reduce S bytes once.

# %% naive_bytes
table = []
for two_cuts in CUTS:
    sent = ws.run(naive_mlp, *two_cuts, torch.bfloat16, **EMULATED).timeline.bytes_sent(0)
    row = {"first weight by": two_cuts[0], "second by": two_cuts[1], "sent_bytes": sent}
    table.append({**row, "passes of S (N-1)/N": round(sent / PASS_BYTES, 2)})
draw.table(table, title=f"An MLP, every product made whole: {NUM_RANKS} ranks, emulated")

# %% [markdown]
# There are four times as many hidden elements as outputs, and an all-reduce is two passes: so the
# four combinations cost 4 + 1, 4 + 2, 8 + 1 and 8 + 2. Look at the second row. It gathers the
# hidden columns so that every rank has all of them, and then the split by rows uses only some of
# them on each rank. **They are the columns that the rank had before the gather.**
#
# ## 4. Build it well
#
# ### The pair: first by columns, then by rows
#
# ```text
#          f           first, by columns        second, by rows           g
#  rows ───┬──► rank 0: rows · first₀ ─► ReLU ─► hidden₀ · second₀ ─► partial₀ ──┬──► outputs
#          └──► rank 1: rows · first₁ ─► ReLU ─► hidden₁ · second₁ ─► partial₁ ──┘  (sum)
#
#  forward    f: nothing                                            g: all-reduce
#  backward   f: all-reduce of the gradient of rows                 g: nothing
# ```
#
# ReLU acts on each hidden element alone, so a rank can apply it to its own columns. (The opposite
# order does not allow that: $\mathrm{ReLU}(a) + \mathrm{ReLU}(b)$ is not $\mathrm{ReLU}(a + b)$, so
# partial sums would have to be added first.)
#
# Backward is the mirror image. The gradient of a sum is the gradient of each term, so at **g** each
# rank continues with the gradient that it has. At **f** the same rows went to N ranks, so their
# gradient is the sum of N gradients. Megatron's paper calls f and g *conjugate*: what one does in
# forward, the other does in backward.


# %% pair
def pair_forward(rows, first, second):
    """The MLP's whole outputs, from this rank's columns of `first` and rows of `second`; hidden."""
    hidden = (rows @ first).relu()
    outputs = hidden @ second
    dist.all_reduce(outputs)  # g
    return outputs, hidden


def pair_backward(gradient, rows, hidden, first, second):
    """The gradients of this rank's two parts, and the whole one of `rows`."""
    of_second = hidden.T @ gradient  # g: each rank has the whole gradient already
    of_hidden = (gradient @ second.T) * (hidden > 0)
    of_first, of_rows = rows.T @ of_hidden, of_hidden @ first.T
    dist.all_reduce(of_rows)  # f
    return of_first, of_second, of_rows


# %% pair_pass
def pair_pass(dtype=torch.float32):
    """Outputs and gradients of the pair, forward and backward, for the loss sum(outputs²) / 2."""
    torch.set_num_threads(1)
    rows, first, second = example(dtype)
    first, second = mine(first, dim=1), mine(second, dim=0)
    with ws.span("forward", kind="forward"):
        outputs, hidden = pair_forward(rows, first, second)
    with ws.span("backward", kind="backward"):
        gradients = pair_backward(outputs, rows, hidden, first, second)
    return outputs, *gradients


# %% pair_run
values = ws.run(pair_pass, **REAL).values
joined = [torch.cat([one[1] for one in values], 1), torch.cat([one[2] for one in values], 0)]
for name, ours, one_process in zip(
    ("outputs", "first's gradient", "second's gradient", "rows' gradient"),
    (values[0][0], *joined, values[-1][3]),
    wanted,
    strict=True,
):
    check.expect_close(ours, one_process, name, atol=1e-3)  # sums of hundreds, in another order
    print(f"{name:<18} as in one process")

# %% pair_drawn
paired = ws.run(pair_pass, torch.bfloat16, **EMULATED)
passes = paired.timeline.bytes_sent(0) / PASS_BYTES
print(f"forward and backward send {passes:g} passes of S (N-1)/N, two each")
draw.timeline(paired.timeline, title=f"The pair, forward and backward, emulated on {cluster}")

# %% [markdown]
# Forward takes two passes instead of five to ten: one all-reduce. Each rank computes 1/N of the
# FLOPs and holds 1/N of both weights and of the hidden activations. Note what is **not** split: the
# incoming rows and the outputs are replicated on every rank.
#
# This example is tiny, and communicates for as long as it computes. Section 6 shows when compute
# dominates.

# %% [markdown]
# ### Your turn: the bytes of a layer
#
# 5 minutes · easy
#
# A transformer layer is two such pairs: attention is the other one, as you will see next. Write the
# bytes that a rank sends for one layer, forward **and** backward, in bfloat16 and with rings.
#
# <details><summary>Hint</summary>
#
# How many all-reduces are there in forward, and how many in backward? Each has B × d elements of
# two bytes, and a rank sends 2 (N - 1)/N times that.
#
# </details>


# %% layer_sent_bytes tags=["turn"]
def layer_sent_bytes(num_tokens, width, num_ranks):
    """The bytes that each rank sends for one layer with tensor parallelism, both passes."""
    ### BEGIN SOLUTION
    all_reduce_bytes = 2 * (num_ranks - 1) / num_ranks * 2 * num_tokens * width
    return 4 * all_reduce_bytes
    ### END SOLUTION


# %% check_layer_sent_bytes
with check.turn("layer_sent_bytes"):
    check.expect_close(
        float(layer_sent_bytes(NUM_ROWS, WIDTH, NUM_RANKS)),
        2 * paired.timeline.bytes_sent(0),
        f"the bytes of a layer with {NUM_ROWS} tokens of width {WIDTH} on {NUM_RANKS} ranks",
        hint="The pair above is one half of a layer; its timeline counts both directions.",
    )
    check.expect_close(float(layer_sent_bytes(10, 10, 1)), 0.0, "the bytes on one rank")
    print("Right: 8 numbers for each token and unit of width, times (N - 1)/N, times two bytes.")

# %% [markdown]
# SC21 (Narayanan et al. 2021, section 3.2) has the same: $8bsh\frac{t-1}{t}$ elements per layer,
# for b sequences of s tokens, width h and t ranks.
#
# ### Attention is split by heads
#
# Each head attends independently. The query, key and value matmuls are split **by columns**, with
# whole heads on each rank; the output projection reads the concatenated results of the heads and is
# split **by rows**. Between the two, a rank computes attention for its heads and sends nothing.
#
# ```text
#              ┌─ query, key, value of heads 0, 1 ─► attention ─► output, its rows ─┐
#  rows ── f ──┤                                                                    ├─ g ──►
#              └─ query, key, value of heads 2, 3 ─► attention ─► output, its rows ─┘
# ```
#
# With **grouped-query attention** (GQA), several query heads share a key and a value head, and must
# be on the same rank as these. Llama 3 8B has 32 query heads and 8 key and value heads, so at most
# **8** ranks can share a layer before keys and values have to be replicated.
#
# ### The same with torch's DTensor
#
# torch splits modules according to a plan. A `DTensor` is a tensor with a *placement* on each mesh
# dimension: `Shard(dim)`, `Replicate()`, or `Partial()` for sums that are still to be added. A
# split by columns is `ColwiseParallel`, one by rows `RowwiseParallel`, and `parallelize_module`
# replaces the weights and adds hooks that convert inputs and outputs. The course's transformer
# needs no change for it.


# %% dtensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

ENTERING = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
LEAVING = ("attention.output", "mlp.down")


def first_plan():
    """The cuts of a layer's seven products."""
    cuts = dict.fromkeys(ENTERING, ColwiseParallel())
    return cuts | dict.fromkeys(LEAVING, RowwiseParallel())


# %% one_layer
LAYER = dataclasses.replace(shape("small"), num_layers=3)  # of which the middle one runs
NUM_TOKENS = 256


def one_layer(sizes, plan, dtype=torch.float32):
    """A stage of one layer, of which the ranks share the products by this plan."""
    torch.set_num_threads(1)
    torch.set_default_dtype(dtype)
    stage = Transformer(sizes, layers=range(1, 2))
    torch.set_default_dtype(torch.float32)
    if dist.get_world_size() > 1:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
        parallelize_module(stage.layers["1"], mesh, plan())
    return stage


# %% layer_pass
def layer_pass(plan, is_cut_by_tokens=False):
    """The layer's outputs, and the whole gradients of its weights."""
    stage = one_layer(LAYER, plan)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(1, NUM_TOKENS, LAYER.width, generator=generator)
    rows = (mine(rows, dim=1) if is_cut_by_tokens else rows).requires_grad_()
    with ws.span("forward", kind="forward"):
        outputs = stage(rows)
    with ws.span("backward", kind="backward"):
        outputs.square().sum().backward()
    dist.barrier()
    gradients = {path: whole(weight.grad) for path, weight in stage.named_parameters()}
    return outputs.detach(), gradients


def whole(tensor):
    """The tensor with the parts of all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


# %% calls
def calls(counted_run):
    """The collectives of rank 0 in forward and in backward: how many of each, and bytes sent."""
    seen = counted_run.timeline.of(0)
    kinds, titles = [one_call.kind for one_call in seen], [one_call.name for one_call in seen]
    start, turn = kinds.index("forward"), kinds.index("backward")
    end = titles.index("barrier", turn) if "barrier" in titles else len(seen)
    summary = {}
    for direction, both in (("forward", seen[start:turn]), ("backward", seen[turn:end])):
        sent_by = [one_call for one_call in both if one_call.kind == "communication"]
        counts = Counter(one_call.name for one_call in sent_by)
        text = ", ".join(f"{count} {title}" for title, count in counts.items())
        summary[direction] = text or "none"
        summary[f"{direction} sent_bytes"] = sum(one_call.sent_bytes for one_call in sent_by)
    return summary


def error_of(tried, reference):
    """The largest difference of a gradient, over the largest gradient of its weight."""
    tried, reference = tried.values[0][1], reference.values[0][1]
    assert tried.keys() == reference.keys()
    differences = {path: (tried[path] - reference[path]).abs().max() for path in reference}
    return max((differences[path] / reference[path].abs().max()).item() for path in reference)


# %% first_plan_run
alone = ws.run(layer_pass, first_plan, world_size=1, cluster=cluster, echo=False)
layers = {"first plan": ws.run(layer_pass, first_plan, **EMULATED)}
counted = calls(layers["first plan"])
print(f"largest error of a gradient: {error_of(layers['first plan'], alone):.0e}")
print(f"forward: {counted['forward']}; backward: {counted['backward']}")
assert error_of(layers["first plan"], alone) < 1e-5

# %% [markdown]
# The gradients are right, and forward has its two all-reduces. Backward has five, whereas the
# formula above and Megatron's paper have two.
#
# ### Find the bug: three all-reduces too many
#
# 10 minutes · medium
#
# Each of the five all-reduces is as large as each of the two that there should be. Find out where
# they come from, and write a plan that has two.
# `PrepareModuleInput(input_layouts=..., desired_input_layouts=...)` can be applied to any module:
# it turns the module's inputs into DTensors with the first placement and converts them to the
# second; both are tuples with a placement for each input.
#
# <details><summary>Hint</summary>
#
# f sums the gradients of the rows over the ranks. Query, key and value each have their own f here.
# What changes if the rows become a DTensor only once, where they enter `attention`? DTensor adds
# `Partial` gradients of one tensor before it reduces them.
#
# </details>


# %% lean_plan tags=["turn"]
def lean_plan():
    """A plan for the layer with two all-reduces in forward and two in backward."""
    ### BEGIN SOLUTION
    once = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    return first_plan() | {"attention": once, "mlp": once}
    ### INSTEAD
    # return first_plan()
    ### END SOLUTION


# %% check_lean_plan
with check.turn("lean_plan"):
    tried = ws.run(layer_pass, lean_plan, **EMULATED)
    counted = calls(tried)
    if error_of(tried, alone) > 1e-5:
        raise CheckFailed("the gradients of one process", f"an error of {error_of(tried, alone)}")
    if counted["backward"] != "2 all_reduce" or counted["forward"] != "2 all_reduce":
        raise CheckFailed(
            "2 all_reduce in forward and 2 in backward",
            f"forward {counted['forward']}, backward {counted['backward']}",
            "Count who takes the rows: query, key and value, then gate and up.",
            picture=lambda: draw.timeline(tried.timeline, title="Your plan, emulated"),
        )
    print("Right: the gradients of query, key and value are added first, and reduced once.")

# %% [markdown]
# Fused projections, with one weight for query, key and value as in Megatron-LM, have only one f by
# construction. Nothing warns you of the slower plan: its gradients are right. Only the
# communication shows it. From here on we use these plans:


# %% plans
def tensor_plan(edge=Replicate):
    """The cuts of a layer between whose halves the rows have the placement `edge()`."""
    enter = {"input_layouts": (edge(),), "desired_input_layouts": (Replicate(),)}
    cuts = dict.fromkeys(ENTERING, ColwiseParallel())
    cuts |= dict.fromkeys(LEAVING, RowwiseParallel(output_layouts=edge()))
    return cuts | {half: PrepareModuleInput(**enter) for half in ("attention", "mlp")}


layers["tensor"] = ws.run(layer_pass, tensor_plan, **EMULATED)

# %% [markdown]
# ### The embedding and the loss are split by vocabulary
#
# Llama 3's vocabulary has 128,256 tokens. In the 8B model, embedding and LM head have nearly as
# many weights as five layers. Split both along the vocabulary:
#
# - **Embedding**: a rank looks up the tokens whose rows it has and uses zeros for the others. The
#   all-reduce that follows adds one row to N - 1 rows of zeros.
# - **LM head**: it is split by columns. Each rank has the logits of its part of the vocabulary.
# - **Loss**: it does not need all logits on one rank. For each token
#
# $$\text{loss} = \log \sum_v e^{z_v - m} + m - z_\text{target}, \qquad m = \max_v z_v$$
#
# so a rank can compute its own maximum, its own sum of exponentials and, if the target is in its
# part, $z_\text{target}$. **Three all-reduces of one number per token** replace an all-gather of
# 128,256 numbers per token. This is what the paper means by communicating losses instead of logits
# (Megatron-LM, section 3). The gradient of a logit, $p_v$ minus 1 at the target, needs no further
# communication.
#
# torch's name for it is `loss_parallel`. The next cell runs the LM head of Llama 3 8B on paper,
# with one sequence of 8,192 tokens, forward and backward, on one H100 and on eight:

# %% head_pass
import contextlib

LLAMA = shape("llama-3-8b")


def head_pass(how):
    """Embed a sequence, and take its loss in float32, without any layer between."""
    torch.set_default_dtype(torch.bfloat16)
    model = Transformer(dataclasses.replace(LLAMA, num_layers=1))
    torch.set_default_dtype(torch.float32)
    model.layers.clear()
    if how != "one GPU":
        outcome = Shard(-1) if how == "loss cut, too" else Replicate()
        cuts = {"embedding": RowwiseParallel(input_layouts=Replicate())}
        keeps_cut = {"output_layouts": outcome, "use_local_output": how != "loss cut, too"}
        cuts["head"] = ColwiseParallel(**keeps_cut)
        parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), cuts)
    tokens = torch.zeros(1, LLAMA.context_length, dtype=torch.long)
    loss_is_cut = how == "loss cut, too"
    with loss_parallel() if loss_is_cut else contextlib.nullcontext():
        with ws.span("forward", kind="forward"):
            logits = model(tokens).flatten(0, 1).float()
            loss = F.cross_entropy(logits, tokens.flatten())
        with ws.span("backward", kind="backward"):
            loss.backward()


# %% head_on_paper
BESIDES, table = ("activations", "communication", "temporaries"), []
for how, num_gpus in (("one GPU", 1), ("logits gathered", 8), ("loss cut, too", 8)):
    run = ws.paper(head_pass, how, world_size=num_gpus, cluster="dgx-h100", echo=False)
    row = {"head": how, "GPUs": num_gpus} | calls(run)
    del row["forward sent_bytes"], row["backward sent_bytes"]
    use = run.memory[0].sizes
    row["most besides weights_bytes"] = max(map(sum, zip(*map(use.get, BESIDES), strict=True)))
    table.append({**row, "step_s": run.step_s})
draw.table(table, title="Embedding, head and loss of Llama 3 8B, 8,192 tokens, on paper")

# %% [markdown]
# Gathering the logits undoes what the split had saved: every rank holds as much as a single GPU
# did. With the loss split as well, a rank holds a sixth, and takes a fifth of the time. The three
# additional all-reduces are 32 KiB each.
#
# ### Sequence parallelism splits the norms and the residual stream
#
# Between the pairs are the norms and the residual stream. Every rank computes them for all tokens,
# the same work N times, and keeps their inputs for backward. For GPT's layer with dropout and t
# ranks, Korthikanti et al. 2022 (*Reducing activation recomputation*, equation 2) count
#
# $$sbh\left(10 + \frac{24}{t} + \frac{5as}{ht}\right) \text{ bytes}$$
#
# The 10 does not shrink. But a norm treats each *token* alone, so it can be split along the
# sequence, and an all-reduce is a reduce-scatter and an all-gather (week 2):
#
# ```text
#  tensor     norm, all tokens ─ f ─► pair ─ all-reduce ─► + ─► norm, all tokens ─ f ─► ...
#  sequence   norm, 1/N ─ all-gather ─► pair ─ reduce-scatter ─► + ─► norm, 1/N ─ all-gather ─► ...
# ```

# %% [markdown]
# ### Your turn: what replaces the all-reduces
#
# 10 minutes · medium
#
# With replicated norms a layer has two all-reduces of S bytes in forward, the g of attention and of
# the MLP, and two in backward, their f. Write what a layer with sequence parallelism has instead:
# for each direction its collectives in the order in which they run, with the bytes that a rank
# sends for each in a ring, such as `("all_reduce", 2 * size_bytes * (num_ranks - 1) / num_ranks)`.
#
# <details><summary>Hint</summary>
#
# For forward, follow the lower line of the picture. For backward, follow it from its end: rows that
# were gathered went to N ranks, so their gradients are added, and each rank keeps its part; the
# gradient of a reduce-scatter's result is split over the ranks. And an all-reduce has two halves:
# how many bytes does each of them send?
#
# </details>


# %% with_cut_norms tags=["turn"]
def with_cut_norms(size_bytes, num_ranks):
    """A layer's collectives by direction: lists of (name, bytes that a rank sends), in order."""
    ### BEGIN SOLUTION
    half_bytes = size_bytes * (num_ranks - 1) / num_ranks
    both_halves = [("all_gather", half_bytes), ("reduce_scatter", half_bytes)]
    return {"forward": 2 * both_halves, "backward": 2 * both_halves}
    ### END SOLUTION


# %% check_with_cut_norms
PLACES = {
    "forward": "before each pair all tokens on every rank, after it the sum, cut by tokens",
    "backward": "for each pair, from its end: all tokens' gradient, then a sum, cut by tokens",
}
with check.turn("with_cut_norms"):
    listed = with_cut_norms(4 * NUM_TOKENS * LAYER.width, NUM_RANKS)
    for way, place in PLACES.items():
        names = [name for name, _ in listed[way]]
        if "all_reduce" in names:
            hint = "It leaves all tokens on every rank. The norms want an N-th of them."
            raise CheckFailed(f"no all_reduce in {way}", ", ".join(names), hint)
        if names != ["all_gather", "reduce_scatter"] * 2:
            hint = "Two pairs, attention and MLP, with a collective at either end."
            raise CheckFailed(f"in {way} {place}", ", ".join(names) or "nothing", hint)
        for name, sent_bytes in listed[way]:
            check.expect_close(
                float(sent_bytes),
                calls(layers["tensor"])[f"{way} sent_bytes"] / 4,
                f"the bytes of each {name} in {way}",
                hint=f"Two all-reduces sent that much four times over, on {NUM_RANKS} ranks.",
            )
    print("Right: eight collectives in place of four, which send as many bytes in all.")

# %% [markdown]
# So f becomes an all-gather in forward and a reduce-scatter in backward, g the reverse. The bytes
# sent are the same, and the 10 is divided by t: $sbh(34/t + 5as/(ht))$. (That is sequence
# parallelism as Korthikanti et al. define it. Li et al. 2021 gave the same name to splitting
# attention as well, which is now called context parallelism and described below.)


# %% sequence_plan
def sequence_plan():
    """The tensor plan with norms and rows between the halves cut along the sequence."""
    norms = dict.fromkeys(("attention_norm", "mlp_norm"), SequenceParallel())
    return tensor_plan(lambda: Shard(1)) | norms


def held_in(plan, num_ranks, *args):
    """Bytes that rank 0 keeps from forward to backward, in bfloat16."""
    where = EMULATED | {"world_size": num_ranks}
    return ws.run(kept, plan, *args, memory=True, **where).values[0]


def kept(plan, is_cut_by_tokens=False):
    """What a layer keeps for its backward pass, its input included, by the memory meter."""
    stage = one_layer(LAYER, plan, torch.bfloat16)
    num_rows = NUM_TOKENS // (dist.get_world_size() if is_cut_by_tokens else 1)
    rows = torch.zeros(1, num_rows, LAYER.width, dtype=torch.bfloat16, requires_grad=True)
    outputs = stage(rows)
    held = memory.held()
    return held["activations"] + held["communication"] + held["temporaries"] - outputs.nbytes


# %% sequence_run
layers["sequence"] = ws.run(layer_pass, sequence_plan, True, **EMULATED)
held_by = {"one rank": held_in(first_plan, 1), "tensor": held_in(tensor_plan, NUM_RANKS)}
held_by["sequence"] = held_in(sequence_plan, NUM_RANKS, True)
table = [{"a layer on": "one rank", "gradients off by": None, "held_bytes": held_by["one rank"]}]
for name in ("tensor", "sequence"):
    error = error_of(layers[name], alone)
    assert error < 1e-5
    row = {"a layer on": f"{NUM_RANKS} ranks, {name}", "gradients off by": error}
    table.append({**row, **calls(layers[name]), "held_bytes": held_by[name]})
ratio = sum(
    table[2][f"{way} sent_bytes"] / 2 / table[1]["forward sent_bytes"]
    for way in ("forward", "backward")
)
predictions.reveal("bytes with norms cut over without", ratio)
draw.table(table, title=f"A layer of the small transformer, {NUM_TOKENS} tokens, emulated")

# %% [markdown]
# With rings the bytes are exactly equal, and each rank holds less. Counted on the course's layer
# (`Shape.layer_activation_bytes`), with width d, K elements each of keys and of values, H heads and
# hidden width F, a layer keeps for each token
#
# ```text
# replicated with tensor parallelism   2d + 2d + 2d + 2d + 8         inputs, outputs of both norms
# split by tensor parallelism          (2d + 4K + 2d + 4H + 8F) / N  heads and hidden columns
# ```
#
# Sequence parallelism divides the first line by N as well. torch's DTensor divides only half of it:
# it keeps the input of each pair's matmul, which is the *gathered* output of the norm. Megatron-LM
# keeps only its slice and gathers again in backward (Korthikanti et al. 2022, section 4.2.2),
# overlapped with compute.


# %% held_formula
HOW = ("tensor", "sequence, torch", "sequence, Megatron")


def held_parts(sizes, num_tokens, num_ranks, how):
    """Bytes by part that a layer keeps for backward on each rank, with norms whole or cut."""
    split = 4 * sizes.width + 4 * sizes.kv_width + 4 * sizes.num_heads + 8 * sizes.hidden_width
    return {
        "inputs of norms": num_tokens * (4 * sizes.width + 8) / (1 if how == HOW[0] else num_ranks),
        "outputs of norms": num_tokens * 4 * sizes.width / (num_ranks if how == HOW[2] else 1),
        "heads and hidden columns": num_tokens * split / num_ranks,
        "rotation": 4 * num_tokens * sizes.head_dim,  # its cosines and sines, on every rank
    }


bars = {"1 GPU": held_parts(LLAMA, LLAMA.context_length, 1, "tensor")}
bars |= {f"8: {how}": held_parts(LLAMA, LLAMA.context_length, 8, how) for how in HOW}
for name, bar in bars.items():
    print(f"{name:<21} {sum(bar.values()) / 1e6:5.0f} MB")
kept_bytes = {how: sum(held_parts(LAYER, NUM_TOKENS, NUM_RANKS, how).values()) for how in HOW}
for how, found in ((HOW[0], held_by["tensor"]), (HOW[1], held_by["sequence"])):
    error = kept_bytes[how] / found - 1
    print(f"small layer, {how}: {found:,} bytes held, formula off by {abs(error):.1%}")
draw.memory(bars, title="What a layer of Llama 3 8B keeps of 8,192 tokens, computed")

# %% [markdown]
# For a layer of Llama 3 8B and one sequence of 8,192 tokens that is 1,381 MB on one GPU, 411 on
# each of eight with tensor parallelism, 294 with torch's sequence parallelism, and 176 with
# everything but the 4 MB of RoPE tables divided by eight. The formula agrees with the emulated
# layer to 0.1%.
#
# ### Sequence parallelism shortens a layer on paper
#
# The picture shows a layer of Llama 3 8B on eight H100s, on paper, forward and backward: the same
# matmuls with four all-reduces, and with four all-gathers and four reduce-scatters. Nothing is
# hidden here, because each matmul needs the result of the collective before it. In backward the
# gradient of the first weight does not depend on f's sum, and Megatron-LM computes it meanwhile;
# this plan does not. **Asynchronous tensor parallelism** hides communication in forward, too: it
# splits a matmul and its collective into chunks and sends one while it multiplies the next.
# PyTorch reports up to 29% shorter forward passes and steps 8% shorter for a Llama 3 of 7 billion
# parameters (discuss.pytorch.org, topic 209487, September 2024); Megatron-LM's flag for it is
# `--tp-comm-overlap`.


# %% llama_layer
from worldsize.timeline import Timeline

PLANS = {"tensor": tensor_plan, "sequence": sequence_plan}


def passes_through(sizes, how, num_layers, num_sequences, length, has_backward=True):
    """Take layers of this shape forward and backward, in bfloat16, shared by all ranks."""
    plan, num_ranks = PLANS[how], dist.get_world_size()
    torch.set_default_dtype(torch.bfloat16)
    sizes = dataclasses.replace(sizes, num_layers=num_layers + 2)
    stage = Transformer(sizes, layers=range(1, num_layers + 1))
    torch.set_default_dtype(torch.float32)
    for layer in stage.layers.values() if num_ranks > 1 else ():
        parallelize_module(layer, init_device_mesh("cpu", (num_ranks,)), plan())
    length = length // num_ranks if how == "sequence" else length
    rows = torch.zeros(num_sequences, length, sizes.width, dtype=torch.bfloat16)
    with ws.span("forward", kind="forward"):
        outputs = stage(rows.requires_grad_())
    if has_backward:
        with ws.span("backward", kind="backward"):
            outputs.sum().backward()


# %% of_passes
def of_passes(run):
    """The timeline from the first forward operation on."""
    start_s = min(event.start_s for event in run.timeline.of(0) if event.name == "forward")
    return Timeline.of_events(event for event in run.timeline.of(0) if event.start_s >= start_s)


# %% both_drawn
ONE_LAYER = {"sizes": LLAMA, "num_layers": 1, "num_sequences": 1, "length": 8192}


def on_paper(num_gpus, how="tensor", has_backward=True, layers=ONE_LAYER):
    """A run on paper of layers that so many GPUs share."""
    given = (layers["sizes"], how, layers["num_layers"], layers["num_sequences"], layers["length"])
    where = {"world_size": num_gpus, "cluster": "dgx-h100", "echo": False}
    return ws.paper(passes_through, *given, has_backward, **where)


llama = {num: on_paper(num) for num in (1, 2, 4, 8)}
by_sequence = on_paper(8, "sequence")
timelines = {"tensor": of_passes(llama[8]), "and sequence": of_passes(by_sequence)}
draw.timelines(timelines, title="A layer of Llama 3 8B, 8 H100, 8,192 tokens, on paper")

# %% [markdown]
# The two halves take longer than one all-reduce here: in an all-reduce the switches of an H100 node
# do the adding (NVLS), which saves bytes. Still the layer takes less time, because each rank
# computes the norms of only an eighth of the tokens. How much shorter depends on the norm: this one
# is several passes over memory, and a fused kernel is one. Korthikanti et al. (section 6.2)
# measured both effects: the halves ran slower, and forward through a layer of their model of 22
# billion parameters took 7.2 ms instead of 7.7.

# %% [markdown]
# ## 5. Compare with the production oracle
#
# You have used DTensor since section 4. Here it runs the same MLP as the hand-written pair, on real
# ranks of this machine.


# %% by_dtensor
def by_dtensor():
    """Outputs and the gradient of the rows, from torch's cuts of the same MLP."""
    torch.set_num_threads(1)
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    rows, first, second = (tensor.to(device) for tensor in example())
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, HIDDEN, bias=False),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, WIDTH, bias=False),
    ).to(device)
    with torch.no_grad():
        model[0].weight.copy_(first.T)
        model[2].weight.copy_(second.T)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    outputs = model(rows.requires_grad_())
    (outputs.square().sum() / 2).backward()
    return outputs.detach().cpu(), rows.grad.cpu()


torchs = ws.run(by_dtensor, world_size=world_size, backend=backend, echo=False).values
for name, place, ours in (("outputs", 0, values[0][0]), ("rows' gradient", 1, values[0][3])):
    print(f"{name:<16} differ from DTensor's by {(torchs[0][place] - ours).abs().max():.0e}")
    check.expect_close(ours, torchs[0][place], name)

# %% [markdown]
# ### Megatron-core's and FairScale's layers
#
# Megatron-LM's own layers are now in `megatron.core`; FairScale's are derived from them, and the
# published code of Llama uses FairScale's (`llama/model.py`). In both, `gather_output=False` and
# `input_is_parallel=True` make the pair keep its hidden columns on their ranks.


# %% by_their_layers
import warnings


def by_their_layers(package):
    """The pair's outputs and the gradient of the rows, by Megatron-core's or FairScale's layers."""
    if package == "FairScale":
        import fairscale.nn.model_parallel as groups
        from fairscale.nn.model_parallel.layers import ColumnParallelLinear, RowParallelLinear

        given, of_rows = {"bias": False}, {}
    else:
        warnings.simplefilter("ignore")  # it says which of its fast kernels are absent
        from megatron.core import ModelParallelConfig
        from megatron.core import parallel_state as groups
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

        config = ModelParallelConfig(dist.get_world_size(), use_cpu_initialization=True)
        given = {"config": config, "init_method": torch.nn.init.zeros_, "bias": False}
        of_rows = {"skip_bias_add": False}
    groups.initialize_model_parallel(dist.get_world_size())
    by_columns = ColumnParallelLinear(WIDTH, HIDDEN, gather_output=False, **given)
    by_rows = RowParallelLinear(HIDDEN, WIDTH, input_is_parallel=True, **of_rows, **given)
    return outputs_of(by_columns, by_rows)


# %% outputs_of
def outputs_of(by_columns, by_rows):
    """What two layers of such a package make of the example."""
    rows, first, second = example()
    with torch.no_grad():
        by_columns.weight.copy_(mine(first, dim=1).T)
        by_rows.weight.copy_(mine(second, dim=0).T)
    outputs = rows.requires_grad_().unsqueeze(1)  # Megatron-core wants (length, sequences, width)
    for layer in (by_columns, torch.relu, by_rows):
        outputs = layer(outputs)
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs  # beside a bias, if any
    (outputs.square().sum() / 2).backward()
    return outputs.detach().squeeze(1), rows.grad


# %% beside_their_layers
import functools

from worldsize.course import optional


def apart(package):
    """How far a package's outputs and gradient of the rows are from those of our pair."""
    theirs = ws.run(by_their_layers, package, **REAL, timeout_s=120).values[0]
    ours = values[0][0], values[0][3]
    return [(one - other).abs().max().item() for one, other in zip(ours, theirs, strict=True)]


for package in ("Megatron-core", "FairScale"):
    outputs, gradient = optional.result("week08", package, functools.partial(apart, package))
    print(f"{package}: outputs differ by {outputs:.0e}, the rows' gradient by {gradient:.0e}")

# %% [markdown]
# ## 6. Formula, measurement, emulation, paper
#
# ### Does tensor parallelism cost 6%?
#
# Take an example with 12 layers, width 512, 8 sequences of 512 tokens, two GPUs, a link of 32 GB/s,
# and a forward pass of 50 ms.

# %% milestone
SMALL = dataclasses.replace(shape("small"), width=512, num_heads=8, num_kv_heads=8)
SMALL = dataclasses.replace(SMALL, hidden_width=1408, num_layers=12)  # nearly GPT's 12 d² a layer
call_bytes = 8 * 512 * 512 * 2
forward_bytes = 2 * 12 * call_bytes  # on two ranks a ring sends 2 (2 - 1)/2 = 1 times the tensor
flops = 8 * 512 * 12 * SMALL.layer_flops(512)
print(f"{2 * 12} all-reduces of {call_bytes / 2**20:g} MiB: {forward_bytes / 2**20:g} MiB")
print(
    f"at 32 GB/s {forward_bytes / 32e9 * 1e3:.2f} ms, {forward_bytes / 32e9 / 50e-3:.1%} of 50 ms"
)
print(f"{flops / 1e12:.2f} TFLOP in 50 ms are {flops / 50e-3 / 1e12:.1f} TFLOP/s")
predictions.reveal("sent in forward, 12 layers of 512", forward_bytes / 2**20)

# %% [markdown]
# The arithmetic is right, but the last line shows what is wrong with the example: **a forward pass
# of 50 ms means 7 TFLOP/s**, 3% of what an A100 reaches. Run the same layers on paper, on one GPU
# and on two:


# %% pass_s
def pass_s(run):
    """Seconds of the recorded passes."""
    return of_passes(run).end_s - of_passes(run).of(0)[0].start_s


def communication_s(run):
    """Seconds of the collectives in them."""
    return of_passes(run).time_s(0, "communication")


def num_calls(run):
    """The number of collectives in them."""
    return sum(event.kind == "communication" for event in of_passes(run).of(0))


# %% milestone_on_paper
MILESTONE = {"sizes": SMALL, "num_layers": 12, "num_sequences": 8, "length": 512}
forwards = {num: on_paper(num, "tensor", False, MILESTONE) for num in (1, 2)}
table, shares = [], {}
for place in ("pcie-box", "dgx-a100", "dgx-h100"):
    one, two = (forwards[num].on(place) for num in (1, 2))
    shares[place] = 100 * communication_s(two) / pass_s(two)
    rate = operators.flops_per_s("matmul", "bfloat16", hardware.cluster(place).gpu)
    row = {"cluster": place, "products, one GPU_s": flops / rate, "one GPU_s": pass_s(one)}
    row |= {"two GPUs_s": pass_s(two), "calls": num_calls(two)}
    row["all-reduces_s"] = communication_s(two)
    table.append({**row, "share": f"{shares[place]:.0f}%"})
predictions.reveal("communication in that forward, 2 A100", shares["dgx-a100"])
draw.table(table, title="Forward through 12 layers of width 512, 4,096 tokens, on paper")

# %% [markdown]
# An A100 needs 1.4 ms for the matmuls and 5.2 ms for everything, not 50. So "6%" is not what tensor
# parallelism costs such a model. On two A100s with NVLink a quarter of the forward pass is
# communication, and **two GPUs take as long as one**; over PCIe, where it is more than half, they
# take longer. The split saves half of the matmuls, 0.7 ms, and about as much of what lies between
# them (attention, RoPE, the hidden columns). The all-reduces cost about 1.4 ms and use up both. A
# faster GPU does not help: an H100 has a faster link too, and nearly the same share of
# communication. (Each operation of our layer is a separate kernel here. With fused norms the rest
# shrinks, and the share of communication grows.)
#
# ### Communication grows linearly with the width, compute quadratically
#
# It is tempting to say that communication grows quadratically with the width and compute cubically.
# Count both. The tensor that is summed has B × d elements: **linear** in d. The matmuls take
# $24 B d^2$ FLOPs a layer: **quadratic**. The ratio of the two is the same either way, and so is
# the conclusion that wide layers suit tensor parallelism. But both powers are too high by one.

# %% widths
table = []
for wide in (512, 1024, 2048, 4096, 8192):
    call = pricing.price("all_reduce", 2 * 4096 * wide, range(2), hardware.cluster(cluster))
    gpu_flops_per_s = operators.flops_per_s("matmul", "bfloat16", hardware.cluster(cluster).gpu)
    product_flops = 24 * 4096 * wide**2
    product_s = product_flops / 2 / gpu_flops_per_s
    row = {"width": wide, "summed_bytes": 2 * 4096 * wide, "products_flops": product_flops}
    row |= {"2 all-reduces_s": 2 * call.time_s, "products on 2 GPUs_s": product_s}
    table.append({**row, "ratio": round(2 * call.time_s / product_s, 2)})
draw.table(table, title=f"Forward through a layer, 4,096 tokens, 2 GPUs of {cluster}, computed")

# %% [markdown]
# Bytes double and FLOPs quadruple from row to row. The ratio more than halves, because larger
# messages also use the link better.
#
# ### The batch cancels: the width decides how many ranks pay
#
# Take any layer with P weights. Forward computes 2PB FLOPs, each rank a part, on GPUs that reach R
# FLOP/s. It all-reduces B × d elements twice, over links on which each rank moves β bytes a second.
#
# $$\text{compute} = \frac{2PB}{NR} \qquad
# \text{communication} = 2 \cdot 2\frac{N-1}{N} \cdot \frac{2Bd}{\beta}$$
#
# **B cancels.** A larger batch does not help tensor parallelism: unlike data parallelism, it
# communicates for every token.

# %% [markdown]
# ### Your turn: the number of ranks at which communication takes half
#
# 5 minutes · medium
#
# Set compute equal to communication and solve for N.
#
# <details><summary>Hint</summary>
#
# Both sides are divided by N. The only N that remains is in the ring's N - 1.
#
# </details>


# %% even_ranks tags=["turn"]
def even_ranks(num_layer_weights, width, flops_per_s, bytes_per_s):
    """The number of ranks at which a layer communicates for as long as it computes."""
    ### BEGIN SOLUTION
    return 1 + num_layer_weights * bytes_per_s / (4 * width * flops_per_s)
    ### END SOLUTION


# %% check_even_ranks
with check.turn("even_ranks"):
    for case in ((12 * 512**2, 512, 250e12, 250e9), (2e8, 4096, 800e12, 400e9)):
        even = float(even_ranks(*case))
        check.expect_close(
            2 * case[0] / (even * case[2]),
            8 * (even - 1) / even * case[1] / case[3],
            f"the compute of a token on {even:.3g} ranks, beside its communication",
            hint="2 P / (N R) seconds of compute a token; 8 (N - 1)/N d / β of communication.",
        )
    print("Right: N - 1 = P β / (4 d R), and for GPT's P = 12 d², 3 d over R/β.")

# %% [markdown]
# Here is week 7's **R/β** again, the FLOPs that a GPU does while a byte moves:
# $N - 1 = 3d / (R/\beta)$ for a layer of $12d^2$ weights. There it was a number of tokens; here it
# is compared with a *width*. (For TPU v5p, *How to scale your model* finds $Y < F/2550$ for each
# axis of the TPU network, in its chapter on training: the same inequality for the MLP alone, with
# their R/β of 2,550. It gives tensor parallelism of 8 to 16 for large models.)


# %% links
def beta_of(num_ranks, where, size_bytes=2 * 8192 * 4096):
    """The bytes a second that a ring would move on each rank to be as fast."""
    time_s = pricing.price("all_reduce", size_bytes, range(num_ranks), where).time_s
    return 2 * (num_ranks - 1) / num_ranks * size_bytes / time_s


table = []
for place, num in (("pcie-box", 8), ("dgx-a100", 8), ("dgx-h100", 8), ("h100-ndr-x2", 16)):
    where = hardware.cluster(place)
    R = operators.flops_per_s("matmul", "bfloat16", where.gpu)
    ratio = R / beta_of(num, where)
    row = {"cluster": place, "ranks": num, "R/β": round(ratio)}
    for name in ("llama-3-8b", "llama-3-70b", "llama-3-405b"):
        large = shape(name)
        row[name] = round(1 + large.num_layer_weights / (4 * large.width * ratio), 1)
    table.append(row)
draw.table(table, title="Ranks at which a layer communicates as long as it multiplies, computed")

# %% [markdown]
# On eight H100s, at about eight ranks communication takes as long as the matmuls of Llama 3 8B.
# Wider models allow more ranks, and over PCIe the limit is two to four. A second node with a NIC
# for each GPU lowers β by an eighth; what hurts more is that 16 ranks halve each rank's matmuls
# again, but not its communication. SC21 (takeaway 1, section 3.2) gives the rule: tensor
# parallelism up to the GPUs of a node, other kinds of parallelism across nodes.
#
# ### Tensor parallelism speeds up narrow layers poorly
#
# The next cell runs the layer of section 4 on paper, forward and backward, shared by 1, 2, 4 and 8
# GPUs, with everything that a layer does in addition to its matmuls: norms, attention, RoPE.

# %% strong_scaling
times_s, by_place = {}, {"dgx-h100": "H100, NVLink", "dgx-a100": "A100, NVLink"}
for place, label in {**by_place, "pcie-box": "A100, PCIe"}.items():
    times_s[label] = {num: [pass_s(run.on(place))] for num, run in llama.items()}
one_s, eight_s = (times_s["H100, NVLink"][num][0] for num in (1, 8))
speed_up = one_s / eight_s
print(f"8 H100, norms cut along the sequence, too: {one_s / pass_s(by_sequence):.2f} times as fast")
predictions.reveal("speed-up of a Llama layer, 8 H100", speed_up)
draw.scaling(times_s, title="A layer of Llama 3 8B cut by tensor parallelism, on paper")

# %% published
V100_SPEED_UP = {1: 1.0, 2: 1.64, 4: 2.34, 8: 2.98}  # Megatron-LM, table 8: 1.2 billion parameters
table = []
for num, published in V100_SPEED_UP.items():
    row = {"GPUs": num, "published, V100": published, "efficiency": f"{published / num:.0%}"}
    for label, series in times_s.items():
        row[f"here, {label}"] = round(series[1][0] / series[num][0], 2)
    table.append(row)
draw.table(
    table, title="Speed-up at the same batch: published (Megatron-LM, table 8), and on paper"
)

# %% [markdown]
# The published model has 1.2 billion parameters and ran on V100s; ours are different layers on
# different GPUs, and their efficiency falls, too; over PCIe eight GPUs are slower than four. What
# is not split (norms, residuals) does not get faster, and communication is added. With sequence
# parallelism eight H100s are 4.6 times as fast; a fused norm would leave less of that difference.
# **Tensor parallelism is a way to make a model fit, and to share one batch among GPUs when it
# cannot be divided. As a way to go faster it is poor for narrow layers**; the table of ranks above
# has wider ones.
#
# ### Where does it stop paying?
#
# Choose a model, a link and a length. The explorer counts matmuls, attention and all-reduces,
# forward only. Above eight ranks the keys and values of Llama's eight heads are replicated; that is
# not included.


# %% where_it_pays
def where_it_pays(model="llama-3-8b", cluster="h100-ndr-x8", num_tokens=8192, most_ranks=64):
    """Speed-up of a layer by the number of ranks that share it, computed."""
    sizes, where = shape(model), hardware.cluster(cluster)
    flops_per_s = operators.flops_per_s("matmul", "bfloat16", where.gpu)
    length = min(num_tokens, sizes.context_length)
    series, num = {}, 1
    while num <= min(most_ranks, where.gpus_per_node * where.num_nodes, sizes.num_heads):
        layer_s = num_tokens * sizes.layer_flops(length) / num / flops_per_s
        size_bytes = 2 * num_tokens * sizes.width
        call_s = pricing.price("all_reduce", size_bytes, range(num), where).time_s if num > 1 else 0
        series[num], num = layer_s + 2 * call_s, 2 * num
    best = min(series, key=series.get)
    half = [one for one in series if series[1] / series[one] >= one / 2]
    times = {"computed": {one: [time_s] for one, time_s in series.items()}}
    picture = draw.scaling(times, title=f"A layer of {model} on {cluster}, forward, computed")
    ranks = "1 rank" if best == 1 else f"{best} ranks"
    return picture, f"Fastest on {ranks}; at least half of each GPU is used up to {max(half)}."


# %% explored
from worldsize.explore import explore

explore(
    where_it_pays,
    model=["small", "llama-3-8b", "llama-3-70b", "llama-3-405b"],
    cluster=["h100-ndr-x8", "a100-hdr-x8", "pcie-box", "a100-10gbe-x8"],
    num_tokens=(512, 32768, "x2"),
    most_ranks=(2, 64, "x2"),
)

# %% [markdown]
# Begin with Llama 3 8B on H100s: how much do 16 ranks gain over 8, and 32 over 16? Then change the
# number of tokens: from 8,192 to 32,768 hardly anything changes, because B cancels; with few tokens
# latency matters. Take 405B on `a100-10gbe-x8`: what happens from 8 ranks to 16? And is there any
# number of tokens at which `small` is faster on two GPUs?

# %% [markdown]
# ### Context parallelism splits the sequence, attention included
#
# A million tokens of one sequence do not fit on any GPU. Norms and MLPs treat each token alone, so
# N ranks can each take a part of the sequence through all of them. Attention is the exception: each
# query needs all keys and values. **Ring attention** (Liu et al. 2023) passes keys and values round
# a ring: while a rank attends to those that it has, the next ones arrive.
#
# Softmax over a part of the keys is not softmax over all. But a part's result and the logarithm of
# its sum of exponentials (log-sum-exp) are enough to combine two parts:
#
# $$\ell = \log(e^{\ell_1} + e^{\ell_2}), \qquad o = e^{\ell_1 - \ell} o_1 + e^{\ell_2 - \ell} o_2$$


# %% attend
def attend(query, key, value):
    """Attention to these keys and values alone, and ℓ for each query."""
    from torch import ops  # a module that cannot be carried to ranks

    return ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)


# %% ring_attention
def ring_attention(query, key, value):
    """Attention of this rank's queries to the keys and values of all ranks, without a mask."""
    N, rank = dist.get_world_size(), dist.get_rank()
    here = torch.stack((key, value))
    outputs, exponent = torch.zeros_like(query), torch.full(query.shape[:-1], -math.inf)
    for step in range(N):
        arriving, works = torch.empty_like(here), []
        if step < N - 1:
            send = dist.P2POp(dist.isend, here, (rank + 1) % N)
            receive = dist.P2POp(dist.irecv, arriving, (rank - 1) % N)
            works = dist.batch_isend_irecv([send, receive])
        with ws.span(f"attend {step}", kind="forward"):
            part, of_part = attend(query, *here)
            both = torch.logaddexp(exponent, of_part)
            outputs = outputs * (exponent - both).exp()[..., None]
            outputs, exponent = outputs + part * (of_part - both).exp()[..., None], both
        for work in works:
            work.wait()
        here = arriving
    return outputs


# %% ring_attention_run
def attend_in_a_ring(num_tokens, num_heads=4, head_dim=64):
    """The largest difference of this rank's outputs from attention in one process."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(3, 1, num_heads, num_tokens, head_dim, generator=generator)
    ours = ring_attention(*mine(whole, dim=3))
    return (ours - mine(F.scaled_dot_product_attention(*whole), dim=2)).abs().max()


rung = ws.run(attend_in_a_ring, 1024, **EMULATED)
print(f"differs from attention in one process by at most {max(rung.values):.0e}")
events = [event for each in range(NUM_RANKS) for event in rung.timeline.of(each)]
end_s = max(event.end_s for event in events if event.kind == "forward")  # comparing comes after it
of_ring = Timeline.of_events(event for event in events if event.end_s <= end_s)
draw.timeline(of_ring, title=f"Ring attention, 1,024 tokens, emulated on {cluster}")

# %% [markdown]
# Each message travels while the rank attends to the keys and values that it already has. For c
# queries, c keys and width d, a step does 4cd·c FLOPs and moves 4cd bytes of keys and values. So
# the message is hidden if there are
#
# $$c \ge R/\beta \text{ tokens on each rank}$$
#
# (without a mask: a causal one halves the FLOPs, and doubles c). The threshold is R/β again, this
# time as a number of tokens of **one sequence**. Liu et al. (section 3.1 and table 2) write it as
# F/B. GQA sends fewer keys and values, and needs fewer tokens in the same proportion. (torch's own
# `context_parallel` does not run on CPUs in version 2.13, so one process is the reference here.)

# %% ring_thresholds
table = []
for name, rate, link, published in (
    ("A100, NVLink", 312e12, 300e9, "1.0k"),
    ("A100, InfiniBand", 312e12, 12.5e9, "24.5k"),
):
    row = {"between": name, "R_flops_per_s": rate, "β_bytes_per_s": link}
    row |= {"tokens a rank": round(rate / link), "Liu et al., table 2": published}
    grouped = rate / link * LLAMA.num_kv_heads / LLAMA.num_heads
    table.append({**row, "with Llama 3 8B's grouped heads": round(grouped)})
draw.table(table, title="Tokens on each rank that hide ring attention's messages, computed")

# %% [markdown]
# ### Your turn: a causal mask, in equal parts
#
# 5 minutes · medium
#
# With a causal mask, a query attends only to the tokens up to its own: the rank with the last part
# of the sequence has the most work, and the rank with the first part the least. Llama 3 (section
# 3.3.2) splits the sequence into **2N** chunks and gives each rank two. Which two, so that all
# ranks have the same work?
#
# <details><summary>Hint</summary>
#
# The first chunk has the least work and the last one the most. Pair them.
#
# </details>


# %% chunks_of tags=["turn"]
def chunks_of(rank, num_ranks):
    """The two chunks, of 2 `num_ranks`, that a rank takes, counted from 0."""
    ### BEGIN SOLUTION
    return rank, 2 * num_ranks - 1 - rank
    ### END SOLUTION


# %% check_chunks_of
with check.turn("chunks_of"):
    for ranks in (2, 4, 8):
        taken = [tuple(chunks_of(which, ranks)) for which in range(ranks)]
        if sorted(chunk for both in taken for chunk in both) != list(range(2 * ranks)):
            raise CheckFailed(f"each of the chunks 0 to {2 * ranks - 1} once", f"{taken}")
        work = [sum(chunk + 0.5 for chunk in both) for both in taken]  # half of its own square
        if max(work) > min(work):
            raise CheckFailed(
                f"the same work for all {ranks} ranks",
                f"between {min(work):g} and {max(work):g} squares of a chunk, from {taken}",
                "A chunk attends to all chunks before it and to half of itself.",
            )
    plain = [chunk + 0.5 for chunk in range(2 * 8)]
    most = sum(plain[-2:]) / sum(plain[:2])
    print(f"Right. In plain order, the last of 8 ranks would do {most:g} times the first's.")

# %% [markdown]
# Llama 3 does not send keys and values round in a ring, but gathers them before it attends: with
# GQA they are small.
#
# ### Expert parallelism: the width of an expert decides
#
# A **mixture of experts** has many MLPs, of which a router chooses a few for each token. With
# *expert parallelism* each rank has some of the experts; an **all-to-all** carries every token to
# its expert, and a second one carries the result back.


# %% experts
def mixture(num_tokens, width, hidden, dtype=torch.float32):
    """How far each token's result, from its expert on some rank, is off that of one process."""
    torch.set_num_threads(1)
    N, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(seed + rank)
    rows = torch.randn(num_tokens, width, generator=generator).to(dtype)
    chosen = torch.randint(0, N, (num_tokens,), generator=generator)  # in place of a router
    into, out_of = torch.ones(width, hidden, dtype=dtype), torch.ones(hidden, width, dtype=dtype)
    order, counts = chosen.argsort(stable=True), torch.bincount(chosen, minlength=N)
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts)
    even = [num_tokens // N] * N
    sent, taken = (ws.declared(one, on_paper=even) for one in (counts, coming))
    arrived, back = rows.new_empty(sum(taken), width), torch.empty_like(rows)
    with ws.span("to experts", kind="forward"):
        dist.all_to_all_single(arrived, rows[order], taken, sent)
        done = (arrived @ into).relu() @ out_of * (rank + 1)  # each rank's expert is its own
        dist.all_to_all_single(back, done, sent, taken)
    outputs = torch.empty_like(rows)
    outputs[order] = back
    return (outputs - (rows @ into).relu() @ out_of * (chosen[:, None] + 1)).abs().max()


# %% experts_run
routed = ws.run(mixture, 64, 16, 32, **EMULATED)
print(f"differs from one process by at most {max(routed.values):.0e}, emulated")
table = []
for place, num in (("dgx-h100", 8), ("h100-ndr-x8", 64)):
    for expert_width in (2048, 14336):
        given = (8192, 4096, expert_width, torch.bfloat16)
        run = ws.paper(mixture, *given, world_size=num, cluster=place, echo=False)
        moved_s = sum(e.duration_s for e in run.timeline.of(0) if e.size_bytes > 1e6)
        where = hardware.cluster(place)
        rate = operators.flops_per_s("matmul", "bfloat16", where.gpu)
        row = {"ranks": num, "cluster": place, "hidden width F": expert_width, "moved_s": moved_s}
        beta = 2 * 2 * 8192 * 4096 * (num - 1) / num / moved_s
        row |= {"products_s": 4 * 8192 * 4096 * expert_width / rate, "R/β": round(rate / beta)}
        table.append(row)
draw.table(table, title="8,192 tokens a rank, one expert each, width 4,096, on paper")

# %% [markdown]
# For each token the matmuls take 4dF FLOPs, and 4d bytes are sent, to the expert and back. So
# compute and communication take equally long when **F = R/β**: only the width of an expert matters,
# not the number of tokens or ranks. On either cluster the rule predicts both rows: on eight GPUs
# only the wider expert is above R/β and computes for longer than it communicates; on 64 neither is.
#
# An expert with three matrices (SwiGLU) computes 6dF, so there it is F = 2R/(3β). DeepSeek-V3's are
# of this kind, and it sends tokens to them in 8 bits. It spreads its experts over eight nodes,
# sends each token to at most four of these, and says that compute and communication take about
# equally long before it overlaps them (section 3.2).

# %% [markdown]
# ### Formula, emulation and paper compared

# %% formula_beside_run
llama_bytes = 4 * 2 * 7 / 8 * 2 * 8192 * LLAMA.width
recorded = [run.on("dgx-a100") for run in (forwards[2], llama[8])]
sent_by_paper = [of_passes(run).bytes_sent(0) for run in recorded]
layer_bytes = 4 * 2 * (NUM_RANKS - 1) / NUM_RANKS * 4 * NUM_TOKENS * LAYER.width  # float32
table = []
for what, by, formula, found in (
    ("pair, bytes sent", "emulated", 4 * PASS_BYTES, paired.timeline.bytes_sent(0)),
    *(
        (f"layer, {name}, bytes sent", "emulated", layer_bytes, sum_of)
        for name, sum_of in (
            (one, sum(calls(layers[one])[f"{way} sent_bytes"] for way in ("forward", "backward")))
            for one in ("tensor", "sequence")
        )
    ),
    ("layer, tensor, bytes held", "emulated", kept_bytes[HOW[0]], held_by["tensor"]),
    ("layer, sequence, bytes held", "emulated", kept_bytes[HOW[1]], held_by["sequence"]),
    ("milestone, bytes sent", "on paper", forward_bytes, sent_by_paper[0]),
    ("layer of Llama 3 8B, 8 A100, bytes sent", "on paper", llama_bytes, sent_by_paper[1]),
):
    row = {"figure": what, "found": by, "formula_bytes": formula, "run_bytes": found}
    table.append({**row, "error": f"{abs(formula / found - 1):.2%}"})
draw.table(table, title="Formula beside emulation and paper")

# %% [markdown]
# ## 7. When it breaks
#
# ### Four copies that drifted apart
#
# BLOOM, 176 billion parameters, was trained with tensor parallelism of 4. Its log (*chronicles.md*,
# 24 March to 6 April 2022) describes what happened. The LayerNorm weights are replicated, so each
# of the four ranks has a copy, and the copies must stay **equal bit by bit**. On 24 March the team
# compared them: they were four different vectors.
#
# **What was seen**: nothing. The loss fell. Each rank uses its own copy, and its error enters the
# sums of all ranks. Only at the end, when four ranks are merged into one model and one of the four
# copies is kept, would the model have changed. **What it was**: a new optimizer clipped the
# gradients on the first tensor-parallel rank and not on the others. A small test, which compares
# the copies, reproduced it, and DeepSpeed was fixed. **What was tried**: the weights were made
# equal again. Four iterations later, 40% of the post-attention LayerNorm weights differed again:
# there was a second cause, found in older checkpoints too, which the log never names. They
# continued training, and averaged all norm weights before each forward pass. (Its first version
# divided by 4 outside of the all-reduce. Autograd saw only the division, so the gradients were a
# quarter of what they should have been.)
#
# The next cell reproduces the first cause, with a norm weight (a gain) in front of our pair, and
# clipping on all ranks or only on one:


# %% drift
RATE, NUM_STEPS = 0.005, 30


def drifting(clips_on_all):
    """Losses of the training, this rank's gain after it, and its parts of both weights."""
    torch.set_num_threads(1)
    rows, first, second = example()
    first, second, gain = mine(first, dim=1), mine(second, dim=0), torch.ones(WIDTH)
    targets, losses = rows.roll(1, dims=0), []
    for step in range(NUM_STEPS + 1):
        outputs, hidden = pair_forward(rows * gain, first, second)
        error = (outputs - targets) / NUM_ROWS
        losses.append((error * (outputs - targets)).sum().item() / 2)
        if step == NUM_STEPS:
            break
        of_first, of_second, of_inputs = pair_backward(error, rows * gain, hidden, first, second)
        of_gain = (of_inputs * rows).sum(0)
        if clips_on_all or dist.get_rank() == 0:
            of_gain *= min(1.0, 1.0 / of_gain.norm().item())
        for weight, gradient in ((gain, of_gain), (first, of_first), (second, of_second)):
            weight -= RATE * gradient
    return losses, gain, first, second


# %% drift_shown
def merged_loss(values):
    """The loss in one process with the parts of all ranks, and the gain of the first."""
    rows = example()[0]
    first, second = torch.cat([one[2] for one in values], 1), torch.cat([one[3] for one in values])
    outputs = (rows * values[0][1] @ first).relu() @ second
    return (outputs - rows.roll(1, dims=0)).square().sum().item() / NUM_ROWS / 2


table = []
for name, clips_on_all in (("all ranks", True), ("rank 0 alone", False)):
    trained = ws.run(drifting, clips_on_all, **EMULATED).values
    gains = torch.stack([one[1] for one in trained])
    spread = (gains.max(0).values - gains.min(0).values).max().item()
    last = {f"{losses[-1]:.3f}" for losses, *_ in trained}
    row = {"clips on": name, "loss at first": f"{trained[0][0][0]:.3f}"}
    row |= {f"after {NUM_STEPS} steps, all ranks": ", ".join(last)}
    row |= {"largest max - min": f"{spread:.1e}", "merged": f"{merged_loss(trained):.3f}"}
    table.append(row)
draw.table(table, title=f"The loss of a gain and a pair on {NUM_RANKS} ranks, emulated")

# %% [markdown]
# All four ranks report the same loss, because g makes their outputs equal, whatever their gains. It
# falls as it should. After merging into one model, the loss is different.
#
# ### Your turn: the check that finds it
#
# 5 minutes · easy
#
# Write the comparison of that test as a function that every rank calls with its own copy of a
# replicated parameter after a step. All ranks get the same answer: the largest difference that any
# element has between two ranks. It is exactly 0 when all is well.
#
# <details><summary>Hint</summary>
#
# Use `dist.all_reduce(tensor, op=dist.ReduceOp.MAX)` and `MIN`, each on a copy: an all-reduce
# overwrites its tensor.
#
# </details>


# %% spread_of tags=["turn"]
def spread_of(parameter):
    """The largest difference between two ranks in any element, a float that all ranks agree on."""
    ### BEGIN SOLUTION
    most, least = parameter.detach().clone(), parameter.detach().clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return (most - least).max().item()
    ### END SOLUTION


# %% check_spread_of
def spread_tried(differs):
    """What `spread_of` says of a vector in which one element differs on the last rank, or none."""
    vector = torch.arange(8.0)
    if differs and dist.get_rank() == dist.get_world_size() - 1:
        vector[3] -= 0.25
    before = vector.clone()
    answer = spread_of(vector)
    check.expect_close(vector, before, "the parameter after the call", "Reduce copies of it.")
    return float(answer)


with check.turn("spread_of"):
    for differs in (True, False):
        spreads = ws.run(spread_tried, differs, **EMULATED).values
        if any(abs(size - 0.25 * differs) > 1e-9 for size in spreads):
            hint = "max over ranks less min over ranks, and of that the largest element."
            raise CheckFailed(f"{0.25 * differs} on every rank", f"{spreads}", hint)
    print("Right: one number, equal on all ranks, and 0 when the copies are the same.")

# %% [markdown]
# ### Each rank's gradient of a norm saw a quarter of the tokens
#
# With sequence parallelism the same copies have a second way to drift. A norm's weight is on every
# rank, but each rank's gradient comes from its own part of the sequence. It must be **summed** over
# the ranks. In March 2025 a user printed the gradient of Megatron-LM's last LayerNorm with four
# ranks and sequence parallelism and found four different ones (issue 1446, closed: we could not see
# whether a sum was missing or still to come); gpt-neox averaged such gradients where they should be
# summed (pull request 1259, August 2024). DTensor records this in the gradient's placement:


# %% norm_gradients
def norm_gradients():
    """The placement of a norm's gradient, the rank's own piece, and the sum of all."""
    stage = one_layer(LAYER, sequence_plan)
    generator = torch.Generator().manual_seed(seed)
    rows = mine(torch.randn(1, NUM_TOKENS, LAYER.width, generator=generator), dim=1)
    stage(rows).square().sum().backward()
    gradient = stage.layers["1"].mlp_norm.weight.grad
    return repr(gradient.placements[0]), gradient.to_local()[0].item(), whole(gradient)[0].item()


values = ws.run(norm_gradients, **EMULATED).values
one_process = alone.values[0][1]["layers.1.mlp_norm.weight"][0].item()
print(f"placement: {values[0][0]}")
print("on the ranks:", ", ".join(f"{own:.3f}" for _, own, _ in values))
print(f"their sum {values[0][2]:.3f}, one process {one_process:.3f}")

# %% [markdown]
# `Partial` says that the sum is still to come. An optimizer that takes `to_local()` here trains
# each copy on its own quarter. `spread_of` finds that after the first step, too. In September 2026
# a checker that gives every tensor such a type (replicated, partial, sharded) was run on Megatron
# Core; its author lists about a dozen findings, among them a norm of this kind whose gradients are
# summed only when sequence parallelism is on. He says that the list is mostly machine-written and
# that he has not verified each finding (Megatron-LM, issue 7452).

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | 2 all-reduces a layer and pass | 8 B d (N - 1)/N elements a rank in all | f, g; section 4 |
# | N - 1 = 3d / (R/β) | more ranks communicate longer than they multiply | section 6 |
# | N ≤ key and value heads | 8 for Llama 3 | GQA; section 4 |
# | 3 numbers a token | the loss of an LM head split by vocabulary | section 4 |
# | R/β tokens of a sequence on each rank | ring attention hides its messages | section 6 |

# %% [markdown]
# ## 8. Problems
#
# 1. GPT-3 has width 12,288. What does a rank send for one layer, forward and backward, for one
#    sequence of 2,048 tokens in bfloat16, with tensor parallelism of 8?
#
# <details><summary>Answer</summary>
#
# $8 \cdot 2048 \cdot 12288 \cdot 7/8$ = 176 million elements, **352 MB**. A pipeline would send
# 2,048 × 12,288 elements, 50 MB, between two *stages* in forward, and as many in backward: that is
# why pipelines run across nodes.
#
# </details>
#
# 2. Each of 8 ranks holds an eighth of every matmul's weights. Llama 3 70B has 70.6 billion
#    parameters and needs 16 bytes for each. Does it fit on 8 GPUs of 80 GB by tensor parallelism
#    alone?
#
# <details><summary>Answer</summary>
#
# 16 × 70.6 / 8 = 141 GB a GPU. **No**: each GPU's share is as large as with ZeRO-3. Tensor
# parallelism of 8 together with ZeRO-1 over four nodes takes 35 + 106/4 = 62 GB (week 10). Unlike
# ZeRO, tensor parallelism also shrinks activations.
#
# </details>
#
# 3. A layer of width 8,192 with $12 d^2$ weights runs on H100s with R/β = 1,790. At how many ranks
#    does communication take as long as the matmuls? What share of the time is compute there?
#
# <details><summary>Answer</summary>
#
# N = 1 + 3 × 8192 / 1790 = **14.7** ranks. Compute and communication are equal, so half of the time
# is compute: **50%**.
#
# </details>
#
# 4. Llama 3 70B has 64 query heads and 8 key and value heads. You want tensor parallelism of 16.
#    What has to be replicated, and how many more weights does a layer need? (Width 8,192, head
#    dimension 128.)
#
# <details><summary>Answer</summary>
#
# Each key and value head serves 8 query heads; with 4 query heads on a rank, two ranks need the
# same one. Its weights are held twice: keys and values are 2 × 8192 × 1024 = 16.8 million weights a
# layer, of 856 million. Replicating them costs **2%**, and their gradients must then be summed over
# the two ranks that share a head.
#
# </details>
#
# 5. A sequence of 131,072 tokens goes through Llama 3 8B (32 layers, width 4,096) on 8 H100s, with
#    sequence parallelism and all but the RoPE tables divided by 8. How much memory do the layers'
#    activations take on each GPU, without recomputation? What would additional context parallelism
#    of 4 change?
#
# <details><summary>Answer</summary>
#
# A layer takes 176 MB for 8,192 tokens, so 2.8 GB for 16 times as many, and 32 layers take **90
# GB**: too much. Context parallelism of 4 gives each rank a quarter of the tokens: 22.5 GB on 32
# GPUs.
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
quiz.ask("week08", seed=seed)

# %% [markdown]
# ## To take with you
#
# - Split the first matmul by columns and the second by rows: what lies between is never sent.
# - f and g are conjugate: where one does nothing, the other sums. A layer has two all-reduces
#   forward and two backward, each of all tokens' activations.
# - Sequence parallelism replaces each all-reduce with an all-gather and a reduce-scatter: it sends
#   the same bytes, and the norms' activations are divided too.
# - The batch cancels. The width divided by R/β decides how many ranks pay, and "6%" holds only for
#   a slow GPU.
# - R/β is a width for tensor and expert parallelism, and a number of tokens for FSDP and ring
#   attention.
# - What is replicated must stay equal bit by bit. If it does not, no loss shows that; the maximum
#   minus the minimum over the ranks does.
#
# **Now the lab**: [lab 8, a tensor-parallel transformer block by hand](../labs/lab08/lab08.ipynb).
# You write attention and MLP with tokens split between them, keep the copies equal, and compute a
# loss without gathering the logits. Then **week 9**, *Pipeline parallelism*: splitting between the
# layers.
