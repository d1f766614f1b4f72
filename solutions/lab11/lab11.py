# %% [markdown]
# # Lab 11. Find the bottleneck
#
# A training program is slow. Where does the time go, and which *one* change makes it fastest? In
# this lab you answer as a performance engineer does: measure a step, compare each part of it with
# what it would take at best, name what binds, change that one thing, and measure again.
#
# ```text
# rank 0   read | forward | backward ........ | update          what a step records
#                             all-reduce  all-reduce |
#          ^^^^                                  ^^^            what holds it up: input, and the
#                                                               end of the last all-reduce
# ```
#
# The programs are emulated: real ranks train the small decoder of `worldsize.models` with data
# parallelism, some with tensor parallelism too, and each step is recorded in virtual time on a
# described cluster. Each program has at most one of ten bottlenecks. The checks have other
# programs, drawn for you, on a cluster with other rates.
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `terms` | the seconds of a step by what a rank does in them | 3 | 40 min | medium |
# | `find_bottleneck` | open-ended: names the bottleneck, with its cost | 8 | 90 min | hard |
# | `read_ahead` | reads the next batch while the caller computes | 2 | 20 min | medium |
# | `save_aside` | writes a checkpoint while training goes on | 2 | 25 min | medium |
# | `accumulate` | large passes in bfloat16, whose gradients are summed once | 5 | 40 min | medium |
# | `cut_into_buckets` | the buckets whose last all-reduce ends first | 2 | 30 min | hard |
# | all of these | a whole step with your changes beside the slow one | 2 | | |
# | `performance_report` | the report on a program of your own, in words | 4 | 45 min | medium |
#
# Work in this order. Each part has a check below it and folded hints above it: the first hint says
# where to look, the next one how to do it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. Programs on
# emulated ranks are judged by their results, by **the work that the check hands out**, which must
# be on the record, and by the bytes and the order of what goes over the wire. Time in these runs is
# virtual and the same on every machine. Each function is graded with correct versions of the
# others, so that a mistake costs points only once.
#
# The same inputs must give the same bits in every run, so use no clock and no unseeded generator.

# %% setup
import contextlib
import itertools
import os
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import worldsize as ws
from worldsize import emulate, faults, hardware, models, operators, pricing
from worldsize.check import CheckFailed, expect_close
from worldsize.event import Event, operations


def show(picture):
    from IPython.display import display  # here and not above: the ranks need neither

    display(picture)


ws.run(
    dist.get_rank, world_size=2, cluster="dgx-a100", echo=False
)  # the first run loads torch: the checks are then quick

# %% [markdown]
# ## The cluster and the programs
#
# The model is some 10,000 times smaller than those that fill an A100, so the cluster is a scale
# model too: two nodes of two GPUs that compute as much slower, on links some 70 times slower. A
# kernel takes 3 µs to launch.
#
# The next cell is given. A `Program` says how a step is done; its defaults are a healthy program.
# `record` runs programs and returns a `Step` of each: the timeline of the third step, which begins
# at 0, and facts about it. Read `step_on_rank`: it is an ordinary training step.


# %% given_programs
CLUSTER = replace(
    hardware.A100_100GBE,
    name="two small nodes of two",
    gpus_per_node=2,
    gpu=replace(
        hardware.A100,
        name="A100, 10,000 times slower",
        peak_flops_per_s={"float32": 8e9, "bfloat16": 32e9},
        launch_s=3e-6,
    ),
    intra=replace(hardware.A100_100GBE.intra, bandwidth_bytes_per_s=3e9),
    inter=replace(hardware.ETHERNET_100G, bandwidth_bytes_per_s=0.15e9, latency_s=150e-6),
)
SHAPE = models.Shape(
    name="small decoder",
    num_layers=2,
    width=64,
    num_heads=4,
    num_kv_heads=4,
    hidden_width=128,
    vocab_size=64,
    context_length=32,
    source="this lab, 2026",
)


class Program(NamedTuple):
    """How a training step is done on four ranks; the defaults are healthy."""

    num_sequences: int = 12  # of 32 tokens, on each rank and step
    sizes: dict[str, int] = {"dp": 4}  # of the mesh's axes, outermost first  # noqa: RUF012
    num_passes: int = 1  # forward and backward passes that the sequences are cut into
    precision: str = "bfloat16"  # of products
    bucket_bytes: int = 100_000  # of gradients that are summed over dp at once
    is_overlapped: bool = True  # sums while backward goes on, or all in one after it
    is_summed_each_pass: bool = False
    read_s: float = 2e-3  # to read a batch
    reads_ahead: bool = True
    save_s: float = 3e-3  # to write the checkpoint of rank 0
    saves_aside: bool = True
    slow_rank: int = 0
    slow_s: float = 0.0  # by which the slow rank computes longer


class Step(NamedTuple):
    """A recorded step of all ranks, and what is known of it."""

    timeline: ws.Timeline  # from 0 to the end of the step
    cluster: hardware.Cluster  # as it is described; a link may be slower than that
    sizes: dict[str, int]  # of the mesh's axes, outermost first
    num_passes: int
    precision: str
    flops: float  # of a rank's products, forward and backward
    gradient_bytes: int  # of a rank
    bucket_bytes: int  # which suit this cluster


class SumInBackward(torch.autograd.Function):
    """An identity into a tensor-parallel part."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class SumInForward(torch.autograd.Function):
    """A sum out of a tensor-parallel part."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def cut_along_tp(model, mesh):
    """Leave each rank of tp its part of all projections."""
    group, place = mesh.get_group("tp"), mesh.get_local_rank("tp")
    num = dist.get_world_size(group)
    for block in model.layers.values():
        attention, mlp = block.attention, block.mlp
        by_rows = (attention.query, attention.key, attention.value, mlp.gate, mlp.up)
        for dim, parts in ((0, by_rows), (1, (attention.output, mlp.down))):
            for part in parts:
                part.weight = torch.nn.Parameter(part.weight.chunk(num, dim)[place].clone())
        for part in (attention, mlp):
            part.register_forward_pre_hook(lambda _, args: SumInBackward.apply(args[0], group))
            part.register_forward_hook(lambda _, __, out: SumInForward.apply(out, group))


def loss_of(model, rows):
    """The mean loss over rows of tokens, each of which predicts the next one."""
    logits = model(rows[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def passes_on_rank(program, parallel, rows):
    """The gradients of a step."""
    slow_s = program.slow_s * (dist.get_rank() == program.slow_rank) / program.num_passes
    for number, part in enumerate(rows.chunk(program.num_passes)):
        is_last = number == program.num_passes - 1
        is_summed = program.is_overlapped and (is_last or program.is_summed_each_pass)
        with contextlib.nullcontext() if is_summed else parallel.no_sync():
            with (
                ws.span("forward", kind="forward"),
                torch.autocast("cpu", torch.bfloat16, enabled=program.precision == "bfloat16"),
            ):
                emulate.spend(slow_s / 3)
                loss = loss_of(parallel, part) / program.num_passes
            with ws.span("backward", kind="backward"):
                emulate.spend(slow_s * 2 / 3)
                loss.backward()


def sum_after_backward(parallel, group):
    grads = [one.grad for one in parallel.parameters()]
    flat = torch.cat([one.flatten() for one in grads])
    dist.all_reduce(flat, group=group)
    parts = (flat / dist.get_world_size(group)).split([one.numel() for one in grads])
    for grad, part in zip(grads, parts, strict=True):
        grad.copy_(part.view_as(grad))


def beside(lane, is_beside):
    """A context whose work goes on beside the rank's other work, or holds it up."""
    return emulate.lane(lane) if is_beside else contextlib.nullcontext()


def step_on_rank(program, parallel, group, rows):
    """One training step; only rank 0 writes checkpoints."""
    with beside("loader", program.reads_ahead), ws.span("read", kind="data"):
        emulate.spend(program.read_s)
    passes_on_rank(program, parallel, rows)
    if not program.is_overlapped:
        sum_after_backward(parallel, group)
    with torch.no_grad(), ws.span("update", kind="update"):
        for one in parallel.parameters():
            one -= 0.1 * one.grad
    parallel.zero_grad()
    if dist.get_rank() == 0:
        with beside("writer", program.saves_aside), ws.span("save", kind="checkpoint"):
            emulate.spend(program.save_s)


def programs_on_rank(programs):
    """By program: when its third step begins and ends, and the bytes of its gradients."""
    torch.set_num_threads(1)
    found = []
    for program in programs:
        sizes = program.sizes
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        model, group = models.Transformer(SHAPE), mesh.get_group("dp")
        if "tp" in sizes:
            cut_along_tp(model, mesh)
        parallel = DistributedDataParallel(
            model, process_group=group, bucket_cap_mb=program.bucket_bytes / 2**20
        )
        generator = torch.Generator().manual_seed(mesh.get_local_rank("dp"))
        rows = torch.randint(0, 64, (program.num_sequences, 33), generator=generator)
        times_s = []
        for _ in range(3):
            dist.barrier()
            times_s = [emulate.elapsed()]
            step_on_rank(program, parallel, group, rows)
            dist.barrier()
            times_s.append(emulate.elapsed())
        found.append([*times_s, sum(one.nbytes for one in model.parameters())])
    return found


def between(timeline, start_s, end_s):
    """What a timeline has from one moment to another, which becomes its 0."""
    inside = [one for one in timeline.events if one.end_s > start_s and one.start_s < end_s]
    moved = [
        replace(one, start_s=max(0.0, one.start_s - start_s), end_s=min(one.end_s, end_s) - start_s)
        for one in inside
    ]
    return ws.Timeline.of_events(moved)


def record(programs, slow_links=()):
    """A `Step` of each program."""
    run = ws.run(
        programs_on_rank,
        programs,
        world_size=4,
        cluster=CLUSTER,
        echo=False,
        faults=slow_links,
        timeout_s=300,  # a dozen programs, perhaps on a busy machine
    )
    return [
        Step(
            between(run.timeline, start_s, end_s),
            CLUSTER,
            one.sizes,
            one.num_passes,
            one.precision,
            SHAPE.flops(32 * one.num_sequences, 32) / one.sizes.get("tp", 1),
            gradient_bytes,
            100_000,
        )
        for one, (start_s, end_s, gradient_bytes) in zip(programs, run.values[0], strict=True)
    ]


# %% [markdown]
# This is a step of the healthy program. Most of the sums over ranks travel while backward goes on;
# the reading is beside it.


# %% healthy_step
HEALTHY = Program()


def show_healthy():
    from worldsize import draw

    (step,) = record([HEALTHY])
    show(draw.timeline(step.timeline, title="A step of the healthy program, emulated"))


show_healthy()

# %% [markdown]
# ## 1. Measure: where the time of a step goes
#
# Every moment of a step belongs to one of six terms, so that they add up to the step:
#
# | Term | What the rank does |
# |---|---|
# | `compute` | it computes: kind forward, backward, update or compute, on stream `compute` |
# | `communication` | a message or collective is under way in which all members take part by now |
# | `late` | one is under way, but a member has not come to it yet |
# | `input` | it reads (kind data) |
# | `storage` | it writes (kind checkpoint) |
# | `idle` | none of these: in a real trace, a GPU that waits for a kernel to be launched |
#
# Where several hold at once, the first of them in this order counts. So communication counts only
# where no compute hides it, and reading where nothing else goes on.
#
# <details><summary>Hint 1: where to look</summary>
#
# What changes from one moment to the next changes at the start or the end of an event. Between two
# neighbouring such times, everything stays as it is: ask what is under way in the middle.
#
# </details>
# <details><summary>Hint 2: late or not</summary>
#
# `operations(timeline.events)` is a list of operations, each the list of its members' events. A
# member that comes late starts its event late: until the last `start_s` of the operation the others
# wait for it. This last start is one more time at which something changes.
#
# </details>


# %% terms tags=["solution"]
def terms(timeline: ws.Timeline, rank: int) -> dict[str, float]:
    """The seconds of a step by what a rank does, with the keys of the table above in its order.

    - They add up to `timeline.end_s`: the step lasts from 0 to there, for every rank.
    - Each moment counts once, for the first term of the table that holds.
    - Compute is an event on the stream "compute" of kind "compute", "forward", "backward" or
      "update". Communication, "data" and "checkpoint" count on any stream.
    - The members of an operation are its events on all ranks, as `operations` finds them. An event
      of communication without peers belongs to no operation: it is never late.
    """
    ### BEGIN SOLUTION
    met_s = {}
    for members in operations(timeline.events):
        last_s = max(one.start_s for one in members)
        met_s |= {id(one): last_s for one in members}
    own = timeline.of(rank)
    times_s = {0.0, timeline.end_s, *(met_s[id(one)] for one in own if id(one) in met_s)}
    times_s |= {time_s for one in own for time_s in (one.start_s, one.end_s)}
    computing = ("compute", "forward", "backward", "update")
    tests = {
        "compute": lambda one, _: one.stream == "compute" and one.kind in computing,
        "communication": lambda one, time_s: (
            one.kind == "communication" and time_s > met_s.get(id(one), 0.0)
        ),
        "late": lambda one, _: one.kind == "communication",
        "input": lambda one, _: one.kind == "data",
        "storage": lambda one, _: one.kind == "checkpoint",
        "idle": lambda one, _: False,
    }
    found = dict.fromkeys(tests, 0.0)
    ordered = [time_s for time_s in sorted(times_s) if 0 <= time_s <= timeline.end_s]
    for start_s, end_s in itertools.pairwise(ordered):
        middle_s = (start_s + end_s) / 2
        now = [one for one in own if one.start_s < middle_s < one.end_s]
        holding = (name for name, test in tests.items() if any(test(one, middle_s) for one in now))
        found[next(holding, "idle")] += end_s - start_s
    return found
    ### END SOLUTION


# %% check_terms points=3
TERMS = ("compute", "communication", "late", "input", "storage", "idle")


def event(rank, stream, kind, start_s, end_s, **more):
    return Event(rank, stream, kind, kind, float(start_s), float(end_s), **more)


def all_reduce(rank, start_s, end_s, sequence=0, num_ranks=2):
    more = {"peers": tuple(range(num_ranks)), "group": "0", "sequence": sequence}
    kind = "communication"
    return Event(rank, kind, kind, "all_reduce", float(start_s), float(end_s), 8, 8.0, **more)


def check_terms():
    from worldsize import draw

    cases = [
        ("Reading, then compute.", (0, "compute", "data", 0, 2), {"input": 2.0}),
        ("The read is hidden by compute.", (0, "loader", "data", 3, 8), {"idle": 2.0}),
        ("It outlasts compute.", (0, "loader", "data", 8, 13), {"idle": 2.0, "input": 1.0}),
        ("Then it writes.", (0, "compute", "checkpoint", 12, 15), {"idle": 2.0, "storage": 3.0}),
        ("A thread's compute is not the GPU's.", (0, "thread 1", "compute", 12, 14), {"idle": 4.0}),
    ]
    for hint, more, wanted in cases:
        events = [event(0, "compute", "forward", 2, 5), event(0, "compute", "backward", 5, 12)]
        timeline = ws.Timeline.of_events([*events, event(*more)])
        expect_terms(timeline, 0, {"compute": 10.0} | wanted, hint)
    events = [
        event(0, "compute", "backward", 0, 4),
        event(1, "compute", "backward", 0, 7),
        all_reduce(0, 3, 9),
        all_reduce(1, 5, 9),
        all_reduce(0, 9, 14, sequence=1),
        all_reduce(1, 10, 14, sequence=1),
        event(0, "loader", "data", 4, 14),
    ]
    timeline = ws.Timeline.of_events(events)
    hint = "Rank 0 waits for rank 1 from 4 to 5 and from 9 to 10; then the sums travel."
    expect_terms(timeline, 0, {"compute": 4.0, "communication": 8.0, "late": 2.0}, hint)
    hint = "Rank 1 comes last to both: it waits for nobody."
    expect_terms(timeline, 1, {"compute": 7.0, "communication": 6.0, "idle": 1.0}, hint)
    (step,) = record([HEALTHY])
    rows = [
        {"rank": rank} | {f"{name}_s": one for name, one in terms(step.timeline, rank).items()}
        for rank in range(4)
    ]
    show(draw.table(rows, title="The terms of a step of the healthy program"))
    print("terms: every moment counts once.")


def expect_terms(timeline, rank, wanted, hint):
    given = terms(timeline, rank)
    if list(given) != list(TERMS):
        raise CheckFailed(f"the terms {', '.join(TERMS)}", f"{list(given)}", "In this order.")
    for name in TERMS:
        due_s = wanted.get(name, 0.0)
        expect_close(given[name], due_s, f"the seconds of {name} on rank {rank}", hint)


check_terms()

# %% [markdown]
# ## 2. Name: which one change gains most?
#
# The largest term is not always the bottleneck: communication that takes half of a step may be due
# to its buckets, to a link, or to sums that nobody needs. So ask of each change what the step would
# take **after it**, with all else as it is. The bottleneck is the cause whose change gains most.
#
# | Cause | The one change |
# |---|---|
# | `input` | the next batch is read while the rank computes |
# | `storage` | the checkpoint is written while the next step goes on |
# | `straggler` | the slowest rank computes as long as the median rank |
# | `precision` | products in bfloat16 in place of float32 |
# | `launch` | one pass in place of `num_passes`, so fewer and larger kernels |
# | `accumulation` | gradients are summed over dp in the last pass only |
# | `no_overlap` | sums in buckets of `bucket_bytes`, each as soon as it is there |
# | `small_buckets` | buckets of `bucket_bytes` in place of many small ones |
# | `slow_link` | all links at the rates of `cluster` |
# | `wrong_axis` | the other axis of the mesh innermost |
#
# The library has the prices: `pricing.price("all_reduce", size_bytes, ranks, cluster).time_s` is
# what a sum takes on a described cluster, and `operators.flops_per_s("matmul", "bfloat16", gpu)`
# the rate that products reach. Ranks are numbered along the mesh with the innermost axis changing
# first, and two neighbours share a node.
#
# <details><summary>Hint 1: where to look</summary>
#
# Write a function that returns a dictionary: for each cause that can apply, the seconds of the step
# after its change. Work on the rank that computes longest: the others wait for it. Begin with the
# causes that are one subtraction: `straggler`, `input`, `storage`.
#
# </details>
# <details><summary>Hint 2: compute</summary>
#
# What of `terms(...)["compute"]` is above `flops` at the rate of its precision is overhead of the
# kernels, much the same in every pass: one pass in place of m saves (m - 1)/m of it. In bfloat16
# the products alone become faster.
#
# </details>
# <details><summary>Hint 3: sums that backward hides</summary>
#
# Buckets become ready evenly over the backward pass, the last one at its end. One is sent after the
# other: `done = max(done, ready) + its price`. What `done` is beyond the end of backward is what
# the step pays. After a change compute this anew, and subtract what the step pays now: the seconds
# of its sums in which the rank does not compute.
#
# </details>
# <details><summary>Hint 4: telling causes of communication apart</summary>
#
# The sums are the events of kind communication called all_reduce; those of tp have the `axis` "tp".
# Bytes summed over dp, in multiples of `gradient_bytes`: sums in each pass. No sum begins before
# backward ends: no overlap. Durations above their price: a slow link, which other changes leave as
# slow as it is. A mesh with tp: price all sums once more with the other order of the axes.
#
# </details>


# %% given_diagnosis
class Diagnosis(NamedTuple):
    """What binds a step."""

    cause: str | None  # of the table above
    rank: int | None  # of a straggler
    step_s: float  # of the step after the one change


SLOW_LINK = (faults.SlowLink("node0 nic0 out", 4),)
ON_MESH = HEALTHY._replace(sizes={"dp": 2, "tp": 2})
PLANTED = {
    "input": HEALTHY._replace(reads_ahead=False, read_s=6e-3),
    "storage": HEALTHY._replace(saves_aside=False, save_s=6e-3),
    "straggler": HEALTHY._replace(slow_rank=2, slow_s=5e-3),
    "precision": HEALTHY._replace(precision="float32"),
    "launch": HEALTHY._replace(num_passes=3),
    "accumulation": HEALTHY._replace(num_passes=3, is_summed_each_pass=True),
    "no_overlap": HEALTHY._replace(is_overlapped=False),
    "small_buckets": HEALTHY._replace(bucket_bytes=1000),
    "wrong_axis": HEALTHY._replace(sizes={"tp": 2, "dp": 2}),
}
AFTER = {"accumulation": "launch", "wrong_axis": "mesh"}  # what others become is healthy


def recorded_steps():
    """By cause its planted step, and the seconds of the step after the change; None is healthy."""
    names = [*PLANTED, "mesh", None]
    steps = dict(zip(names, record([*PLANTED.values(), ON_MESH, HEALTHY]), strict=True))
    (slow,) = record([HEALTHY], SLOW_LINK)
    planted = {name: steps[name] for name in PLANTED} | {"slow_link": slow, None: steps[None]}
    return planted, {cause: steps[AFTER.get(cause)].timeline.end_s for cause in planted}


# %% find_bottleneck tags=["solution"]
def find_bottleneck(step: Step) -> Diagnosis:
    """The bottleneck of a step: the cause of the table above whose change gains most.

    - `cause` is its name there, and None if no change makes the step 10% shorter. A step has one
      bottleneck at most.
    - `rank` is the one that is slower than the others, for the cause "straggler"; otherwise None.
    - `step_s` is what the step takes after the one change, and the step's own seconds for None.

    Five points for the causes of twelve steps, of which two have no bottleneck: none for three
    right ones, all for twelve, in proportion between them; a straggler without its rank counts
    half. Three points for `step_s`, compared with the same program after the change, on the same
    cluster: full where it is 5% off, none at 25%, in proportion between them.
    """
    ### BEGIN SOLUTION
    by_rank = [terms(step.timeline, rank) for rank in range(step.timeline.num_ranks)]
    found = what_if(step, by_rank)
    cause = min(found, key=lambda one: found[one])
    if found[cause] > 0.9 * step.timeline.end_s:
        return Diagnosis(None, None, step.timeline.end_s)
    computed = [one["compute"] for one in by_rank]
    rank = computed.index(max(computed)) if cause == "straggler" else None
    return Diagnosis(cause, rank, found[cause])


def ranks_along(axis, sizes):
    """The ranks of rank 0's group along an axis."""
    inner = list(sizes)[-1]
    return [place * (1 if axis == inner else sizes[inner]) for place in range(sizes[axis])]


def price_s(size_bytes, axis, sizes, cluster):
    return pricing.price("all_reduce", size_bytes, ranks_along(axis, sizes), cluster).time_s


def paid_s(sums, backward_s):
    """What sums of (bytes, seconds) take beyond the backward pass in which they become ready."""
    total, ready, done_s = sum(size for size, _ in sums), 0, 0.0
    for size, time_s in sums:
        ready += size
        done_s = max(done_s, backward_s * ready / total) + time_s
    return max(0.0, done_s - backward_s)


def paid_now_s(calls, own):
    """The seconds of calls in which their rank does not compute."""
    computing = [one for one in own if one.stream == "compute"]
    hidden_s = sum(
        max(0.0, min(call.end_s, one.end_s) - max(call.start_s, one.start_s))
        for call in calls
        for one in computing
    )
    return sum(call.duration_s for call in calls) - hidden_s


def without_waits(step, by_rank):
    """The step after a change to input, storage or the slowest rank."""
    end_s, found = step.timeline.end_s, {}
    for cause, kind in (("input", "data"), ("storage", "checkpoint")):
        rank = max(range(len(by_rank)), key=lambda one: by_rank[one][cause])
        hidden_s = end_s - by_rank[rank][cause]
        found[cause] = max(hidden_s, step.timeline.time_s(rank, kind))
    computed = [one["compute"] for one in by_rank]
    return found | {"straggler": end_s - max(computed) + median(computed)}


def what_if(step, by_rank):
    """The seconds of the step after each change."""
    computed = [one["compute"] for one in by_rank]
    own = step.timeline.of(computed.index(max(computed)))
    calls = [one for one in own if one.kind == "communication" and one.name == "all_reduce"]
    along = {axis: [one for one in calls if (one.axis or "dp") == axis] for axis in step.sizes}
    slower = {}
    for axis, its in along.items():
        due_s = sum(price_s(one.size_bytes, axis, step.sizes, step.cluster) for one in its)
        slower[axis] = sum(one.duration_s for one in its) / due_s

    def priced(sizes_bytes, sizes=step.sizes, factor=slower["dp"]):
        return [(one, factor * price_s(one, "dp", sizes, step.cluster)) for one in sizes_bytes]

    backward = [one for one in own if one.kind == "backward"]
    backward_s, num_passes = sum(one.duration_s for one in backward), step.num_passes
    sums = along["dp"]
    times = max(1, round(sum(one.size_bytes for one in sums) / step.gradient_bytes))
    once = [one.size_bytes for one in sums[-(len(sums) // times) :]]
    rest_s = step.timeline.end_s - paid_now_s(sums, own)  # without what the sums over dp cost
    num_full, left = divmod(step.gradient_bytes, step.bucket_bytes)
    buckets = [step.bucket_bytes] * num_full + [left] * (left > 0)
    last_s = backward_s / num_passes

    found = without_waits(step, by_rank)
    is_overlapped = any(one.start_s < backward[-1].end_s for one in sums)
    found["small_buckets" if is_overlapped else "no_overlap"] = rest_s + paid_s(
        priced(buckets), last_s
    )
    if times > 1:
        found["accumulation"] = rest_s + paid_s(priced(once), last_s)

    rates = {
        one: operators.flops_per_s("matmul", one, step.cluster.gpu)
        for one in ("float32", "bfloat16")
    }
    overhead_s = max(computed) - step.flops / rates[step.precision]
    saved_s = overhead_s * (1 - 1 / num_passes)
    if times > 1:
        found["launch"] = step.timeline.end_s - saved_s
    else:
        longer_s = backward_s * (1 - saved_s / max(computed))
        found["launch"] = rest_s - saved_s + paid_s(priced(once), longer_s)
    if step.precision == "float32":
        saved_s = step.flops / rates["float32"] - step.flops / rates["bfloat16"]
        shorter_s = last_s * (1 - saved_s / max(computed))
        found["precision"] = rest_s - saved_s + paid_s(priced(once), shorter_s)
    if slower["dp"] > 1.2:
        found["slow_link"] = rest_s + paid_s(priced(once, factor=1.0), last_s)
    if "tp" in step.sizes:
        other = dict(reversed(step.sizes.items()))
        gained_s = sum(
            one.duration_s - price_s(one.size_bytes, "tp", other, step.cluster)
            for one in along["tp"]
        )
        found["wrong_axis"] = rest_s - gained_s + paid_s(priced(once, other), last_s)
    return found
    ### END SOLUTION


# %% check_find_bottleneck points=8
def check_find_bottleneck():
    from worldsize import draw

    planted, after_s = recorded_steps()
    rows = []
    for cause, step in planted.items():
        given = find_bottleneck(step)
        rows.append({
            "planted": str(cause),
            "named": str(given.cause),
            "step_s": step.timeline.end_s,
            "said_s": given.step_s,
            "changed_s": after_s[cause],
            "off_fraction": round(given.step_s / after_s[cause] - 1, 4),
        })  # fmt: skip
    show(draw.table(rows, title="Planted bottlenecks, their names, and the step after the change"))
    for row in rows:
        if row["named"] != row["planted"]:
            hint = "Compute the step after each change: the cause is the one that gains most."
            raise CheckFailed(f"{row['planted']} to be named", row["named"], hint)
    if find_bottleneck(planted["straggler"]).rank != 2:
        raise CheckFailed(
            "rank 2 for the straggler", f"{find_bottleneck(planted['straggler']).rank}"
        )
    worst = max(rows, key=lambda row: abs(row["off_fraction"]))
    if abs(worst["off_fraction"]) > 0.05:
        hint = "Which part of the step does the change make shorter, and what does it uncover?"
        expected = f"{worst['changed_s'] * 1e3:.2f} ms after the change for {worst['planted']}"
        raise CheckFailed(expected, f"{worst['said_s'] * 1e3:.2f} ms", hint)
    print(f"find_bottleneck: 11 steps named, at most {abs(worst['off_fraction']):.1%} off.")


check_find_bottleneck()

# %% [markdown]
# ## 3. Change: input
#
# The first change: a training loop over `map(load, range(n))` reads each batch when it needs it.
# `read_ahead` gives the same batches, and reads the next one while the loop's body runs. It stays
# one batch ahead and no more: batches fill the host's memory.
#
# An emulated rank gives every thread a clock of its own, and the result of a future is there no
# earlier than its thread has come to it. So the same function hides reading for real.
#
# <details><summary>Hint 1: where to look</summary>
#
# `ThreadPoolExecutor(1).submit(load, 1)` starts a read and returns a future; its `result()` waits.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# A generator: wait for the batch that is on its way, start the next one, then `yield`.
#
# </details>


# %% read_ahead tags=["solution"]
def read_ahead(load, num_batches: int):
    """Yield load(0), ... load(num_batches - 1), each read while the caller has the one before.

    - The read of batch k + 1 begins when batch k is handed out, before the caller works on it; the
      first one begins when the first batch is asked for. One read is under way at a time.
    - `load` is called once for each number, in order, and not at all where `num_batches` is 0.
    - What `load` raises for batch k is raised where batch k is due, after the ones before it.
    """
    ### BEGIN SOLUTION
    with ThreadPoolExecutor(1) as pool:
        coming = None
        for number in range(num_batches):
            batch = (coming or pool.submit(load, number)).result()
            coming = pool.submit(load, number + 1) if number + 1 < num_batches else None
            yield batch
    ### END SOLUTION


# %% check_read_ahead points=2
READ_S, WORK_S = (3.0, 1.0, 4.0, 2.0), (2.0, 2.0, 3.0, 1.0)


def reading_on_rank():
    """The batches that the loop had, and whether each came in time."""

    def load(number):
        with ws.span("read", kind="data"):
            emulate.spend(READ_S[number])
        if number == 3:
            raise OSError("batch 3 is damaged")
        return 10 * number

    batches = []
    try:
        for batch in read_ahead(load, 4):
            with ws.span("work"):
                emulate.spend(WORK_S[len(batches)])
            batches.append(batch)
    except OSError as error:
        return batches, str(error)
    return batches, ""


def check_read_ahead():
    from worldsize import draw

    run = ws.run(reading_on_rank, world_size=1, cluster=CLUSTER, compute="none", echo=False)
    batches, said = run.values[0]
    if batches != [0, 10, 20]:
        hint = "The batches in order; an error of batch 3 is raised where batch 3 is due."
        raise CheckFailed("batches [0, 10, 20] before the error", f"{batches}", hint)
    if said != "batch 3 is damaged":
        raise CheckFailed("the error of batch 3 in the loop", said or "none")
    show(draw.timeline(run.timeline, title="Reading one batch ahead, emulated"))
    end_s = run.timeline.end_s  # 3, then 2 beside 1, 2 beside 4, 3 beside 2
    if end_s > 12.01:
        hint = "Start the next read before you hand out a batch, in a thread."
        raise CheckFailed(
            "12 s: 3 to begin with, then the longer of work and read", f"{end_s:.1f} s", hint
        )
    if end_s < 11.99:
        raise CheckFailed(
            "12 s with one read at a time", f"{end_s:.1f} s", "One batch ahead, no more."
        )
    if list(read_ahead(lambda number: 1 / 0, 0)):
        raise CheckFailed("no batch of 0", "one")
    print("read_ahead: work hides reading, one batch ahead.")


check_read_ahead()

# %% [markdown]
# ## 4. Change: storage
#
# A checkpoint must be of one moment: training goes on in place while it is written. So copy all
# tensors to the host first, which takes little, and write the copies in a thread.
#
# <details><summary>Hint 1: where to look</summary>
#
# `emulate.to_host(tensor)` is a copy in the host's memory, here and on a GPU.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# Copy in the caller's thread, then submit `torch.save` to a pool of one thread and return its
# future. `pool.shutdown(wait=False)` lets the thread end by itself.
#
# </details>


# %% save_aside tags=["solution"]
def save_aside(state: dict[str, torch.Tensor], path: str) -> Future:
    """Write tensors to a file by `torch.save` while the caller goes on; return a future of it.

    - The file has the tensors as they are when the function is called, whatever the caller does to
      them afterwards, under the same names. `torch.load(path, weights_only=True)` reads it.
    - The function returns once the copies are made, before anything is written.
    - `result()` of the future returns when the file is whole, and raises what the writing raised.
    """
    ### BEGIN SOLUTION
    copies = {name: emulate.to_host(tensor) for name, tensor in state.items()}
    pool = ThreadPoolExecutor(1)
    written = pool.submit(torch.save, copies, path)
    pool.shutdown(wait=False)
    return written
    ### END SOLUTION


# %% check_save_aside points=2
def saving_on_rank(folder):
    """What the file has, and what was raised for a folder that does not exist."""
    tensors = {"weight": torch.full((1000, 1000), 3.0), "steps": torch.tensor(7)}
    path = os.path.join(folder, "checkpoint.pt")
    written = save_aside(tensors, path)
    with ws.span("work"):
        emulate.spend(1.0)
    tensors["weight"].zero_()
    written.result()
    emulate.spend(0)
    found = torch.load(path, weights_only=True)
    try:
        save_aside(tensors, os.path.join(folder, "absent", "checkpoint.pt")).result()
    except (RuntimeError, OSError):
        return found["weight"].mean().item(), int(found["steps"]), True
    return found["weight"].mean().item(), int(found["steps"]), False


def check_save_aside():
    with tempfile.TemporaryDirectory() as folder:
        run = ws.run(
            saving_on_rank, folder, world_size=1, cluster=CLUSTER, compute="none", echo=False
        )
    mean, steps, has_raised = run.values[0]
    if (mean, steps) != (3.0, 7):
        hint = "Copy every tensor before you return: the caller changes them in place."
        raise CheckFailed("the state at the time of the call", f"a weight of {mean:g}", hint)
    if not has_raised:
        raise CheckFailed("result() to raise if nothing could be written", "no error")
    (work,) = [one for one in run.timeline.events if one.name == "work"]
    (first, *_) = [one for one in run.timeline.events if one.name == "torch.save"]
    if first.start_s >= work.end_s or first.stream == "compute":
        hint = "Write in a thread, and return its future."
        raise CheckFailed("writing while the caller works", "writing before or after", hint)
    copy_s, write_s = work.start_s * 1e3, first.duration_s * 1e3
    print(f"save_aside: the caller waits {copy_s:.2f} ms, of {write_s:.2f} ms for the file.")


check_save_aside()

# %% [markdown]
# ## 5. Change: passes, precision, and how often gradients are summed
#
# Sequences that do not fit into memory at once go through the model in several passes, whose
# gradients add up. Three of the bottlenecks are ways to do this badly: passes that are smaller than
# memory allows, products in float32, and a sum over all ranks in every pass.
#
# `parallel` is torch's DDP: it sums gradients while backward goes on, in each backward pass whose
# forward was not inside `parallel.no_sync()`.
#
# <details><summary>Hint 1: where to look</summary>
#
# The slow way is given in section 7: `accumulate_slowly`. Change one thing after the other.
#
# </details>
# <details><summary>Hint 2: the mean</summary>
#
# A pass with 2 of 6 sequences has a third of the loss, not one over the number of passes.
#
# </details>
# <details><summary>Hint 3: no_sync and autocast</summary>
#
# Forward *and* backward of all passes but the last belong inside `no_sync()`. Forward and loss
# belong inside `torch.autocast("cpu", torch.bfloat16)`; weights and gradients stay in float32.
#
# </details>


# %% accumulate tags=["solution"]
def accumulate(parallel, rows: torch.Tensor, most: int) -> float:
    """Set the gradients of the mean loss over all ranks' rows; return the loss of this rank's.

    - `parallel` is a model in torch's DDP, or a class with the same `forward` and `no_sync`; no
      gradient is set so far. `rows` are (B, T + 1) tokens, as many on every rank. The loss is that
      of `loss_of`.
    - The rows go through the model in as few passes as have at most `most` rows each. Every row
      counts the same, whatever the size of its pass.
    - Products are computed in bfloat16, by torch's autocast. Weights and gradients keep theirs.
    - Each gradient is summed over the ranks once, by `parallel` itself, while the backward of the
      last pass goes on.
    """
    ### BEGIN SOLUTION
    total, parts = 0.0, rows.split(most)
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        with contextlib.nullcontext() if is_last else parallel.no_sync():
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(parallel, part) * (len(part) / len(rows))
            loss.backward()
        total += loss.item()
    return total
    ### END SOLUTION


# %% check_accumulate points=5
class Noting(models.Transformer):
    """The model, which notes the rows and the dtype of each pass."""

    def __init__(self):
        super().__init__(SHAPE)
        self.passes = []

    def forward(self, x):
        logits = super().forward(x)
        self.passes.append((len(x), str(logits.dtype)))
        return logits


def accumulating_on_rank(num_rows, most):
    """The loss, the gradients and the passes of the third step, and when it begins and ends."""
    torch.set_num_threads(1)
    model = Noting()
    parallel = DistributedDataParallel(model, bucket_cap_mb=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    rows = torch.randint(0, 64, (num_rows, 33), generator=generator)
    for _ in range(3):
        parallel.zero_grad()
        model.passes.clear()
        dist.barrier()
        start_s = emulate.elapsed()
        loss = accumulate(parallel, rows, most)
        end_s = emulate.elapsed()
    gradients = [one.grad for one in model.parameters()]
    return loss, gradients, model.passes, start_s, end_s


def wanted_gradients(num_rows):
    """By rank the loss, and the gradients of the mean over both ranks, in one pass in float32."""
    model, losses = models.Transformer(SHAPE), []
    for rank in range(2):
        generator = torch.Generator().manual_seed(rank)
        losses.append(loss_of(model, torch.randint(0, 64, (num_rows, 33), generator=generator)))
    torch.stack(losses).mean().backward()
    return [one.item() for one in losses], [one.grad for one in model.parameters()]


def check_accumulate():
    from worldsize import draw

    run = ws.run(accumulating_on_rank, 6, 4, world_size=2, cluster=CLUSTER, echo=False)
    losses, wanted = wanted_gradients(6)
    for rank, (loss, gradients, passes, _, _) in enumerate(run.values):
        rows = [one for one, _ in passes]
        if sum(rows) != 6 or max(rows) > 4 or len(rows) != 2:
            hint = "As few passes as possible: 6 rows, 4 at most."
            raise CheckFailed("2 passes", f"passes of {rows} rows", hint)
        if any(kind != "torch.bfloat16" for _, kind in passes):
            raise CheckFailed("products in bfloat16", f"{passes[0][1]}", "Use torch.autocast.")
        hint = "Weigh each pass by its rows: 4 of 6, and 2 of 6."
        expect_close(loss, losses[rank], f"the loss on rank {rank}", hint, rtol=0.02)
        off = (flat(gradients) - flat(wanted)).norm() / flat(wanted).norm()
        if not off < 0.03:
            raise CheckFailed("the gradients of one pass of all rows", f"{off:.0%} off", hint)
    start_s, end_s = run.values[0][3:]
    timeline = between(run.timeline, start_s, end_s)
    sums = [one for one in timeline.of(0) if one.kind == "communication" and one.size_bytes]
    sent, due = sum(one.size_bytes for one in sums), 4 * len(flat(wanted))
    if sent > due:
        hint = "Forward and backward of all passes but the last inside parallel.no_sync()."
        raise CheckFailed(f"{due} bytes: each gradient once", f"{sent} bytes", hint)
    show(draw.timeline(timeline, title="Two passes, with the sums in the second one, emulated"))
    if timeline.overlap_fraction(0) < 0.2:
        hint = "The last pass outside no_sync(): DDP then sums while its backward goes on."
        raise CheckFailed("sums while backward goes on", "sums after it", hint)
    print(
        f"accumulate: right, each gradient summed once, {timeline.overlap_fraction(0):.0%} hidden."
    )


def flat(tensors):
    return torch.cat([one.flatten() for one in tensors])


check_accumulate()

# %% [markdown]
# ## 6. Change: buckets
#
# Each all-reduce costs a latency, so many small ones are slow. One large one cannot begin before
# the last gradient is there. Where is the best cut, if gradients are unequal and come at unequal
# times? Sums are done one after the other, so this is a short computation.
#
# <details><summary>Hint 1: where to look</summary>
#
# Of the first k gradients alone, when are they summed at the earliest? The earlier the better for
# all that follow, so only this one time has to be known for each k.
#
# </details>
# <details><summary>Hint 2: how</summary>
#
# For k = 1 to n, try every size of the last bucket: it begins when its last gradient is ready and
# what came before it is summed at the earliest. Keep the best time and its cut.
#
# </details>


# %% cut_into_buckets tags=["solution"]
def cut_into_buckets(
    sizes_bytes: list[int], ready_s: list[float], latency_s: float, bytes_per_s: float
) -> list[int]:
    """The number of gradients in each bucket, so that the last all-reduce ends earliest.

    - `sizes_bytes` are the gradients' sizes in the order in which they become ready, `ready_s` the
      times at which they do, ascending. There are at least one and at most 60.
    - A bucket has one or more neighbours in this order. Its all-reduce begins when all of its
      gradients are ready and the bucket before it is summed, and takes `latency_s` and its bytes
      over `bytes_per_s`.
    - Points in proportion to the time after the last gradient is ready: all for the best cut, none
      for twice that time.

    Example: cut_into_buckets([8, 8, 8], [1.0, 2.0, 3.0], 1.0, 8.0) is [1, 2]: it ends at 6.0 s.
    """
    ### BEGIN SOLUTION
    best = [(0.0, [])]
    for end in range(1, len(sizes_bytes) + 1):
        tried = []
        for start in range(end):
            begin_s = max(best[start][0], ready_s[end - 1])
            time_s = latency_s + sum(sizes_bytes[start:end]) / bytes_per_s
            tried.append((begin_s + time_s, [*best[start][1], end - start]))
        best.append(min(tried))
    return best[-1][1]
    ### END SOLUTION


# %% check_cut_into_buckets points=2
def check_cut_into_buckets():
    one_by_one = "One all-reduce for each gradient pays the latency each time."
    at_once = "One for all begins only when the last gradient is there."
    cases = [
        ([8, 8, 8], [1.0, 2.0, 3.0], 1.0, 6.0, "As in the example."),
        ([8] * 6, [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], 4.0, 11.5, one_by_one),
        ([8] * 5, [1.0, 3.0, 5.0, 7.0, 9.0], 0.1, 10.1, at_once),
        ([8, 64, 8, 8], [1.0, 2.0, 9.0, 9.5], 1.0, 15.0, "Unequal sizes and times: try every cut."),
        ([40, 8, 8, 8, 8], [0.5, 1.0, 1.5, 8.0, 8.2], 2.0, 14.0, "What comes last decides."),
    ]
    for sizes, ready_s, latency_s, best_s, hint in cases:
        given = cut_into_buckets(sizes, ready_s, latency_s, 8.0)
        if sum(given) != len(sizes) or min(given) < 1:
            raise CheckFailed(f"{len(sizes)} gradients in buckets", f"{given}")
        end_s, place = 0.0, 0
        for num in given:
            begin_s = max(end_s, ready_s[place + num - 1])
            end_s = begin_s + latency_s + sum(sizes[place : place + num]) / 8.0
            place += num
        if end_s > best_s * 1.001:
            of = f"for {sizes} ready at {ready_s}, latency {latency_s:g} s"
            raise CheckFailed(f"an end at {best_s:g} s {of}", f"{given}: {end_s:g} s", hint)
    print("cut_into_buckets: neither one by one nor all at once.")


check_cut_into_buckets()

# %% [markdown]
# ## 7. Measure again: all changes at once
#
# The next cell is given: the slow program, and the same one with your functions. In the checks each
# pass and each read takes what the check hands out.


# %% given_training
def accumulate_slowly(parallel, rows, most):
    """What `accumulate` does, one row after the other, in float32, summed in each pass."""
    total = 0.0
    for row in rows.split(1):
        loss = loss_of(parallel, row) / len(rows)
        loss.backward()
        total += loss.item()
    return total


def train(parallel, load, num_steps, most, path, is_fast):
    """Train, and save a checkpoint after each step; return the loss of each step."""
    losses, written = [], None
    for rows in read_ahead(load, num_steps) if is_fast else map(load, range(num_steps)):
        parallel.zero_grad()
        losses.append((accumulate if is_fast else accumulate_slowly)(parallel, rows, most))
        with torch.no_grad():
            for one in parallel.parameters():
                one -= 0.1 * one.grad
        state = {name: one.detach() for name, one in parallel.named_parameters()}
        if written is not None:
            written.result()
        if is_fast:
            written = save_aside(state, path)
        else:
            torch.save(state, path)
    if written is not None:
        written.result()
    return losses


# %% check_whole_step points=2
def training_on_rank(is_fast, folder):
    """The losses, and the seconds of three steps."""
    torch.set_num_threads(1)
    parallel = DistributedDataParallel(models.Transformer(SHAPE), bucket_cap_mb=0.1)

    def load(number):
        with ws.span("read", kind="data"):
            emulate.spend(4e-3)
        generator = torch.Generator().manual_seed(10 * number + dist.get_rank())
        return torch.randint(0, 64, (6, 33), generator=generator)

    dist.barrier()
    start_s = emulate.elapsed()
    path = os.path.join(folder, f"{dist.get_rank()}.pt")
    losses = train(parallel, load, 3, 6, path, is_fast)
    dist.barrier()
    return losses, emulate.elapsed() - start_s


def check_whole_step():
    from worldsize import draw

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, is_fast in (("slow", False), ("fast", True)):
            run = ws.run(
                training_on_rank, is_fast, folder, world_size=2, cluster=CLUSTER, echo=False
            )
            found[name] = run.values[0]
    rows = [
        {"program": name, "steps_s": time_s, "last_loss": losses[-1]}
        for name, (losses, time_s) in found.items()
    ]
    show(draw.table(rows, title="Three steps of the slow program and of yours, emulated"))
    hint = "The changes make the step faster; the losses are the same but for bfloat16."
    for number, (one, other) in enumerate(zip(found["fast"][0], found["slow"][0], strict=True)):
        expect_close(one, other, f"the loss of step {number}", hint, rtol=0.02)
    ratio = found["slow"][1] / found["fast"][1]
    if ratio < 3:
        raise CheckFailed("a program that is 3 times as fast", f"{ratio:.1f} times")
    print(f"all changes: {ratio:.1f} times as fast, with the same losses.")


check_whole_step()

# %% [markdown]
# On two real ranks of this machine the kernels are the CPU's, so only the reading can be hidden.
# The next cell measures that: no points depend on it, for what else this machine does decides too.


# %% on_real_ranks
def reading_for_real(is_fast):
    """The seconds that a loop takes whose reads and work take 20 ms each."""

    def load(number):
        emulate.spend(0.02)  # off the emulated cluster: a sleep
        return number

    dist.barrier()
    start_s = emulate.elapsed()
    for _ in read_ahead(load, 10) if is_fast else map(load, range(10)):
        emulate.spend(0.02)
    return emulate.elapsed() - start_s


def show_real():
    for name, is_fast in (("read in the loop", False), ("read ahead", True)):
        run = ws.run(reading_for_real, is_fast, world_size=2, echo=False)
        print(f"{name}: {max(run.values):.2f} s")


show_real()

# %% [markdown]
# ## 8. The report
#
# `NUMBER` draws a program of your own: type the last four digits of your student number. The next
# cell records it and names its bottleneck by your functions. `changed` is the program after the
# change that you name: write which field you set to what.

# %% my_program
NUMBER = 1234


def my_step():
    """The step of the program that belongs to NUMBER, and the program itself."""
    generator = torch.Generator().manual_seed(NUMBER)
    causes = list(PLANTED)
    cause = causes[int(torch.randint(len(causes), (), generator=generator))]
    factor = 1 + torch.rand((), generator=generator).item() / 4
    program = PLANTED[cause]
    program = program._replace(
        read_s=factor * program.read_s,
        save_s=factor * program.save_s,
        slow_s=factor * program.slow_s,
    )
    return record([program])[0], program


def investigate(**changes):
    """Show the program's step, its diagnosis, and its step with these fields changed."""
    from worldsize import draw

    step, program = my_step()
    (changed,) = record([program._replace(**changes)])
    rows = [
        {"step": name, "rank": rank, "step_s": one.timeline.end_s}
        | {f"{term}_s": time_s for term, time_s in terms(one.timeline, rank).items()}
        for name, one in (("as it is", step), ("changed", changed))
        for rank in range(4)
    ]
    show(draw.timeline(step.timeline, title=f"A step of program {NUMBER}"))
    show(draw.table(rows, title=f"Program {NUMBER} before and after: {changes or 'no change'}"))
    print(find_bottleneck(step))
    print(f"after the change: {find_bottleneck(changed)}")


investigate()

# %% [markdown]
# Write the report in at most 300 words. Every number in it is one that `investigate` or a line of
# your own computed.
#
# 1. **Measured.** How long is the step? Which term is larger than it need be, on which rank, and
#    what did you compare it with: which bound, in seconds?
# 2. **Named.** Which cause, and which other cause did you rule out, by which number?
# 3. **Changed.** What did you change? What did your model say of the step after it, what does it
#    take, and where does the difference come from?
# 4. **Next.** What binds now? What would the step be at best on this cluster, with all that is not
#    compute hidden, and is a further change worth a day of your time?

# %% performance_report [markdown] points=4 tags=["solution"]
# **Report** (program 1234; yours differs).
#
# 1. The step takes 14.2 ms. Communication is 4.4 ms of it on every rank, although backward takes
#    6.4 ms that could hide sums: buckets of 100 kB that leave once they are ready would keep 1.9 ms
#    in sight, by `pricing.price`.
# 2. `no_overlap`: the first sum begins after the last backward ends. Small buckets are ruled out:
#    there is one sum of 362 kB, and it takes its price, so the link is not slow either.
# 3. `investigate(is_overlapped=True)`: the model said 11.6 ms, and the step takes 11.8 ms. Buckets
#    of whole tensors become ready less evenly than the model assumes.
# 4. Compute binds: 9.8 of 11.8 ms. With all else hidden the step would take 9.8 ms, 17% less. The
#    last bucket cannot be hidden; a faster link gains at most a tenth, and is not worth a day.
#
# **Rubric**, one point each:
#
# - A term, a rank and a bound in seconds, with how it was computed. Half without the bound.
# - The right cause, and another one ruled out by a number. Half without the second.
# - Before, predicted and after, with a reason for the difference. Half without the prediction.
# - What binds next, the least step in seconds, and a judgement that follows from it.
