# %% [markdown]
# # Lab 2. Ring all-reduce
#
# In lab 1 you called `dist.all_reduce`. In this lab you write it, from `isend` and `irecv` alone,
# and no rank sends more bytes than the lower bound of week 2. Then you write a second one for a
# cluster in which the links between nodes are much slower than those inside a node.
#
# ```text
#              ┌──────────────────────────────┐
#              │                              ▼
#            rank 3 ◄── rank 2 ◄── rank 1 ◄── rank 0
#
# each rank sends to the next and receives from the previous one, at the same time, in every step
# ```
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `exchange` | one step: sends to the next rank, receives from the previous | 2 | 15 min | easy |
# | `ring_reduce_scatter` | leaves each rank with the sum of one chunk | 4 | 35 min | hard |
# | `ring_all_gather` | gives every rank the complete chunks | 2 | 15 min | easy |
# | `ring_all_reduce` | both, on a tensor of any size, type and layout | 7 | 30 min | medium |
# | `hierarchical_all_reduce` | the same, sparing the slow links between nodes | 5 | 35 min | hard |
# | `when_not_a_ring` | questions that you answer in words | 5 | 40 min | medium |
#
# Work in this order: each function has a check below it, and folded hints above it. The first hint
# says where to look, the next one how to do it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. The checks
# run your code on an emulated cluster: the ranks and the data are real, and every message is
# recorded and priced. They look at the result **and at the wire**: the numbers in each message, who
# sends it to whom, in how many steps, and how long that takes. The same inputs must give the same
# bits in every run. One check looks at **the memory** of your ranks, as counted by the operating
# system.
#
# Each function is judged by itself: where it calls another function of this notebook, the check
# substitutes a correct one with the parameters given here. One check of `ring_all_reduce` runs your
# functions together.
#
# Only sending and receiving are allowed: `isend`, `irecv`, `send`, `recv` and `batch_isend_irecv`.
# Any other operation of `torch.distributed` is refused.

# %% setup
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize.check import CheckFailed, expect_close
from worldsize.hardware import DGX_H100

MESSAGES_ONLY = {"cluster": DGX_H100, "allow": {"send", "recv"}, "compute": "none"}


def show(run, title):
    from IPython.display import display  # here and not above: the ranks need neither

    from worldsize import draw

    if any(event.kind == "communication" for event in run.timeline.events):
        display(draw.messages(run.timeline, title=f"{title}, emulated"))


def message_s(link, size_bytes):
    """Seconds that one message takes on a link: its latency, and its bytes at the link's rate."""
    return link.latency_s + size_bytes / link.bandwidth_bytes_per_s


def expect_all_awaited(run):
    if run.unawaited:
        hint = "Keep the handle that isend or irecv returns, and call its wait()."
        raise CheckFailed("every message to be waited for", run.unawaited[0], hint)


def expect_time(run, wanted_s, what, hint):
    took_s = run.timeline.end_s
    if took_s > 1.01 * wanted_s:
        wanted = f"{what} to take {wanted_s * 1e6:.1f} µs"
        raise CheckFailed(
            wanted, f"{took_s * 1e6:.1f} µs, {took_s / wanted_s:.2f} times that", hint
        )


# the first run loads torch: the checks are then quick
ws.run(dist.get_rank, world_size=4, echo=False, **MESSAGES_ONLY)


# %% [markdown]
# ## 1. One step of the ring
#
# A **ring** is a list of ranks, such as `[0, 1, 2]` or `[3, 0, 2]`: each sends to the one after it
# in the list, and the last sends to the first. All functions of this lab take the ring as an
# argument, so that in the last part you can use them again for rings of only some of the ranks.
#
# `dist.send` returns when its message has been received. If every rank first sends and then
# receives, each waits for the next one to receive, and none ever does. `dist.isend` and
# `dist.irecv` return a handle at once; the message is complete when `handle.wait()` returns. If you
# read a tensor before that, real sockets give you old or new numbers by chance, and the emulated
# cluster always gives the old ones.
#
# ```text
#            one after the other            at the same time
# rank 0     send ▶▶▶▶ recv ◀◀◀◀            send ▶▶▶▶
#                                           recv ◀◀◀◀
# ```
#
# A link carries both directions at once. A ring that uses one at a time takes twice as long.
#
# <details><summary>Hint 1: where to look</summary>
# <code>ring.index(dist.get_rank())</code> is this rank's place. Which entries of the list come
# after it and before it, and what comes after the last one?
# </details>
# <details><summary>Hint 2: how</summary>
# Four lines: start <code>isend</code> and <code>irecv</code>, keep both handles, and only then wait
# for each of them. <code>ring[place - 1]</code> is right at place 0, too; for the next one, count
# modulo <code>len(ring)</code>.
# </details>


# %% exchange tags=["solution"]
def exchange(outgoing: torch.Tensor, incoming: torch.Tensor, ring: list[int]) -> None:
    """Send `outgoing` to the next rank of the ring, and fill `incoming` from the previous one.

    - All ranks of `ring` call it at the same time, each with its own tensors. This rank is in
      `ring`, which has two ranks or more, and sends `outgoing` to the rank after it in the list
      (the last one sends to the first).
    - `incoming` is another tensor, of the dtype of `outgoing`. Its size may differ: it is that of
      the previous rank's `outgoing`. Both are contiguous and may be empty. `outgoing` does not
      change.
    - It sends one message and receives one, both at the same time: neither waits for the other.
      When it returns, both messages are complete: the caller may change the tensors.

    Example: on the ring [3, 0, 2, 1], rank 3 sends to rank 0, 0 to 2, 2 to 1 and 1 to 3, all at
    once.
    """
    ### BEGIN SOLUTION
    place = ring.index(dist.get_rank())
    sending = dist.isend(outgoing, ring[(place + 1) % len(ring)])
    receiving = dist.irecv(incoming, ring[place - 1])
    sending.wait()
    receiving.wait()
    ### END SOLUTION


# %% check_exchange points=2
def pass_on(ring):
    mine = torch.full((250_000,), float(dist.get_rank()))
    received = torch.full((250_000,), -1.0)
    exchange(mine, received, ring)
    return received[0].item()


try:
    one_step = ws.run(pass_on, [0, 1, 2, 3], world_size=4, **MESSAGES_ONLY)
except ws.RunTimeout as hang:
    hint = "Start both with isend and irecv, and only then wait for either."
    raise CheckFailed("all 4 ranks to return", f"{hang}", hint) from None
show(one_step, "One step on H100s")
expect_all_awaited(one_step)
in_other_order = ws.run(pass_on, [3, 0, 2, 1], world_size=4, **MESSAGES_ONLY)
for ring, run in (([0, 1, 2, 3], one_step), ([3, 0, 2, 1], in_other_order)):
    for place, rank in enumerate(ring):
        if run.values[rank] != ring[place - 1]:
            hint = "Look the neighbours up in the list: they need not be rank + 1 and rank - 1."
            if run.values[rank] == ring[place + 1 - len(ring)]:
                hint = "That is the next rank: send to the one after, receive from the one before."
            if run.values[rank] < 0:
                hint = "Receive into the tensor `incoming` itself."
            raise CheckFailed(
                f"rank {rank} of the ring {ring} to receive from rank {ring[place - 1]}",
                "nothing (-1)" if run.values[rank] < 0 else f"what rank {run.values[rank]:g} sent",
                hint,
            )
expect_time(
    one_step,
    message_s(DGX_H100.intra, 1_000_000),
    "one step, sending and receiving at the same time,",
    "Start both with isend and irecv, and only then wait for either.",
)
print(
    f"exchange: 4 ranks pass 1 MB on in {one_step.timeline.end_s * 1e6:.1f} µs, the time of one"
    " message; the ring [3, 0, 2, 1] works as well."
)

# %% [markdown]
# ## 2. Reduce-scatter
#
# Cut the tensor into as many **chunks** as there are ranks. A **reduce-scatter** leaves each rank
# with one chunk that is summed over all ranks. For that, chunk *c* has to visit every rank once,
# and each adds its own part. All chunks travel at the same time, each over another link.
#
# Follow chunk 0 on three ranks. It has to *end* on rank 0, and it takes two steps to come round. So
# it starts on rank 1:
#
# ```text
#            rank 0           rank 1           rank 2
# start      a0 a1 a2         b0 b1 b2         c0 c1 c2
# step 1                      sends b0 ──────► has b0 + c0
# step 2     has a0 + b0 + c0 ◄─────────────── sends b0 + c0
# ```
#
# Draw the same for chunks 1 and 2 before you write: which chunk does rank *r* send in step 1, and
# which one in step 2? In a table of ranks and chunks, with N = 3, this is where the sums are at the
# end; what a dot stands for does not matter:
#
# ```text
#            chunk 0          chunk 1          chunk 2
# rank 0     a0 + b0 + c0     .                .
# rank 1     .                a1 + b1 + c1     .
# rank 2     .                .                a2 + b2 + c2
# ```
#
# <details><summary>Hint 1: where to look</summary>
# Go backwards from the end. In the last step the rank at place p receives chunk p. So which chunk
# does it receive one step earlier? And which one does it send in the first step?
# </details>
# <details><summary>Hint 2: how</summary>
# In step s = 1, 2, ..., N - 1, the rank at place p sends chunk p - s and receives chunk p - s - 1,
# both modulo N (Python's negative indexes do that by themselves). Receive into an inbox of that
# chunk's length, and add it to the chunk with <code>+=</code>.
# </details>


# %% ring_reduce_scatter tags=["solution"]
def ring_reduce_scatter(chunks: list[torch.Tensor], ring: list[int]) -> None:
    """Sum the chunk that belongs to this rank's place over all ranks of the ring, in place.

    - `chunks` holds one tensor for each place in the ring. They are 1-D and contiguous, of one
      dtype, and may differ in length; some may be empty. Chunk c has the same length on every rank.
    - The rank `ring[p]` ends with the sum of all ranks' chunks p, written into the tensor
      `chunks[p]` itself. What its other chunks then hold is up to you.
    - It takes len(ring) - 1 steps. In each one, this rank sends one message to the rank after it in
      the ring while it receives one from the rank before it. Every message is one chunk. (Messages
      without elements may be left out.)
    - A ring of one rank sends nothing. Ranks that are not in the ring do not call.

    Example: on the ring [3, 0, 2], rank 3 ends with the sum of the three ranks' chunks 0, rank 0
    with that of chunks 1 and rank 2 with that of chunks 2.
    """
    ### BEGIN SOLUTION
    place = ring.index(dist.get_rank())
    for step in range(1, len(ring)):
        mine = chunks[
            place - step - 1
        ]  # a negative place counts from the end: the ring closes by itself
        inbox = torch.empty_like(mine)
        exchange(chunks[place - step], inbox, ring)
        mine += inbox
    ### END SOLUTION


# %% check_ring_reduce_scatter points=4
def sum_chunks(ring):
    """By chunk, a number for each chunk of which parts are in it; each digit is one rank's part."""
    chunks = []
    for c in range(len(ring)):
        chunk = torch.zeros(250_000)
        chunk[c] = 10.0 ** dist.get_rank()
        chunks.append(chunk)
    held = list(chunks)
    if dist.get_rank() in ring:
        ring_reduce_scatter(chunks, ring)
    return [[chunk[: len(ring)].int().tolist() for chunk in own] for own in (held, chunks)]


def hint_for_sum(run, ring, c, complete):
    """The hint for a wrong chunk c at its place: whose parts of which chunks are in it."""
    place, rank = c, ring[c]
    found, in_list = run.values[rank][0][c], run.values[rank][1][c]
    where = [one for one in ring if run.values[one][0][c] == complete]
    others = [f"{other}" for other, digits in enumerate(found) if digits and other != c]
    num_sent = run.timeline.bytes_sent(rank) / 1_000_000
    if in_list == complete:
        return "The sum is in the list, but not in the tensor that was in it: add to it with +=."
    if where:
        return (
            f"The complete sum is on rank {where[0]}. It ends on rank {rank}, so it starts on the"
            f" next one in the ring, rank {ring[place + 1 - len(ring)]}."
        )
    if num_sent < len(ring) - 1:
        return f"{len(ring) - 1} steps: rank {rank} has sent {num_sent:g} chunks."
    if others:
        return (
            f"Parts of chunk {', '.join(others)} were added to chunk {c}. In each step a rank sends"
            " the chunk that it received in the step before; places come from ring.index(rank)."
        )
    if found[c] == 10**rank:
        return (
            "That is this rank's part alone: what came in was not added to the tensor of the list."
            " `mine = mine + inbox` makes another one."
        )
    if found[c] in [10**other for other in ring]:
        return "That is one other rank's part: receive into an inbox, and add it to your own."
    return "Each digit is how often one rank's part was added, the last digit for rank 0."


scattered = ws.run(sum_chunks, [0, 1, 2, 3], world_size=4, **MESSAGES_ONLY)
show(scattered, "Reduce-scatter on H100s")
expect_all_awaited(scattered)
three = ws.run(sum_chunks, [3, 0, 2], world_size=4, **MESSAGES_ONLY)
for ring, run in (([0, 1, 2, 3], scattered), ([3, 0, 2], three)):
    for c, rank in enumerate(ring):
        complete = [sum(10**one for one in ring) if other == c else 0 for other in range(len(ring))]
        if run.values[rank][0][c] != complete:
            raise CheckFailed(
                f"the complete sum of chunk {c}, {complete[c]}, on rank {rank} of the ring {ring}",
                f"{run.values[rank][0][c][c]} there",
                hint_for_sum(run, ring, c, complete),
            )
for rank in range(4):
    if (sent := scattered.timeline.bytes_sent(rank)) != 3_000_000:
        raise CheckFailed(
            "3 messages of 1 MB, 3,000,000 bytes, from each rank",
            f"{sent:,.0f} bytes from rank {rank}",
            "One chunk a step, in N - 1 steps.",
        )
expect_time(
    scattered,
    3 * message_s(DGX_H100.intra, 1_000_000),
    "3 steps",
    "In every step, all ranks send and receive at the same time.",
)
print("ring_reduce_scatter: each of 4 ranks has the sum of its chunk and has sent 3 chunks.")

# %% [markdown]
# ## 3. All-gather
#
# Now each rank has one complete chunk. In an **all-gather** each chunk goes round the ring once
# more, and this time every rank keeps what it receives.
#
# ```text
#            rank 0           rank 1           rank 2
# start      A  .  .          .  B  .          .  .  C
# step 1     A  .  C          A  B  .          .  B  C
# step 2     A  B  C          A  B  C          A  B  C
# ```
#
# <details><summary>Hint 1: where to look</summary>
# In the first step a rank can send only the chunk of its own place. In each later step it sends on
# what it has just received.
# </details>
# <details><summary>Hint 2: how</summary>
# In step s = 1, 2, ..., N - 1, the rank at place p sends chunk p - s + 1 and receives chunk p - s,
# straight into <code>chunks[p - s]</code>. No inbox is needed.
# </details>


# %% ring_all_gather tags=["solution"]
def ring_all_gather(chunks: list[torch.Tensor], ring: list[int]) -> None:
    """Give every rank of the ring all chunks, in place, each from the rank at the chunk's place.

    - `chunks` is as in `ring_reduce_scatter`. Before the call, `chunks[p]` of the rank `ring[p]` is
      complete; the other chunks of that rank may hold anything, and are overwritten.
    - It takes len(ring) - 1 steps. In each one, this rank sends one message to the rank after it
      while it receives one from the rank before it. Every message is one chunk. (Messages without
      elements may be left out.)

    Example: on the ring [3, 0, 2], chunk 0 comes from rank 3, chunk 1 from rank 0 and chunk 2 from
    rank 2.
    """
    ### BEGIN SOLUTION
    place = ring.index(dist.get_rank())
    for step in range(1, len(ring)):
        exchange(chunks[place - step + 1], chunks[place - step], ring)
    ### END SOLUTION


# %% check_ring_all_gather points=2
def collect_chunks(ring):
    chunks = [torch.full((250_000,), -1000.0) for _ in ring]
    held = list(chunks)
    if dist.get_rank() in ring:
        chunks[ring.index(dist.get_rank())].fill_(10 + dist.get_rank())
        ring_all_gather(chunks, ring)
    return [chunk[0].item() for chunk in held]


gathered = ws.run(collect_chunks, [0, 1, 2, 3], world_size=4, **MESSAGES_ONLY)
show(gathered, "All-gather on H100s")
expect_all_awaited(gathered)
three = ws.run(collect_chunks, [3, 0, 2], world_size=4, **MESSAGES_ONLY)
for ring, run in (([0, 1, 2, 3], gathered), ([3, 0, 2], three)):
    for rank in ring:
        for c, owner in enumerate(ring):
            given = run.values[rank][c]
            if given != 10 + owner:
                hint = f"That is the chunk of rank {given - 10:g}: send on what came last."
                if given < 0:
                    hint = "It was added to what was there: receive straight into the chunk."
                if given == -1000:
                    hint = "Nothing came into the tensor of the list: receive straight into it."
                if run.timeline.bytes_sent(rank) < (len(ring) - 1) * 1_000_000:
                    hint = f"There are {len(ring) - 1} steps, with a message in each."
                raise CheckFailed(
                    f"chunk {c} on rank {rank} of the ring {ring} to be {10 + owner}, as on rank"
                    f" {owner}",
                    f"{given:g}",
                    hint,
                )
for rank in range(4):
    if (sent := gathered.timeline.bytes_sent(rank)) != 3_000_000:
        raise CheckFailed(
            "3 messages of 1 MB, 3,000,000 bytes, from each rank",
            f"{sent:,.0f} bytes from rank {rank}",
            "One chunk a step, in N - 1 steps.",
        )
expect_time(
    gathered,
    3 * message_s(DGX_H100.intra, 1_000_000),
    "3 steps",
    "In every step, all ranks send and receive at the same time.",
)
print("ring_all_gather: all 4 ranks have the 4 chunks, and each has sent 3.")

# %% [markdown]
# ## 4. Ring all-reduce
#
# Cut, reduce-scatter, all-gather. What remains is the tensor itself. Its size need not be a
# multiple of the number of ranks; it may be shorter than the ring, or empty; it may have half
# precision; and it may be a *view*, such as a column of a matrix, whose elements do not lie side by
# side in memory.
#
# ```text
# 10 elements on 4 ranks      [0 1 2] [3 4 5] [6 7] [8 9]
#  2 elements on 4 ranks      [0] [1] [] []
# ```
#
# Two traps in torch: `tensor.chunk(4)` does not always give 4 pieces, and `reshape` sometimes
# copies. A sum that you write into a copy never reaches the tensor.
#
# <details><summary>Hint 1: where to look</summary>
# Look up <code>tensor_split</code>, and when <code>contiguous()</code> and <code>view(-1)</code>
# copy. The pieces of a flat tensor are views of it: a function that changes them changes it.
# </details>
# <details><summary>Hint 2: how</summary>
# Five lines: make a flat tensor, cut it with <code>tensor_split</code>, call your two functions on
# the list of pieces, and <code>copy_</code> the flat tensor back into the one that was given.
# </details>


# %% ring_all_reduce tags=["solution"]
def ring_all_reduce(tensor: torch.Tensor, ring: list[int]) -> None:
    """Sum `tensor` over all ranks of the ring, in place.

    - `tensor` may have any number of elements (also fewer than there are ranks, one, or none), any
      shape, any floating-point dtype and any memory layout (a transpose, or every second column of
      a larger matrix). The memory between the elements of a view does not change.
    - All ranks end with exactly the same bits.
    - With S bytes and N ranks, it takes 2(N - 1) steps, each with one message to the rank after it
      in the ring and, at the same time, one from the rank before it. No message has more elements
      than the tensor's number of elements divided by N, rounded up, and numbers travel in the
      tensor's own dtype. (Messages without elements may be left out.)
    - So, if N divides the number of elements, the emulated time is 2(N - 1)(alpha + S / (N beta)),
      with alpha seconds of latency and beta bytes per second on each link.
    - In memory: besides `tensor`, if that is contiguous, a rank never holds more than 2 S bytes
      plus two chunks, however many ranks there are. Arrays, files and other processes count as well
      as tensors.
    - A ring of one rank sends nothing. Ranks that are not in the ring do not call.

    Example: 0, 1, ..., 9 on each of 4 ranks become 0, 4, ..., 36 on all of them, in 6 steps with
    messages of at most 3 elements.
    """
    ### BEGIN SOLUTION
    flat = tensor.contiguous().view(-1)  # a copy where the tensor is a view with gaps
    chunks = list(flat.tensor_split(len(ring)))
    ring_reduce_scatter(chunks, ring)
    ring_all_gather(chunks, ring)
    tensor.copy_(flat.view_as(tensor))
    ### END SOLUTION


# %% check_ring_all_reduce points=7
def sum_all(num_elements, dtype=torch.float32):
    tensor = (torch.arange(num_elements) % 1000 + dist.get_rank()).to(dtype)
    ring_all_reduce(tensor, [0, 1, 2, 3])
    return tensor[-5:]


def sum_odd_ones():
    """Tensors of other sizes, types and layouts, of ones on rank 0, twos on rank 1 and so on."""
    part = dist.get_rank() + 1.0
    matrix = torch.full((3, 5), part)
    tensors = {
        "2 elements": torch.full((2,), part),
        "5 elements": torch.full((5,), part),
        "no elements": torch.empty(0),
        "6 elements of bfloat16": torch.full((6,), part, dtype=torch.bfloat16),
        "every second column of a matrix": matrix[:, ::2],
    }
    for tensor in tensors.values():
        ring_all_reduce(tensor, [0, 1, 2, 3])
    return {**tensors, "ten parts of rank 0 in the columns between": matrix[:, 1::2] * 10 / part}


full = ws.run(sum_all, 1_000_000, world_size=4, **MESSAGES_ONLY)
show(full, "Ring all-reduce on H100s")
expect_all_awaited(full)
for num_elements, run in {
    1_000_000: full,
    10: ws.run(sum_all, 10, world_size=4, **MESSAGES_ONLY),
}.items():
    last = torch.arange(num_elements - 5.0, num_elements) % 1000
    for rank, values in enumerate(run.values):
        expect_close(
            values,
            4 * last + 6,
            f"the last 5 of {num_elements} elements on rank {rank}",
            f"Rank r holds r more than rank 0, so the sum is 4 times rank 0's value, and 6."
            f" Before the call this rank held {last[0] + rank:g} and so on.",
        )
for rank, sums in enumerate(ws.run(sum_odd_ones, world_size=4, **MESSAGES_ONLY).values):
    for name, values in sums.items():
        hint = "1 + 2 + 3 + 4 = 10. A number below that was summed in a copy, or not by all ranks."
        ten = torch.full(values.shape, 10.0, dtype=values.dtype)
        expect_close(values, ten, f"the sum of {name} on rank {rank}", hint)
half = ws.run(sum_all, 1_000_000, torch.bfloat16, world_size=4, **MESSAGES_ONLY)
for dtype, run, limit in (("float32", full, 6_000_000), ("bfloat16", half, 3_000_000)):
    sent = max(run.timeline.bytes_sent(rank) for rank in range(4))
    if sent > limit:
        raise CheckFailed(
            f"at most 2 * 3/4 of a million {dtype} numbers, {limit:,} bytes, from each rank",
            f"{sent:,.0f} bytes",
            "Send chunks, not tensors, in the tensor's own dtype.",
        )
expect_time(
    full,
    6 * message_s(DGX_H100.intra, 1_000_000),
    "2(N - 1) = 6 steps",
    "In every step, all ranks send and receive at the same time.",
)
print(
    "ring_all_reduce: 4 ranks, 4 MB, 6 MB sent by each,"
    f" {full.timeline.end_s * 1e6:.0f} µs; odd sizes, bfloat16 and columns of a matrix are summed."
)

# %% [markdown]
# ## 5. Nodes of several GPUs
#
# Inside a node, GPUs communicate over NVLink; between nodes, over a network that is several times
# slower. A flat ring does not distinguish between the two, and at every step all ranks wait for the
# slowest link.
#
# ```text
# node 0    rank 0 ══ rank 1 ══ rank 2 ══ rank 3        ══ fast
#             │                              │
#             │                              │          ── slow
# node 1    rank 7 ══ rank 6 ══ rank 5 ══ rank 4
# ```
#
# How few bytes must leave a node? Sum inside the node first: then one tensor of *S* bytes stands
# for all its GPUs, and the *M* nodes have to all-reduce that. By the bound from week 2,
# $2 (M-1)/M \cdot S$ bytes leave each node.
#
# One rank of each node could do that, but then the network cards of the others would be idle. You
# can do better with the functions that you have: after a reduce-scatter inside the node, each rank
# holds a different part of the sum.
#
# <details><summary>Hint 1: where to look</summary>
# Three phases: inside the node, across the nodes, inside the node. What does each rank hold after
# the first one, and which ranks of the other nodes hold the same part of *their* sums?
# </details>
# <details><summary>Hint 2: how</summary>
# Cut the flat tensor into a chunk for each rank of the node, and reduce-scatter on this node's own
# list. All-reduce the chunk of this rank's place on the ring of those ranks that have the same
# place in their nodes. Then all-gather inside the node, and copy the result back.
# </details>


# %% hierarchical_all_reduce tags=["solution"]
def hierarchical_all_reduce(tensor: torch.Tensor, nodes: list[list[int]]) -> None:
    """Sum `tensor` over all ranks of all nodes, in place, sparing the links between nodes.

    - `nodes` lists the ranks of each node, such as [[0, 1, 2, 3], [4, 5, 6, 7]]. All nodes have the
      same number of ranks, one or more, listed in any order. Every rank of the run is in one of
      them, and calls the function. There may be a single node.
    - `tensor` is as in `ring_all_reduce`, and all ranks end with exactly the same bits.
    - With M nodes of G ranks and S bytes, all messages out of one node together have 2(M - 1)/M * S
      bytes, plus padding where the sizes do not divide. No rank sends more than 2(M - 1) c elements
      in all to other nodes, where c is the tensor's number of elements divided by G, rounded up,
      then divided by M, rounded up.
    - So all ranks of a node share that work. If G times M divides the number of elements, and every
      GPU has a network card of its own, the emulated time is 2(G - 1)(alpha + S / (G beta)) inside
      the nodes plus 2(M - 1)(alpha' + S / (G M beta')) between them.

    Example: with nodes [[0, 1, 2, 3], [4, 5, 6, 7]] and 3.2 MB, each node sends 3.2 MB to the other
    one, 0.8 MB from each rank.
    """
    ### BEGIN SOLUTION
    node = next(node for node in nodes if dist.get_rank() in node)
    place = node.index(dist.get_rank())
    flat = tensor.contiguous().view(-1)
    chunks = list(flat.tensor_split(len(node)))
    ring_reduce_scatter(chunks, node)
    ring_all_reduce(chunks[place], [other[place] for other in nodes])
    ring_all_gather(chunks, node)
    tensor.copy_(flat.view_as(tensor))
    ### END SOLUTION


# %% check_hierarchical_all_reduce points=5
def sum_over_nodes(nodes):
    tensor = torch.full((800_000,), float(dist.get_rank()))
    hierarchical_all_reduce(tensor, nodes)
    return tensor[-1].item()


def sum_columns_over_nodes(nodes):
    matrix = torch.full((3, 5), float(dist.get_rank()))
    hierarchical_all_reduce(matrix[:, ::2], nodes)
    return matrix[2, 2].item()


def two_nodes():
    from dataclasses import replace

    from worldsize.hardware import H100_NDR

    return replace(H100_NDR, name="2 x 4 H100", gpus_per_node=4, nics_per_node=4)


def crossing_bytes(timeline, rank):
    """The bytes that a rank sent to the other node."""
    sends = [event for event in timeline.of(rank) if event.name == "send"]
    return sum(event.sent_bytes for event in sends if event.peers[0] // 4 != rank // 4)


here = two_nodes()
layered = ws.run(
    sum_over_nodes, [[0, 1, 2, 3], [4, 5, 6, 7]], world_size=8, **{**MESSAGES_ONLY, "cluster": here}
)
show(layered, "Hierarchical on 2 x 4 H100s")
expect_all_awaited(layered)
columns = ws.run(sum_columns_over_nodes, [[3, 0], [1, 2]], world_size=4, **MESSAGES_ONLY)
for total, run, what, hint in (
    (28, layered, "0 + 1 + ... + 7", "Each rank's part counts once."),
    (
        6,
        columns,
        "0 + 1 + 2 + 3 in columns",
        "Where contiguous() has copied, copy the result back.",
    ),
):
    for rank, given in enumerate(run.values):
        if run is layered and given == sum(range(8)[rank // 4 * 4 :][:4]):
            hint = f"That is the sum of node {rank // 4} alone: now sum across the nodes."
        if run is layered and given == rank:
            hint = "That is the rank's own part: gather the sums inside the node at the end."
        expect_close(given, total, f"{what} on rank {rank}", hint)
crossed = [crossing_bytes(layered.timeline, rank) for rank in range(8)]
for rank, size in enumerate(crossed):
    if size > 800_000:
        raise CheckFailed(
            "each node to send 3.2 MB to the other one, 0.8 MB from each of its ranks",
            f"{sum(crossed[:4]) / 1e6:g} and {sum(crossed[4:]) / 1e6:g} MB, of which"
            f" {size / 1e6:g} MB from rank {rank}",
            "Sum inside the node first: then a rank's own chunk of that sum is all that it has to"
            " send across.",
        )
wanted_s = 6 * message_s(here.intra, 800_000) + 2 * message_s(here.inter, 400_000)
flat_s = 14 * message_s(here.inter, 400_000)
expect_time(layered, wanted_s, "6 steps inside the nodes and 2 between", "Let all ranks work.")
print(
    "hierarchical_all_reduce: 3.2 MB out of each node,"
    f" {layered.timeline.end_s * 1e6:.1f} µs. By the formulas it takes"
    f" {wanted_s * 1e6:.1f} µs, and a flat ring {flat_s * 1e6:.1f} µs."
)

# %% [markdown]
# ## 6. In words
#
# A job trains on 512 GPUs in a single flat ring. A message has a latency of 15 µs, and its bytes
# follow at 50 GB/s. The job all-reduces two kinds of tensor: gradients of 2 GB, and a norm of 4
# bytes.
#
# Answer in at most 250 words, with numbers:
#
# 1. How long does the ring take for each of the two, and which part of the formula dominates?
# 2. A parameter server with one such link would receive the gradients of all ranks and send the sum
#    back to each. How long would it take for the 2 GB (say whether its link carries both directions
#    at once), and why does the ring's time hardly grow with the number of ranks?
# 3. Which algorithm would you use for the norm instead, and how long would it take?

# %% when_not_a_ring [markdown] points=5 tags=["solution"]
# **Answer.** The ring takes 2(N - 1)(α + S/(Nβ)), with N = 512.
#
# 1. For 2 GB: 1022 · 15 µs = 15.3 ms of latency, and 2 · 511/512 · 2 GB / 50 GB/s = 79.8 ms of
#    bytes: 95 ms, and bandwidth decides. For 4 bytes: 15.3 ms, all of it latency; the bytes take
#    less than a nanosecond a step.
# 2. The server's link takes in 512 · 2 GB = 1,024 GB, 20.5 s, and sends as much; both directions
#    overlap at best, so 20 s at least and 41 s one after the other. Its load grows with N. In the
#    ring, each link carries 2(N - 1)/N · S, which is less than 2 S, whatever N is: every added rank
#    brings a link of its own. Only the latency term grows.
# 3. A tree: reduce to one rank and broadcast, 2 log2(N) = 18 messages one after the other, 18 · 15
#    µs = 0.27 ms; or recursive doubling, log2(N) = 9 exchanges, 0.14 ms. They send more bytes, and
#    for 4 bytes that does not matter.
#
# **Rubric**, one point each:
#
# - The ring's time of the large tensor, 95 ms (90 to 100), with bandwidth named as the larger part.
# - The ring's time of the small one, about 15 ms, with latency named.
# - The server's time, 20 s or 41 s, from bytes that grow with N. (Either, if the answer says
#   whether directions overlap.)
# - Why the ring's does not: 2(N - 1)/N · S a link, below 2 S; or "each rank brings a link".
# - A logarithmic algorithm (tree, recursive doubling, double tree) with its number of messages and
#   a time of 0.1 to 0.3 ms.
#
# Half a point where the reasoning is right and a number is wrong by a slip. No point for a list of
# facts without numbers.

# %% [markdown]
# ## What you have built
#
# The next cell compares your all-reduce with torch's own, on this machine and over real sockets:
# the same sums, and the time of each. Gloo's runs in C++, and sends as few bytes as yours.


# %% against_torch
def race(ring):
    import time

    tensor = torch.rand(4_000_000, generator=torch.Generator().manual_seed(dist.get_rank()))
    theirs, times_ms = tensor.clone(), []
    for all_reduce in (lambda: ring_all_reduce(tensor, ring), lambda: dist.all_reduce(theirs)):
        dist.barrier()
        start_s = time.perf_counter()
        all_reduce()
        dist.barrier()
        times_ms.append((time.perf_counter() - start_s) * 1e3)
    return (tensor - theirs).abs().max().item(), times_ms


run = ws.run(race, [0, 1, 2], world_size=3, backend="gloo", stalled_s=5)
difference, (ours_ms, theirs_ms) = run.values[0]
if difference > 1e-4:
    raise CheckFailed(
        "the same sums as torch's all-reduce",
        f"a largest difference of {difference:.1e}",
        "Make the check of ring_all_reduce pass first. If it does, look for a message that is not"
        " waited for.",
    )
print(
    f"3 ranks, 16 MB: yours {ours_ms:.1f} ms, torch's {theirs_ms:.1f} ms, largest difference"
    f" {difference:.1e}"
)
