# %% [markdown]
# # Week 9. Pipeline parallelism
#
# | | |
# |---|---|
# | Reading | about 100 minutes, with eight short exercises in place |
# | Running | about a minute on two CPU cores; no GPU is needed |
# | You need | weeks 2 and 6: messages between ranks, and what activations are |
# | You do not need | `torch.distributed.pipelining`, which you meet here |
# | Afterwards | lab 9, *schedules, and the ranks that run them* |
#
# Week 7 sharded the states of a model, and week 8 split each of its matmuls. This week splits the
# model **between its layers**: the first GPU has the first layers, the next GPU the next layers.
# Each GPU is a **stage**, and activations pass from one stage to the next, as on an assembly line.
#
# **p** is the number of stages, **m** the number of micro-batches, and **v** the number of model
# chunks (virtual stages) on each GPU.

# %% [markdown]
# ## 1. The question
#
# > The stages of a model depend on each other: the second cannot begin before the first is done.
# > How can all GPUs work at the same time, how long do they stay idle, and what must each of them
# > keep in memory meanwhile?
#
# Afterwards you can read and write a schedule, compute its idle time and its memory before you run
# it, choose the number of micro-batches, and find a gradient that a pipeline has made too small.

# %% parameters tags=["parameters"]
cluster = "dgx-h100"  # the emulated cluster of section 3, and the one on paper in section 6
seed = 0
# two stages with four micro-batches: how many times as fast as one GPU that has the whole model
predicted_speedup = None
# the share of time for which 8 stages with 32 micro-batches stand idle
predicted_idle_percent = None
# a model of 32 layers on 8 stages, with the schedule 1F1B: the layers whose activations the first
# stage holds at its peak (a layer held for three micro-batches counts three)
predicted_held_layers = None
# the gradient's norm after three accumulated calls of torch's schedule, over that after the first
predicted_norm_ratio = None

# %% setup
import dataclasses
import os
import re
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import pipelining
from torch.nn import functional as F

import worldsize as ws
from worldsize import check, draw, emulate, hardware, ledger, quiz, units
from worldsize.check import CheckFailed
from worldsize.explore import explore
from worldsize.models import Transformer, shape
from worldsize.timeline import Event, Timeline

torch.set_num_threads(1)  # as the ranks do: they share the cores
predictions = ledger.Predictions("week09")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers. Assume that a backward pass takes twice as long as a forward
# pass, that messages take no time, and that all stages are equal.

# %% predict
predictions.ask("speed-up, 2 stages, m = 4", predicted_speedup, "times", section=4)
predictions.ask(
    "idle: 8 stages, 32 micro-batches", predicted_idle_percent, "%", section=4, choices=(1, 5, 20)
)
predictions.ask("first of 8 stages holds", predicted_held_layers, "layers", section=4)
predictions.ask("norm after 3 calls over 1", predicted_norm_ratio, "times", section=7)

# %% [markdown]
# ## 3. Build it worse first
#
# ### Two stages that take turns are no faster than one GPU
#
# Take the course's transformer in its smallest size, here with four layers. Each of two ranks has
# two of them:
#
# ```text
# rank 0   embedding, layers 0 and 1 ──── activations ───►  rank 1   layers 2 and 3, head, loss
#                                    ◄─── their gradient ──
# ```
#
# Note what is sent: **one tensor forward and one of the same size back**. No weight and no gradient
# of a weight leaves its rank.

# %% [markdown]
# ### Your turn: the layers of a stage
#
# 5 minutes · easy
#
# Any number of layers must go on any number of stages, consecutive ones on each, and two stages may
# differ by one layer at most. Write the layers of a stage as a `range`; layers and stages are
# counted from 0. The check puts the ranges of all stages one behind the other: each layer must be
# there once, in order.
#
# <details><summary>Hint</summary>
#
# Of 11 layers on 4 stages, 2.75 are due to each. So the stages before stage s have 2.75 · s layers
# together, rounded down. Where does stage s begin, and where the next one?
#
# </details>


# %% layers_of tags=["turn"]
def layers_of(stage, num_stages, num_layers):
    """The layers of this stage, as a range."""
    ### BEGIN SOLUTION
    first, end = (number * num_layers // num_stages for number in (stage, stage + 1))
    return range(first, end)
    ### END SOLUTION


# %% check_layers_of
with check.turn("layers_of"):
    for num_layers, num_stages in ((4, 2), (11, 4), (5, 1), (32, 8), (126, 16)):
        ranges = [layers_of(stage, num_stages, num_layers) for stage in range(num_stages)]
        what = f"{num_layers} layers on {num_stages} stages"
        if [layer for one in ranges for layer in one] != [*range(num_layers)]:
            hint = "A stage ends where the next one begins, and the last one with the last layer."
            raise CheckFailed(f"each layer once and in order, for {what}", f"{ranges}", hint)
        counts = [len(one) for one in ranges]
        if max(counts) > min(counts) + 1:
            hint = "Share out what is left over, one layer to a stage."
            raise CheckFailed(f"at most one layer more than elsewhere, for {what}", counts, hint)
    print(f"Right: {what} are {counts.count(8)} stages of 8 and {counts.count(7)} of 7.")

# %% [markdown]
# Now two stages with two layers each. The next cells first compute the gradients in a single
# process, as a reference.


# %% model
SIZES = dataclasses.replace(shape("tiny"), num_layers=4)


def batch(num_sequences=8, length=32, number=0):
    """Tokens of a few sequences, and the token that follows each; another batch for each number."""
    generator = torch.Generator().manual_seed(1000 * seed + number)
    tokens = torch.randint(SIZES.vocab_size, (num_sequences, length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits, targets):
    """The mean loss over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gradients_of(*parts):
    """The gradients of stages, or of the whole model, by the weight's name."""
    return {name: one.grad for part in parts for name, one in part.named_parameters()}


# %% whole_model
def whole_model_gradients(*batches):
    """The gradients of the mean loss over these batches, in one process."""
    model = Transformer(SIZES, seed=seed)
    for tokens, targets in batches:
        (loss_of(model(tokens), targets) / len(batches)).backward()
    return gradients_of(model)


# %% taking_turns
def taking_turns():
    """This rank's gradients after a step in which two stages work one after the other."""
    stage = Transformer(
        SIZES, layers=range(0, 2) if dist.get_rank() == 0 else range(2, 4), seed=seed
    )
    tokens, targets = batch()
    between = torch.empty(*tokens.shape, SIZES.width)
    if dist.get_rank() == 0:
        with ws.span("F0", kind="forward"):
            handed_on = stage(tokens)
        dist.send(handed_on.detach(), dst=1)
        dist.recv(between, src=1)  # the gradient of what was handed on
        with ws.span("B0", kind="backward"):
            handed_on.backward(between)
    else:
        dist.recv(between, src=0)
        with ws.span("F0", kind="forward"):
            loss = loss_of(stage(between.requires_grad_()), targets)
        with ws.span("B0", kind="backward"):
            loss.backward()
        dist.send(between.grad, dst=0)
    return gradients_of(stage)


# %% turns_taken
def largest_difference(run, wanted):
    """How far any gradient of any rank is from the whole model's; all must be there."""
    found = {name: one for value in run.values for name, one in value.items()}
    assert found.keys() == wanted.keys()
    return max((found[name] - wanted[name]).abs().max().item() for name in wanted)


EMULATED = {"world_size": 2, "cluster": cluster, "echo": False}
turns = ws.run(taking_turns, **EMULATED)
difference = largest_difference(turns, whole_model_gradients(batch()))
print(f"largest difference of a gradient from the whole model's: {difference:.1e}")
assert difference < 1e-6
draw.timeline(turns.timeline, title=f"Two stages take turns, emulated on {cluster}")

# %% [markdown]
# The gradients are right, but the utilisation is poor. While one rank works, **the other waits**:
# for the activations, then for their gradient. Two GPUs are even a little slower than one, because
# messages take time as well. The only gain is memory: each rank has half of the layers.
#
# The hatched time, in which a rank does not work, is called the **bubble**. With p stages that take
# turns, each stage works for 1/p of the time.
#
# ## 4. Build it well
#
# ### GPipe splits the batch into micro-batches
#
# The gradient of a batch is the mean of the gradients of its parts (week 6 used this to accumulate
# gradients). So split the batch into **micro-batches**. While stage 1 works on the first one, stage
# 0 can start on the second. **GPipe** (Huang et al. 2019) runs all forward passes of a step, then
# all backward passes.
#
# From here on a **schedule is data**: for each rank, a row that lists its actions in order. `F2` is
# the forward pass of micro-batch 2, `B2` its backward pass. In GPipe all ranks have the same row:

# %% gpipe_rows
ALL_FORWARDS_FIRST = {
    1: "F0 B0",
    4: "F0 F1 F2 F3 B0 B1 B2 B3",
    8: "F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7",
}
GPIPE_2 = {num_batches: [row] * 2 for num_batches, row in ALL_FORWARDS_FIRST.items()}

# %% [markdown]
# ### A simulator of schedules needs two rules
#
# A schedule gives the order of actions on each rank, but no times. The times follow from two rules:
#
# 1. a rank does one thing at a time, in the order of its row;
# 2. an action starts when the action that it **needs** is done: a forward pass needs the same
#    micro-batch's forward pass on the previous stage, and a backward pass its backward pass on the
#    next stage. On the last stage a backward pass needs the forward pass on the same stage.
#
# The simulator below, `play`, knows nothing else. (A number before the letter is the stage, for
# ranks with several stages; `W` comes later.)


# %% actions
class Action(NamedTuple):
    """What one stage does with one micro-batch: F forward, B backward, W the weights' gradients."""

    kind: str
    stage: int
    number: int


def actions_of(rank, row):
    """The actions in a rank's row, such as "F0 B0" or "0F0 2F0"; by default on the rank's stage."""
    found = re.findall(r"(\d*)([FBW])(\d+)", row)
    return [Action(kind, int(stage or rank), int(number)) for stage, kind, number in found]


def needed_by(action, last_stage):
    """The action that must be done before this one; None if there is none."""
    before, after = (action._replace(stage=action.stage + step) for step in (-1, 1))
    if action.kind == "F":
        return before if action.stage > 0 else None
    if action.kind == "W":
        return action._replace(kind="B")
    return after if action.stage < last_stage else action._replace(kind="F")


# %% player
KINDS = {"F": "forward", "B": "backward", "W": "weight"}
USUAL_S = {"F": 1e-3, "B": 2e-3}


def play(schedule, seconds=USUAL_S, stage_shares=None):
    """The schedule's timeline in simulated time, and the action at which each stuck rank waits."""
    rows = [actions_of(rank, row) for rank, row in enumerate(schedule)]
    last_stage = max(action.stage for row in rows for action in row)
    shares = stage_shares or [len(rows) / (last_stage + 1)] * (last_stage + 1)
    done_s, free_s, events = {None: 0.0}, [0.0] * len(rows), []
    has_moved = True
    while has_moved:
        has_moved = False
        for rank, row in enumerate(rows):
            while row and (before := needed_by(row[0], last_stage)) in done_s:
                action = row.pop(0)
                start_s = max(free_s[rank], done_s[before])
                end_s = start_s + seconds[action.kind] * shares[action.stage]
                done_s[action] = free_s[rank] = end_s
                stage = action.stage if last_stage >= len(rows) else ""
                name = f"{stage}{action.kind}{action.number}"
                events.append(Event(rank, "main", KINDS[action.kind], name, start_s, end_s))
                has_moved = True
    return Timeline.of_events(events), {rank: row[0] for rank, row in enumerate(rows) if row}


# %% gpipe_played
gpipe, _ = play(GPIPE_2[4])
draw.timeline(gpipe, title="GPipe, two stages, four micro-batches, computed")

# %% [markdown]
# Look at the hatched part. Rank 1 waits at the start for a forward pass, and has nothing to do at
# the end, during the last backward pass of rank 0. Rank 0 waits in the middle for a forward and a
# backward pass of rank 1. Each is idle for **the time of one micro-batch**: one forward and one
# backward pass.
#
# With p stages each rank is idle for the time of p - 1 micro-batches: the first micro-batch passes
# p - 1 stages on its way to the last stage, and the last micro-batch p - 1 on its way back. Each
# rank works for the time of m micro-batches.

# %% [markdown]
# ### Your turn: the idle fraction
#
# 5 minutes · easy
#
# Write the share of a rank's time that is bubble, for p equal stages and m micro-batches.
#
# <details><summary>Hint</summary>
#
# The share is the idle time, that of p - 1 micro-batches, divided by the time of the whole step.
# The step takes the time of how many micro-batches?
#
# </details>


# %% idle_fraction tags=["turn"]
def idle_fraction(num_stages, num_batches):
    """The share of a step's time in which a stage does not work."""
    ### BEGIN SOLUTION
    return (num_stages - 1) / (num_batches + num_stages - 1)
    ### END SOLUTION


# %% check_idle_fraction
with check.turn("idle_fraction"):
    for num, row in ALL_FORWARDS_FIRST.items():
        for num_stages in (1, 2, 4):
            check.expect_close(
                float(idle_fraction(num_stages, num)),
                play([row] * num_stages)[0].bubble_fraction(),
                f"the idle fraction of {num_stages} stages with {num} micro-batches",
                hint="p - 1 parts of the step are idle. Of how many parts is the step?",
            )
    print("Right: the same as in the played schedules of 1, 2 and 4 stages.")

# %% [markdown]
# ### 1, 4 and 8 micro-batches use two stages for 50, 80 and 89% of the time
#
# The table evaluates the formula for two stages. Utilisation is the share of the time in which a
# stage works.


# %% milestones
def bubble(num_stages, num_batches, num_chunks=1):
    """The idle share of a step's time, for so many chunks of the model on each rank."""
    return (num_stages - 1) / (num_chunks * num_batches + num_stages - 1)


def speedup(num_stages, num_batches):
    """How many times as fast as one GPU that does all the work by itself."""
    return num_stages * (1 - bubble(num_stages, num_batches))


table = []
for num, schedule in GPIPE_2.items():
    played = play(schedule)[0].bubble_fraction()
    row = {"micro-batches": num, "idle, formula": f"{bubble(2, num):.1%}"}
    row |= {"idle, played": f"{played:.1%}", "utilisation": f"{1 - played:.0%}"}
    table.append({**row, "times one GPU": round(2 * (1 - played), 2)})
predictions.reveal("speed-up, 2 stages, m = 4", speedup(2, 4))
draw.table(table, title="Two equal stages, GPipe, computed")

# %% [markdown]
# 80% utilisation does **not** mean 20% less than a single GPU. Two stages at 80% do 1.6 times the
# work of one GPU; the 20% is lost relative to *two* GPUs that never wait. Even at m = 1 two stages
# are as fast as one GPU.
#
# ### Two papers define the bubble fraction differently
#
# Two papers relate the same idle time to different times. GPipe (section 2.3) divides it by the
# time of the **whole** step: (p - 1)/(m + p - 1). Megatron-LM's authors (Narayanan et al. 2021,
# called SC21 here, section 2.2.1) divide it by the step's **ideal** time, without idling: (p -
# 1)/m. When you read a bubble fraction, check which one is meant; this course uses the first.
#
# GPipe calls its bubble "negligible" when m is at least 4p (section 2.3). The next table compares
# the formula with what the paper measured: the speed of a Transformer on TPUs with m = 32. The
# paper's table 2 takes p = 2 with m = 1 as the unit, which according to the formula is as fast as
# one TPU. For AmoebaNet, whose layers are hard to divide evenly, the measured speeds are much
# lower.

# %% negligible
table = []
for num_stages, transformer, amoeba in ((2, 1.8, 1.21), (4, 3.4, 1.84), (8, 6.3, 3.48)):
    row = {"stages": num_stages, "idle": f"{bubble(num_stages, 32):.1%}"}
    row |= {"idle over ideal": f"{(num_stages - 1) / 32:.1%}"}
    row |= {"times one, formula": round(speedup(num_stages, 32), 2)}
    table.append({**row, "Transformer, published": transformer, "AmoebaNet, published": amoeba})
predictions.reveal("idle: 8 stages, 32 micro-batches", 100 * bubble(8, 32))
draw.table(table, title="32 micro-batches: GPipe's formula, computed, beside its table 2")

# %% [markdown]
# With 8 stages and m = 4p, **18% of the time is idle**. That is not negligible. (The authors add
# that recomputation can be done in part of this time; it fills the bubble, but it is not useful
# work.) The Transformer's speeds are 4 to 7% below the formula. Uneven stages cost AmoebaNet far
# more than the bubble does; section 6 returns to that.
#
# ### 1F1B: the same bubble, less memory
#
# A stage keeps a micro-batch's activations from its forward pass until its backward pass. In GPipe
# the first backward pass comes after the last forward pass, so each stage holds the activations of
# **all m** micro-batches. A row says how many: each forward adds a micro-batch, each backward frees
# one.


# %% held_at_peak
def most_held(schedule):
    """The most micro-batches that each rank holds at a time, counted in its own stages' shares."""
    most = []
    for rank, row in enumerate(schedule):
        actions = actions_of(rank, row)
        num_stages = len({action.stage for action in actions})
        frees = "W" if any(action.kind == "W" for action in actions) else "B"
        num_held, levels = 0, [0]
        for action in actions:
            num_held += (action.kind == "F") - (action.kind == frees)
            levels.append(num_held)
        most.append(max(levels) / num_stages)
    return most


# %% [markdown]
# ### Your turn: GPipe in rounds
#
# 10 minutes · medium
#
# The simplest way to hold less is to take the micro-batches in **rounds** of k. A stage does the
# forwards of k micro-batches, then their backwards, and then begins the next round; the last round
# has what is left. Write the row of a stage as text: for m = 3 and k = 2 it is
# `"F0 F1 B0 B1 F2 B2"`. The check gives your row to four stages and plays it, with 1 ms for a
# forward and 2 ms for a backward. No stage may hold more than k micro-batches, and a round of k
# must take as long as a GPipe step with k micro-batches. How much is idle now, for m = 8 and k = 4?
#
# <details><summary>Hint</summary>
#
# Rounds begin at micro-batch 0, k, 2k, ... and end where the next one begins, or at m. Collect the
# actions in a list, and join it with spaces.
#
# </details>


# %% row_in_rounds tags=["turn"]
def row_in_rounds(num_batches, num_in_round):
    """The row of a stage that takes its micro-batches in rounds of `num_in_round`."""
    ### BEGIN SOLUTION
    actions = []
    for first in range(0, num_batches, num_in_round):
        numbers = range(first, min(first + num_in_round, num_batches))
        actions += [f"F{number}" for number in numbers] + [f"B{number}" for number in numbers]
    return " ".join(actions)
    ### END SOLUTION


# %% check_row_in_rounds
def idle_in_rounds(num, size, step_s):
    """The idle share of four stages that have your row, if it is a right one."""
    row, of = row_in_rounds(num, size), f"m = {num} and k = {size}"
    wanted = sorted(f"{kind}{number}" for kind in "FB" for number in range(num))
    if sorted(row.split()) != wanted:
        raise CheckFailed(f"each of {' '.join(wanted)} once, for {of}", row)
    played, stuck = play([row] * 4)
    if stuck:
        raise CheckFailed(f"each backward after its forward, for {of}", row)
    if (held := most_held([row])[0]) > size:
        hint = "Do all backwards of a round before the first forward of the next one."
        raise CheckFailed(f"at most {size} micro-batches held, for {of}", f"{held:.0f}", hint)
    wanted, found = units.format_time_s(step_s), units.format_time_s(played.end_s)
    if abs(played.end_s - step_s) > 1e-6:
        hint = "A round has k micro-batches, and takes k + p - 1 micro-batches' worth of time."
        picture = partial(draw.timeline, played, title="Your row on four stages, computed")
        raise CheckFailed(f"a step of {wanted} on four stages, for {of}", found, hint, picture)
    return played.bubble_fraction()


with check.turn("row_in_rounds"):
    cases = ((8, 8, 33e-3), (8, 4, 42e-3), (8, 2, 60e-3), (7, 3, 48e-3))
    idle = [f"{idle_in_rounds(*case):.0%}" for case in cases]
    print("Right. Idle with m = 8, and k = 8, 4 and 2:", ", ".join(idle[:3]))

# %% [markdown]
# Rounds save memory and cost time. Each round fills and drains the pipeline again, so the idle
# share is (p - 1)/(k + p - 1), however many full rounds there are. But a stage does not have to
# wait for the end of a round. As soon as a micro-batch's gradient arrives, a stage can run its
# backward pass and free its memory. This is **1F1B**, *one forward, one backward* (SC21, section
# 2.2.1), here with four stages and eight micro-batches:

# %% one_f_one_b_rows
GPIPE_4 = [ALL_FORWARDS_FIRST[8]] * 4
ONE_F_ONE_B_4 = [
    "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
]
both = {"GPipe": play(GPIPE_4)[0], "1F1B": play(ONE_F_ONE_B_4)[0]}
draw.timelines(both, title="Four stages, eight micro-batches, computed")

# %% [markdown]
# Read the rows. In the warm-up a stage runs only forward passes, until the first micro-batch comes
# back to it: the last stage runs one, the stage before it two, the first stage p. In the steady
# state that follows, each forward pass is preceded by a backward pass, and the number of
# micro-batches in flight does not grow. **The step takes exactly as long as with GPipe**: on the
# last stage neither schedule waits between its first forward and its last backward pass, and the
# times before and after are the same. The difference is in memory:

# %% most_held
table = []
for name, schedule in (("GPipe", GPIPE_4), ("1F1B", ONE_F_ONE_B_4)):
    row = {"schedule": name, "idle": f"{play(schedule)[0].bubble_fraction():.1%}"}
    table.append({**row, **{f"rank {rank}": int(n) for rank, n in enumerate(most_held(schedule))}})
draw.table(table, title="Micro-batches held at the peak, four stages and m = 8, computed")

# %% [markdown]
# GPipe holds m micro-batches on every stage. 1F1B holds **min(m, p)** on the first stage and one
# less on each following stage (with fewer micro-batches than stages, no more than m on any). So
# with 1F1B you can raise m as far as the batch allows: the bubble shrinks, and the memory stays the
# same. With GPipe, memory grows with every micro-batch.

# %% [markdown]
# ### Your turn: write a row
#
# 10 minutes · medium
#
# Take 1F1B with three stages and four micro-batches. The rows of the first and the last stage are
# in the check below. Write the row of the middle stage in the same form as above. The step must
# take no longer than with GPipe, and the middle stage must hold at most two micro-batches.
#
# <details><summary>Hint</summary>
#
# How many forward passes can the middle stage run before the first micro-batch comes back from the
# last stage? After that, backward and forward passes alternate until no forward passes are left.
#
# </details>


# %% middle_row tags=["turn"]
def middle_row():
    """The row of stage 1 of 3 for four micro-batches, such as "F0 B0 ..."."""
    ### BEGIN SOLUTION
    return "F0 F1 B0 F2 B1 F3 B2 B3"
    ### END SOLUTION


# %% check_middle_row
with check.turn("middle_row"):
    row = middle_row()
    wanted = sorted(f"{kind}{number}" for kind in "FB" for number in range(4))
    if sorted(row.split()) != wanted:
        raise CheckFailed(f"each of {' '.join(wanted)} once", row)
    schedule = ["F0 F1 F2 B0 F3 B1 B2 B3", row, "F0 B0 F1 B1 F2 B2 F3 B3"]
    played, stuck = play(schedule)
    if stuck:
        waits = "; ".join(f"rank {rank} waits at {a.kind}{a.number}" for rank, a in stuck.items())
        raise CheckFailed("all three ranks to come to their ends", f"{waits}, for ever")
    limit_s = play([ALL_FORWARDS_FIRST[4]] * 3)[0].end_s
    if played.end_s > limit_s * 1.001:
        raise CheckFailed(
            f"the step to take {units.format_time_s(limit_s)}",
            units.format_time_s(played.end_s),
            "Look where the bubble is: which action came too late for a neighbour?",
            picture=lambda: draw.timeline(played, title="Your schedule, computed"),
        )
    if most_held(schedule)[1] > 2:
        hint = "Do a backward as soon as there is one: it frees what its forward keeps."
        raise CheckFailed("at most 2 micro-batches held", f"{most_held(schedule)[1]:.0f}", hint)
    print("Right: as short as GPipe, and never more than two micro-batches held.")

# %% [markdown]
# ### More stages do not shrink the first stage's activations
#
# Each of p stages has L/p of the model's L layers. With 1F1B the first stage holds its layers'
# activations for p micro-batches: p · L/p = **L layers of activations, whatever p is** (Korthikanti
# et al. 2022, section 4.2.3). That is as much as on a single GPU that has the whole model and runs
# one micro-batch at a time. More stages shrink the states on a GPU, but not the activations of the
# first stage. The next table is for Llama 3 8B, with a micro-batch of one sequence of 8,192 tokens
# in bfloat16, and m = 32:

# %% first_stage
LLAMA = shape("llama-3-8b")
layer_bytes = LLAMA.layer_activation_bytes(1, LLAMA.context_length)
table = []
for num_stages in (1, 2, 4, 8, 16):
    num_layers = LLAMA.num_layers // num_stages
    row = {"stages": num_stages, "states of a stage_bytes": 16 * LLAMA.num_parameters / num_stages}
    for name, held in (("GPipe", 32), ("1F1B", min(32, num_stages))):
        row[f"{name}, layers"] = held * num_layers
        row[f"{name}, first stage_bytes"] = held * num_layers * layer_bytes
    table.append({**row, "1F1B, last stage_bytes": num_layers * layer_bytes})
held_layers = table[3]["1F1B, layers"]
predictions.reveal("first of 8 stages holds", held_layers)
draw.table(table, title="Llama 3 8B: states, and activations of the layers, computed")

# %% [markdown]
# Each of eight stages needs 16 GB for states instead of 128, but with 1F1B the first one still
# holds 44 GB of activations, and the last one 5.5. With GPipe every stage would hold 177 GB. (The
# states are those of week 7, divided evenly; section 6 adds the embedding and the LM head, which
# make stages uneven, and recomputation, which shrinks the first stage's activations.)
#
# ### A cycle of waiting ranks is a deadlock
#
# A schedule can get stuck, in the simulator and on ranks. Each of the two rows below looks
# sensible. Rank 0 runs a micro-batch's backward pass before it starts the next micro-batch. Rank 1
# runs both forward passes first.

# %% stuck
STUCK = ["F0 B0 F1 B1", "F0 F1 B0 B1"]
_, stuck = play(STUCK)
for rank, action in stuck.items():
    before = needed_by(action, last_stage=1)
    print(f"rank {rank} waits at {action.kind}{action.number}", end=" ")
    print(f"for {before.kind}{before.number} on stage {before.stage}")

# %% [markdown]
# Rank 0 waits at B0 for rank 1, which waits at F1 for rank 0: a **cycle**. Follow which action
# waits for which, and you return to where you began. A schedule is free of deadlock if and only if
# there is no such cycle, and the simulator finds one at once. On ranks the same rows become sends
# and receives; the next cell runs only these messages:


# %% stuck_ranks
def messages_of_stuck_rows():
    """Exchange what the two rows of STUCK would."""
    piece = torch.zeros(4)
    if dist.get_rank() == 0:
        dist.send(piece, dst=1)  # after F0
        dist.recv(piece, src=1)  # before B0
        dist.send(piece, dst=1)  # after F1
    else:
        dist.recv(piece, src=0)  # before F0
        dist.recv(piece, src=0)  # before F1
        dist.send(piece, dst=0)  # after B0


try:
    ws.run(messages_of_stuck_rows, **EMULATED)
except ws.RunError as error:
    print(error)

# %% [markdown]
# The launcher reports what the simulator reported, which rank waits for which, and names the lines
# as well. On a real cluster all GPUs stand still until a timeout, ten minutes by default with NCCL.
# Then torch writes each rank's last calls to a file, and a program that compares these files gives
# such a report (week 11).
#
# The simulator cannot find a second kind of cycle, because it arises in the messages below the
# schedule. In the steady state of 1F1B two neighbours send to each other at the same time: one an
# activation, the other a gradient. If both **send first** and a send waits for its receiver, both
# wait. That is NCCL issue 479 of 2021, where the answer is to group a send and a receive into one
# call (`batch_isend_irecv`). In January 2026 a patch to torch's schedules, which put each receive
# right before its use, hung on two nodes, as its tester suspects for the same reason (pytorch,
# issue 172668): rank 0 sent F1 before it received F0 of its second stage, and rank 1 sent F0 before
# it received F1. Swapping the order on every odd rank only made a longer cycle, of three actions.
#
# ### Interleaving: v chunks on each rank divide the idle time by v
#
# The bubble is (p - 1) times the time of a micro-batch *on one stage*, so smaller stages make it
# shrink. **Interleaved 1F1B** (SC21, section 2.2.2) splits the model into p · v stages and gives
# each rank v of them, called **model chunks** or virtual stages: with two ranks and v = 2, rank 0
# has stages 0 and 2, and rank 1 has 1 and 3. A micro-batch passes each rank twice.

# %% [markdown]
# ### Your turn: two chunks a rank
#
# 10 minutes · medium
#
# Take two micro-batches and two ranks with two chunks each. Rank 0 runs both micro-batches through
# its first chunk, then both through its second one, and takes the chunks in reverse order in
# backward:
#
# ```text
# rank 0   0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
# ```
#
# Write the row of rank 1, which has stages 1 and 3. A chunk's forward pass takes half a
# millisecond, its backward pass one millisecond. With plain 1F1B the step takes 9 ms; yours must
# take 7.5, and rank 1 must hold the activations of at most three chunks, which is one and a half
# micro-batches of its layers.
#
# <details><summary>Hint</summary>
#
# Activations arrive at rank 1 in the order of rank 0's forward passes: first both for stage 1.
# Stage 3 is the last stage. What can it do with micro-batch 0 as soon as its forward pass is done?
# In backward, stage 1 waits for stage 2.
#
# </details>


# %% row_of_two_chunks tags=["turn"]
def row_of_two_chunks():
    """The row of rank 1 with stages 1 and 3 for two micro-batches, such as "1F0 3F0 ..."."""
    ### BEGIN SOLUTION
    return "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"
    ### END SOLUTION


# %% check_row_of_two_chunks
with check.turn("row_of_two_chunks"):
    row = row_of_two_chunks()
    wanted = sorted(f"{stage}{kind}{number}" for stage in "13" for kind in "FB" for number in "01")
    if sorted(row.split()) != wanted:
        raise CheckFailed(f"each of {' '.join(wanted)} once", row)
    schedule = ["0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", row]
    played, stuck = play(schedule)
    if stuck:
        waits = [f"rank {rank} waits at {a.stage}{a.kind}{a.number}" for rank, a in stuck.items()]
        raise CheckFailed("both ranks to come to their ends", f"{'; '.join(waits)}, for ever")
    if played.end_s > 7.501e-3:
        raise CheckFailed(
            "the step to take 7.5 ms",
            units.format_time_s(played.end_s),
            "Look where rank 0 waits: which action of yours came too late for it?",
            picture=lambda: draw.timeline(played, title="Your schedule, computed"),
        )
    if most_held(schedule)[1] > 1.5:
        hint = "The last stage can do a backward right after its forward, which frees a chunk."
        raise CheckFailed("at most 3 chunks held", f"{2 * most_held(schedule)[1]:.0f}", hint)
    print("Right: 7.5 ms in place of 9, and never more than three chunks held.")

# %% [markdown]
# With more micro-batches, forward and backward passes alternate in a steady state, as in 1F1B. Here
# are four micro-batches, in rounds of two:

# %% interleaved_rows
INTERLEAVED = [
    "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
    "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
]
ONE_F_ONE_B_2 = ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
both = {"1F1B": play(ONE_F_ONE_B_2)[0], "two chunks a rank": play(INTERLEAVED)[0]}
draw.timelines(both, title="Two ranks, four micro-batches, computed")

# %% [markdown]
# A chunk takes half as long as a stage did, so the step is shorter by half the time of a
# micro-batch. In general the idle time is 1/v of that of 1F1B: (p - 1)/(vm) of the ideal time, or
# (p - 1)/(vm + p - 1) of the whole step. It costs messages and memory.
#
# ### Your turn: count the messages
#
# 10 minutes · medium
#
# After a forward, a stage hands its output to the next stage; after a backward, it hands a gradient
# to the stage before. That takes a message if the other stage is on a **different rank**. Count
# the messages of a step in the rows of a schedule that has only forwards and backwards, such as
# `INTERLEAVED`; `actions_of(rank, row)` gives a rank's actions, each with its `kind`, `stage` and
# `number`. The first number to compare with is what the ranks of section 3 sent.
#
# <details><summary>Hint</summary>
#
# First note the rank of each stage in a dictionary. Then go through all actions: which stage takes
# the result, and is there such a stage? What the last stage computes forward, and the first one
# backward, nobody takes.
#
# </details>


# %% messages_sent tags=["turn"]
def messages_sent(schedule):
    """The number of messages that all ranks together send in a step."""
    ### BEGIN SOLUTION
    home = {a.stage: rank for rank, row in enumerate(schedule) for a in actions_of(rank, row)}
    num_sent = 0
    for rank, row in enumerate(schedule):
        for action in actions_of(rank, row):
            taker = action.stage + (1 if action.kind == "F" else -1)
            num_sent += home.get(taker, rank) != rank
    return num_sent
    ### END SOLUTION


# %% check_messages_sent
IN_A_V = ["0F0 3F0 3B0 0B0", "1F0 2F0 2B0 1B0"]  # down the ranks, and up again
ON_ONE_RANK = ["0F0 1F0 2F0 3F0 3B0 2B0 1B0 0B0"]
with check.turn("messages_sent"):
    sends = [event for event in turns.timeline.events if event.sent_bytes]
    for what, schedule, wanted, hint in (
        ("two stages in turn, as emulated", ["F0 B0"] * 2, len(sends), "One in each direction."),
        ("1F1B on four ranks, m = 8", ONE_F_ONE_B_4, 6 * 8, "Three boundaries, two directions."),
        ("two chunks a rank, m = 4", INTERLEAVED, 6 * 4, "Four stages have three boundaries."),
        ("stages 0 and 3 on rank 0", IN_A_V, 4, "Stages 1 and 2 are on the same rank."),
        ("four stages on one rank", ON_ONE_RANK, 0, "A rank sends nothing to itself."),
    ):
        found = messages_sent(schedule)
        if found != wanted:
            raise CheckFailed(f"{wanted} messages for {what}", f"{found}", hint)
    print("Right: 2 as emulated, 48 for 1F1B on four ranks, 24 for two chunks a rank.")

# %% interleaved_costs
table = []
for name, schedule, num_chunks in (("1F1B", ONE_F_ONE_B_2, 1), ("two chunks", INTERLEAVED, 2)):
    row = {"schedule": name, "idle, formula": f"{bubble(2, 4, num_chunks):.1%}"}
    row |= {"idle, played": f"{play(schedule)[0].bubble_fraction():.1%}"}
    row |= {f"rank {rank} holds": held for rank, held in enumerate(most_held(schedule))}
    num_boundaries = 2 * num_chunks - 1
    table.append({**row, "messages": 2 * 4 * num_boundaries})
draw.table(table, title="Two ranks, m = 4, computed; held: in micro-batches of a rank's layers")

# %% [markdown]
# The idle share falls from 20% to 11%. There are three times as many messages, because 4 stages
# have 3 boundaries instead of one (with many stages, v times as many). And rank 0 holds the
# activations of 2.5 micro-batches instead of 2, that is 1 + (p - 1)/(pv) times as much (Korthikanti
# et al., section 4.2.3, who write m for our v). SC21's schedule requires m to be a multiple of p.
#
# ### Zero bubble: weight gradients fill the idle time
#
# Week 7's backward function returned two gradients: of the layer's **input**, and of its
# **weight**. The previous stage waits for the first. Nothing before the update needs the second.
# **Zero bubble** (Qi et al. 2023) makes them two actions: **B** for the gradient of the input and
# **W** for that of the weights. B goes first wherever a stage waits for it, and W fills the gaps.
# The next pictures have three stages and six micro-batches; for now F, B and W take equally long:

# %% zero_bubble_rows
ONE_F_ONE_B_3 = [
    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5",
    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5",
    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5",
]
ZERO_BUBBLE_3 = [
    "F0 F1 F2 B0 W0 B1 F3 B2 W1 F4 W2 F5 B3 W3 B4 W4 B5 W5",
    "F0 F1 F2 B0 W0 B1 W1 B2 F3 W2 F4 B3 F5 B4 W3 B5 W4 W5",
    "F0 B0 F1 B1 F2 B2 W0 W1 F3 B3 W2 F4 B4 F5 B5 W3 W4 W5",
]
THIRDS_S = {"F": 1e-3, "B": 1e-3, "W": 1e-3}
both = {"1F1B": play(ONE_F_ONE_B_3)[0], "B and W apart": play(ZERO_BUBBLE_3, THIRDS_S)[0]}
draw.timelines(both, title="Three stages, six micro-batches, computed")

# %% [markdown]
# The idle time is (p - 1)(F + B - W) instead of (p - 1)(F + B + W), a third of it (here B is only
# the gradient of the input). No rank holds more than p micro-batches: this is the paper's ZB-H1.
# With more memory, up to 2p - 1 micro-batches on the first stage, the paper's ZB-H2 has no bubble
# at all (sections 2.2 and 2.3).
#
# But F, B and W do not take equally long. For a layer of width h and sequences of s tokens, the
# paper's table 1 counts sbh(24h + 4s) FLOPs for F, sbh(24h + 8s) for B, and sbh(24h) for W, because
# attention's scores have no weights:


# %% zero_bubble_times
table = []
for length in (0, 2048, 8192, 32768):
    flops = {"F": 24 * 4096 + 4 * length, "B": 24 * 4096 + 8 * length, "W": 24 * 4096}
    part_s = {kind: 3e-3 * one / sum(flops.values()) for kind, one in flops.items()}
    whole_s = {"F": part_s["F"], "B": part_s["B"] + part_s["W"]}
    row = {
        "tokens": length,
        "F : B : W": " : ".join(f"{one / flops['F']:.2f}" for one in flops.values()),
    }
    row["1F1B, idle"] = f"{play(ONE_F_ONE_B_3, whole_s)[0].bubble_fraction():.1%}"
    split = play(ZERO_BUBBLE_3, part_s)[0]
    table.append({**row, "B and W apart, idle": f"{split.bubble_fraction():.1%}"})
draw.table(
    table,
    title="Three stages, six micro-batches, width 4,096, computed",
    note=f"Held at most: {', '.join(f'{held:.0f}' for held in most_held(ZERO_BUBBLE_3))}"
    " micro-batches, until W.",
)

# %% [markdown]
# The longer the sequence, the shorter W is compared with F and B, and the less of the bubble it
# fills. At 32,768 tokens this order, which was made for equal times, no longer gains anything. So
# the paper makes its schedules from profiled times (its table 5 has their bubbles). The losses of
# 1F1B and of the paper's schedules are equal bit by bit (section 5.1): a schedule changes when a
# gradient is computed, but not its value.
#
# ## 5. Compare with the production oracle
#
# ### torch's unmodified schedules follow the same lists
#
# `torch.distributed.pipelining` has all of these schedules. A `PipelineStage` wraps a stage's
# module, a schedule class defines the order, and `step` runs one step. A small subclass records
# each action as a span and, where we want round numbers, makes it take a given time.


# %% watched
class WatchedStage(pipelining.PipelineStage):
    """torch's stage, with each action as a span; in virtual time a forward takes `forward_s`."""

    forward_s = 0.0

    def forward_one_chunk(self, number, *args, **kwargs):
        with ws.span(f"{self.stage_index}F{number}", kind="forward"):
            emulate.spend(self.forward_s)
            return super().forward_one_chunk(number, *args, **kwargs)

    def backward_one_chunk(self, number, *args, **kwargs):
        with ws.span(f"{self.stage_index}B{number}", kind="backward"):
            emulate.spend(2 * self.forward_s)
            return super().backward_one_chunk(number, *args, **kwargs)


SCHEDULES = {
    "GPipe": pipelining.ScheduleGPipe,
    "1F1B": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
}


# %% by_torch
def by_torch(name, num_batches, num_chunks=1, forward_s=0.0, num_steps=1):
    """This rank's gradients of the last of several steps by one of torch's schedules."""
    torch.set_num_threads(1)
    num_ranks, rank = dist.get_world_size(), dist.get_rank()
    num_stages = num_ranks * num_chunks
    num_layers, stages = SIZES.num_layers // num_stages, []
    for place in range(rank, num_stages, num_ranks):
        layers = range(place * num_layers, (place + 1) * num_layers)
        model = Transformer(SIZES, layers=layers, seed=seed)
        stages.append(WatchedStage(model, place, num_stages, torch.device("cpu")))
        stages[-1].forward_s = forward_s / num_chunks
    on_rank = stages if num_chunks > 1 else stages[0]
    schedule = SCHEDULES[name](on_rank, num_batches, loss_fn=loss_of)
    tokens, targets = batch()
    for _ in range(num_steps):
        for stage in stages:
            stage.submod.zero_grad()
        dist.barrier()
        given = [tokens] if rank == 0 else []
        schedule.step(*given, target=targets if rank == num_ranks - 1 else None)
    return gradients_of(*[stage.submod for stage in stages])


# %% orders
def named(events):
    """Each event that is one of our spans, with its action."""
    found = [(event, re.fullmatch(r"(\d+)([FB])(\d+)", event.name)) for event in events]
    return [(event, Action(one[2], int(one[1]), int(one[3]))) for event, one in found if one]


def order_of(timeline, rank):
    """The actions of a rank in the order in which it did them."""
    return list(dict.fromkeys(action for _, action in named(timeline.of(rank))))


def work_of(run):
    """The last step's forwards and backwards alone, on one lane, from the first one's start."""
    begun_s = {event.rank: event.end_s for event in run.timeline.events if event.name == "barrier"}
    spans = [event for event, _ in named(run.timeline.events)]
    work = [event for event in spans if event.start_s >= begun_s.get(event.rank, 0.0)]
    first_s = min(event.start_s for event in work)
    return Timeline.of_events(
        Event(one.rank, "main", one.kind, one.name, one.start_s - first_s, one.end_s - first_s)
        for one in work
    )


# %% oracle
FREE = hardware.cluster(cluster).without_latency()
wanted, by_name, table = whole_model_gradients(batch()), {}, []
for name, schedule, num_batches, num_chunks in (
    ("GPipe", GPIPE_2[4], 4, 1),
    ("1F1B", ONE_F_ONE_B_4, 8, 1),
    ("interleaved", INTERLEAVED, 4, 2),
):
    num_ranks = len(schedule)
    asked = (name, num_batches, num_chunks, USUAL_S["F"])
    where = {"world_size": num_ranks, "cluster": FREE, "compute": "none", "echo": False}
    run = by_name[name] = ws.run(by_torch, *asked, **where)
    work, played = work_of(run), play(schedule)[0]
    rows = [actions_of(rank, row) for rank, row in enumerate(schedule)]
    row = {"schedule": name, "ranks": num_ranks, "m": num_batches, "v": num_chunks}
    row["same order"] = [order_of(work, rank) for rank in range(len(rows))] == rows
    row["idle, formula"] = f"{bubble(num_ranks, num_batches, num_chunks):.2%}"
    row["played"] = f"{played.bubble_fraction():.2%}"
    row["torch, emulated"] = f"{work.bubble_fraction():.2%}"
    table.append({**row, "gradients differ by": f"{largest_difference(run, wanted):.0e}"})
    assert row["same order"] and largest_difference(run, wanted) < 1e-6
draw.table(
    table,
    title="torch's schedules on emulated ranks with links of no latency, beside our lists",
    note="A stage's forward takes 1 ms. Gradients: the largest difference from one process.",
)

# %% [markdown]
# torch follows our lists, action by action. It is idle for as long as the formula says, and its
# gradients are those of one process up to rounding, because it adds in a different order.
#
# ### Real ranks run the same rows
#
# Two processes on this machine run torch's 1F1B over Gloo, with four micro-batches. The picture is
# of the same kind as before: each block is a span of a rank, and the time is measured here.

# %% real_ranks
REAL = {"world_size": 2, "backend": "gloo", "echo": False}
real = ws.run(by_torch, "1F1B", 4, 1, 0.0, 3, **REAL)
same = [order_of(work_of(real), rank) for rank in (0, 1)]
assert same == [actions_of(rank, row) for rank, row in enumerate(ONE_F_ONE_B_2)]
print(
    f"largest difference of a gradient: {largest_difference(real, wanted):.0e}; same order as ours"
)
draw.timeline(work_of(real), title="torch's 1F1B on two ranks, third step, measured here")

# %% [markdown]
# On two GPUs with nothing else to do, blocks of one kind would be equally long and the hatched part
# 20%. Here both depend on this machine's cores, and on what else runs on them. A schedule fixes the
# *order*; the times depend on the machine. So all comparisons of times below are computed, emulated
# or on paper.
#
# ### Counted activations: with 1F1B they fall from rank to rank
#
# How much do the stages hold? The next cell runs eight micro-batches on four emulated ranks, with
# one layer of the transformer on each. The ranks' memory meters count the bytes of activations at
# the peak.

# %% held_on_ranks
bars, held = {}, {}
for name in ("GPipe", "1F1B"):
    run = ws.run(by_torch, name, 8, memory=True, **EMULATED | {"world_size": 4})
    held[name] = [use.peak["activations"] for use in run.memory]
    for rank, size_bytes in enumerate(held[name]):
        bars[f"{name}, rank {rank}"] = {"activations": size_bytes}
for name in held:
    sizes = ", ".join(units.format_bytes(size) for size in held[name])
    print(f"{name:<6} ranks 0 to 3: {sizes}")
draw.memory(bars, title="Activations at each rank's peak, m = 8, emulated")

# %% [markdown]
# GPipe's ranks hold eight micro-batches of 146 kB each. With 1F1B the peak falls by about one
# micro-batch from rank to rank, as in the table of section 4: 4, 3, 2, 1. (The peak also includes
# what the rank is working on, and on the last rank the logits and the loss.)
#
# ## 6. Formula, measurement, emulation, paper
#
# ### Llama 3 8B on paper: slightly more idle time than in the formula
#
# The next cells run layers of real size on paper: four of Llama's layers, one on each stage, on
# four H100s. The vocabulary is reduced to 1,024, so that the LM head hardly matters. torch's GPipe
# and 1F1B each run eight micro-batches of one sequence of 8,192 tokens in bfloat16.


# %% stages_of_llama
SMALL_HEAD = dataclasses.replace(LLAMA, num_layers=4, vocab_size=1024)


def step_of_llama(name, num_batches):
    """A step of four of Llama's layers, one to each stage."""
    place = dist.get_rank()
    torch.set_default_dtype(torch.bfloat16)
    model = Transformer(SMALL_HEAD, layers=range(place, place + 1))
    torch.set_default_dtype(torch.float32)
    stage = WatchedStage(model, place, 4, torch.device("cpu"))
    schedule = SCHEDULES[name](stage, num_batches, loss_fn=loss_of)
    tokens = torch.zeros(num_batches, LLAMA.context_length, dtype=torch.long)
    schedule.step(*([tokens] if place == 0 else []), target=tokens if place == 3 else None)


# %% llama_on_paper
table, on_paper = [], {}
for name, held in (("GPipe", 8), ("1F1B", 4)):
    run = on_paper[name] = ws.paper(
        step_of_llama, name, 8, world_size=4, cluster=cluster, echo=False
    )
    work = work_of(run)
    row = {"schedule": name, "step_s": work.end_s, "idle, formula": f"{bubble(4, 8):.1%}"}
    row |= {"idle, on paper": f"{work.bubble_fraction():.1%}"}
    row["rank 0, formula_bytes"] = held * layer_bytes
    row |= {f"rank {n}, on paper_bytes": run.memory[n].peak["activations"] for n in (0, 3)}
    table.append(row)
draw.table(
    table,
    title="Four of Llama 3 8B's layers on four H100, m = 8, on paper",
    note="Bytes: activations at the peak; by formula, those of the layers alone.",
)

# %% [markdown]
# (Before its first step torch sends one micro-batch through all stages, to learn the shapes. That
# is left out here.) 1F1B takes as long as GPipe. It holds half as much on the first stage, and a
# sixth on the last: an eighth of the layer's activations, plus those of the LM head and the loss.
# Both schedules are idle for longer than the formula says, 30% instead of 27%: the stages are not
# quite equal, because the last one has the LM head and the loss in addition to its layer, and
# messages take time.
#
# ### A pipeline sends far fewer bytes than FSDP
#
# Llama 3 8B runs a step of eight sequences of 8,192 tokens on 8 GPUs. How much does a GPU send in
# bfloat16 with each of the three methods of weeks 7 to 9? (With FSDP each GPU takes one of the
# sequences; with the other two methods all eight pass through all GPUs.)

# %% bytes_by_way
boundary_bytes = 2 * LLAMA.context_length * LLAMA.width  # activations of one sequence
num_gpus, num_sequences, table = 8, 8, []
ring = (num_gpus - 1) / num_gpus
for way, size_bytes in (
    ("tensor parallel: 4 all-reduces a layer", 4 * 32 * 2 * ring * boundary_bytes * num_sequences),
    ("FSDP: 3 passes over the weights", 3 * ring * 2 * LLAMA.num_parameters),
    ("pipeline: activations on, gradients back", 2 * boundary_bytes * num_sequences),
):
    row = {
        "way": way,
        "a GPU sends": f"{size_bytes / 1e9:.1f} GB",
        "at 50 GB/s_s": size_bytes / 50e9,
    }
    table.append(row)
for row in table:
    row["times the pipeline's"] = round(row["at 50 GB/s_s"] / table[-1]["at 50 GB/s_s"])
draw.table(table, title="A step of eight sequences, Llama 3 8B on 8 GPUs, computed")

# %% [markdown]
# That is why pipelines run across nodes, while tensor parallelism stays inside a node (SC21,
# sections 3.2 to 3.4: tensor parallelism up to the node's size, then pipelines). With more
# sequences at a time, if they fit, FSDP still sends the same; a pipeline sends more. The messages
# at a boundary depend only on the tokens and the width: they are the same wherever the model is
# split, and however many layers or weights a stage has.
#
# ### The slowest stage sets the pace
#
# A pipeline runs at the speed of its slowest stage. In a step each micro-batch passes every stage,
# and the slowest stage must run all m of them, one after the other.

# %% [markdown]
# ### Your turn: a step with uneven stages
#
# 10 minutes · medium
#
# Stage r takes t_r seconds for a micro-batch, forward and backward together. The schedule is GPipe,
# with m micro-batches. How long does the step take?
#
# <details><summary>Hint</summary>
#
# The first micro-batch passes all stages, which takes the sum of their times. Each further one
# leaves the slowest stage later by that stage's time. Check your formula with equal stages: it must
# give (m + p - 1) t.
#
# </details>


# %% uneven_s tags=["turn"]
def uneven_s(stage_s, num_batches):
    """Seconds of a step; `stage_s` has each stage's seconds for one micro-batch."""
    ### BEGIN SOLUTION
    return sum(stage_s) + (num_batches - 1) * max(stage_s)
    ### END SOLUTION


# %% check_uneven_s
with check.turn("uneven_s"):
    for stage_s in ([1.0, 1.0], [2.0, 1.0, 1.0], [1.0, 3.0, 2.0, 2.0], [4.0, 4.0, 4.0, 5.8]):
        for num, row in ALL_FORWARDS_FIRST.items():
            schedule, thirds = [row] * len(stage_s), {"F": 1 / 3, "B": 2 / 3}
            check.expect_close(
                float(uneven_s(stage_s, num)),
                play(schedule, thirds, stage_s)[0].end_s,
                f"the seconds of {num} micro-batches on stages of {stage_s} s",
                hint="One micro-batch passes all stages; the others queue at the slowest.",
            )
    print("Right: as played, for two, three and four stages.")

# %% [markdown]
# Where do uneven stages come from? An LM head over a vocabulary of 128,256 is a large matmul. Count
# a stage's load in layers of the same model; the LM head counts by its FLOPs for 8,192 tokens:


# %% uneven
def over_even(loads, num_batches):
    """How much longer a step takes than with the same load spread evenly over the stages."""
    even_s = sum(loads) / len(loads) * (num_batches + len(loads) - 1)
    return (sum(loads) + (num_batches - 1) * max(loads)) / even_s - 1


def head_in_layers(sizes):
    """The operations of the head over those of a layer."""
    return sizes.head_flops / sizes.layer_flops(sizes.context_length)


LARGE = shape("llama-3-405b")
head, large_head, table = head_in_layers(LLAMA), head_in_layers(LARGE), []
for model, cut, loads in (
    ("8B", "4 on each of 8", [4.0] * 7 + [4 + head]),
    ("8B", "5, then 4 on six, then 3", [5.0] + [4.0] * 6 + [3 + head]),
    ("405B", "8 on 14 of 16, 7 on first and last", [7.0] + [8.0] * 14 + [7 + large_head]),
):
    row = {"Llama 3": model, "layers": cut}
    row["head, in layers"] = round(head if model == "8B" else large_head, 2)
    row["slowest over mean"] = round(max(loads) / (sum(loads) / len(loads)), 3)
    table.append({**row, "longer than even": f"{over_even(loads, 32):.1%}"})
amoeba = 8 * (32 / 3.48 - 1) / 31
print(f"AmoebaNet's 3.48, as times one TPU: its slowest stage like {amoeba:.1f} times the mean")
draw.table(table, title="Loads of stages, and a step of GPipe with 32 micro-batches, computed")

# %% [markdown]
# For 8B the LM head costs as much as nearly two layers. With four layers on each stage the last
# stage is by far the slowest, and the step is 30% longer than with an even load. Moving one layer
# to the first stage halves that, though no split into whole layers is even. Llama 3 405B has one
# layer less on its first and last stages (Llama Team 2024, section 3.3.2): the last one has the LM
# head. The first one has the embedding, which takes memory but hardly any compute, and it holds the
# most activations. BLOOM's 70 layers were split over 12 stages in the same way (its training
# README): the embedding of 250,880 tokens has 3.60 billion parameters, and a layer has 2.47
# billion.

# %% bloom
ends, middle = 3.60 + 5 * 2.47, 6 * 2.47
print(f"first and last stage: 5 layers and an embedding, {ends:.1f} billion parameters")
print(f"ten stages between: 6 layers, {middle:.1f} billion; in all {2 * 5 + 10 * 6} layers")

# %% [markdown]
# ### Recomputation shrinks the activations of a pipeline
#
# If each layer keeps only its input and is recomputed in backward (week 6), a stage holds much less
# for each micro-batch in flight. Each micro-batch costs one more forward pass: counted in matmuls,
# 4 units instead of 3. The idle *share* stays the same, because work and idle time grow in
# proportion.

# %% recomputation
input_bytes, table = 2 * LLAMA.context_length * LLAMA.width, []
for name, kept_bytes, backward_s in (
    ("kept", layer_bytes, 2e-3),
    ("recomputed", input_bytes, 3e-3),
):
    played = play(ONE_F_ONE_B_4, {"F": 1e-3, "B": backward_s})[0]
    working_bytes = layer_bytes if name == "recomputed" else 0  # of the layer that runs again
    row = {"activations": name}
    for rank in (0, 7):
        row[f"stage {rank} of 8_bytes"] = (8 - rank) * 4 * kept_bytes + working_bytes
    row |= {"4 stages, m = 8_s": played.end_s, "idle": f"{played.bubble_fraction():.1%}"}
    table.append(row)
draw.table(table, title="1F1B for Llama 3 8B, one sequence a micro-batch, computed")

# %% [markdown]
# The first of eight stages goes from 44 GB to 3.5, and the step takes a third longer by this count
# (week 6 found 23 to 38%).
#
# ### Published layouts leave about a tenth of the time idle, or less
#
# How much time did published runs leave idle? The number of sequences in each pipeline is the batch
# divided by the data-parallel degree. The table assumes one sequence per micro-batch, and two for
# BLOOM, as its README says; SC21 and Llama 3 do not give this number for these rows. SC21's runs
# were interleaved, with a v that its table 1 does not give, so their idle share was smaller than
# here. For Llama 3, v = 8 is inferred: below the table is how.

# %% layouts
table = []
for run_name, p, dp, sequences, a_batch, v in (
    ("SC21, 145.6B", 8, 24, 2304, 1, 1),
    ("SC21, 1,008B", 64, 6, 3072, 1, 1),
    ("BLOOM, 176B", 12, 8, 2048, 2, 1),
    ("Llama 3 405B, 8,192 GPUs", 16, 64, 2048, 1, 8),
    ("Llama 3 405B, 16,384 GPUs", 16, 128, 2048, 1, 8),
):
    m = sequences // dp // a_batch
    row = {"run": run_name, "p": p, "data parallel": dp, "m": m, "v": v}
    row |= {"idle, v = 1": f"{bubble(p, m):.1%}", "idle": f"{bubble(p, m, v):.1%}"}
    table.append(row)
draw.table(
    table,
    title="Idle share of published layouts, computed",
    note="SC21, table 1; BLOOM, training README; Llama Team 2024, table 4, 16M tokens a step.",
)

# %% [markdown]
# Twice as many GPUs at the same batch halve m, and the bubble nearly doubles. Llama 3's throughput
# per GPU fell by 7%, from 430 to 400 TFLOP/s, because each pipeline had fewer sequences (section
# 3.3.2). That determines v. A stage has (126 + 2)/16 = 8 layers, so v is 1, 2, 4 or 8, and the idle
# shares alone would cost 24, 16, 10 or 5%. More GPUs can only lose something else as well, so **v
# was 8**, unless it differed between the two runs. Without interleaving, Llama 3's pipelines would
# be idle for a third of the time on the smaller number of GPUs, and for half of it on the larger.
#
# ### Formula, emulation and paper compared

# %% formula_beside_run
table = []
for what, by, formula, found in (
    ("idle, GPipe, p = 2, m = 4", "emulated", bubble(2, 4), work_of(by_name["GPipe"])),
    ("idle, 1F1B, p = 4, m = 8", "emulated", bubble(4, 8), work_of(by_name["1F1B"])),
    ("idle, p = 2, m = 4, v = 2", "emulated", bubble(2, 4, 2), work_of(by_name["interleaved"])),
    ("idle, Llama, p = 4, m = 8", "on paper", bubble(4, 8), work_of(on_paper["1F1B"])),
):
    share = found.bubble_fraction()
    row = {"quantity": what, "found": by, "formula": f"{formula:.2%}", "run": f"{share:.2%}"}
    table.append({**row, "error": f"{formula / share - 1:+z.1%}"})
for name, held in (("GPipe", 8), ("1F1B", 4)):
    found_bytes = on_paper[name].memory[0].peak["activations"]
    row = {"quantity": f"first stage of Llama, {name}", "found": "on paper"}
    row |= {
        "formula": units.format_bytes(held * layer_bytes),
        "run": units.format_bytes(found_bytes),
    }
    table.append({**row, "error": f"{held * layer_bytes / found_bytes - 1:+.1%}"})
draw.table(table, title="Formula beside emulation and paper")

# %% [markdown]
# With equal stages and links without latency the formula is exact. On paper it gives an idle share
# that is a tenth too low, for the two reasons given above. Its bytes are right to within 3%.
#
# ### Explore
#
# Choose the number of stages and micro-batches, and a schedule. The rows are torch's own, read from
# its schedule objects on emulated ranks and run by our simulator; a forward pass through 1/p of the
# model takes one millisecond, a backward pass two. The bars below the timeline show what each rank
# would hold of Llama 3 8B, states and activations, compared with 80 GB.


# %% torchs_order
TABLES = {
    "GPipe": (pipelining.ScheduleGPipe, 1),
    "1F1B": (pipelining.Schedule1F1B, 1),
    "interleaved, v = 2": (pipelining.ScheduleInterleaved1F1B, 2),
    "interleaved, v = 4": (pipelining.ScheduleInterleaved1F1B, 4),
    "zero bubble in a V": (pipelining.ScheduleZBVZeroBubble, 2),
}


def torchs_order(name, num_batches):
    """The actions of all ranks by torch's schedule of this name, which any rank of it knows."""
    kind, num_chunks = TABLES[name]
    num_ranks, rank, cpu = dist.get_world_size(), dist.get_rank(), torch.device("cpu")
    places = [rank + chunk * num_ranks for chunk in range(num_chunks)]
    if kind is pipelining.ScheduleZBVZeroBubble:
        places[1] = 2 * num_ranks - 1 - rank  # down the ranks, and up again
    num_stages, nothing = num_chunks * num_ranks, torch.nn.Identity()
    stages = [pipelining.PipelineStage(nothing, place, num_stages, cpu) for place in places]
    schedule = kind(stages if num_chunks > 1 else stages[0], num_batches, loss_fn=loss_of)
    return [[str(one) for one in actions if one] for actions in schedule.pipeline_order.values()]


# %% torchs_rows
def torchs_rows(name, num_stages, num_batches):
    """The rows of torch's schedule; it calls I what we call B where W is apart."""
    ranks = EMULATED | {"world_size": num_stages}
    rows = []
    for listed in ws.run(torchs_order, name, num_batches, **ranks).values[0]:
        found = [re.fullmatch(r"(\d+)([FBIW])\d+", one) for one in listed]
        names, counts = [one[1] + one[2].replace("I", "B") for one in found if one], {}
        for place, each in enumerate(names):
            counts[each] = counts.get(each, -1) + 1  # torch's own of 1F1B are off on the last stage
            names[place] = f"{each}{counts[each]}"
        rows.append(" ".join(names))
    return rows


# %% explored
def pipeline(schedule="1F1B", num_stages=4, num_batches=8, recomputes=False):
    """A played schedule of Llama 3 8B, and what each rank holds."""
    if num_batches < num_stages:
        return "Choose at least as many micro-batches as stages: torch's 1F1B refuses fewer."
    rows = torchs_rows(schedule, num_stages, num_batches)
    seconds = THIRDS_S if "W" in rows[0] else USUAL_S
    if recomputes:
        seconds = {**seconds, "B": seconds["B"] + 1e-3}
    played, _ = play(rows, seconds)
    kept_bytes = input_bytes if recomputes else layer_bytes
    bars = {}
    for rank, held in enumerate(most_held(rows)):
        bars[f"rank {rank}"] = {
            "states": 16 * LLAMA.num_parameters / num_stages,
            "activations": held * 32 / num_stages * kept_bytes + recomputes * layer_bytes,
        }
    picture = draw.timeline(played, title=f"{schedule}, computed")
    memory = draw.memory(bars, 80e9, "States and activations of Llama 3 8B, computed", "GPU")
    num_fit = sum(sum(bar.values()) <= 80e9 for bar in bars.values())
    fit = "every rank fits" if num_fit == num_stages else f"{num_fit} of {num_stages} ranks fit"
    said = f"{num_stages * (1 - played.bubble_fraction()):.2f} times one GPU's work at a time"
    return picture, memory, f"{said}; {fit} into 80 GB."


# %% explore
explore(
    pipeline,
    schedule=[*TABLES],
    num_stages=[2, 4, 8],
    num_batches=[2, 4, 8, 16, 32],
    recomputes=False,
)

# %% [markdown]
# Choose 8 stages and raise m from 8 to 32, with 1F1B and then with GPipe: what happens to the bars?
# Choose two chunks a rank: how much more memory does rank 0 need for the smaller bubble? The
# zero-bubble schedule in a V gives each rank an early and a late stage: how do the ranks' bars
# compare?
#
# ## 7. When it breaks
#
# ### Accumulated gradients shrink with every call of `step`
#
# In September 2025 a user trained with torch's pipelines and gradient accumulation in their own
# trainer, and compared loss curves and gradient norms with and without a pipeline. They were not
# the same, although there was no error and no warning. The same bug was then found in torchtitan
# (pytorch/torchtitan, issue 1733).
#
# The next cell reproduces it. Three calls of `step`, each with the same batch, add up their
# gradients:


# %% three_calls
def call_repeatedly(make, num_batches, num_calls, same_batch=True):
    """The norm of all ranks' gradients after each call of a schedule's `step`."""
    torch.set_num_threads(1)
    place = dist.get_rank()
    model = Transformer(SIZES, layers=range(2 * place, 2 * place + 2), seed=seed)
    stage = pipelining.PipelineStage(model, place, 2, torch.device("cpu"))
    schedule, squares = make(stage, num_batches, num_calls), []
    for number in range(num_calls):
        tokens, targets = batch(number=0 if same_batch else number)
        schedule.step(*([tokens] if place == 0 else []), target=targets if place == 1 else None)
        square = sum(one.grad.square().sum() for one in model.parameters())
        dist.all_reduce(square)
        squares.append(square.item())
    return [square**0.5 for square in squares]


def by_default(stage, num_batches, num_calls):
    """torch's 1F1B, as it comes."""
    return pipelining.Schedule1F1B(stage, num_batches, loss_fn=loss_of)


norms = ws.run(call_repeatedly, by_default, 4, 3, **EMULATED).values[0]
ratios = [norm / norms[0] for norm in norms]
predictions.reveal("norm after 3 calls over 1", ratios[-1])
print("norm after each call, over the first:", ", ".join(f"{one:.4f}" for one in ratios))

# %% [markdown]
# Three equal gradients should give three times the first, or, if they are averaged, the first
# itself. They give 1.3125 times the first.

# %% [markdown]
# ### Find the bug: the accumulated gradient shrinks
#
# 10 minutes · medium
#
# Below is a colleague's function that makes the schedule. It divides the loss by the number of
# calls, so that the sum over all calls should be the gradient of the mean loss. The check compares
# the norm of this sum with that of one process, after three calls with three different batches. Run
# the check, look at the numbers above (1, 1.25, 1.3125: by what is each sum divided?), then read
# `help(pipelining.Schedule1F1B)` and change the function.
#
# <details><summary>Hint</summary>
#
# With m = 4: 1.25 = 1 + 1/4, and 1.3125 = 1 + 1/4 + 1/16. What is divided by 4, how often, and
# when?
#
# </details>
#
# <details><summary>Hint</summary>
#
# At the end of each call torch divides `weight.grad` by m, with everything that has been
# accumulated in it. The argument `scale_grads` turns that off. Where must your code divide by m
# then?
#
# </details>


# %% make_schedule tags=["turn"]
def make_schedule(stage, num_batches, num_calls):
    """A schedule whose calls of `step` add up to the gradient of the mean loss over all of them."""

    ### BEGIN SOLUTION
    def loss(logits, targets):
        return loss_of(logits, targets) / (num_batches * num_calls)

    return pipelining.Schedule1F1B(stage, num_batches, loss_fn=loss, scale_grads=False)
    ### INSTEAD
    # def loss(logits, targets):
    #     return loss_of(logits, targets) / num_calls
    #
    # return pipelining.Schedule1F1B(stage, num_batches, loss_fn=loss)
    ### END SOLUTION


# %% check_make_schedule
def right_norms(num_calls):
    """The norm of the gradient in one process after each of so many batches, of their mean loss."""
    sums, norms = {}, []
    for number in range(num_calls):
        for name, one in whole_model_gradients(batch(number=number)).items():
            sums[name] = sums.get(name, 0) + one / num_calls
        norms.append(sum(one.square().sum() for one in sums.values()).item() ** 0.5)
    return norms


with check.turn("make_schedule"):
    expected = right_norms(3)
    found = ws.run(call_repeatedly, make_schedule, 4, 3, False, **EMULATED).values[0]
    if abs(found[-1] / expected[-1] - 1) > 1e-3:
        lines = {"one process": expected, "the pipeline": found}
        raise CheckFailed(
            f"a gradient norm of {expected[-1]:.4f} after three calls, as in one process",
            f"{found[-1]:.4f}; after each call {', '.join(f'{one:.4f}' for one in found)}",
            "Each call seems to shrink what the calls before it have left.",
            picture=lambda: draw.curves(lines, "norm", "call", "Gradient norms, emulated"),
        )
    print(f"Right: {found[-1]:.4f} after three calls, as in one process.")

# %% [markdown]
# **What it was**: at the end of each `step` torch divides the gradients by the number of
# micro-batches. If several calls accumulate, each division also shrinks what is already there, so
# earlier gradients count less and less. The sum tends to m/(m - 1) times one call's gradient, 4/3
# for m = 4, however many calls there are. torchtitan's fix (pull request 1732) turns the scaling
# off and scales the loss, as you did. torch 2.13 still scales by default, as you have just seen.
# **What finds it**: comparing the gradient norm with that of one process. AdamW hides a constant
# factor, as in week 7, so the loss curve shows little.
#
# ### 1F1B hung with fewer micro-batches than stages
#
# In January 2025 a pipeline of 8 stages was given one micro-batch, and 1F1B hung in the warm-up
# (torchtitan, issue 775). torch now refuses such a schedule:


# %% too_few
def too_few():
    """Make a schedule with fewer micro-batches than stages."""
    stage = pipelining.PipelineStage(torch.nn.Identity(), dist.get_rank(), 2, torch.device("cpu"))
    try:
        pipelining.Schedule1F1B(stage, 1, loss_fn=loss_of)
    except ValueError as error:
        return str(error)
    return "torch makes such a schedule"


print(ws.run(too_few, **EMULATED).values[0])

# %% [markdown]
# ### Dropped handles: no error with NCCL, a hang with Gloo
#
# torch's pipelines could hang or crash on CPUs (reported in August 2024, pytorch issue 132644;
# fixed in May 2025, pull request 152938). A batch of sends and receives returned a list of handles.
# With NCCL the list has one handle; with Gloo it has one for each operation, and all but one were
# dropped without being waited for. On an emulated cluster a tensor changes only when its receive
# has been waited for, so a forgotten handle shows up every time.

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | (p - 1)/(m + p - 1) | 50, 80, 89% busy for p = 2 and m = 1, 4, 8 | section 4 |
# | m = 4p leaves 18% idle | 5% needs m = 19 (p - 1) | p = 8; section 4 |
# | min(m, p) micro-batches | 1F1B's first stage; m ≥ p: one of all layers | section 4 |
# | 1/v of the idle time | for v times the messages, 1 + (p - 1)/(pv) times the memory | section 4 |
# | 2sbh bytes a boundary each way | 1/39 of what FSDP sends, for 8B on 8 GPUs | section 6 |

# %% [markdown]
# ## 8. Problems
#
# 1. A pipeline has 8 equal stages and 24 micro-batches. What share of the time is idle? How many
#    times as fast is it as one GPU? And with m = 56?
#
# <details><summary>Answer</summary>
#
# 7/31 = 22.6% idle, 8 × 24/31 = 6.19 times. With m = 56: 7/63 = 11.1%, 8 × 56/63 = 7.11 times. (Qi
# et al. 2023, table 5, give 24.3% for 1F1B at p = 8 and m = 24: their times are profiled and
# include messages.)
#
# </details>
#
# 2. DeepSeek-V3's report (table 2) counts the bubble of 1F1B as `(p-1)(F+B)`, of ZB1P as
#    `(p-1)(F+B-2W)`, and of DualPipe as `(p/2-1)(F&B+B-3W)`, where B is the whole backward and F&B
#    a forward and a backward that overlap. Take p = 16, F = 1, B = 2, W = 1 and F&B = 3. How large
#    is each bubble? What does DualPipe gain over ZB1P if nothing overlaps, as here?
#
# <details><summary>Answer</summary>
#
# 15 × 3 = 45, 15 × 1 = 15, and 7 × (3 + 2 - 3) = 14. DualPipe's bubble is hardly smaller, and it
# holds the parameters twice. Its gain is in F&B: computation of one micro-batch hides communication
# of another, so that F&B takes less time than F and B with their messages, one after the other.
#
# </details>
#
# 3. A model has 48 layers, and its LM head costs as much as 2 of them. It is split into 4 stages of
#    12 layers, with the LM head on the last, and m = 16. How much longer is the step than with even
#    stages of 12.5? What if one layer moves from the last stage to the first? And if two more move,
#    one to each of the other stages?
#
# <details><summary>Answer</summary>
#
# Count in layers. Even stages take 12.5 × 19 = 237.5. Loads 12, 12, 12, 14 take 50 + 15 × 14 = 260,
# **9.5%** longer. Loads 13, 12, 12, 13 take 50 + 15 × 13 = 245, **3.2%** longer. With loads 13, 13,
# 13, 11 the slowest is still 13, so the step takes 245 again: only the largest load counts.
#
# </details>
#
# 4. Llama 3 405B has p = 16. Its batch gives each pipeline 32 sequences. You can choose v = 1, 2, 4
#    or 8. A micro-batch is one sequence. What is the smallest v with at most 10% idle? How many
#    times as much as with v = 1 does a rank send on average?
#
# <details><summary>Answer</summary>
#
# The idle share is 15/(32v + 15): 31.9, 19.0, 10.5 and 5.5%. So **v = 8**. There are 16 × 8 = 128
# stages and 127 boundaries instead of 15, and each needs a message per micro-batch and direction:
# 127/15 = **8.5 times**.
#
# </details>
#
# 5. With 1F1B, p = 8 and m = 64, a run fits into memory except on its first stage, which needs
#    slightly too much. Name three changes that would make it fit, and what each costs.
#
# <details><summary>Answer</summary>
#
# Recompute on the first stages only: they are then slower by up to a third, and the slowest stage
# sets the pace of all. Move layers to later stages: the first stage has fewer layers, but the
# stages are uneven, and again the slowest sets the pace. Use micro-batches of half the size: half
# of the activations are in flight; the matmuls get smaller and less efficient, but m = 128 halves
# the bubble. More stages do **not** help: the first one holds the activations of p · L/p layers.
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
quiz.ask("week09", seed=seed)

# %% [markdown]
# ## To take with you
#
# - A schedule is a list of actions for each rank. Time, idle share, memory and deadlock all
#   follow from the lists and from what each action needs.
# - The bubble is (p - 1)/(m + p - 1), for GPipe and 1F1B alike if stages are equal. 1F1B saves
#   memory: the first stage holds min(m, p) micro-batches instead of m.
# - More stages do not shrink the first stage's activations. Recomputation does.
# - Interleaving divides the idle time by v, but sends more messages. Splitting B from W fills the
#   bubble with work that no other stage waits for.
# - The slowest stage sets the pace; count the LM head as layers, too.
# - A pipeline's gradients are those of one process. Compare both the gradients and their norm, with
#   gradient accumulation as well.
#
# **Now the lab**: [lab 9](../labs/lab09/lab09.ipynb). You write schedules for any p, m and v, run
# them on ranks, and balance the stages. Then **week 10**, *Combining them*: which kind of
# parallelism belongs on which link.
