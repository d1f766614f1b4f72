"""Hidden checks of lab 2: each function on an emulated cluster, judged by what went over the wire.

A function is judged with the lab's own functions in the place of those that it builds on. These
reach a rank only in checks of the functions after them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from autograder.checks import (
    Outcome,
    PartlyHeld,
    Parts,
    StudentFailed,
    draw_bars,
    draw_messages,
    draw_parts,
    drawn_cluster,
    entry,
    expect_after_arrival,
    expect_body,
    expect_dtype,
    expect_end,
    expect_grown,
    expect_partial_sums,
    expect_same_again,
    expect_short_messages,
    hinted,
    mask_of,
    named,
    points,
    positive,
    shuffled,
    take_from_solution,
    tensor_like,
    whole,
)
from worldsize.check import CheckFailed, expect_close
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.hardware import Link
from worldsize.launch import Run

MESSAGES = {"send", "recv"}
MB = 2**20
LARGE_BYTES = 6 * MB
FRAMEWORK_BYTES = 14 * MB  # that sending and receiving take by themselves
HINTS = {
    Outcome.HUNG: "In every step each rank of the ring sends one message to the next and receives"
    " one from the previous; places come from ring.index(rank). A message without elements is left"
    " out on both sides or on neither.",
    Outcome.CRASHED: "Try the function in the notebook on the ring [3, 0, 2], and 5 elements on 4"
    " ranks: places come from ring.index(rank), and tensor_split gives a piece for every place.",
}
AT_ONCE = (
    "Start the send and the receive of a step before you wait for either, and let all ranks work in"
    " every step."
)
Tensors = list[torch.Tensor]


# The lab's own functions, for those that build on them.

exchange, ring_reduce_scatter, ring_all_gather, ring_all_reduce = take_from_solution(
    Path(__file__).with_name("lab02.py"),
    "exchange",
    "ring_reduce_scatter",
    "ring_all_gather",
    "ring_all_reduce",
)


# What runs on the ranks.


def exchange_on_rank(student: Any, ring: list[int], steps: list[Tensors], neighbour: Any) -> Any:
    for outgoing, incoming in steps if dist.get_rank() in ring else ():
        (neighbour or student.exchange)(outgoing, incoming, ring)
    return steps


def between_strict_neighbours_on_rank(student: Any, first: int, tensor: torch.Tensor) -> None:
    """Exchange on rank 1; a neighbour takes part once the message of the `first` one has gone."""
    rank, token, inbox = dist.get_rank(), torch.zeros(1), torch.empty_like(tensor)
    if rank == 1:
        student.exchange(tensor, inbox, [0, 1, 2])
        return
    if rank != first:
        dist.recv(token, first)
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(inbox, 1)
    if rank == first:
        dist.send(token, 2 - first)


def reduce_scatter_on_rank(student: Any, ring: list[int], chunks: Tensors) -> Any:
    student.exchange = exchange
    held = list(chunks)  # what the caller keeps, whatever happens to the list
    if dist.get_rank() in ring:
        student.ring_reduce_scatter(chunks, ring)
    return held


def all_gather_on_rank(student: Any, ring: list[int], chunks: Tensors) -> Any:
    student.exchange = exchange
    held = list(chunks)
    if dist.get_rank() in ring:
        student.ring_all_gather(chunks, ring)
    return held


def all_reduce_on_rank(student: Any, ring: list[int], tensors: Tensors, *views: str) -> Any:
    student.exchange, student.ring_reduce_scatter = exchange, ring_reduce_scatter
    student.ring_all_gather = ring_all_gather
    for tensor, view in zip_longest(tensors, views) if dist.get_rank() in ring else ():
        student.ring_all_reduce(seen_as(tensor, view), ring)
    return tensors


def hierarchical_on_rank(
    student: Any, nodes: list[list[int]], tensors: Tensors, *views: str
) -> Any:
    student.exchange, student.ring_reduce_scatter = exchange, ring_reduce_scatter
    student.ring_all_gather, student.ring_all_reduce = ring_all_gather, ring_all_reduce
    for tensor, view in zip_longest(tensors, views):
        student.hierarchical_all_reduce(seen_as(tensor, view), nodes)
    return tensors


def seen_as(tensor: torch.Tensor, view: str | None) -> torch.Tensor:
    """The tensor or a view of it."""
    if view == "every other column":
        return tensor[:, ::2]
    return tensor.t() if view == "transposed" else tensor


def large_on_rank(
    student: Any, ring: list[int], num: int, places: torch.Tensor, own: torch.Tensor
) -> Any:
    """Elements of the sum of a large tensor."""
    tensor = torch.ones(num)
    tensor[places] = own
    student.ring_all_reduce(tensor, ring)
    return tensor[places]


def large_with_right_parts_on_rank(student: Any, *args: Any) -> Any:
    student.exchange, student.ring_reduce_scatter = exchange, ring_reduce_scatter
    student.ring_all_gather = ring_all_gather
    return large_on_rank(student, *args)


# What is drawn.


class Group(NamedTuple):
    """A call of an all-reduce: what runs it, its ring or nodes, their ranks, how many ranks run."""

    on_rank: Callable[..., Any]
    places: list[Any]
    ranks: Sequence[int]
    world_size: int


def of_ring(ring: list[int], world_size: int | None = None) -> Group:
    return Group(all_reduce_on_rank, ring, ring, world_size or len(ring))


def of_nodes(nodes: list[list[int]]) -> Group:
    size = sum(map(len, nodes))
    return Group(hierarchical_on_rank, nodes, range(size), size)


# orders from which no rank can guess its neighbours, its node or its place
RINGS_OF_4_IN_5 = [3, 0, 4, 1], [2, 4, 0, 3], [4, 1, 3, 0]
NODES_OF_2 = [[5, 0], [2, 4], [1, 3]], [[3, 1], [0, 5], [4, 2]]
OTHER_NODES = [[2, 0, 1]], [[1], [2], [0]], [[3, 0], [2, 1]]


def one_of(rng: torch.Generator, choices: Sequence[Any]) -> Any:
    return choices[whole(rng, 0, len(choices) - 1)]


def ceil(number: int, parts: int) -> int:
    return -(-number // parts)


# What went over the wire.


def emulated(student: Any, on_rank: Callable[..., Any], *args: Any, **options: Any) -> Run:
    """The run with its messages."""
    options |= {"world_size": len(options["each"]), "allow": MESSAGES, "keeps_exchanges": True}
    with hinted(HINTS):
        return student.emulated(on_rank, *args, **options)


def sent(run: Run, rank: int) -> list[Exchange]:
    """The messages of a rank in its program's order, without those that carry nothing."""
    own = [one for one in run.exchanges if one.body and one.ranks[0] == rank]
    return sorted(own, key=lambda one: one.numbers[rank])


def expect_ring(run: Run, ring: Sequence[int]) -> None:
    """Raise CheckFailed unless ranks of the ring sent to the next one alone, and others nothing."""
    following = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
    for one in run.exchanges:
        rank, other = one.ranks
        if one.body and other != following.get(rank):
            raise CheckFailed(
                f"ranks to send to the one after them in the ring {list(ring)} alone",
                f"a message from rank {rank} to rank {other}",
                "Neighbours are those in the list, which need not be rank + 1 and rank - 1.",
                partial(draw_messages, run.timeline),
            )


def expect_messages(run: Run, ring: Sequence[int], num_messages: int, most_bytes: int) -> None:
    """Raise CheckFailed unless each rank sent so many messages to the next, none of them longer."""
    sizes = {rank: [len(one.body) for one in sent(run, rank)] for rank in ring}
    rank = max(ring, key=lambda one: sum(sizes[one]))
    picture = partial(draw_messages, run.timeline)
    if sum(sizes[rank]) > num_messages * most_bytes:
        raise CheckFailed(
            f"at most {num_messages * most_bytes:,} bytes sent by rank {rank}, {num_messages}"
            " chunks",
            f"{sum(sizes[rank]):,} bytes in {len(sizes[rank])} messages",
            "Send one chunk a step, in the tensor's own dtype. Whole tensors need not travel.",
            picture,
        )
    expect_ring(run, ring)
    for rank, own in sizes.items():
        if len(own) != num_messages or max(own) > most_bytes:
            raise CheckFailed(
                f"{num_messages} messages of at most {most_bytes:,} bytes from rank {rank}",
                f"{len(own)}, of {', '.join(f'{size:,}' for size in own[:12])} bytes",
                "One message a step, N - 1 steps in a reduce-scatter and in an all-gather, and the"
                " tensor cut as evenly as possible.",
                picture,
            )


def message_s(link: Link | None, size_bytes: float) -> float:
    """Seconds that one message takes."""
    assert link is not None
    return link.latency_s + size_bytes / link.bandwidth_bytes_per_s


# What ranks returned.


def hint_for(given: Any, wanted: torch.Tensor) -> str:
    """The hint for what this result looks like."""
    result = tensor_like(given, wanted)
    if result is not None and result.numel():
        ratios = (result.double() / wanted.double()).flatten()
        if ratios[0] < 0.75 and torch.allclose(ratios, ratios[0].expand_as(ratios), rtol=1e-3):
            return "This looks like the mean; all-reduce here means the sum."
        if torch.allclose(result.double(), wanted.double(), rtol=1e-4):
            return "That is right to some digits: numbers went through float32 or a narrower type."
    return (
        "Each rank's part counts once, and the result goes into the tensor itself: where reshape or"
        " contiguous made a copy, copy the result back."
    )


# exchange: mostly on every second rank; the ranks between run none of the student's cells


def expect_handed_on(
    student: Any, rng: torch.Generator, ring: list[int], sizes: list[list[int]], own: list[int]
) -> Run:
    """The run; raise CheckFailed unless ranks `own` hand on tensors of these sizes, by step."""
    steps = [[positive(rng, size, dtype=torch.float64) for size in of_step] for of_step in sizes]
    before = {rank: ring[place - 1] for place, rank in enumerate(ring)}
    after = {rank: following for following, rank in before.items()}
    each = [
        (
            [[step[rank], torch.full_like(step[before.get(rank, rank)], -1.0)] for step in steps],
            None if rank in own else exchange,
        )
        for rank in range(len(sizes[0]))
    ]
    run = emulated(student, exchange_on_rank, ring, each=each, student_ranks=own)
    expect_ring(run, ring)
    for rank in own:
        messages, wanted = sent(run, rank), [one[rank] for one in steps if one[rank].numel()]
        if len(messages) != len(wanted):
            actual = f"{len(messages)} in {len(wanted)} steps"
            raise CheckFailed(f"one message from rank {rank} in each step", actual)
        for message, tensor in zip(messages, wanted, strict=True):
            expect_body(message, tensor, f"`outgoing` of rank {rank}", rtol=0)
        for step, of_step in enumerate(steps):
            outgoing, incoming = (entry(run.values[rank], step, place) for place in (0, 1))
            hint = hint_of_received(incoming, of_step[before[rank]], of_step[after[rank]])
            what = f"what rank {rank} received in {ring}"
            expect_close(incoming, of_step[before[rank]], what, hint, 0.0, 0.0)
            what = f"`outgoing` of rank {rank} after the call"
            expect_close(outgoing, of_step[rank], what, "It is left as it is.", 0.0, 0.0)
    return run


def hint_of_received(incoming: Any, wanted: torch.Tensor, of_next: torch.Tensor) -> str:
    given = tensor_like(incoming, wanted)
    if given is not None and given.numel() and bool((given == -1).all()):
        return "`incoming` still holds what it held before: wait for the handle of irecv."
    if tensor_like(incoming, of_next) is not None and torch.equal(incoming, of_next):
        return "That is what the next rank sent: receive from the one before."
    return "Send to the next in the list, receive from the one before, and wait for both handles."


@points(0.5, cell="check_exchange")
def check_exchange_hands_tensors_on(student, rng):
    """Each rank of the ring receives what the one before it in the list has sent; outgoing does not
    change.
    """
    expect_handed_on(student, rng, [0, 1, 2, 3], [[whole(rng, 1, 40)] * 4], [1, 3])


@points(0.25, cell="check_exchange")
def check_exchange_takes_any_ring_and_size(student, rng):
    """The ring may be some of the ranks in any order, and tensors of any size, some of them
    empty.
    """
    ring = one_of(rng, RINGS_OF_4_IN_5)
    for least, own in ((1, ring[::2]), (1, ring[1::2]), (0, ring)):
        drawn = [shuffled(rng, [least, *shuffled(rng, range(2, 40))[:3]]) for _ in range(2)]
        of_ranks = [dict(zip(ring, one, strict=True)) for one in drawn]
        sizes = [[one.get(rank, 1) for rank in range(5)] for one in of_ranks]
        expect_handed_on(student, rng, ring, sizes, own)


@points(0.25, cell="check_exchange")
def check_exchange_is_complete_when_it_returns(student, rng):
    """When it returns, what it sent has gone and what it received is there, whichever takes
    longer.
    """
    long, short = whole(rng, 20_000, 60_000), whole(rng, 10, 40)
    sizes = [[long, short] * 2, [short, long] * 2, [short] * 4]
    run = expect_handed_on(student, rng, [0, 1, 2, 3], sizes, [0, 2])
    for rank in (0, 2):
        first, *others = sent(run, rank)
        for following, received in zip(others, sent(run, (rank - 1) % 4), strict=False):
            expect_after_arrival(following, received, rank, "what it receives in a step")
            early_s = first.done_s[rank] - following.posted_s[rank]
            if early_s > 1e-12:
                raise CheckFailed(
                    f"exchange on rank {rank} to return when what it sends has gone",
                    f"its next step {early_s * 1e6:.2f} µs before that",
                    "Keep the handle of isend and wait for it: until then the caller may not change"
                    " `outgoing`.",
                )
            first = following


# ring_reduce_scatter


def scattered(
    student: Any,
    rng: torch.Generator,
    ring: list[int],
    world_size: int,
    lengths: list[int],
    dtype: torch.dtype = torch.float32,
) -> tuple[Run, Parts]:
    """A run of the student's reduce-scatter, and what it had to add up."""
    parts = Parts(rng, world_size, sum(lengths), dtype)
    each = [([one.clone() for one in of_rank.split(lengths)],) for of_rank in parts.of_rank]
    return emulated(student, reduce_scatter_on_rank, ring, each=each), parts


def expect_scattered(
    student: Any,
    rng: torch.Generator,
    ring: list[int],
    world_size: int,
    lengths: list[int],
    dtype: torch.dtype = torch.float32,
) -> Run:
    """The run; raise CheckFailed unless each place has its sum, which came over the wire."""
    run, parts = scattered(student, rng, ring, world_size, lengths, dtype)
    sums = list(parts.total(ring).split(lengths))
    for place, rank in enumerate(ring):
        masks = {one: parts.mask_in(entry(run.values[one], place), sums[place]) for one in ring}
        hint = hint_of_scattered(run, ring, place, masks, sums)
        what = f"chunk {place} on rank {rank} of the ring {ring}"
        picture = partial(draw_parts, run.values, sums, parts, ring)
        expect_close(entry(run.values[rank], place), sums[place], what, hint, 0.0, 0.0, picture)
    elements = torch.arange(parts.size).split(lengths)
    expect_partial_sums(run, parts, ring, dict(zip(ring, elements, strict=True)))
    return run


def hint_of_scattered(
    run: Run, ring: list[int], place: int, masks: dict[int, int], sums: Tensors
) -> str:
    """The hint by whose parts of chunk `place` each rank holds."""
    rank = ring[place]
    journey = (
        f"It ends on rank {rank}, so its journey starts on rank {ring[place + 1 - len(ring)]}."
    )
    if elsewhere := [one for one in ring if masks[one] == mask_of(ring)]:
        return f"The complete sum of chunk {place} is on rank {elsewhere[0]}. {journey}"
    num_sent = len(sent(run, rank))
    if num_sent < sum(one.numel() > 0 for one in [*sums[:place], *sums[place + 1 :]]):
        return f"There are {len(ring) - 1} steps, and rank {rank} sent {num_sent} messages."
    if masks[rank] == mask_of([rank]):
        return (
            f"That is rank {rank}'s own part alone: the sum is not in the tensor that was given."
            " `chunk += inbox` changes it, `chunk = chunk + inbox` makes another one."
        )
    if masks[rank].bit_count() == 1 and masks[rank] > 0:
        return (
            f"That is the part of rank {named(masks[rank])} alone: add to your own what comes in."
        )
    return journey


@points(1, cell="check_ring_reduce_scatter")
def check_reduce_scatter_leaves_each_place_its_sum(student, rng):
    """The rank at place p of the ring ends with the sum of all chunks p, from what came over the
    wire; other chunks do not matter.
    """
    expect_scattered(student, rng, list(range(5)), 5, [whole(rng, 3, 9)] * 5)


@points(0.5, cell="check_ring_reduce_scatter")
def check_reduce_scatter_works_on_any_ring(student, rng):
    """The ring may be some of the ranks in any order, or a single one; chunks, here in float64,
    differ in length, and some are empty.
    """
    ring = one_of(rng, RINGS_OF_4_IN_5)
    lengths = shuffled(rng, [0, 1, whole(rng, 2, 5), whole(rng, 6, 9)])
    expect_ring(expect_scattered(student, rng, ring, 5, lengths, torch.float64), ring)
    expect_ring(expect_scattered(student, rng, ring[:1], 5, [3]), ring[:1])


@points(0.75, cell="check_ring_reduce_scatter")
def check_reduce_scatter_sends_each_chunk_once(student, rng):
    """Each rank sends N - 1 messages to the rank after it alone: in step s, a chunk with the sum of
    s ranks.
    """
    ring, length = list(range(4)), whole(rng, 20, 90)
    run, parts = scattered(student, rng, ring, 4, [length] * 4)
    expect_messages(run, ring, 3, 4 * length)
    expect_partial_sums(run, parts, ring, {})
    for rank in ring:
        for step, one in enumerate(sent(run, rank), start=1):
            masks, elements = parts.read(one.tensor())
            chunks = (elements // length).unique().tolist()
            if len(chunks) > 1 or {int(mask).bit_count() for mask in masks} != {step}:
                raise CheckFailed(
                    f"one chunk of the sum of {step} ranks in message {step} of rank {rank}",
                    f"chunks {chunks}, with the parts of ranks {named(int(masks[0]))}",
                    "Add this rank's own part to what comes in, and send that on in the next step.",
                )


@points(1.75, cell="check_ring_reduce_scatter")
def check_reduce_scatter_takes_the_time_of_its_steps(student, rng):
    """N - 1 steps, each as long as one message: all ranks send and receive in every step."""
    expect_time_of_steps(student, rng, reduce_scatter_on_rank, 4, 3)


def expect_time_of_steps(
    student: Any, rng: torch.Generator, on_rank: Any, num_tensors: int, num_steps: int
) -> None:
    """Raise CheckFailed unless chunks go round in so many steps, each once it has come."""
    cluster, length = drawn_cluster(rng, 4), whole(rng, 8_000, 16_000)
    chunks = torch.ones(4 * length).split(4 * length // num_tensors)
    each = [([one.clone() for one in chunks],)] * 4
    run = emulated(student, on_rank, [0, 1, 2, 3], each=each, cluster=cluster)
    for rank in range(4):
        if (num_sent := len(sent(run, rank))) != num_steps:
            raise CheckFailed(f"{num_steps} messages from rank {rank}", f"{num_sent}", AT_ONCE)
        for following, received in zip(
            sent(run, rank)[1:], sent(run, (rank - 1) % 4), strict=False
        ):
            expect_after_arrival(following, received, rank, "a chunk")
    wanted_s = num_steps * message_s(cluster.intra, 4 * length)
    expect_end(run, wanted_s, wanted_s, f"{num_steps} steps", AT_ONCE)


# ring_all_gather


def expect_gathered(
    student: Any, rng: torch.Generator, ring: list[int], dtype: torch.dtype = torch.float32
) -> None:
    """Raise CheckFailed unless every rank of the ring gets all chunks, one a message."""
    size, lengths = len(ring), shuffled(rng, range(1, 10))[: len(ring)]
    chunks = [[positive(rng, length, dtype=dtype) for length in lengths] for _ in range(5)]
    run = emulated(student, all_gather_on_rank, ring, each=[(of_rank,) for of_rank in chunks])
    wanted = [chunks[rank][place] for place, rank in enumerate(ring)]
    hint = "What comes replaces the numbers in the chunk: nothing is added, and the list keeps its"
    for rank in ring:
        for place, chunk in enumerate(wanted):
            what = f"chunk {place} on rank {rank} of the ring {ring}"
            given = entry(run.values[rank], place)
            expect_close(given, chunk, what, f"{hint} tensors.", 0.0, 0.0)
    expect_messages(run, ring, size - 1, dtype.itemsize * max(lengths))
    for place, rank in enumerate(ring):
        for step, message in enumerate(sent(run, rank)):
            what = f"chunk {(place - step) % size} of the ring {ring} in step {step + 1}"
            expect_body(message, wanted[place - step], what, "Pass on what came last.", rtol=0)
            if step:
                received = sent(run, ring[place - 1])[step - 1]
                expect_after_arrival(message, received, rank, "a chunk")


@points(0.75, cell="check_ring_all_gather")
def check_all_gather_gives_everybody_all_chunks(student, rng):
    """Every rank ends with every chunk, in place: what the rank at the chunk's place had and
    sent.
    """
    expect_gathered(student, rng, list(range(5)))


@points(0.25, cell="check_ring_all_gather")
def check_all_gather_keeps_to_any_ring(student, rng):
    """The same on a ring of some of the ranks in any order, in float64."""
    expect_gathered(student, rng, one_of(rng, RINGS_OF_4_IN_5), torch.float64)


@points(1, cell="check_ring_all_gather")
def check_all_gather_takes_the_time_of_its_steps(student, rng):
    """N - 1 steps, each as long as one message: all ranks send and receive in every step."""
    expect_time_of_steps(student, rng, all_gather_on_rank, 4, 3)


# both all-reduces


def expect_summed(
    student: Any,
    rng: torch.Generator,
    group: Group,
    shapes: Sequence[tuple[int, ...]],
    views: Sequence[str] = (),
    dtype: torch.dtype = torch.float32,
    num_chunks: int = 1,
) -> Run:
    """The run; raise CheckFailed unless tensors are summed, and by what went over the wire.

    No message may have more elements than its tensor's divided by `num_chunks`, rounded up.
    """
    nums = [torch.Size(shape).numel() for shape in shapes]
    parts = Parts(rng, group.world_size, sum(nums), dtype)

    def cut(flat: torch.Tensor) -> Tensors:
        pieces = zip(flat.split(nums), shapes, strict=True)
        return [piece.clone().view(shape) for piece, shape in pieces]

    owner = torch.full((parts.size,), -1)  # the tensor of each element that is summed
    for number, (one, view) in enumerate(zip_longest(cut(torch.arange(parts.size)), views)):
        owner[seen_as(one, view).flatten()] = number
    each = [(cut(of_rank), *views) for of_rank in parts.of_rank]
    run = emulated(student, group.on_rank, group.places, each=each)
    for rank in group.ranks:
        right = cut(torch.where(owner < 0, parts.of_rank[rank], parts.total(group.ranks)))
        for number, (wanted, view) in enumerate(zip_longest(right, views)):
            given = entry(run.values[rank], number)
            what = f"a tensor of shape {shapes[number]}, {view or 'whole'}, on rank {rank}"
            expect_close(given, wanted, what, hint_for(given, wanted), 0.0, 0.0)
    summed = (owner >= 0).nonzero().flatten()
    expect_partial_sums(run, parts, group.ranks, dict.fromkeys(group.ranks, summed))
    expect_short_messages(run, parts, owner, num_chunks)
    if dtype != torch.float32:
        expect_dtype(run, dtype)
    return run


def expect_same_bits(student: Any, rng: torch.Generator, group: Group) -> None:
    """Raise CheckFailed unless all ranks end with the same bits, and so again in a second run."""
    own = [positive(rng, 100) for _ in group.ranks]
    each = [([one],) for one in own]
    run, again = (emulated(student, group.on_rank, group.places, each=each) for _ in range(2))
    results = [entry(value, 0) for value in run.values]
    wanted = torch.stack(own).double().sum(dim=0).float()
    for rank, result in enumerate(results):
        expect_close(result, wanted, f"the sum on rank {rank}", hint_for(result, wanted), 1e-5, 0.0)
    if not all(torch.equal(results[0], result) for result in results):
        raise CheckFailed(
            "the same bits on all ranks",
            "different last digits of the sum",
            "Add up each chunk once, on one rank, and hand out that sum: then all get the same"
            " order of additions.",
        )
    expect_same_again(run.values, again.values)


def expect_own_dtype(student: Any, rng: torch.Generator, group: Group, num_chunks: int) -> None:
    """Raise CheckFailed unless tensors of the other float types are summed, and sent, in theirs."""
    for dtype, num in ((torch.float64, 24), (torch.float16, 6), (torch.bfloat16, 3)):
        expect_summed(student, rng, group, [(num,)], dtype=dtype, num_chunks=num_chunks)


VIEWS = [(4, 6), (6, 7)], ["transposed", "every other column"]


# ring_all_reduce


@points(0.25, cell="check_ring_all_reduce")
def check_all_reduce_gives_everybody_the_sum(student, rng):
    """Every rank ends with the sum, in place and to the same bit, from what came over the wire."""
    ring = of_ring(list(range(5)))
    expect_summed(student, rng, ring, [(5 * whole(rng, 15, 25),)])
    expect_same_bits(student, rng, ring)


@points(0.5, cell="check_ring_all_reduce")
def check_all_reduce_takes_any_size(student, rng):
    """Any number of elements, in any shape: not divisible by the ranks, fewer than ranks, 1, 0. No
    message has more than their Nth part, rounded up.
    """
    shapes = [(5,), (18,), (3,), (3, 7), (1,), (), (0,)]
    expect_summed(student, rng, of_ring(list(range(4))), shapes, num_chunks=4)


@points(0.5, cell="check_ring_all_reduce")
def check_all_reduce_takes_any_float_type(student, rng):
    """float64, float16 and bfloat16 tensors are summed, and travel, in their own type, in
    chunks.
    """
    expect_own_dtype(student, rng, of_ring(list(range(3))), 3)


@points(0.5, cell="check_ring_all_reduce")
def check_all_reduce_takes_views(student, rng):
    """Transposes and every second column of a matrix are summed in place, in chunks; the memory
    between does not change.
    """
    expect_summed(student, rng, of_ring(list(range(3))), *VIEWS, num_chunks=3)


@points(0.5, cell="check_ring_all_reduce")
def check_all_reduce_takes_any_ring(student, rng):
    """The ring may be some of the ranks in any order, or a single one; other ranks take no part."""
    ring = one_of(rng, RINGS_OF_4_IN_5)
    for ranks in (ring, ring[:1]):
        run = expect_summed(student, rng, of_ring(ranks, 5), [(16,)], num_chunks=len(ranks))
        expect_ring(run, ranks)


@points(1.5, cell="check_ring_all_reduce")
def check_all_reduce_sends_as_little_as_it_can(student, rng):
    """Each rank sends 2(N - 1) messages of one chunk, to the next rank alone: 2(N - 1)/N of the
    tensor, plus padding.
    """
    ring, num = list(range(4)), 4 * whole(rng, 20, 40) + whole(rng, 2, 3)
    parts = Parts(rng, 4, num)
    each = [([of_rank],) for of_rank in parts.of_rank]
    run = emulated(student, all_reduce_on_rank, ring, each=each)
    expect_messages(run, ring, 6, 4 * ceil(num, 4))
    expect_partial_sums(run, parts, ring, dict.fromkeys(ring, torch.arange(num)))


@points(2.5, cell="check_ring_all_reduce")
def check_all_reduce_takes_the_time_of_its_formula(student, rng):
    """On a cluster of known latency alpha and rate beta, S bytes take 2(N - 1)(alpha + S / (N
    beta)) seconds.
    """
    expect_time_of_steps(student, rng, all_reduce_on_rank, 1, 6)


def large(rng: torch.Generator, num: int, size: int) -> tuple[list[Tensors], torch.Tensor]:
    """What each rank gets for `large_on_rank`, and the sums of it."""
    places = torch.randperm(num, generator=rng)[:200]
    own = [torch.randint(1, 9, (200,), generator=rng).float() for _ in range(size)]
    return [[places, one] for one in own], torch.stack(own).sum(dim=0)


def expect_large(values: Sequence[Any], sums: torch.Tensor) -> None:
    """Raise CheckFailed unless these are the sums."""
    hint = (
        "Wait for a receive before you read its data, for a send before you change what it sends."
    )
    for rank, value in enumerate(values):
        expect_close(value, sums, f"200 elements of the sum on rank {rank}", hint, 0.0, 0.0)


@points(0.5, cell="check_ring_all_reduce")
def check_all_reduce_holds_few_copies(student, rng):
    """However many ranks there are, at most twice the tensor's bytes plus two chunks are held
    besides it.
    """
    each, sums = large(rng, LARGE_BYTES // 4, 4)
    args = large_with_right_parts_on_rank, [0, 1, 2, 3], LARGE_BYTES // 4
    run = student.emulated(*args, world_size=4, each=each, allow=MESSAGES, memory=True)
    expect_grown(
        run,
        3.5 * LARGE_BYTES + FRAMEWORK_BYTES,
        f"a tensor of {LARGE_BYTES // MB} MiB and its sum over 4 ranks",
        "What a step receives is one chunk. It is added, or put in its place, and can then be let"
        " go: keep no list of inboxes or of tensors of other ranks.",
    )
    expect_large(run.values, sums)


# over real sockets nothing outside the ranks sees what is sent
@points(0.25, cell="check_ring_all_reduce", needs=["check_all_reduce_gives_everybody_the_sum"])
def check_all_reduce_comes_to_an_end_on_real_sockets(student, rng):
    """Your functions together, over real sockets, with Gloo: a tensor of some megabytes is summed
    without a deadlock.
    """
    num = 1_500_000 + 3 * whole(rng, 1, 9)
    each, sums = large(rng, num, 3)
    options = {"world_size": 3, "each": each, "allow": MESSAGES}
    with hinted(HINTS):
        values = student.run(large_on_rank, [0, 1, 2], num, **options)
    expect_large(values, sums)


# hierarchical_all_reduce


@points(0.5, cell="check_hierarchical_all_reduce")
def check_hierarchical_gives_everybody_the_sum(student, rng):
    """Every rank of every node ends with the sum over all of them, in place and to the same bit,
    from what came over the wire.
    """
    nodes = of_nodes(one_of(rng, NODES_OF_2))
    expect_summed(student, rng, nodes, [(60,)])
    expect_same_bits(student, rng, nodes)


@points(0.5, cell="check_hierarchical_all_reduce")
def check_hierarchical_takes_any_nodes_and_sizes(student, rng):
    """A single node, nodes of one rank, and tensors whose size does not divide or is below the
    number of ranks.
    """
    for nodes in map(of_nodes, OTHER_NODES):
        shapes = [(4 * nodes.world_size + 1,), (nodes.world_size - 1,), (1,), (0,)]
        expect_summed(student, rng, nodes, shapes)


@points(0.5, cell="check_hierarchical_all_reduce")
def check_hierarchical_takes_views_and_any_float_type(student, rng):
    """Views are summed in place, and float64, float16 and bfloat16 numbers are summed and sent in
    their own type.
    """
    nodes = of_nodes(OTHER_NODES[2])
    expect_summed(student, rng, nodes, *VIEWS)
    expect_own_dtype(student, rng, nodes, 1)


@points(1.5, cell="check_hierarchical_all_reduce")
def check_hierarchical_crosses_nodes_as_little_as_it_can(student, rng):
    """Each node sends 2(M - 1)/M of the tensor, plus padding, to other nodes; each of its ranks
    sends an equal part of that.
    """
    num_nodes, num_local, cluster = 3, 2, drawn_cluster(rng, 2, 3)
    num = 6 * whole(rng, 9, 15) - 1  # parts differ, and the longest needs no more
    parts, nodes = Parts(rng, 6, num), [[0, 1], [2, 3], [4, 5]]
    each = [([of_rank],) for of_rank in parts.of_rank]
    run = emulated(student, hierarchical_on_rank, nodes, each=each, cluster=cluster)
    crossed = [0] * 6
    for one in run.exchanges:
        if cluster.node_of(one.ranks[0]) != cluster.node_of(one.ranks[1]):
            crossed[one.ranks[0]] += len(one.body)
    most = 4 * 2 * (num_nodes - 1) * ceil(ceil(num, num_local), num_nodes)
    given = {f"node {n}": sum(crossed[rank] for rank in node) for n, node in enumerate(nodes)}
    wanted = dict.fromkeys(given, num_local * most)
    picture = partial(draw_bars, wanted, given, "Bytes sent out of each node", "bytes")
    if max(given.values()) > num_local * most:
        raise CheckFailed(
            f"at most {num_local * most:,} bytes out of each node: 4/3 of {4 * num:,}, and padding",
            f"{max(given.values()):,} bytes",
            "Sum inside each node first. Then only the node's sum has to cross.",
            picture,
        )
    expect_partial_sums(run, parts, range(6), dict.fromkeys(range(6), torch.arange(num)))
    if max(crossed) > most:
        raise PartlyHeld(
            0.5,
            f"each rank to send at most {most:,} bytes to other nodes",
            f"{max(crossed):,} from rank {crossed.index(max(crossed))}",
            "The bytes are as few as possible, but one rank sends them for all. After a"
            " reduce-scatter inside the node, each rank has a part of the sum: let each take its"
            " own part across.",
        )


@points(2, cell="check_hierarchical_all_reduce")
def check_hierarchical_is_faster_than_a_flat_ring(student, rng):
    """On two nodes of four GPUs: 2(G - 1)(alpha + S/(G beta)) inside, 2(M - 1)(alpha' + S/(GM
    beta')) between.
    """
    cluster, length, nodes = drawn_cluster(rng, 4, 2), whole(rng, 6_000, 12_000), [[0, 1, 2, 3]]
    nodes, zeros = [*nodes, [4, 5, 6, 7]], torch.zeros(8 * length, dtype=torch.float64)
    parts = Parts(rng, 8, 64, torch.float64)  # among zeros: they say what a message waited for
    places = torch.randperm(8 * length, generator=rng)[:64]
    each = [([zeros.index_copy(0, places, own)],) for own in parts.of_rank]
    run = emulated(student, hierarchical_on_rank, nodes, each=each, cluster=cluster)
    expect_partial_sums(run, parts, range(8), {}, takes_others=True)
    between_s, inside_s = (
        message_s(cluster.inter, 8 * length),
        message_s(cluster.intra, 16 * length),
    )
    wanted_s, flat_s, end_s = 6 * inside_s + 2 * between_s, 14 * between_s, run.timeline.end_s
    hint = (
        "Let each rank take its own part alone across, and inside a node each part travel once to"
        " be summed and once to be handed out."
    )
    if 1.01 * wanted_s < end_s <= 0.9 * flat_s:
        raise PartlyHeld(
            0.5,
            f"{wanted_s * 1e6:.1f} µs for the steps inside and between nodes",
            f"{end_s * 1e6:.1f} µs, which is faster than a flat ring ({flat_s * 1e6:.1f} µs)",
            hint,
        )
    expect_end(run, 0.0, wanted_s, "the steps inside and between nodes", hint)


# last: after a run that hangs, others get less time
@points(1, cell="check_exchange")
def check_exchange_uses_both_directions_at_once(student, rng):
    """Sending and receiving happen at the same time: neither waits for the other."""
    tensor, options = (
        positive(rng, whole(rng, 1000, 2000)),
        {"each": [()] * 3, "student_ranks": [1]},
    )
    for first, verbs in ((0, ("receives", "sent")), (2, ("sends", "received"))):
        try:
            emulated(student, between_strict_neighbours_on_rank, first, tensor, **options)
        except StudentFailed as failed:
            if failed.outcome is not Outcome.HUNG:
                raise
            raise CheckFailed(
                "a rank to send and receive at the same time, whichever neighbour is ready first",
                f"one that {verbs[0]} only once it has {verbs[1]}",
                "Start both with isend and irecv, and only then wait for either.",
            ) from None
