# %% [markdown]
# # Week 2. All-reduce from scratch
#
# | | |
# |---|---|
# | Reading | about 70 minutes |
# | Running | about a minute on two CPU cores; GPUs are used if there are enough |
# | You need | [week 1](week01_why_one_gpu_is_not_enough.ipynb): ranks and collectives |
# | You do not need | a network, a cluster, or to have written a message-passing program |
# | Afterwards | lab 2, *ring all-reduce* |
#
# Last week every step ended in `dist.all_reduce`: each rank gives a tensor and gets the sum of all.
# You called it. This week you take it apart: what it must move, what it costs, and how it can be
# done.
#
# Two letters are everywhere below. **N** is the number of ranks. **S** is the size of the tensor in
# bytes.

# %% [markdown]
# ## 1. The question
#
# > How few bytes can an all-reduce move, and how little time can it take?

# %% parameters tags=["parameters"]
world_size = 4  # ranks in the experiments on this machine: 2, 4 or 8
# "nccl" on GPUs, "gloo" on CPUs; "auto" takes NCCL when there is a GPU for every rank
backend = "auto"
cluster = "dgx-h100"  # the emulated cluster of the pictures; the tables name their own
seed = 0
# over a parameter server's link, for one step of ResNet-50 on 64 workers
predicted_server_gb = None
predicted_ring_mb = None  # that each of 64 ranks must send, at least, to all-reduce 100 MB
predicted_latency_us = None  # for a message of 4 bytes from one rank to another on this machine
predicted_speedup = None  # of torch's all-reduce over one through rank 0, 16 MB, on this machine

# %% setup
import math
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import draw, hardware, ledger, pricing, quiz, units
from worldsize.explore import explore

Path("build/week02").mkdir(parents=True, exist_ok=True)
predictions = ledger.Predictions("week02")
print(f"{os.cpu_count()} CPU cores, {torch.cuda.device_count()} GPUs")

# %% [markdown]
# ## 2. Predict
#
# The next cell asks for four numbers, and waits. The gradients of ResNet-50 are 25.6 million
# numbers of 4 bytes.

# %% predict
predictions.ask("server's link, 64 workers", predicted_server_gb, "GB", section=6)
predictions.ask("sent by each of 64 ranks for 100 MB", predicted_ring_mb, "MB", section=4)
predictions.ask("a message of 4 bytes here", predicted_latency_us, "µs", section=6)
predictions.ask("speed-up of torch's all-reduce", predicted_speedup, "times", section=5)

# %% [markdown]
# ## 3. Build it worse first
#
# ### Messages
#
# All collectives are made of messages. `dist.send(tensor, dst=1)` on rank 0 needs
# `dist.recv(tensor, src=0)` on rank 1, with a tensor of the same size and type. On CPUs both calls
# come back when the message is through. On GPUs they come back at once, and what you do next with
# the tensor waits on the GPU.
#
# The first all-reduce that comes to mind: everybody sends to rank 0, rank 0 adds, and sends the sum
# to everybody.


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
# Run it twice: on this machine, and on a cluster that is **emulated**. There the ranks are as real,
# and so is the data; but each message takes the time that it would take on the links of the
# described cluster, and every message is noted.
#
# This cell is the harness for the whole lesson. It checks the sum and keeps, of each repetition,
# the time of the slowest rank.


# %% harness
def timed(all_reduce, num_elements, repeats):
    """Seconds of each repetition on this rank, without the first one, which opens connections."""
    on_gpus = dist.get_backend() == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    times_s = []
    for _ in range(repeats + 1):
        tensor = torch.full((num_elements,), dist.get_rank() + 1.0, device=device)
        dist.barrier()
        start_s = time.perf_counter()
        all_reduce(tensor)
        # reading a number waits for a GPU
        assert tensor[-1].item() == sum(range(dist.get_world_size() + 1))
        times_s.append(time.perf_counter() - start_s)
    return times_s[1:]


# %% harness_runs
def measured_s(all_reduce, size_bytes, repeats=7):
    """Seconds of this all-reduce on this machine: the slowest rank, the median repetition."""
    here = {"world_size": world_size, "backend": backend, "echo": False}
    runs = ws.run(timed, all_reduce, size_bytes // 4, repeats, **here)
    return statistics.median(max(of_ranks) for of_ranks in zip(*runs.values, strict=True))


def emulated(all_reduce, size_bytes, num_ranks, where):
    """The timeline of this all-reduce on a described cluster."""
    options = {"cluster": where, "compute": "none", "echo": False}
    ones = torch.ones(size_bytes // 4)
    return ws.run(all_reduce, ones, world_size=num_ranks, **options).timeline


# %% star_emulated
star = emulated(through_rank_0, 1_000_000, 4, cluster)
for rank in range(4):
    print(f"rank {rank} sends {units.format_bytes(star.bytes_sent(rank))}")
draw.messages(star, title=f"Through rank 0, emulated on {cluster}")

# %% [markdown]
# Step through it: at any time one link is busy, and it is always one of rank 0's. With N ranks,
# $2 (N - 1)$ messages of S bytes go through one link, one after the other.

# %% [markdown]
# ## 4. Build it well
#
# ### Six collectives
#
# Names first. Each of these is a call that all ranks make together.
#
# | Collective | gives | gets |
# |---|---|---|
# | broadcast | the root a tensor | everybody that tensor |
# | reduce | everybody a tensor | the root the sum |
# | all-reduce | everybody a tensor | everybody the sum |
# | reduce-scatter | everybody N chunks | rank *r* the sum of all chunks *r* |
# | all-gather | everybody a chunk | everybody all N chunks |
# | all-to-all | everybody N chunks, one for each rank | rank *r* everybody's chunk *r*, not added |
#
# The next cell runs the last three. Each rank begins with a row of numbers of its own.


# %% six_collectives
def three_collectives():
    """This rank's tensor, and its results of a reduce-scatter, an all-gather and an all-to-all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    row = torch.arange(size) + 10.0 * (rank + 1)
    reduced, gathered, exchanged = torch.empty(1), torch.empty(size), torch.empty(size)
    dist.reduce_scatter(reduced, list(row.chunk(size)))
    dist.all_gather(list(gathered.chunk(size)), row[rank : rank + 1])
    dist.all_to_all_single(exchanged, row)
    return row, reduced, gathered, exchanged


print(f"{'':7} {'has':<18}{'reduce-scatter':<17}{'all-gather':<18}all-to-all")
for rank, results in enumerate(
    ws.run(three_collectives, world_size=4, cluster=cluster, echo=False).values
):
    words = [" ".join(f"{number:3.0f}" for number in tensor.tolist()) for tensor in results]
    print(f"rank {rank}: {words[0]:<18}{words[1]:<17}{words[2]:<18}{words[3]}")

# %% [markdown]
# Read the reduce-scatter column downwards: 100, 104, 108, 112 are the sums of the columns of *has*.
# Together the ranks hold the whole sum, and each has a quarter. If they now all-gather their
# quarters, everybody has the sum:
#
# > **all-reduce = reduce-scatter + all-gather**
#
# Everything efficient is built on this. The adding is shared out, and no link has to carry
# everything.
#
# ### How few bytes?
#
# Look at one element, where ranks do the adding. (A switch that adds, as NVLink's in week 1, is
# another matter.) Every rank has its own value of it, and in the end every rank must know the sum.
#
# - Until the first rank knows the sum, each of the other N − 1 ranks must have sent something: at
#   least **N − 1 messages**.
# - At that moment the other N − 1 ranks do not know it. Each must still receive something: another
#   **N − 1 messages**.
#
# So each element is sent at least $2 (N - 1)$ times, and S bytes make at least $2 (N - 1) S$ in
# all. If N ranks share this equally, each sends
#
# $$\text{bytes sent by each rank} \;\geq\; \frac{2 (N - 1)}{N} \, S$$
#
# (Patarasuk and Yuan 2009, *Bandwidth optimal all-reduce algorithms for clusters of workstations*,
# JPDC 69(2), prove it and give a ring that reaches it.) The bound never passes 2 S, however many
# ranks there are.

# %% lower_bound
for num_ranks in (2, 4, 8, 64, 1024):
    bound_mb, through_mb = 2 * (num_ranks - 1) / num_ranks * 100, (num_ranks - 1) * 100
    summary = f"each must send {bound_mb:5.1f} MB; rank 0 above would send {through_mb:,} MB"
    print(f"{num_ranks:5} ranks, 100 MB: {summary}")
predictions.reveal("sent by each of 64 ranks for 100 MB", 2 * 63 / 64 * 100)

# %% [markdown]
# ### Halves, and halves of halves
#
# One way to reach the bound. Ranks pair up. Each keeps one half of the tensor and sends its partner
# the other: now each half is summed over two ranks. Then partners at distance 2 do the same with
# their half, then at distance 4, and after $\log_2 N$ steps each rank has 1/N of the tensor, summed
# over all. That was the reduce-scatter. The way back is the all-gather: the same partners, in
# reverse order, exchange what they have.
#
# In each step a rank sends **and** receives. If both called `dist.send` first, each would wait for
# the other (section 7). `isend` and `irecv` start a message and come back at once, with a handle to
# wait for.


# %% halving_doubling
def swap(outgoing, incoming, partner):
    """Send `outgoing` to the partner, and fill `incoming` from it."""
    works = [dist.isend(outgoing, partner), dist.irecv(incoming, partner)]
    for work in works:
        work.wait()


def halving_doubling(tensor):
    """Sum the tensor over all 2, 4, 8, ... ranks, which divide its size, in place."""
    rank, part, path, distance = dist.get_rank(), tensor, [], 1
    while distance < dist.get_world_size():
        lower, upper = part.chunk(2)
        kept, given = (lower, upper) if rank & distance == 0 else (upper, lower)
        inbox = torch.empty_like(kept)
        swap(given, inbox, rank ^ distance)
        kept += inbox
        path.append((kept, given, rank ^ distance))
        part, distance = kept, 2 * distance
    for kept, given, partner in reversed(path):
        swap(kept, given, partner)


# %% [markdown]
# This is *recursive halving and doubling*; MPICH uses it for long messages (source comment of its
# `MPI_Allreduce`, which names Rabenseifner). `rank ^ distance` flips one bit of the rank: partners
# at distance 1, 2, 4.

# %% halving_emulated
pairs = emulated(halving_doubling, 1_000_000, 4, cluster)
sent = [round(pairs.bytes_sent(rank)) for rank in range(4)]
print(f"bytes sent by each rank: {sent}, the bound: {2 * 3 / 4 * 1e6:.0f}")
assert all(pairs.bytes_sent(rank) == 2 * 3 / 4 * 1_000_000 for rank in range(4))
draw.messages(pairs, title=f"Halving and doubling, emulated on {cluster}")

# %% both_on_one_axis
both = {"through rank 0": star, "halving and doubling": pairs}
draw.timelines(both, title=f"1 MB, 4 ranks, emulated on {cluster}", streams=["communication"])

# %% [markdown]
# Every rank sends and receives in every step, and the bytes are those of the bound, to the last
# one.
#
# ### The ring
#
# Pairs need a power of two, and a new partner in each step. There is another way to the bound that
# needs neither: ranks in a ring, each talking to two neighbours only. The picture first, for **one
# chunk** on four ranks. It starts somewhere, goes once round, and each rank adds its own part
# before it passes it on:
#
# ```text
# rank 0 ──a──► rank 1 ──a+b──► rank 2 ──a+b+c──► rank 3 has a+b+c+d
# ```
#
# Three messages, and one rank at a time works. On the way back, three more messages hand the sum
# out.


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
chain = ws.run(
    one_chunk_round, world_size=4, each=numbers, cluster=cluster, compute="none", echo=False
)
for rank, (came, passed) in enumerate(chain.values):
    print(f"rank {rank}: {came:6.0f} came, {passed:6.0f} goes on")
draw.messages(chain.timeline, title=f"One chunk on its way, emulated on {cluster}")

# %% [markdown]
# One chunk keeps one link busy. So cut the tensor into **N chunks and start each on another rank**:
# then N chunks are under way at the same time, all links are busy in every step, and nobody waits.
# After N − 1 steps each chunk is complete, on N different ranks: a reduce-scatter. N − 1 more steps
# pass the complete chunks round: an all-gather.
#
# The picture below is **computed, not run**: who sends to whom in each of the $2 (N - 1)$ steps,
# S/N bytes at a time. It does not say *which* chunk a rank sends in which step. That is lab 2.


# %% ring_computed
def ring_messages(num_ranks, size_bytes, step_s=1.0):
    """The timeline of a ring's messages: in each step every rank sends a chunk to the next one."""
    chunk_bytes = size_bytes // num_ranks
    return ws.Timeline.of_events(
        ws.Event(
            rank,
            "communication",
            "communication",
            name,
            step * step_s,
            (step + 1) * step_s,
            chunk_bytes,
            sent,
            (other,),
        )
        for step in range(2 * (num_ranks - 1))
        for rank in range(num_ranks)
        for name, other, sent in (
            ("send", (rank + 1) % num_ranks, chunk_bytes),
            ("recv", (rank - 1) % num_ranks, 0),
        )
    )


draw.messages(ring_messages(4, 1_000_000), title="A ring, computed")

# %% [markdown]
# ## 5. Compare with the production oracle
#
# `dist.all_reduce` is the judge. The same tensors through all three, on real ranks of this machine:
# the same sums, up to the order of the additions. A reduce-scatter and an all-gather by torch's own
# calls make the third.


# %% two_collectives
def by_two_collectives(tensor):
    """Sum the tensor over all ranks, in place, by torch's reduce-scatter and all-gather."""
    chunks = list(tensor.chunk(dist.get_world_size()))
    mine = torch.empty_like(chunks[0])
    dist.reduce_scatter(mine, chunks)
    dist.all_gather(chunks, mine)


# %% against_the_oracle
def differences(num_elements):
    """The largest difference of each all-reduce from torch's, on random numbers."""
    on_gpus = dist.get_backend() == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    generator = torch.Generator().manual_seed(seed + dist.get_rank())
    mine = torch.randn(num_elements, generator=generator).to(device)
    dist.all_reduce(expected := mine.clone())
    found = {}
    for all_reduce in (through_rank_0, by_two_collectives, halving_doubling):
        all_reduce(result := mine.clone())
        found[all_reduce.__name__] = (result - expected).abs().max().item()
    return found


found = ws.run(differences, 80_000, world_size=world_size, backend=backend).values[0]
for name, difference in found.items():
    print(f"{name:<20} largest difference from dist.all_reduce {difference:.1e}")
    assert difference < 1e-5

# %% race
SIZE = 16 * units.MB
race_s = {
    f.__name__: measured_s(f, SIZE) for f in (through_rank_0, halving_doubling, dist.all_reduce)
}
for name, time_s in race_s.items():
    print(
        f"{name:<20} {units.format_time_s(time_s):>8} for 16 MB on {world_size} ranks, measured"
        " here"
    )
predictions.reveal(
    "speed-up of torch's all-reduce", race_s["through_rank_0"] / race_s["all_reduce"]
)

# %% [markdown]
# Here all ranks share one machine: its cores copy every byte, and its memory is the network. So
# times differ less than the bytes do, and vary from run to run. On a cluster each rank has a link
# of its own. To say something about those, we need a model.

# %% [markdown]
# ## 6. Formula, measurement, emulation
#
# ### What does a message cost?
#
# A message takes some time even when it is empty: calls, queues, the way. That is the **latency**
# α. Then its bytes follow at the **bandwidth** β:
#
# $$t(S) = \alpha + \frac{S}{\beta}$$
#
# Two numbers for a link. Measure them here: rank 0 sends a message, rank 1 sends it back, and half
# of the round trip is one message.


# %% ping_pong
def ping_pong(sizes_bytes, repeats):
    """Seconds of one message for each size: half of a round trip, the median."""
    on_gpus = dist.get_backend() == "nccl"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    rank, medians_s = dist.get_rank(), []
    for size_bytes in sizes_bytes:
        tensor, trips_s = torch.zeros(size_bytes // 4, device=device), []
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
timings = ws.run(
    ping_pong, [*fitted_sizes, held_out_size], 33, world_size=2, backend=backend
).values[0]
message_s = dict(zip([*fitted_sizes, held_out_size], timings, strict=True))
predictions.reveal("a message of 4 bytes here", message_s[4] / units.US)

# %% [markdown]
# Fit α and β so that the *relative* errors are small: a plain least-squares fit would only look at
# the largest message. The size 8 MB was left out of the fit. The model must predict it.


# %% fit
def fit_alpha_beta(times_s):
    """Latency in seconds and bytes per second, by least squares of the relative errors."""
    size = torch.tensor(list(times_s), dtype=torch.float64)
    time_s = torch.tensor(list(times_s.values()), dtype=torch.float64)
    rows = torch.stack(
        [1 / time_s, size / time_s], dim=1
    )  # (alpha + size / beta) / time should be 1
    alpha_s, s_per_byte = torch.linalg.lstsq(
        rows, torch.ones(len(size), 1, dtype=torch.float64)
    ).solution.flatten()
    return alpha_s.item(), 1 / s_per_byte.item()


alpha_s, beta = fit_alpha_beta({size: message_s[size] for size in fitted_sizes})
predicted_s, actual_s = alpha_s + held_out_size / beta, message_s[held_out_size]
print(f"this machine: alpha {units.format_time_s(alpha_s)}, beta {units.format_bytes(beta)}/s")
print(f"both terms count the same at {units.format_bytes(alpha_s * beta)}")
print(
    f"8 MB, held out: predicted {units.format_time_s(predicted_s)}, measured"
    f" {units.format_time_s(actual_s)}"
)
print(f"error of the prediction {predicted_s / actual_s - 1:+.0%}")
line = {"alpha + S / beta": lambda size_bytes: alpha_s + size_bytes / beta}
title = f"A message between two ranks here, {os.cpu_count()} cores"
draw.cost(line, (4, 16e6), {"alpha + S / beta": message_s}, title=title)

# %% [markdown]
# Left, the curve is flat: latency decides, and a message of 4 bytes costs as much as one of several
# kilobytes. Right, it is a line: bandwidth decides. Between them, where $S = \alpha \beta$, both
# count the same. Where the points leave the curve, the machine does something that two numbers
# cannot say: caches, other programs, another way of copying.
#
# On CPU ranks, α holds the time in which the operating system wakes a rank that waits. Run the cell
# again while the machine is busy with something else, and see it grow.
#
# ### What do algorithms cost?
#
# Count for each algorithm the steps that must wait for the step before, and the bytes on the
# busiest link:
#
# | Algorithm | time |
# |---|---|
# | through rank 0 | $2 (N-1) \, (\alpha + S/\beta)$ |
# | tree: reduce along a binomial tree, broadcast back | $2 \log_2 N \, (\alpha + S/\beta)$ |
# | recursive doubling: partners exchange everything | $\log_2 N \, (\alpha + S/\beta)$ |
# | recursive halving and doubling | $2 \log_2 N \, \alpha + \frac{2(N-1)}{N} \, S/\beta$ |
# | ring | $2 (N-1) \, \alpha + \frac{2(N-1)}{N} \, S/\beta$ |
#
# The last two send the least there is. The third has the fewest steps.


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


LINKS = {link.name: link for link in (hardware.NVLINK4, hardware.IB_NDR, hardware.ETHERNET_100G)}


def time_of_each(num_ranks=64, link=hardware.IB_NDR):
    """A picture of the computed time of each algorithm for every size."""
    costs = algorithms(num_ranks, link.latency_s, link.bandwidth_bytes_per_s)
    title = f"{num_ranks} ranks, a link each: {link.name}. Computed, not measured"
    return draw.cost(costs, (1e3, 1e10), title=title)


explore(time_of_each, num_ranks=(2, 1024, "x2"), link=LINKS)

# %% [markdown]
# Move the sliders: where does the ring lie with 4 ranks, where with 1,024? What does a faster link
# change, and where?
#
# Two regimes. Small tensors are **latency-bound**: the fewest steps win, and a ring of 64 pays 126
# latencies. Large ones are **bandwidth-bound**: the fewest bytes win, and the ring is as good as
# any. Where a ring overtakes recursive doubling, and the size at which a ring's own two terms are
# equal, $S = N \alpha \beta$:

# %% crossovers
for num_ranks in (8, 64, 512):
    costs = algorithms(num_ranks, hardware.IB_NDR.latency_s, hardware.IB_NDR.bandwidth_bytes_per_s)
    found = draw.crossovers(
        {name: costs[name] for name in ("recursive doubling", "ring")}, (1.0, 1e12)
    )
    equal_terms = num_ranks * hardware.IB_NDR.latency_s * hardware.IB_NDR.bandwidth_bytes_per_s
    print(
        f"{num_ranks:4} ranks: a ring beats recursive doubling from"
        f" {units.format_bytes(found[0][0])} on; latency and bytes count the same at"
        f" {units.format_bytes(equal_terms)}"
    )

# %% [markdown]
# By these formulas halving and doubling is never slower than a ring. Then why rings at all? A ring
# takes any number of ranks, and each talks to two neighbours only, so that it can be laid along the
# wires. Halving and doubling has its partners far apart, and they all cross the network at once.
# The formula assumes a network that never gets in the way. Take one whose switches have four times
# more bandwidth down to the nodes than up to each other, and emulate:

# %% oversubscribed
network = hardware.IB_NDR
full = replace(
    hardware.H100_NDR, name="full", gpus_per_node=1, nics_per_node=1, num_nodes=8, is_rail=False
)
narrow = replace(full, name="4:1 oversubscribed", nodes_per_leaf=4, oversubscription=4.0)
size_bytes = 8 * units.MB
formula_s = algorithms(8, network.latency_s, network.bandwidth_bytes_per_s)
for fabric in (full, narrow):
    pairs_s = emulated(halving_doubling, size_bytes, 8, fabric).end_s
    ring_s = pricing.price("all_reduce", size_bytes, range(8), fabric, algorithm="ring").time_s
    times = f"{pairs_s * 1e6:5.0f} µs emulated, ring {ring_s * 1e6:5.0f} µs priced"
    print(f"{fabric.name:<19} halving and doubling {times}")
pairs_s, ring_s = formula_s["halving and doubling"](size_bytes), formula_s["ring"](size_bytes)
print(
    f"{'formula':<19} halving and doubling {pairs_s * 1e6:5.0f} µs,          ring"
    f" {ring_s * 1e6:5.0f} µs"
)

# %% [markdown]
# Through narrow uplinks the pairs take longer than their formula, and the ring does not: in each of
# its steps, one message crosses in each direction.
#
# ### Side by side
#
# Now hold the formulas against runs: the same two functions from above, on three emulated clusters
# with 8 ranks, and on this machine.

# %% side_by_side
ethernet = replace(hardware.cluster("a100-10gbe"), name="8 x 10 Gb/s", gpus_per_node=1, num_nodes=8)
rows = []
for where in (hardware.cluster("dgx-h100"), hardware.cluster("pcie-box"), ethernet):
    link = where.intra if where.num_nodes == 1 else where.inter
    costs = algorithms(8, link.latency_s, link.bandwidth_bytes_per_s)
    for name, function in (
        ("through rank 0", through_rank_0),
        ("halving and doubling", halving_doubling),
    ):
        time_s = emulated(function, SIZE, 8, where).end_s
        rows.append((f"{where.name}, emulated", 8, name, costs[name](SIZE), time_s))
here = algorithms(world_size, alpha_s, beta)
for name, function in (
    ("through rank 0", "through_rank_0"),
    ("halving and doubling", "halving_doubling"),
):
    rows.append(("this machine, measured", world_size, name, here[name](SIZE), race_s[function]))
print(f"{'16 MB on':<24} N {'algorithm':<21} {'formula':>9} {'run':>9}  error of the formula")
for where, num_ranks, name, formula, time_s in rows:
    print(
        f"{where:<24} {num_ranks} {name:<21} {units.format_time_s(formula):>9}"
        f" {units.format_time_s(time_s):>9} {formula / time_s - 1:+9.0%}"
    )

# %% [markdown]
# On links that ranks do not share, the formulas hold. Two rows teach more:
#
# - **pcie-box**: eight GPUs share one host bridge, and it cannot carry eight full links at once.
#   Through rank 0, one message at a time, nobody notices. When all send at once, each gets a part.
# - **this machine**: α and β were measured with two ranks and nothing else. Four ranks share the
#   cores and the memory, add numbers, and wait for each other's turn on a core. The formula knows
#   of messages only.
#
# ### Algorithm bandwidth and bus bandwidth
#
# "We all-reduce 1 GB in 10 ms" is 100 GB/s, the **algorithm bandwidth** S / t. It cannot be
# compared with a link's data sheet, because each rank has sent $2 (N - 1) / N \cdot S$ and not S.
# **Bus bandwidth** is what the links must have carried:
#
# $$\text{bus} = \frac{S}{t} \cdot \frac{2 (N - 1)}{N}$$
#
# (NVIDIA/nccl-tests, doc/PERFORMANCE.md.) A good all-reduce keeps it the same for any N, while
# algorithm bandwidth falls. The times of this table are *priced*, by a model of NCCL's rings on
# H100s with NVLink; nothing runs.

# %% bus_bandwidth
print("1 GB, priced    time     algorithm bandwidth   bus bandwidth")
for num_ranks in (2, 4, 8):
    time_s = pricing.price(
        "all_reduce", 1e9, range(num_ranks), hardware.DGX_H100, algorithm="nccl-ring"
    ).time_s
    algorithm_gb_per_s = 1 / time_s
    bus_gb_per_s = algorithm_gb_per_s * pricing.bus_factor("all_reduce", num_ranks)
    rates = f"{algorithm_gb_per_s:16.0f} GB/s {bus_gb_per_s:10.0f} GB/s"
    print(f"{num_ranks} ranks {units.format_time_s(time_s):>12} {rates}")

# %% [markdown]
# ### A ring or a parameter server?
#
# A parameter server takes S from each of N workers and sends S to each: $2 N S$ over its link, and
# twice that with twice the workers. Add servers and each takes a part; but a ring needs none,
# because every new rank brings its own link. The gradients of ResNet-50, on 100 Gb/s Ethernet, with
# a server that sends and receives at the same time:

# %% ring_or_server
# ResNet-50 in fp32; number of parameters: torchvision documentation
gradient_bytes = 25_557_032 * 4
alpha_100_s, beta_100 = (
    hardware.ETHERNET_100G.latency_s,
    hardware.ETHERNET_100G.bandwidth_bytes_per_s,
)
print("computed, not measured: server's link      server        ring")
for num_ranks in (2, 8, 64, 512):
    server_s = 2 * alpha_100_s + num_ranks * gradient_bytes / beta_100
    ring_s = algorithms(num_ranks, alpha_100_s, beta_100)["ring"](gradient_bytes)
    link = units.format_bytes(2 * num_ranks * gradient_bytes)
    print(
        f"{num_ranks:4} ranks {link:>29} {units.format_time_s(server_s):>12}"
        f" {units.format_time_s(ring_s):>11}"
    )
predictions.reveal("server's link, 64 workers", 2 * 64 * gradient_bytes / units.GB)

# %% [markdown]
# With two ranks the server takes twice as long, with 512 a hundred times. The ring's links never
# carry more than $2 S$: from 64 ranks on, its time grows by latency alone, or nearly so.
#
# ### Nodes of several GPUs
#
# Inside a node links are fast; between nodes they are slow. A flat ring goes through both and pays
# the slow ones in every step. **Hierarchical** all-reduce does the sum in three parts, with M nodes
# of G ranks:
#
# 1. reduce-scatter inside each node: every rank has 1/G of the node's sum;
# 2. all-reduce between nodes, each rank with those that hold the same part: S/G bytes;
# 3. all-gather inside each node.
#
# Only part 2 uses the network, and $\frac{2(M-1)}{M} S$ bytes leave each node: the lower bound,
# with nodes in place of ranks. In a flat ring $\frac{2(N-1)}{N} S$ leave it, through one of its
# network cards.

# %% hierarchy
node, inter = hardware.H100_NDR, hardware.IB_NDR
print("1 GB on nodes of 8 H100s, computed     flat: out of a node, time     hierarchical")
for num_nodes in (2, 4, 16):
    num_ranks, size = 8 * num_nodes, 1e9
    flat_bytes, layered_bytes = (2 * (n - 1) / n * size for n in (num_ranks, num_nodes))
    flat_s = algorithms(num_ranks, inter.latency_s, inter.bandwidth_bytes_per_s)["ring"](size)
    inside_s = algorithms(8, node.intra.latency_s, node.intra.bandwidth_bytes_per_s)["ring"](size)
    between_s = algorithms(num_nodes, inter.latency_s, inter.bandwidth_bytes_per_s)["ring"](
        size / 8
    )
    print(
        f"{num_nodes:3} nodes {units.format_bytes(flat_bytes):>34},"
        f" {units.format_time_s(flat_s):>7} {units.format_bytes(layered_bytes):>18},"
        f" {units.format_time_s(inside_s + between_s)}"
    )

# %% [markdown]
# With two nodes, the bytes out of a node fall by nearly half; with sixteen, by a twentieth. The
# time falls to a quarter or less, because eight network cards carry them and not one. (NCCL lays
# several rings, see its channels in `worldsize/pricing.py`, so that a flat ring of NCCL's uses all
# cards too. This one is a single ring.)
#
# ## 7. When it breaks
#
# ### The loud failure: everybody sends first
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
# **Symptom**: nothing moves, and every rank stands in a `send` (on GPUs: in the first line that
# needs what should have come). **Cause**: a circle. A send is through when it is received; rank 0's
# needs rank 1's receive, which comes after rank 1's send, and so on round to rank 0. **Fix**:
# `isend` and `irecv`, and wait when both are posted. Here it hangs at any size. MPI libraries
# buffer small messages, and then this program works in the test and hangs with the real tensor (W.
# Gropp, *Tutorial on MPI*, Argonne, mcs.anl.gov/mpi/tutorial/gropp, node 87).
#
# ### The quiet failure: another order
#
# Collectives have no names. The first call of a rank meets the first call of the others, whatever
# they mean. Here rank 0 all-reduces the gradient of its second layer first, as it may happen where
# code loops over a set, or over hooks that fire in another order. Each rank holds 1 for layer A and
# 100 for layer B.


# %% another_order
def another_order(size_of_b):
    """The first numbers of the sums of layers A and B, which rank 0 reduces in another order."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    layer_a, layer_b = (
        torch.full((2,), 1.0, device=device),
        torch.full((size_of_b,), 100.0, device=device),
    )
    for gradient in [layer_b, layer_a] if dist.get_rank() == 0 else [layer_a, layer_b]:
        dist.all_reduce(gradient)
    return layer_a[0].item(), layer_b[0].item()


mixed = ws.run(another_order, 2, world_size=world_size, backend=backend).values
print(f"should be: layer A {world_size}, layer B {100 * world_size}")
for rank, (layer_a, layer_b) in enumerate(mixed):
    print(f"rank {rank}:    layer A {layer_a:.0f}, layer B {layer_b:.0f}")

# %% [markdown]
# **Symptom**: no error and no hang; the model learns from the wrong gradients. **Cause**: two
# layers of the same size were added to each other. **Fix**: every rank makes the same calls in the
# same order; loop over lists, never over sets.
#
# With layers of different sizes you are luckier. The next run does not end, and the report says
# why.

# %% another_size
try:
    ws.run(another_order, 3, world_size=world_size, backend=backend, stalled_s=1)
except ws.RunError as report:
    print(report)

# %% [markdown]
# ## 8. Self-check
#
# First, your predictions beside the results.

# %% predictions_beside_results
predictions.table()

# %% [markdown]
# Five questions. Each answer has its own explanation, also the wrong ones.

# %% self_check
quiz.ask("week02", seed=seed)

# %% [markdown]
# ## To take with you
#
# - All-reduce = reduce-scatter + all-gather. Everybody adds a part; nobody adds everything.
# - Where ranks do the adding they send 2(N − 1) S together or more: 2(N − 1)/N · S each, if all
#   send alike. Halving and doubling, and the ring, send exactly that.
# - A message costs α + S/β. Small tensors are bound by the number of steps, large ones by bytes.
# - A server's link carries 2 N S; a ring's links never more than 2 S each.
# - Bytes that cross slow links count for more: sum inside the node first.
# - Messages meet in order: who sends first and waits, hangs; who calls in another order, adds the
#   wrong things.
#
# **Now the lab**: [lab 2, ring all-reduce](../labs/lab02/lab02.ipynb). Which chunk does each rank
# send in which step? Then **week 3**, *DDP from first principles*: when to call all-reduce, so that
# it hides behind the backward pass.
