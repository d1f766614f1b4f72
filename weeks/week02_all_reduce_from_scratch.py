# %% [markdown]
# # Week 2. All-reduce from scratch
#
# | | |
# |---|---|
# | Reading and doing | about 100 minutes: four short exercises, two bugs to find, an explorer |
# | Running | about a minute on two CPU cores; GPUs are used if there are enough |
# | You need | [week 1](week01_why_one_gpu_is_not_enough.ipynb): ranks and collectives |
# | You do not need | a network, a cluster, or to have written a message-passing program |
# | Afterwards | lab 2, *ring all-reduce* |
#
# Last week every step ended in `dist.all_reduce`: each rank passes in a tensor and gets back the
# sum of all of them. You called it. This week you take it apart: which bytes it must move, what
# that costs, and how it can be done.
#
# Two letters stand for the same things throughout. **N** is the number of ranks. **S** is the size
# of the tensor in bytes.

# %% [markdown]
# ## 1. The question
#
# > How few bytes can an all-reduce move, and how little time can it take?
#
# Afterwards you can say what a collective costs before it runs, from two numbers of a link; choose
# an algorithm for a size; read a benchmark's bandwidth without being misled; and recognise a hang
# and a silent mix-up of collectives.

# %% parameters tags=["parameters"]
world_size = 4  # ranks in the experiments on this machine: 2, 4 or 8
# "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
backend = "auto"
cluster = "dgx-h100"  # the emulated cluster of the pictures; the tables name their own
seed = 0
# that each of 64 ranks must send, at least, to all-reduce 100 MB
predicted_ring_mb = None
# for a message of 4 bytes from one rank to another on this machine
predicted_latency_us = None
# 64 ranks all-reduce 64 MB: how many times as fast as through rank 0 is the best way below?
predicted_speedup = None
# over a parameter server's link, in one step of Llama 3 8B with bfloat16 gradients on 64 workers
predicted_server_tb = None

# %% setup
import math
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import check, draw, hardware, ledger, models, pricing, quiz, units
from worldsize.check import CheckFailed
from worldsize.explore import explore

Path("build/week02").mkdir(parents=True, exist_ok=True)
predictions = ledger.Predictions("week02")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers, and waits. Llama 3 8B has 8.03 billion parameters; a bfloat16
# value takes 2 bytes.

# %% predict
predictions.ask("sent by each of 64 ranks for 100 MB", predicted_ring_mb, "MB", section=4)
predictions.ask("a message of 4 bytes here", predicted_latency_us, "µs", section=6)
predictions.ask("speed-up over rank 0, 64 ranks", predicted_speedup, "times", section=6)
predictions.ask("server's link, 64 workers", predicted_server_tb, "TB", section=6)

# %% [markdown]
# ## 3. Build it worse first
#
# ### Messages
#
# All collectives are made of messages. `dist.send(tensor, dst=1)` on rank 0 needs
# `dist.recv(tensor, src=0)` on rank 1, with a tensor of the same size and type. On CPUs both calls
# return when the message has arrived. On GPUs they return at once, and whatever you do next with
# the tensor waits on the GPU.
#
# In the simplest all-reduce, all ranks send to rank 0, which adds and sends the sum back to each of
# them.


# %% through_rank_0
def through_rank_0(tensor):
    """Sum the tensor over all ranks, in place, through rank 0."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        inbox = torch.empty_like(tensor)
        for other in range(1, world_size):
            dist.recv(inbox, src=other)
            tensor += inbox
        for other in range(1, world_size):
            dist.send(tensor, dst=other)
    else:
        dist.send(tensor, dst=0)
        dist.recv(tensor, src=0)


# %% [markdown]
# Run it on a cluster that is **emulated**. The ranks are real processes and exchange real data, but
# each message takes the time that it would take on the links of the described cluster, and every
# message is recorded.


# %% star_emulated
def emulated(all_reduce, size_bytes, num_ranks, where):
    """The timeline of this all-reduce on a described cluster."""
    options = {"cluster": where, "compute": "none", "echo": False}
    ones = torch.ones(size_bytes // 4)
    return ws.run(all_reduce, ones, world_size=num_ranks, **options).timeline


star = emulated(through_rank_0, 1_000_000, 4, cluster)
sent = [units.format_bytes(star.bytes_sent(rank)) for rank in range(4)]
print(f"sent by ranks 0 to 3: {', '.join(sent)}")
draw.messages(star, title=f"Through rank 0, emulated on {cluster}")

# %% [markdown]
# Step through it. One link is busy at a time, and it is always rank 0's. With N ranks, $2 (N - 1)$
# messages of S bytes pass through that link, one after the other.
#
# ### Your turn: a tree
#
# 8 minutes · medium
#
# Rank 0 need not send every copy itself. In a broadcast along a **tree**, each rank that has the
# tensor passes it on. In step 0 rank 0 sends to rank 1. In step 1 ranks 0 and 1 send to ranks 2
# and 3. In step 2 ranks 0 to 3 send to ranks 4 to 7, and so on. The number of ranks need not be a
# power of two: in the last step some ranks have no rank to send to.
#
# What does one rank do in one step? Return `("send", partner)`, `("recv", partner)` or
# `(None, None)`.
#
# <details><summary>Hint</summary>
#
# When a step begins, $2^{\text{step}}$ ranks have the tensor: those below that number. Who gets it
# in this step, and from whom?
# </details>


# %% tree_step tags=["turn"]
def tree_step(rank, step, num_ranks):
    """What this rank does in this step of a broadcast from rank 0, and with which partner."""
    ### BEGIN SOLUTION
    num_holders = 2**step
    if rank < num_holders and rank + num_holders < num_ranks:
        return "send", rank + num_holders
    if num_holders <= rank < 2 * num_holders:
        return "recv", rank - num_holders
    return None, None
    ### END SOLUTION


# %% check_tree_step
def by_tree(tensor):
    """Replace the tensor on every rank by rank 0's."""
    for step in range(math.ceil(math.log2(dist.get_world_size()))):
        action, partner = tree_step(dist.get_rank(), step, dist.get_world_size())
        if action:
            getattr(dist, action)(tensor, partner)
    return tensor[0].item()


with check.turn("tree_step"):
    for num_ranks, rank, step, expected in (
        *((8, 0, 0, ("send", 1)), (8, 2, 1, ("recv", 0)), (8, 5, 1, (None, None))),
        *((6, 1, 2, ("send", 5)), (6, 2, 2, (None, None)), (8, 7, 2, ("recv", 3))),
    ):
        if (found := tree_step(rank, step, num_ranks)) != expected:
            hint = "Ranks below 2**step have the tensor; a partner is 2**step ranks away."
            where = f"rank {rank} of {num_ranks} in step {step} to return {expected}"
            raise CheckFailed(where, f"{found}", hint)
    rows = [(torch.full((250_000,), float(rank)),) for rank in range(6)]
    tree = ws.run(by_tree, world_size=6, each=rows, cluster=cluster, compute="none", echo=False)
    check.expect_close(max(tree.values), 0.0, "the largest number after a broadcast of rank 0's")
    took = units.format_time_s(tree.timeline.end_s)
    print(f"Right: 1 MB is on all 6 ranks after {took}, emulated")

# %% [markdown]
# A tree takes $\log_2 N$ steps where rank 0 alone takes $N - 1$. Run backwards, with an addition in
# each step, it is a reduce. Both together make an all-reduce of $2 \log_2 N$ steps. Yet each
# message is still the whole tensor, and most ranks wait: in the first step a single message
# travels.
#
# ## 4. Build it well
#
# ### Six collectives
#
# First, the names:
#
# | Collective | passed in | returned |
# |---|---|---|
# | broadcast | by the root, a tensor | to every rank, that tensor |
# | reduce | by each rank, a tensor | to the root, the sum |
# | all-reduce | by each rank, a tensor | to every rank, the sum |
# | reduce-scatter | by each rank, N chunks | to rank *r*, the sum of all chunks *r* |
# | all-gather | by each rank, one chunk | to every rank, all N chunks |
# | all-to-all | by each rank, N chunks, one for each | to rank *r*, all chunks *r*, not summed |
#
# The next cell runs the last three. Each rank begins with a row of numbers of its own.


# %% six_collectives
def three_collectives():
    """This rank's row, and its results of a reduce-scatter, an all-gather and an all-to-all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    row = torch.arange(size) + 10.0 * (rank + 1)
    reduced, gathered, swapped = torch.empty(1), torch.empty(size), torch.empty(size)
    dist.reduce_scatter(reduced, list(row.chunk(size)))
    dist.all_gather(list(gathered.chunk(size)), row[rank : rank + 1])
    dist.all_to_all_single(swapped, row)
    return row, reduced, gathered, swapped


rows = []
results = ws.run(three_collectives, world_size=4, cluster=cluster, echo=False).values
for rank, tensors in enumerate(results):
    texts = (" ".join(f"{number:.0f}" for number in tensor.tolist()) for tensor in tensors)
    rows.append((f"{rank}", *texts))
columns = ("rank", "has", "reduce-scatter", "all-gather", "all-to-all")
draw.table(rows, title="Three collectives on four ranks, emulated", columns=columns)

# %% [markdown]
# Read the reduce-scatter column downwards: 100, 104, 108, 112 are the sums of the columns of *has*.
# Together the ranks hold the whole sum, and each has a quarter of it. If they now all-gather their
# quarters, every rank has all of it:
#
# > **all-reduce = reduce-scatter + all-gather**
#
# Everything efficient is built on this. The adding is shared, and no link carries everything.
#
# ### How few bytes?
#
# Look at a single element, and assume that only ranks add. (A switch that adds, like NVLink's in
# week 1, is a different case: see problem 3.) Every rank has its own value of it, and in the end
# every rank must know the sum.
#
# - Before any rank can know the sum, each of the other N − 1 ranks must have sent something: at
#   least **N − 1 messages**.
# - When the first rank knows it, the other N − 1 do not. Each must still receive something: at
#   least another **N − 1 messages**.
#
# So each element is sent at least $2 (N - 1)$ times, and S bytes make at least $2 (N - 1) S$ in
# all. If N ranks share this equally, each sends
#
# $$\text{bytes sent by each rank} \;\geq\; \frac{2 (N - 1)}{N} \, S$$
#
# (Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms for clusters of workstations*,
# JPDC 69(2), prove it and give a ring that reaches it.) The bound stays below 2 S, however many
# ranks there are.

# %% lower_bound
rows = [(n, 2 * (n - 1) / n * 100e6, (n - 1) * 100e6) for n in (2, 4, 8, 64, 1024)]
predictions.reveal("sent by each of 64 ranks for 100 MB", 2 * 63 / 64 * 100)
columns = ("ranks", "each must send_bytes", "rank 0 above would send_bytes")
draw.table(rows, title="An all-reduce of 100 MB, computed", columns=columns)

# %% [markdown]
# ### Your turn: the bound of each half
#
# 4 minutes · easy
#
# Weeks 7 and 8 call the two halves of an all-reduce separately. What is the least number of bytes
# that each rank must send, on average, in a `"reduce-scatter"`, an `"all-gather"`, a `"broadcast"`
# and an `"all-reduce"`? The size is that of the whole tensor, all chunks together.
#
# <details><summary>Hint</summary>
#
# Take one element. How many ranks must send something before one rank knows its sum? And how many
# must receive something when one rank has it and all need it?
# </details>


# %% least_sent_bytes tags=["turn"]
def least_sent_bytes(collective, num_ranks, size_bytes):
    """Bytes that each rank must send on average, at least, in this collective."""
    ### BEGIN SOLUTION
    num_halves = 2 if collective == "all-reduce" else 1
    return num_halves * (num_ranks - 1) / num_ranks * size_bytes
    ### END SOLUTION


# %% check_least_sent_bytes
with check.turn("least_sent_bytes"):
    for collective, expected in (
        *(("reduce-scatter", 87.5e6), ("all-gather", 87.5e6)),
        *(("broadcast", 87.5e6), ("all-reduce", 175e6)),
    ):
        what = f"the bytes of a {collective} of 100 MB on 8 ranks"
        hint = "Each element takes N - 1 messages to be summed or handed out; N ranks share them."
        check.expect_close(least_sent_bytes(collective, 8, 100e6), expected, what, hint)
    print("Right. A reduce-scatter and an all-gather cost half an all-reduce each.")

# %% [markdown]
# ### Recursive halving and doubling reaches the bound
#
# One way to reach the bound: ranks pair up. Each keeps one half of the tensor and sends the
# other half to its partner. Now each half is summed over two ranks. Then partners at distance 2 do
# the same with the half that they hold, then partners at distance 4. After $\log_2 N$ steps each
# rank has 1/N of the tensor, summed over all ranks. That was the reduce-scatter. The way back is
# the all-gather: the same partners, in reverse order, send each other what they have.
#
# In each step a rank sends **and** receives. If both partners called `dist.send` first, each would
# wait for the other (section 7). `isend` and `irecv` start a message and return at once, with a
# handle to wait for.


# %% halving_doubling
def swap(outgoing, incoming, target, source):
    """Send `outgoing` to one rank and fill `incoming` from another, at the same time."""
    works = [dist.isend(outgoing, target), dist.irecv(incoming, source)]
    for work in works:
        work.wait()


def halving_doubling(tensor, after_step=lambda: None):
    """Sum the tensor over all 2, 4, 8, ... ranks, which divide its size, in place."""
    rank, part, path, distance = dist.get_rank(), tensor, [], 1
    while distance < dist.get_world_size():
        lower, upper = part.chunk(2)
        kept, given = (lower, upper) if rank & distance == 0 else (upper, lower)
        inbox = torch.empty_like(kept)
        swap(given, inbox, rank ^ distance, rank ^ distance)
        kept += inbox
        after_step()
        path.append((kept, given, rank ^ distance))
        part, distance = kept, 2 * distance
    for kept, given, partner in reversed(path):
        swap(kept, given, partner, partner)
        after_step()


# %% [markdown]
# This is *recursive halving and doubling*; MPICH uses it for long messages (source comment of its
# `MPI_Allreduce`, which names Rabenseifner). `rank ^ distance` flips one bit of the rank, which
# gives partners at distance 1, 2, 4.
#
# The picture to keep in mind shows **who holds what**: a row for each rank, a column for each chunk
# of its tensor. Give rank *r* the number $10^r$ in every chunk. Each digit of a sum then shows
# whose part is in it. Before you run the cell, write down what rank 2 holds after the first step.


# %% who_holds_what
def held_after_each_step():
    """By step and chunk, the ranks whose parts are in this rank's tensor of four chunks."""
    tensor, steps = torch.full((4,), 10.0 ** dist.get_rank()), []

    def look():
        sums = [int(number) for number in tensor.tolist()]
        steps.append([[rank for rank in range(4) if one // 10**rank % 10] for one in sums])

    look()
    halving_doubling(tensor, after_step=look)
    return steps


by_rank = ws.run(held_after_each_step, world_size=4, cluster=cluster, echo=False).values
names = ("start", "halves", "quarters", "doubled", "doubled again")
held = {when: [of_rank[place] for of_rank in by_rank] for place, when in enumerate(names)}
draw.chunks(held, title=f"Halving and doubling, emulated on {cluster}")

# %% [markdown]
# Frames mark what a step has changed. After *quarters* each chunk is complete on exactly one rank,
# and everything else is partial sums that no rank needs any more. The last two steps overwrite them
# with complete chunks. Now the messages of the same algorithm:

# %% halving_emulated
pairs = emulated(halving_doubling, 1_000_000, 4, cluster)
sent = [*map(round, map(pairs.bytes_sent, range(4)))]
print(f"bytes sent by each rank: {sent}, the bound: {2 * 3 / 4 * 1e6:.0f}")
assert sent == [2 * 3 / 4 * 1_000_000] * 4
draw.messages(pairs, title=f"Halving and doubling, emulated on {cluster}")

# %% both_on_one_axis
both = {"through rank 0": star, "halving and doubling": pairs}
draw.timelines(both, title=f"1 MB, 4 ranks, emulated on {cluster}", streams=["communication"])

# %% [markdown]
# Every rank sends and receives in every step, and sends exactly as many bytes as the bound demands.
#
# ### The ring
#
# Pairs need a power of two, and a new partner in each step. Another way to the bound needs neither:
# put the ranks in a ring, in which each talks to its two neighbours only. First the picture for
# **one chunk** on four ranks. It starts somewhere, goes once round, and each rank adds its own part
# before it passes the sum on:
#
# ```text
# rank 0 ──a──► rank 1 ──a+b──► rank 2 ──a+b+c──► rank 3 has a+b+c+d
# ```
#
# That takes three messages, and one rank works at a time. Three more messages hand the sum out.


# %% one_chunk
def one_chunk_round(number):
    """The numbers that this rank receives and passes on while a sum goes along all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    so_far = torch.zeros(1)
    if rank > 0:
        dist.recv(so_far, src=rank - 1)
    total = so_far + number
    if rank < size - 1:
        dist.send(total, dst=rank + 1)
    return so_far.item(), total.item()


numbers = [(1.0,), (10.0,), (100.0,), (1000.0,)]
one_way = {"cluster": cluster, "compute": "none", "echo": False}
chain = ws.run(one_chunk_round, world_size=4, each=numbers, **one_way)
for rank, (came, passed) in enumerate(chain.values):
    print(f"rank {rank}: {came:4.0f} came in, {passed:4.0f} is the sum there")
draw.messages(chain.timeline, title=f"One chunk on its way, emulated on {cluster}")

# %% [markdown]
# One chunk keeps one link busy. So split the tensor into **N chunks and start each on a different
# rank**. Then N chunks are on their way at the same time, all links are busy in every step, and no
# rank waits. After N − 1 steps each chunk is complete, on N different ranks: a reduce-scatter.
# N − 1 more steps pass the complete chunks round: an all-gather.
#
# The picture below is **computed, not run**. It shows who sends to whom in each of the $2 (N - 1)$
# steps, S/N bytes at a time. It does not show *which* chunk a rank sends in which step. That is lab
# 2: draw its grid of ranks and chunks on paper before you write a line.


# %% ring_computed
def ring_messages(num_ranks, size_bytes, link):
    """The timeline of a ring's messages: in each step every rank sends a chunk to the next one."""
    chunk_bytes, events = size_bytes // num_ranks, []
    step_s = link.latency_s + chunk_bytes / link.bandwidth_bytes_per_s
    for step in range(2 * (num_ranks - 1)):
        when = step * step_s, (step + 1) * step_s
        for rank in range(num_ranks):
            here, after = (rank, "communication", "communication"), (rank + 1) % num_ranks
            before = (rank - 1) % num_ranks
            events.append(ws.Event(*here, "send", *when, chunk_bytes, chunk_bytes, (after,)))
            events.append(ws.Event(*here, "recv", *when, chunk_bytes, 0, (before,)))
    return ws.Timeline.of_events(events)


ring = ring_messages(4, 1_000_000, hardware.cluster(cluster).intra)
draw.messages(ring, title=f"A ring, computed for {cluster}")

# %% [markdown]
# ## 5. Compare with the production oracle
#
# `dist.all_reduce` is the reference. The same random tensors go through four algorithms on real
# ranks of this machine; "by two collectives" uses torch's own reduce-scatter and all-gather. Each
# result is compared with the sum in float64. All are right up to rounding, and the rounding depends
# on the order of the additions.


# %% two_collectives
def by_two_collectives(tensor):
    """Sum the tensor over all ranks, in place, by torch's reduce-scatter and all-gather."""
    chunks = list(tensor.chunk(dist.get_world_size()))
    mine = torch.empty_like(chunks[0])
    dist.reduce_scatter(mine, chunks)
    dist.all_gather(chunks, mine)


def this_device():
    """The device of this rank's tensors."""
    on_gpus = dist.get_backend() == "nccl"
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")


# %% against_the_oracle
ALGORITHMS = {
    "through rank 0": through_rank_0,
    "by two collectives": by_two_collectives,
    "halving and doubling": halving_doubling,
    "dist.all_reduce": dist.all_reduce,
}


def rounding_errors(num_elements, dtype):
    """Each algorithm's root mean square error over that of one rounding of the right sum."""
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    mine = torch.randn(num_elements, generator=generator).to(this_device(), dtype)
    dist.all_reduce(exact := mine.double())

    def error_of(tensor):
        return (tensor.double() - exact).square().mean().sqrt().item()

    errors = []
    for all_reduce in ALGORITHMS.values():
        all_reduce(result := mine.clone())
        errors.append(error_of(result) / error_of(exact.to(dtype)))
    return errors


# %% rounding_table
error_rows = [{"sum": algorithm} for algorithm in ALGORITHMS]
for kind in (torch.bfloat16, torch.float32):
    on_ranks = {"world_size": world_size, "backend": backend, "echo": False}
    found = ws.run(rounding_errors, 80_000, kind, **on_ranks).values[0]
    assert max(found) < 10
    for error_row, one_error in zip(error_rows, found, strict=True):
        error_row[str(kind).removeprefix("torch.")] = f"{one_error:.2f}"
about = f"Errors over that of one rounding, {world_size} ranks, measured here"
draw.table(error_rows, title=about)

# %% [markdown]
# Every algorithm rounds N − 1 sums for each element. Rank 0 rounds sums of two, three, and at last
# of N ranks. In pairs more than half are sums of two ranks only, and smaller sums lose less. No two
# algorithms need agree in the last digit. What training relies on is that *all ranks* get the same
# bits.
#
# Now measure the time. For each repetition, the harness keeps the time of the slowest rank.


# %% harness
def timed(all_reduce, num_elements, repeats):
    """Seconds of each repetition on this rank, without the first one, which opens connections."""
    times_s = []
    for _ in range(repeats + 1):
        tensor = torch.full((num_elements,), dist.get_rank() + 1.0, device=this_device())
        dist.barrier()
        start_s = time.perf_counter()
        all_reduce(tensor)
        # reading a number waits for a GPU
        assert tensor[-1].item() == sum(range(dist.get_world_size() + 1))
        times_s.append(time.perf_counter() - start_s)
    return times_s[1:]


def measured_s(all_reduce, size_bytes, repeats=7):
    """Seconds of this all-reduce on this machine: the slowest rank, the median repetition."""
    here = {"world_size": world_size, "backend": backend, "echo": False}
    runs = ws.run(timed, all_reduce, size_bytes // 4, repeats, **here)
    return statistics.median(max(of_ranks) for of_ranks in zip(*runs.values, strict=True))


# %% race
SIZE = 16 * units.MB
race_s = {algorithm: measured_s(ALGORITHMS[algorithm], SIZE) for algorithm in ALGORITHMS}
title = f"{world_size} ranks, measured here"
draw.table([*race_s.items()], title=title, columns=("16 MB", "time_s"))

# %% [markdown]
# All ranks share one machine here: its cores copy every byte, and its memory is the network. So the
# times do not follow the bytes of the busiest link, and vary from run to run. On a cluster each
# rank has a link of its own; for that we need a model.

# %% [markdown]
# ## 6. Formula, measurement, emulation
#
# ### What does a message cost?
#
# A message takes some time even when it is empty: call overhead, queueing, time on the wire. That
# is the **latency** α. Its bytes follow at the **bandwidth** β:
#
# $$t(S) = \alpha + \frac{S}{\beta}$$
#
# These are two numbers for a link. Measure them here: rank 0 sends a message, rank 1 sends it back,
# and half of the round trip is one message.


# %% ping_pong
def ping_pong(sizes_bytes, repeats):
    """Seconds of one message for each size: half of a round trip, the median."""
    rank, medians_s = dist.get_rank(), []
    for size_bytes in sizes_bytes:
        tensor, trips_s = torch.zeros(size_bytes // 4, device=this_device()), []
        for _ in range(repeats):
            start_s = time.perf_counter()
            first, second = (dist.send, dist.recv) if rank == 0 else (dist.recv, dist.send)
            first(tensor, 1 - rank)
            second(tensor, 1 - rank)
            tensor[:1].item()  # waits for a GPU
            trips_s.append((time.perf_counter() - start_s) / 2)
        medians_s.append(statistics.median(trips_s[3:]))
    return medians_s


fitted_sizes = [4, 4_000, 40_000, 400_000, 1_000_000, 4_000_000, 16_000_000]
held_out_size = 8_000_000
sizes = [*fitted_sizes, held_out_size]
timings = ws.run(ping_pong, sizes, 33, world_size=2, backend=backend, echo=False).values[0]
message_s = dict(zip(sizes, timings, strict=True))
predictions.reveal("a message of 4 bytes here", message_s[4] / units.US)

# %% [markdown]
# Fit α and β so that the *relative* errors are small; in an ordinary least-squares fit the largest
# message alone would decide. The size 8 MB is left out of the fit, and the model must predict it.


# %% fit
def fit_alpha_beta(times_s):
    """Seconds of an empty call, and units a second, by least squares of the relative errors."""
    amount = torch.tensor(list(times_s), dtype=torch.float64)
    time_s = torch.tensor(list(times_s.values()), dtype=torch.float64)
    # (alpha + amount / beta) / time should be 1
    rows = torch.stack([1 / time_s, amount / time_s], dim=1)
    ones = torch.ones(len(amount), 1, dtype=torch.float64)
    alpha_s, s_per_unit = torch.linalg.lstsq(rows, ones).solution.flatten().tolist()
    return alpha_s, 1 / s_per_unit


here_alpha_s, here_beta = fit_alpha_beta({fitted: message_s[fitted] for fitted in fitted_sizes})
predicted_s, actual_s = here_alpha_s + held_out_size / here_beta, message_s[held_out_size]
found_alpha, found_beta = units.format_time_s(here_alpha_s), units.format_bytes(here_beta)
print(f"this machine: alpha {found_alpha}, beta {found_beta}/s")
print(f"8 MB, held out: predicted {units.format_time_s(predicted_s)}", end=", ")
print(f"measured {units.format_time_s(actual_s)}, error {predicted_s / actual_s - 1:+.0%}")
line = {"alpha + S / beta": lambda size_bytes: here_alpha_s + size_bytes / here_beta}
about = f"A message between two ranks here, {os.cpu_count()} cores, fitted and measured"
draw.cost(line, (4, 16e6), {"alpha + S / beta": message_s}, title=about)

# %% [markdown]
# On the left the curve is flat: latency decides, and 4 bytes cost as much as several kilobytes. On
# the right it is a straight line: bandwidth decides. In between, at $S = \alpha \beta$, both terms
# are equal. Where points leave the curve, the machine does something that two numbers cannot
# express: caches, other programs, a different way of copying.
#
# Between CPU ranks α is mostly the time that the operating system takes to wake a waiting rank. Run
# the cell again while the machine is busy, and see it grow. The table lists the links of this
# course's clusters:

# %% links
LINKS = (hardware.NVLINK4, hardware.PCIE4, hardware.IB_NDR, hardware.ETHERNET_100G)
wires = {wire.name: (wire.latency_s, wire.bandwidth_bytes_per_s) for wire in LINKS}
wires["this machine, fitted"] = here_alpha_s, here_beta
two_numbers = [(wire, alpha_s, beta, alpha_s * beta) for wire, (alpha_s, beta) in wires.items()]
columns = ("link", "α_s", "β_bytes_per_s", "αβ_bytes")
title = "Two numbers for a link, from sources; the last fitted here"
draw.table(two_numbers, title=title, columns=columns)

# %% [markdown]
# A message smaller than αβ is mostly latency. For which of these links is a message of 1 MB mostly
# latency?
#
# <details><summary>Answer</summary>
#
# For NVLink 4, the fastest: in its latency it could move 1.26 MB. For this machine, only if the
# last row says more than 1 MB.
# </details>
#
# Note what such an α includes. For NVLink, PCIe and InfiniBand it is one step of NCCL's ring with
# its protocol for large messages (NCCL 2.28.3, `src/graph/tuning.cc`), including everything that
# the GPU does around the message. The network's own share of InfiniBand's 14 µs is about 1 µs: a
# round trip through one switch takes about two (kentino.com, *Latency dissection*, read in 2026).
# NCCL's file gives 2.7 µs a step for its fastest protocol for small messages. For TCP, 30 µs is the
# upper end of a one-way trip through the kernel, according to the same page; between two network
# namespaces we measured 4 µs for TCP alone and 46 µs for a message of Gloo, at best. (`Link.source`
# says where each number comes from.)
#
# Does a real collective follow such a line? A user measured 8-byte all-reduces with NCCL's ring on
# 2 to 8 GPUs of a DGX A100 (NVIDIA/nccl-tests issue 123, December 2022). A ring of N ranks takes
# $2 (N - 1)$ steps, so time against steps should be a straight line:

# %% published_latency
published_us = {2: 10.0, 3: 13.76, 4: 16.88, 5: 20.8, 6: 25.2, 7: 29.5, 8: 33.7}
by_steps = {2 * (n - 1): published * units.US for n, published in published_us.items()}
call_s, steps_per_s = fit_alpha_beta(by_steps)
on_a_line = []
for num_steps, published_s in by_steps.items():
    line_s = call_s + num_steps / steps_per_s
    error = f"{line_s / published_s - 1:+.1%}"
    on_a_line.append((num_steps // 2 + 1, num_steps, published_s, line_s, error))
columns = ("GPUs", "steps", "published_s", "line_s", "error")
about = f"The line: {call_s / units.US:.1f} µs, and {1 / steps_per_s / units.US:.2f} µs a step."
draw.table(on_a_line, title="8 bytes by NCCL's ring on a DGX A100", note=about, columns=columns)

# %% [markdown]
# It does, within 4%. A call has a cost of its own, and each step adds two microseconds. That is
# less than the 3.4 µs of the table above, because for 8 bytes NCCL has faster protocols (0.6 and
# 1.9 µs a step in its source).
#
# ### What do algorithms cost?
#
# For each algorithm count the steps that must wait for the step before, and the bytes on the
# busiest link:
#
# | Algorithm | time |
# |---|---|
# | through rank 0 | $2 (N-1) \, (\alpha + S/\beta)$ |
# | tree: reduce along a binomial tree, broadcast back | $2 \log_2 N \, (\alpha + S/\beta)$ |
# | recursive doubling: partners send each other everything | $\log_2 N \, (\alpha + S/\beta)$ |
# | recursive halving and doubling | $2 \log_2 N \, \alpha + \frac{2(N-1)}{N} \, S/\beta$ |
# | ring | $2 (N-1) \, \alpha + \frac{2(N-1)}{N} \, S/\beta$ |
#
# The last two send the fewest bytes. The third has the fewest steps.


# %% algorithms
def algorithms(num_ranks, alpha_s, beta):
    """Seconds as a function of bytes, for each algorithm."""
    steps, share = math.log2(num_ranks), 2 * (num_ranks - 1) / num_ranks
    return {
        "through rank 0": lambda size: 2 * (num_ranks - 1) * (alpha_s + size / beta),
        "tree": lambda size: 2 * steps * (alpha_s + size / beta),
        "recursive doubling": lambda size: steps * (alpha_s + size / beta),
        "halving and doubling": lambda size: 2 * steps * alpha_s + share * size / beta,
        "ring": lambda size: 2 * (num_ranks - 1) * alpha_s + share * size / beta,
    }


# %% time_of_each
def time_of_each(num_ranks=64, link=hardware.IB_NDR):
    """A picture of the computed time of each algorithm for every size."""
    costs = algorithms(num_ranks, link.latency_s, link.bandwidth_bytes_per_s)
    title = f"{num_ranks} ranks, a link each: {link.name}. Computed, not measured"
    return draw.cost(costs, (1e3, 1e10), title=title)


explore(time_of_each, num_ranks=(2, 1024, "x2"), link={link.name: link for link in LINKS})

# %% [markdown]
# Move the sliders. Where is the ring's curve with 4 ranks, and where with 1,024? What does a faster
# link change, and at which sizes?
#
# There are two regimes. Small tensors are **latency-bound**: the fewest steps win, and a ring of 64
# pays 126 latencies. Large ones are **bandwidth-bound**: the fewest bytes win, and the ring is as
# good as any.
#
# ### Your turn: where the ring overtakes
#
# 10 minutes · medium
#
# Above which size in bytes is a ring faster than recursive doubling? Use the formulas of the table;
# N is 4 or more.
#
# <details><summary>Hint</summary>
#
# Set the two times equal and collect S on one side. What is left is αβ times a number that depends
# on N alone.
# </details>


# %% overtakes_bytes tags=["turn"]
def overtakes_bytes(num_ranks, alpha_s, beta):
    """The size from which a ring is faster than recursive doubling."""
    ### BEGIN SOLUTION
    steps = math.log2(num_ranks)
    more_latencies = 2 * (num_ranks - 1) - steps
    fewer_passes = steps - 2 * (num_ranks - 1) / num_ranks
    return alpha_s * beta * more_latencies / fewer_passes
    ### END SOLUTION


# %% check_overtakes_bytes
with check.turn("overtakes_bytes"):
    for num_ranks, link in ((8, hardware.NVLINK4), (64, hardware.IB_NDR), (512, hardware.IB_NDR)):
        numbers = link.latency_s, link.bandwidth_bytes_per_s
        costs = algorithms(num_ranks, *numbers)
        both = {name: costs[name] for name in ("recursive doubling", "ring")}
        expected = draw.crossovers(both, (1.0, 1e12))[0][0]
        what = f"the size for {num_ranks} ranks on {link.name}"
        hint = "At that size the ring's extra latencies cost as much as the bytes that it saves."
        check.expect_close(overtakes_bytes(num_ranks, *numbers), expected, what, hint, rtol=1e-3)
        print(f"{num_ranks:3} ranks, {link.name}: from {units.format_bytes(expected)} on")
    print("Right. The more ranks, the larger a tensor must be for a ring.")

# %% [markdown]
# ### Why rings at all?
#
# By these formulas halving and doubling is never slower than a ring. But a ring takes any number of
# ranks, and each talks to two neighbours only, so that it can be laid along the wires. Halving and
# doubling pairs distant ranks, and all their messages cross the network at once. The formulas
# assume that no message waits for another.
#
# Take 64 nodes of one H100 each, in racks of 8, and two networks: one that carries all traffic at
# full speed, and one whose uplinks between racks have a quarter of the bandwidth of the links below
# them (*4:1 oversubscribed*). 64 MB of bfloat16 values are all-reduced through rank 0, by halving
# and doubling, and by a ring in two orders: rack by rack, or changing racks at every step.
#
# With real data each ring would move 8 GB through this machine. So the programs run **on paper**:
# 64 ranks again, but with tensors that have a size and no data. Each program is recorded once and
# priced on both networks. The rings send their messages but leave out the sums. (Emulated with the
# data they take the same times, to the last digit shown.)


# %% ring_traffic
def summed(all_reduce, size_bytes):
    """All-reduce a new tensor of bfloat16 numbers."""
    all_reduce(torch.ones(size_bytes // 2, dtype=torch.bfloat16))


def ring_traffic(following, size_bytes):
    """Send and receive what a ring all-reduce does; `following` says who comes after each rank."""
    target = following[dist.get_rank()]
    source = next(rank for rank, after in following.items() if after == dist.get_rank())
    outgoing = torch.ones(size_bytes // 2 // len(following), dtype=torch.bfloat16)
    incoming = torch.empty_like(outgoing)
    for _ in range(2 * (len(following) - 1)):
        swap(outgoing, incoming, target, source)


# %% two_networks
by_rack, across = [*range(64)], [8 * (i % 8) + i // 8 for i in range(64)]
rings = [dict(zip(order, order[1:] + order[:1], strict=True)) for order in (by_rack, across)]
PROGRAMS = {
    "through rank 0": (summed, through_rank_0),
    "halving and doubling": (summed, halving_doubling),
    "ring, rack by rack": (ring_traffic, rings[0]),
    "ring, rack to rack": (ring_traffic, rings[1]),
}
# all network cards of a rack hang on one switch
one_gpu = {"gpus_per_node": 1, "nics_per_node": 1, "num_nodes": 64, "is_rail": False}
full = replace(hardware.H100_NDR, name="full", **one_gpu)
narrow = replace(full, name="4:1", nodes_per_leaf=8, oversubscription=4.0)
network = hardware.IB_NDR
formulas = algorithms(64, network.latency_s, network.bandwidth_bytes_per_s)

# %% oversubscribed
on_paper_s, fabric_rows, MB_64 = {}, [], 64 * units.MB
paper_options = {"world_size": 64, "cluster": full, "ranks": range(64), "echo": False}
for program, parts in PROGRAMS.items():
    recorded = ws.paper(*parts, MB_64, **paper_options)
    on_paper_s[program] = [recorded.on(fabric).step_s for fabric in (full, narrow)]
    formula_s = formulas[program.partition(",")[0]](MB_64)
    fabric_rows.append((program, formula_s, *on_paper_s[program]))
fastest_s = min(on_both[0] for on_both in on_paper_s.values())
predictions.reveal("speed-up over rank 0, 64 ranks", on_paper_s["through rank 0"][0] / fastest_s)
columns = ("all-reduce", "formula_s", "full_s", "4:1_s")
draw.table(fabric_rows, title="64 MB on 64 ranks, on paper", columns=columns)

# %% [markdown]
# On the full network the formulas hold; the excess in the first two rows is the time of their
# additions. Going through rank 0 takes 60 times as long as halving and doubling. On the narrow
# network:
#
# - A ring laid rack by rack loses nothing, because in each step one message leaves each rack. The
#   ring that changes racks at every step sends eight through uplinks that carry two, so that its
#   bytes take four times as long. **The order of the ranks is part of the algorithm.**
# - Here halving and doubling sends only its small pieces across racks, and only these are slowed
#   down. But the loss grows with the tensor, and the ring's extra latencies do not. The next cell
#   finds where the ring overtakes it.

# %% narrow_crossover
on_full_s, on_narrow_s = on_paper_s["halving and doubling"]
lost_s_per_byte = (on_narrow_s - on_full_s) / MB_64  # the ring loses nothing
more_latency_s = (2 * (64 - 1) - 2 * math.log2(64)) * network.latency_s  # of the ring
crossover = units.format_bytes(more_latency_s / lost_s_per_byte)
print(f"on the narrow network the ring is faster from {crossover} on")

# %% [markdown]
# ### Side by side
#
# The next cell runs two functions from above on three emulated clusters with 8 ranks, and on this
# machine:


# %% side_by_side
CHOSEN = ("through rank 0", "halving and doubling")
COMPARED = ("where", "ranks", "all-reduce", "size_bytes", "formula_s", "run_s", "error")


def compared(where, num_ranks, size_bytes, link, runs_s):
    """A row for each of two algorithms: its formula on links of (alpha, beta), and its run."""
    costs, rows = algorithms(num_ranks, *link), []
    for name in CHOSEN:
        formula_s, run_s = costs[name](size_bytes), runs_s[name]
        error = f"{formula_s / run_s - 1:+.0%}"
        rows.append((where, num_ranks, name, size_bytes, formula_s, run_s, error))
    return rows


ethernet = replace(hardware.cluster("a100-10gbe"), name="8 x 10 Gb/s", gpus_per_node=1, num_nodes=8)
all_rows, S = [], 4_000_000
for there in (hardware.cluster("dgx-h100"), hardware.cluster("pcie-box"), ethernet):
    wire = there.intra if there.num_nodes == 1 else there.inter
    took_s = {which: emulated(ALGORITHMS[which], S, 8, there).end_s for which in CHOSEN}
    two = wire.latency_s, wire.bandwidth_bytes_per_s
    all_rows += compared(f"{there.name}, emulated", 8, S, two, took_s)
fitted_link = here_alpha_s, here_beta
all_rows += compared("this machine, measured", world_size, SIZE, fitted_link, race_s)
draw.table(all_rows, title="Formula and run", columns=COMPARED)

# %% [markdown]
# On links that ranks do not share, the formulas hold. In two places ranks do share:
#
# - **pcie-box**: eight GPUs share one host bridge, which cannot carry eight full links at once.
#   Through rank 0 there is one message at a time, so the sharing makes no difference. When all
#   ranks send at once, each gets a share.
# - **this machine**: α and β were measured with two ranks and nothing else. Four ranks share the
#   cores and the memory, add numbers, and wait for their turn on a core. The formula counts only
#   messages.
#
# ### Algorithm bandwidth and bus bandwidth
#
# "We all-reduce 1 GB in 10 ms" is 100 GB/s, the **algorithm bandwidth** S / t. It cannot be
# compared with a link's data sheet, because each rank has sent $2 (N - 1) / N \cdot S$ and not S.
# **Bus bandwidth** is what the links must have carried:
#
# $$\text{bus} = \frac{S}{t} \cdot \frac{2 (N - 1)}{N}$$
#
# (NVIDIA/nccl-tests, doc/PERFORMANCE.md.) With a good all-reduce it is the same for any N, while
# algorithm bandwidth falls.
#
# ### Your turn: three times for the same bytes
#
# 4 minutes · easy
#
# A user all-reduced 1.6 GB with NCCL's ring on 8 V100s, placed in three ways: one on each of 8
# nodes, two on each of 4, and four on each of 2, always with a network card for each GPU. According
# to the ring's formula all three should take equally long. They took 363, 173 and 132 ms
# (NVIDIA/nccl issue 569, September 2021). Write the bus bandwidth; the check applies it.
#
# <details><summary>Hint</summary>
#
# Size divided by time is the algorithm bandwidth. Only the factor is missing.
# </details>


# %% bus_bytes_per_s tags=["turn"]
def bus_bytes_per_s(size_bytes, time_s, num_ranks):
    """The bus bandwidth of an all-reduce."""
    ### BEGIN SOLUTION
    return size_bytes / time_s * 2 * (num_ranks - 1) / num_ranks
    ### END SOLUTION


# %% check_bus_bytes_per_s
with check.turn("bus_bytes_per_s"):
    hint = "In 10 ms each of 8 ranks has sent 2 * 7/8 of 1 GB."
    bus = bus_bytes_per_s(1e9, 10e-3, 8)
    check.expect_close(bus, 175e9, "the bus bandwidth of 1 GB in 10 ms on 8 ranks", hint)
    check.expect_close(bus_bytes_per_s(1e9, 1.0, 2), 1e9, "that of two ranks and 1 s", hint)
    for cards, time_s in ((1, 0.363), (2, 0.173), (4, 0.132)):
        bus = bus_bytes_per_s(1.6e9, time_s, 8)
        print(f"network cards in a node: {cards}, bus bandwidth {bus / 1e9:4.1f} GB/s")
    print("Right. It grows with the cards of a node, so there cannot be one ring alone.")

# %% [markdown]
# NCCL splits the tensor into parts and builds **several rings**, each with a different order within
# the nodes, so that each leaves a node through a different card (one of its authors in NVIDIA/nccl
# issues 530 and 1360). A formula with one ring and one link ignores that.
#
# ### A ring or a parameter server?
#
# A parameter server takes S from each of N workers and sends S to each: $2 N S$ over its link, and
# twice that with twice the workers. With more servers each takes a part. A ring needs none, because
# every new rank brings a link of its own. What does that mean for the **model FLOPs utilisation**
# of week 1? The table is for Llama 3 8B on 64 H100s, with 8,192 tokens on each in a step, gradients
# all-reduced after the backward pass over one 400 Gb/s link for each GPU, and computing at half of
# the peak:

# %% ring_or_server
llama, peak = models.shape("llama-3-8b"), hardware.H100.peak_flops_per_s["bfloat16"]
step_flops = llama.flops(8192, 8192)
compute_s = step_flops / (0.5 * peak)
rows = []
for dtype, num_bytes in (("bfloat16", 2), ("float32", 4)):
    gradient_bytes = num_bytes * llama.num_parameters
    both_ways_s = 2 * network.latency_s + 64 * gradient_bytes / network.bandwidth_bytes_per_s
    for way, time_s, link_bytes in (
        ("ring", formulas["ring"](gradient_bytes), 2 * 63 / 64 * gradient_bytes),
        ("server", both_ways_s, 2 * 64 * gradient_bytes),
    ):
        mfu_fraction = step_flops / peak / (compute_s + time_s)
        rows.append((dtype, way, link_bytes, compute_s, time_s, mfu_fraction))
predictions.reveal("server's link, 64 workers", rows[1][2] / 1e12)
columns = ("gradients", "by", "busiest link_bytes", "compute_s", "communicate_s", "mfu_fraction")
note = "The server's link sends and receives at the same time."
draw.table(rows, title="A step of Llama 3 8B on 64 H100s, computed", note=note, columns=columns)

# %% [markdown]
# With the server, GPUs compute for less than a twentieth of the time. With the ring an MFU of 30%
# is left of the 50% that computing alone would reach, and with float32 gradients 21%. Week 3 hides
# such time behind the backward pass. The ring's time hardly depends on the number of ranks: its
# links never carry more than $2 S$. The server's grows with every worker.
#
# ### Nodes of several GPUs
#
# Inside a node links are fast; between nodes they are slow. A single flat ring passes through both
# and pays for the slow ones in every step. A **hierarchical** all-reduce on M nodes of G ranks has
# three parts:
#
# 1. reduce-scatter inside each node: every rank has 1/G of the node's sum;
# 2. all-reduce between nodes, each rank with those that hold the same part: S/G bytes;
# 3. all-gather inside each node.
#
# Only part 2 uses the network, and $\frac{2(M-1)}{M} S$ bytes leave each node: the lower bound,
# with nodes instead of ranks. In a flat ring $\frac{2(N-1)}{N} S$ leave it, through one of its
# network cards.

# %% hierarchy
node, size_bytes = hardware.H100_NDR, units.GB
inside = algorithms(8, node.intra.latency_s, node.intra.bandwidth_bytes_per_s)["ring"]
wire = network.latency_s, network.bandwidth_bytes_per_s
rows = []
for num_nodes in (2, 4, 16):
    num_ranks, names = 8 * num_nodes, {"algorithm": "nccl-ring"}
    flat, between = (algorithms(n, *wire)["ring"] for n in (num_ranks, num_nodes))
    place = replace(node, num_nodes=num_nodes)
    rings_s = pricing.price("all_reduce", size_bytes, range(num_ranks), place, **names).time_s
    left_bytes = [2 * (1 - 1 / n) * size_bytes for n in (num_ranks, num_nodes)]
    three_parts_s = inside(size_bytes) + between(size_bytes / 8)
    rows.append((num_nodes, *left_bytes, flat(size_bytes), rings_s, three_parts_s))
columns = ("nodes", "flat: leave a node_bytes", "hierarchical: leave a node_bytes")
columns += ("flat: time_s", "NCCL's rings: time_s", "hierarchical: time_s")
title = "1 GB on nodes of 8 H100s, computed; NCCL's rings, priced"
draw.table(rows, title=title, columns=columns)

# %% [markdown]
# With two nodes the bytes out of a node fall by nearly half, with sixteen by a twentieth. The time
# falls to a quarter or less, because eight network cards carry the bytes instead of one. NCCL's
# several rings use all cards, too. At this size they are faster still, because they keep NVLink and
# the network busy at once, whereas the three parts take turns.

# %% [markdown]
# ## 7. When it breaks
#
# ### The loud failure: all ranks send first
#
# Each rank wants to send to the next one and receive from the previous one, and does it in that
# order.


# %% everybody_sends_first
def everybody_sends_first():
    """The number that this rank received from the previous one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(1, device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.send(tensor, (rank + 1) % size)
    dist.recv(tensor, (rank - 1) % size)
    return tensor.item()


try:
    ws.run(everybody_sends_first, world_size=world_size, backend=backend, stalled_s=1)
except ws.RunTimeout as report:
    print(report)

# %% [markdown]
# **Symptom**: nothing moves, and every rank is stuck in a `send` (on GPUs: in the first line that
# needs the data). **Cause**: a cycle. A send completes when it is received. Rank 0's send needs
# rank 1's receive, which comes after rank 1's send, and so on round to rank 0. **Fix**: `isend` and
# `irecv`, and wait only when both are posted. Here it hangs at any size. MPI libraries buffer small
# messages, so this program may pass its test and hang with the real tensor (W. Gropp, *Tutorial on
# MPI*, Argonne, mcs.anl.gov/mpi/tutorial/gropp, node 87).
#
# ### The quiet failure: a different order of calls
#
# Collectives have no names. The first call of a rank meets the first call of the others, whatever
# they mean. Here rank 0 all-reduces the gradient of its second layer first. Each rank holds 1 for
# layer A and 100 for layer B.


# %% another_order
def another_order(size_of_b):
    """The first numbers of the sums of layers A and B, which rank 0 reduces in another order."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    layer_a = torch.full((2,), 1.0, device=device)
    layer_b = torch.full((size_of_b,), 100.0, device=device)
    for gradient in [layer_b, layer_a] if dist.get_rank() == 0 else [layer_a, layer_b]:
        dist.all_reduce(gradient)
    return layer_a[0].item(), layer_b[0].item()


mixed = ws.run(another_order, 2, world_size=world_size, backend=backend, echo=False).values
rows = [("should be", world_size, 100 * world_size)]
rows += [(f"rank {rank}", *sums) for rank, sums in enumerate(mixed)]
columns = ("", "layer A", "layer B")
draw.table(rows, title="The sums that ranks get, measured here", columns=columns)

# %% [markdown]
# **Symptom**: no error and no hang; the model learns from the wrong gradients. **Cause**: two
# layers of the same size were added to each other. **Fix**: the same calls in the same order.
#
# No one has to write a different order on purpose. In August 2026 a user who trained Gemma 3 on
# four H200s reported that some ranks always produced garbage, and that it was random which ones. It
# looked like a fault of DDP (huggingface/transformers, pull request 48162). The cause was in the
# model: it went through `list(set(config.layer_types))` and registered RoPE buffers for each type.
# Python orders the strings of a set differently **in each process**. DDP copies rank 0's buffers to
# the other ranks one after the other, by position and not by name. So on every rank whose order
# differed, one kind of layer got the buffers of the other, and nothing failed. Here are four
# processes, each with its own hash seed:

# %% order_of_a_set
code = "print(list(set(['full_attention', 'sliding_attention'])))"
for rank in range(4):
    process = {"env": {**os.environ, "PYTHONHASHSEED": f"{rank}"}, "capture_output": True}
    order = subprocess.run([sys.executable, "-c", code], text=True, check=True, **process).stdout
    print(f"rank {rank}: {order.strip()}")

# %% [markdown]
# Started with `PYTHONHASHSEED=0`, all processes use the same order; the pull request, which was
# merged, makes the order fixed. Where the order of collectives depends on a loop, loop over a list
# and never over a set. The check of week 1 would find such a mistake: compare with one process.
#
# With layers of different sizes you are luckier. The next run hangs, and the report explains why.

# %% another_size
try:
    ws.run(another_order, 3, world_size=world_size, backend=backend, stalled_s=1)
except ws.RunError as report:
    print(report)

# %% [markdown]
# Do not count on that luck with GPUs. NCCL does not compare sizes, because that would cost time in
# every call. Two users tried sizes that differ between ranks: some runs hung, and others ended with
# partly wrong numbers (NVIDIA/nccl issues 1394 and 1417, August 2024).
#
# ### Find the bug: all ranks equally fast
#
# 5 minutes · easy
#
# A colleague looks for a slow rank. Each rank passes in its step time, and all gather the times of
# all ranks. Yet every rank reports the same time for every rank. Run the check, read what it found,
# and repair the function.
#
# <details><summary>Hint</summary>
#
# How many tensors does the list hold? `[a] * 4` is four times the same object.
# </details>


# %% times_of_all tags=["turn"]
def times_of_all(step_s):
    """The step times of all ranks, in order of rank."""
    mine = torch.tensor([step_s], dtype=torch.float64)
    ### BEGIN SOLUTION
    gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    ### INSTEAD
    # gathered = [torch.empty_like(mine)] * dist.get_world_size()
    ### END SOLUTION
    dist.all_gather(gathered, mine)
    return [time_s.item() for time_s in gathered]


# %% check_times_of_all
with check.turn("times_of_all"):
    step_times_s = [0.31, 0.30, 0.52, 0.33]

    def gather_on_a_rank():
        return times_of_all(step_times_s[dist.get_rank()])

    on_ranks = ws.run(gather_on_a_rank, world_size=4, cluster=cluster, echo=False).values
    hint = "Each message overwrites the one before: the list holds one tensor several times."
    for rank, found in enumerate(on_ranks):
        wanted = torch.tensor(step_times_s, dtype=torch.float64)
        found = torch.tensor(found, dtype=torch.float64)
        check.expect_close(found, wanted, f"the times that rank {rank} returns", hint)
    print("Right. Rank 2 is the slow one.")

# %% [markdown]
# ### Find the bug: right by luck
#
# 8 minutes · medium
#
# A colleague adds the previous rank's values to its own, as a step of the ring does. The sums are
# right in every test. Still the program is wrong: until its handle says so, `isend` may not have
# read `values` yet, and would then send the sum. A test of results cannot show that on a machine
# where the message always leaves first. An **audit** of the run can (`audit=True`): it knows which
# tensors a transfer still uses when an operator writes to them. Run the check, read what the audit
# found, and repair the function.
#
# <details><summary>Hint</summary>
#
# Which handles must be waited for before `values` may change?
# </details>


# %% with_the_previous tags=["turn"]
def with_the_previous(values):
    """This rank's values, to which those of the previous rank are added in place."""
    rank, size = dist.get_rank(), dist.get_world_size()
    inbox = torch.empty_like(values)
    sending = dist.isend(values, (rank + 1) % size)
    receiving = dist.irecv(inbox, (rank - 1) % size)
    ### BEGIN SOLUTION
    receiving.wait()
    sending.wait()
    values += inbox
    ### INSTEAD
    # receiving.wait()
    # values += inbox
    # sending.wait()
    ### END SOLUTION
    return values


# %% check_with_the_previous
with check.turn("with_the_previous"):

    def add_on_a_rank():
        return with_the_previous(torch.full((4,), 10.0 ** dist.get_rank()))

    run = ws.run(add_on_a_rank, world_size=4, cluster=cluster, echo=False, audit=True)
    for rank, found in enumerate(run.values):
        wanted = torch.full((4,), 10.0**rank + 10.0 ** ((rank - 1) % 4))
        check.expect_close(found, wanted, f"the sum on rank {rank}")
    for finding in run.audit.findings:
        raise CheckFailed("no finding of the audit", finding.what, finding.cure)
    print("Right, and not by luck: no tensor changes before its transfer is over.")

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | Number | Threshold | Where it comes from |
# |---|---|---|
# | 2(N − 1)/N · S | sent by each rank, at least; a reduce-scatter takes half | section 4 |
# | αβ | a smaller message is latency: 0.67 MB with 14 µs and 48 GB/s | section 6 |
# | N αβ | a ring's two terms are equal: 43 MB on 64 such links | section 6 |
# | 2 log₂ N or 2(N − 1) steps | 12 or 126 on 64 ranks | section 6 |
# | 0.66 s | bfloat16 gradients of 8B parameters by one ring at 400 Gb/s | section 6 |
# | 2(M − 1)/M · S | out of a node, if the sum is taken inside it first | section 6 |

# %% [markdown]
# ## 8. Problems
#
# **1.** Above which size does a ring of 64 ranks spend less than 10% of its time on latency (14 µs
# and 48 GB/s)?
#
# <details><summary>Answer</summary>
#
# The terms are equal at $N \alpha \beta = 64 \cdot 14 \cdot 10^{-6} \cdot 48 \cdot 10^9$ = 43 MB.
# For nine parts of bytes to one of latency it takes nine times that, 387 MB.
# </details>
#
# **2.** A model has 1,000 gradients of 64 kB each. How long do their all-reduces take on this ring,
# one after the other? And all in one tensor?
#
# <details><summary>Answer</summary>
#
# One: $126 \cdot 14$ µs = 1,764 µs of latency and $1.97 \cdot 64$ kB / 48 GB/s = 2.6 µs of bytes. A
# thousand: 1.77 s. In one tensor of 64 MB: 1.76 + 2.63 = 4.4 ms, 400 times as fast. Week 3 collects
# gradients in buckets for this reason.
# </details>
#
# **3.** On 8 H200s NCCL was measured at a bus bandwidth of 473 GB/s, and at 366 GB/s with its rings
# alone (`stas00/ml-engineering`, network/README.md, 2026). The data sheet gives 450 GB/s for each
# direction. Is the benchmark wrong?
#
# <details><summary>Answer</summary>
#
# No. The formula of bus bandwidth assumes that ranks add, and multiplies by 2 · 7/8 = 1.75. The
# NVLink switch can add: then each rank sends its tensor about once and receives the sum once. The
# algorithm bandwidth is 473 / 1.75 = 270 GB/s, and hardly more than that goes through each link in
# each direction: 60% of 450. The lower bound of section 4 holds only where the ranks do the adding.
# </details>
#
# **4.** In an all-to-all each of N ranks holds S bytes, 1/N of them for each rank. How many bytes
# pass between two halves of the ranks, in one direction? And in a ring all-reduce of S bytes whose
# order does not mix the halves? Take N = 64 and S = 64 MB.
#
# <details><summary>Answer</summary>
#
# Each of N/2 ranks sends half of its S bytes to the other half: $N S / 4$ = 1.02 GB. The ring has
# one link in each direction between the halves, which carries $2 (N-1)/N \cdot S$ = 126 MB. An
# all-to-all needs eight times as much bisection bandwidth, and twice that with twice the ranks.
# Week 8 meets it again in expert parallelism.
# </details>
#
# **5.** 16 nodes of 8 H100s all-reduce the 16.1 GB of bfloat16 gradients of an 8B model,
# hierarchically (NVLink 371 GB/s inside, 48 GB/s for each network card; leave out latencies). How
# long does it take? Which part is the longest? And a single flat ring?
#
# <details><summary>Answer</summary>
#
# Inside, both parts together: $2 \cdot 7/8 \cdot 16.1 / 371$ = 76 ms. Between nodes each rank
# all-reduces 2.01 GB: $2 \cdot 15/16 \cdot 2.01 / 48$ = 79 ms. In all 155 ms: with eight cards to a
# node the two are almost equal. Flat: $2 \cdot 127/128 \cdot 16.1 / 48$ = 666 ms.
# </details>
#
# **6.** *Design.* A job runs on 32 nodes of 8 GPUs, each GPU with a card of its own, in 4 racks;
# the network is 4:1 oversubscribed between racks. Its all-reduce of 2 GB reaches a bus bandwidth of
# 12 GB/s. What do you suspect, how do you test it, and what can you reach?
#
# <details><summary>Answer</summary>
#
# 12 is 48 / 4: the uplinks decide, as if all ranks sent through them at once. Suspect the order of
# the ranks, for instance nodes sorted by name and not by rack. Test: the same benchmark inside one
# rack, which should reach what the cards give; then in two racks with both orders. Rack by rack,
# one node of each rack sends upwards, with its 8 cards, and the uplinks of a rack carry
# $8 \cdot 8 / 4 = 16$ cards. So they do not limit it any more, and the bus bandwidth is that of one
# rack: four times as much.
# </details>
#
# ## 9. Self-check
#
# First, compare your predictions with the results. Where a ratio is far from 1, read again.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions follow. Every answer, right or wrong, has its own explanation.

# %% self_check
quiz.ask("week02", seed=seed)

# %% [markdown]
# ## To take with you
#
# - All-reduce = reduce-scatter + all-gather. Every rank adds a part; no rank adds everything.
# - Where ranks do the adding they send 2(N − 1) S together or more: 2(N − 1)/N · S each, if all
#   send equally much. Halving and doubling, and the ring, send exactly that.
# - A message costs α + S/β. Small tensors are bound by the number of steps, large ones by bytes.
# - A server's link carries 2 N S; a ring's links never more than 2 S each.
# - Bytes that cross slow links count for more: sum inside the node first, and put neighbours in a
#   ring next to each other.
# - Messages meet in order: if all ranks send first, they deadlock; if one rank calls in a different
#   order, the wrong tensors are summed.
#
# **Now the lab**: [lab 2, ring all-reduce](../labs/lab02/lab02.ipynb). Which chunk does each rank
# send in which step? Then **week 3**, *DDP from first principles*: when to call all-reduce, so that
# it is hidden behind the backward pass.
