"""Hidden checks of lab 2: functions run on emulated clusters, and are read on the wire."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from PIL import Image

from autograder.checks import PartlyHeld, integer, points
from worldsize.check import CheckFailed, Drawn, expect_close
from worldsize.event import COMMUNICATION, Event
from worldsize.faults import SilentError
from worldsize.hardware import H100, Cluster, Link
from worldsize.launch import Run
from worldsize.memory.meter import MemoryMeter
from worldsize.timeline import Timeline

MESSAGES = {"send", "recv"}
TOLERANCE = 1.01  # of a time: emulated ones come out to all digits
TWICE = 2.05  # one direction after the other
# to see whether the numbers came over the wire; one is enough if everything that is sent is used
TRIES = 6
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
Tensors = list[torch.Tensor]


# What runs on the ranks. Nothing here knows an answer.


def exchange_on_rank(
    student: Any, ring: list[int], outgoing: torch.Tensor, incoming: torch.Tensor
) -> Any:
    student.exchange(outgoing, incoming, ring)
    return {"incoming": incoming, "outgoing": outgoing}


def reduce_scatter_on_rank(student: Any, ring: list[int], rank: int, chunks: Tensors) -> Any:
    if rank not in ring:
        return None
    student.ring_reduce_scatter(chunks, ring)
    return chunks[ring.index(rank)]


def all_gather_on_rank(student: Any, ring: list[int], rank: int, chunks: Tensors) -> Any:
    if rank not in ring:
        return None
    held = list(chunks)  # what the caller keeps, whatever happens to the list
    student.ring_all_gather(chunks, ring)
    return held


def all_reduce_on_rank(student: Any, ring: list[int], rank: int, tensors: Tensors) -> Any:
    if rank in ring:
        for tensor in tensors:
            student.ring_all_reduce(tensor, ring)
    return tensors


def all_reduce_views_on_rank(student: Any, ring: list[int], matrices: Tensors) -> Any:
    transposed, strided = matrices
    student.ring_all_reduce(transposed.t(), ring)
    student.ring_all_reduce(strided[:, ::2], ring)
    return matrices


def all_reduce_large_on_rank(
    student: Any, ring: list[int], seed: int, num_elements: int, places: torch.Tensor
) -> Any:
    tensor = torch.rand(num_elements, generator=torch.Generator().manual_seed(seed))
    student.ring_all_reduce(tensor, ring)
    return tensor[places]


def memory_on_rank(student: Any, ring: list[int], num_elements: int) -> Any:
    """The most bytes of tensors at once while `num` float32 are summed, these included."""
    tensor = torch.ones(num_elements)
    with MemoryMeter([tensor], counts_read=False) as meter:
        student.ring_all_reduce(tensor, ring)
    return meter.most_bytes


def hierarchical_on_rank(student: Any, nodes: list[list[int]], tensors: Tensors) -> Any:
    for tensor in tensors:
        student.hierarchical_all_reduce(tensor, nodes)
    return tensors


def hierarchical_views_on_rank(student: Any, nodes: list[list[int]], matrices: Tensors) -> Any:
    transposed, strided = matrices
    student.hierarchical_all_reduce(transposed.t(), nodes)
    student.hierarchical_all_reduce(strided[:, ::2], nodes)
    return matrices


# What the judge draws, computes and compares.


def whole(rng: torch.Generator, low: int, high: int) -> int:
    """A whole number from low to high, both included."""
    return int(torch.randint(low, high + 1, (), generator=rng))


def shuffled(rng: torch.Generator, items: Sequence[int]) -> list[int]:
    return [items[place] for place in torch.randperm(len(items), generator=rng).tolist()]


def positive(rng: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values from 0.5 to 1.5: no sum of them is near zero, so that a changed sign shows."""
    return torch.rand(shape, generator=rng, dtype=torch.float64).add(0.5).to(dtype)


def small_wholes(rng: torch.Generator, num: int, dtype: torch.dtype) -> torch.Tensor:
    """Whole numbers of which a few add up exactly, also in half precision and in any order."""
    return torch.randint(1, 9, (num,), generator=rng).to(dtype)


def drawn_cluster(rng: torch.Generator, num_gpus: int, num_nodes: int = 1) -> Cluster:
    """GPUs on drawn links, far slower between nodes, with a NIC for each GPU."""
    latency_s, bytes_per_s = 1e-6 * whole(rng, 1, 4), 1e9 * whole(rng, 100, 400)
    intra = Link("drawn", latency_s, bytes_per_s, "drawn for one check, 2026", kind="nvlink")
    inter = Link(
        "drawn slow", 3 * latency_s, bytes_per_s / whole(rng, 15, 25), "drawn for one check, 2026"
    )
    return Cluster(
        name="drawn",
        gpu=H100,
        gpus_per_node=num_gpus,
        intra=intra,
        num_nodes=num_nodes,
        inter=inter,
        nics_per_node=num_gpus,
    )


def ceil(number: int, parts: int) -> int:
    return -(-number // parts)


def total(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum, taken in float64."""
    return torch.stack([tensor.double() for tensor in tensors]).sum(dim=0).to(tensors[0].dtype)


def item(value: Any, place: int | str) -> Any:
    """What a rank returned at this place; None when it returned something else altogether."""
    if isinstance(place, str):
        return value.get(place) if isinstance(value, dict) else None
    return value[place] if isinstance(value, list | tuple) and place < len(value) else None


def sends_of(timeline: Timeline, rank: int) -> list[Event]:
    """The messages that a rank sent, without those that carry nothing."""
    events = timeline.of(rank)
    return [
        one for one in events if one.kind == COMMUNICATION and one.name == "send" and one.size_bytes
    ]


def expect_ring(timeline: Timeline, ring: Sequence[int], world_size: int) -> None:
    """Raise CheckFailed unless ranks of the ring sent to the next one alone, and others nothing."""
    following = dict(zip(ring, [*ring[1:], ring[0]], strict=True))
    picture = partial(draw_messages, timeline)
    for rank in range(world_size):
        for sent in sends_of(timeline, rank):
            if rank not in following:
                actual = f"a message of rank {rank}, which is not in {list(ring)}"
                raise CheckFailed("ranks outside the ring to send nothing", actual, picture=picture)
            if sent.peers != (following[rank],):
                raise CheckFailed(
                    f"rank {rank} to send to rank {following[rank]} alone, the one after it in the"
                    f" ring {list(ring)}",
                    f"a message to rank {sent.peers[0]}",
                    "Neighbours are those in the list, which need not be rank + 1 and rank - 1.",
                    picture,
                )


def draw_messages(timeline: Timeline) -> Drawn:
    """Each message's sender and receiver, step by step."""
    from worldsize.draw import _messages

    return InFewColours(_messages(timeline, "What your ranks sent"))


class InFewColours:
    """A picture in a quarter of its bytes: a page may hold many."""

    def __init__(self, picture: Drawn) -> None:
        self._picture, self.alt = picture, picture.alt

    def png(self) -> bytes:
        """The bytes of a PNG file of 32 colours."""
        file = io.BytesIO()
        drawn = Image.open(io.BytesIO(self._picture.png())).convert("RGB")
        drawn.quantize(32).save(file, "png", optimize=True)
        return file.getvalue()


def expect_bytes(timeline: Timeline, wanted: dict[int, int], what: str, hint: str) -> None:
    """Raise CheckFailed where a rank sent more than it may."""
    sent = {rank: timeline.bytes_sent(rank) for rank in wanted}
    if worst := [rank for rank, limit in wanted.items() if sent[rank] > limit]:
        rank = max(worst, key=lambda one: sent[one] / max(1, wanted[one]))
        raise CheckFailed(
            f"at most {wanted[rank]:,} bytes sent by rank {rank}: {what}",
            f"{sent[rank]:,.0f} bytes",
            hint,
            partial(draw_bytes, wanted, sent),
        )


def draw_bytes(wanted: dict[int, int], sent: dict[int, float]) -> Drawn:
    """The bytes that each rank may send and those that it sent."""
    from worldsize.draw.contrast import bars  # matplotlib is imported only where something is drawn

    expected, actual = (
        {f"rank {rank}": float(size) for rank, size in one.items()} for one in (wanted, sent)
    )
    return bars(expected, actual, "Bytes sent by each rank", "bytes")


def expect_messages(timeline: Timeline, rank: int, num_messages: int, most_bytes: int) -> None:
    """Raise CheckFailed unless a rank sent this many messages, none of them too long."""
    sizes = [one.size_bytes for one in sends_of(timeline, rank)]
    if len(sizes) != num_messages:
        hint = "One message a step: N - 1 steps in a reduce-scatter, N - 1 in an all-gather."
        picture = partial(draw_messages, timeline)
        raise CheckFailed(
            f"{num_messages} messages from rank {rank}", f"{len(sizes)}", hint, picture
        )
    if sizes and max(sizes) > most_bytes:
        hint = "Cut the tensor as evenly as possible; numbers travel in the tensor's own dtype."
        raise CheckFailed(
            f"messages of at most {most_bytes:,} bytes", f"{max(sizes):,} from rank {rank}", hint
        )


def expect_once_round(
    timeline: Timeline,
    ring: list[int],
    world_size: int,
    lengths: list[int],
    unsent: dict[int, int],
    left_out: str,
) -> None:
    """Raise CheckFailed unless each rank sent all chunks but one to the next, one a message."""
    expect_ring(timeline, ring, world_size)
    limits = {rank: 4 * (sum(lengths) - unsent[rank]) for rank in ring}
    expect_bytes(timeline, limits, f"all chunks but {left_out}", "Send one chunk a step.")
    for rank in ring:
        expect_messages(timeline, rank, len(ring) - 1, 4 * max(lengths))


def expect_time(timeline: Timeline, wanted_s: float, steps: str, slower: dict[str, float]) -> None:
    """Raise PartlyHeld or CheckFailed where the emulated time is longer than it should be."""
    end_s = timeline.end_s
    if end_s <= TOLERANCE * wanted_s:
        return
    actual = f"{end_s * 1e6:.1f} µs, {end_s / wanted_s:.2f} times as long"
    hint = (
        "Start the send and the receive of a step before you wait for either, and let all ranks"
        " work in every step."
    )
    picture = partial(draw_times, wanted_s, end_s)
    for reason, limit_s in slower.items():
        if end_s <= limit_s:
            partly = PartlyHeld(
                0.5, f"{wanted_s * 1e6:.1f} µs for {steps}", actual, f"{reason} {hint}"
            )
            partly.picture = picture
            raise partly
    raise CheckFailed(f"{wanted_s * 1e6:.1f} µs for {steps}", actual, hint, picture)


def draw_times(wanted_s: float, end_s: float) -> Drawn:
    """The time that the algorithm needs and the one that it took."""
    from worldsize.draw.contrast import bars

    return bars(
        {"emulated time": wanted_s * 1e6},
        {"emulated time": end_s * 1e6},
        "Time on the described cluster",
        "µs",
    )


def expect_sums(
    values: Sequence[Any], places: Sequence[Any], wanted: torch.Tensor, what: str, **close: float
) -> None:
    """Raise CheckFailed unless these ranks all returned the sum, with the same bits."""
    results = {
        rank: item(values[rank], place) for rank, place in enumerate(places) if place is not None
    }
    hint = "Each rank's part counts once; the result goes into the tensor itself."
    for rank, result in results.items():
        picture = partial(draw_right_and_wrong, results, wanted)
        expect_close(
            result,
            wanted,
            f"{what} on rank {rank}",
            hint_for(result, wanted, hint),
            picture=picture,
            **close,
        )
    first, *others = results.values()
    if not all(torch.equal(first, other) for other in others):
        hint = (
            "Add up each chunk once, on one rank, and hand out that sum: then the order of"
            " additions is the same."
        )
        raise CheckFailed("the same bits on all ranks", f"different last digits of {what}", hint)


def hint_for(result: Any, wanted: torch.Tensor, otherwise: str) -> str:
    """The hint for what this result looks like."""
    if not isinstance(result, torch.Tensor) or result.shape != wanted.shape or not result.numel():
        return otherwise
    ratios = result.double() / wanted.double()
    if (
        torch.allclose(ratios, ratios.flatten()[0].expand_as(ratios), rtol=1e-3)
        and ratios.flatten()[0] < 0.75
    ):
        return "This looks like the mean; all-reduce here means the sum."
    return otherwise


def draw_right_and_wrong(results: dict[int, Any], wanted: torch.Tensor) -> Drawn:
    """Which part of the result is right on which rank."""
    from worldsize.draw.contrast import grid

    num_parts = min(8, max(1, wanted.numel()))
    rows = {}
    for rank, result in results.items():
        is_fit = isinstance(result, torch.Tensor) and result.shape == wanted.shape
        given = (
            result.detach().double().flatten().tensor_split(num_parts)
            if is_fit
            else [None] * num_parts
        )
        parts = zip(given, wanted.double().flatten().tensor_split(num_parts), strict=True)
        rows[f"rank {rank}"] = [
            "sum" if one is not None and torch.allclose(one, sum_, rtol=1e-3) else "wrong"
            for one, sum_ in parts
        ]
    columns = [f"part {place + 1}" for place in range(num_parts)]
    return grid(rows, columns, "sum", "Which part of the tensor is the sum, on which rank")


def expect_over_the_wire(
    student: Any,
    rng: torch.Generator,
    clean: Run,
    on_rank: Callable[..., Any],
    *args: Any,
    **options: Any,
) -> None:
    """Raise CheckFailed unless numbers that are changed on their way change the result of this run.

    One number changes in each message of the first half of every rank's: in the other half of an
    all-reduce, sums are only passed on. Some numbers that are sent, such as padding, may never be
    used, so it may take several tries.
    """
    senders = range(len(clean.values))
    spoilt_ranks = [
        rank for rank in senders for _ in range(ceil(len(sends_of(clean.timeline, rank)), 2))
    ]
    for _ in range(TRIES):
        errors = [SilentError(rank, 0, seed=whole(rng, 0, 10**6)) for rank in spoilt_ranks]
        spoilt = student.emulated(on_rank, *args, allow=MESSAGES, faults=errors, **options)
        if not all(map(is_same, spoilt.values, clean.values)):
            return
    raise CheckFailed(
        "one number that was changed on its way, in each of many messages, to show in the result",
        "the same result as without it",
        "What ranks know of each other comes from what they receive.",
    )


def is_same(value: Any, other: Any) -> bool:
    """True where two ranks returned the same tensors."""
    pairs = zip_longest(tensors_in(value), tensors_in(other))
    return all(
        one is not None and two is not None and one.dtype == two.dtype and torch.equal(one, two)
        for one, two in pairs
    )


def tensors_in(value: Any) -> Tensors:
    """The tensors of float numbers that a rank returned, by themselves, in a list or by name."""
    parts = value.values() if isinstance(value, dict) else value
    return [
        one
        for one in (parts if isinstance(value, dict | list | tuple) else [value])
        if isinstance(one, torch.Tensor) and one.dtype in FLOATS
    ]


def drawn_ring(rng: torch.Generator, world_size: int, size: int | None = None) -> list[int]:
    """`size` of the ranks, or all, in an order from which no rank can guess its neighbours."""
    while True:
        ring = shuffled(rng, range(world_size))[:size]
        num_falls = sum(
            after < rank for rank, after in zip(ring, [*ring[1:], ring[0]], strict=True)
        )
        is_up_and_down = 1 < num_falls < len(ring) - 1
        if is_up_and_down and any(rank % len(ring) != place for place, rank in enumerate(ring)):
            return ring


# exchange


@points(1, cell="check_exchange")
def check_exchange_hands_tensors_on(student, rng):
    """Each rank of the ring receives what the one before it in the list has sent, whatever its
    size; outgoing does not change.
    """
    world_size = 4
    ring = drawn_ring(rng, world_size)
    before = {rank: ring[place - 1] for place, rank in enumerate(ring)}
    # of one size first, because a wrong neighbour's tensor may not fit otherwise
    of_one_size = [whole(rng, 1, 40)] * world_size
    of_all_sizes = shuffled(rng, [0, 1, *shuffled(rng, range(2, 41))[: world_size - 2]])
    for sizes in (of_one_size, of_all_sizes):
        sent = [positive(rng, size, dtype=torch.float64) for size in sizes]
        each = [
            (sent[rank], torch.full_like(sent[before[rank]], -1.0)) for rank in range(world_size)
        ]
        run = student.emulated(
            exchange_on_rank, ring, world_size=world_size, each=each, allow=MESSAGES
        )
        expect_ring(run.timeline, ring, world_size)
        for rank, value in enumerate(run.values):
            hint = (
                "Send to the next in the list, receive from the one before, and wait for both"
                " handles."
            )
            expect_close(
                item(value, "incoming"),
                sent[before[rank]],
                f"what rank {rank} received in {ring}",
                hint,
            )
            expect_close(
                item(value, "outgoing"),
                sent[rank],
                f"what rank {rank} sent",
                "`outgoing` is left as it is.",
            )
    expect_over_the_wire(
        student, rng, run, exchange_on_rank, ring, world_size=world_size, each=each
    )


@points(1, cell="check_exchange", needs=["check_exchange_hands_tensors_on"])
def check_exchange_uses_both_directions_at_once(student, rng):
    """Sending and receiving happen at the same time: a step takes as long as one message."""
    cluster, num = drawn_cluster(rng, 4), whole(rng, 20_000, 60_000)
    each = [(torch.ones(num), torch.zeros(num))] * 4
    ring = [0, 1, 2, 3]
    run = student.emulated(
        exchange_on_rank, ring, world_size=4, each=each, cluster=cluster, allow=MESSAGES
    )
    for rank in ring:
        expect_messages(run.timeline, rank, 1, 4 * num)
    wanted_s = cluster.intra.latency_s + 4 * num / cluster.intra.bandwidth_bytes_per_s
    expect_time(
        run.timeline,
        wanted_s,
        "one step",
        {"You send and receive one after the other.": TWICE * wanted_s},
    )


# ring_reduce_scatter


def draw_chunks(values: Sequence[Any], wanted: Sequence[Tensors], columns: list[str]) -> Drawn:
    """Which chunk is right on which rank."""
    from worldsize.draw.contrast import grid

    rows = {}
    for rank, (value, of_rank) in enumerate(zip(values, wanted, strict=True)):
        given = [item(value, place) for place in range(len(of_rank))]
        rows[f"rank {rank}"] = [
            (
                "right"
                if isinstance(one, torch.Tensor)
                and one.shape == right.shape
                and torch.allclose(one, right)
                else "wrong"
            )
            for one, right in zip(given, of_rank, strict=True)
        ]
    return grid(rows, columns, "right", "Which chunk is right, on which rank")


def drawn_chunks(rng: torch.Generator, world_size: int, lengths: Sequence[int]) -> list[Tensors]:
    return [[positive(rng, length) for length in lengths] for _ in range(world_size)]


@points(2, cell="check_ring_reduce_scatter")
def check_reduce_scatter_leaves_each_place_its_sum(student, rng):
    """The rank at place p of the ring ends with the sum of all chunks p; other chunks do not
    matter.
    """
    world_size = 5
    chunks = drawn_chunks(rng, world_size, [whole(rng, 3, 9)] * world_size)
    ring = list(range(world_size))
    each = list(enumerate(chunks))
    run = student.emulated(
        reduce_scatter_on_rank, ring, world_size=world_size, each=each, allow=MESSAGES
    )
    sums = [total([of_rank[place] for of_rank in chunks]) for place in range(world_size)]
    for rank, value in enumerate(run.values):
        hint = (
            f"Chunk {rank} ends on rank {rank}, so its journey starts on rank"
            f" {(rank + 1) % world_size}."
        )
        picture = partial(
            draw_chunks,
            [[value] for value in run.values],
            [[one] for one in sums],
            ["its own chunk"],
        )
        expect_close(
            value, sums[rank], f"chunk {rank} on rank {rank} of {world_size}", hint, picture=picture
        )
    expect_over_the_wire(
        student, rng, run, reduce_scatter_on_rank, ring, world_size=world_size, each=each
    )


@points(
    1, cell="check_ring_reduce_scatter", needs=["check_reduce_scatter_leaves_each_place_its_sum"]
)
def check_reduce_scatter_works_on_any_ring(student, rng):
    """The ring may be some of the ranks in any order, or a single one; chunks differ in length, and
    some are empty.
    """
    world_size, size = 5, 4
    ring = drawn_ring(rng, world_size, size)
    lengths = shuffled(rng, [0, 1, whole(rng, 2, 5), whole(rng, 6, 9)])
    chunks = drawn_chunks(rng, world_size, lengths)
    for of_ring in (ring, ring[:1]):
        each = [(rank, of_rank[: len(of_ring)]) for rank, of_rank in enumerate(chunks)]
        run = student.emulated(
            reduce_scatter_on_rank, of_ring, world_size=world_size, each=each, allow=MESSAGES
        )
        for place, rank in enumerate(of_ring):
            wanted = total([chunks[one][place] for one in of_ring])
            hint = "A rank's place is ring.index(rank), and its chunk has the number of its place."
            expect_close(
                run.values[rank],
                wanted,
                f"chunk {place} on rank {rank} of the ring {of_ring}",
                hint,
            )
        expect_ring(run.timeline, of_ring, world_size)


@points(
    1, cell="check_ring_reduce_scatter", needs=["check_reduce_scatter_leaves_each_place_its_sum"]
)
def check_reduce_scatter_sends_each_chunk_once(student, rng):
    """Each rank sends N - 1 messages, one chunk each, and only to the rank after it."""
    world_size = 4
    lengths = [whole(rng, 100, 900) for _ in range(world_size)]
    each = list(enumerate(drawn_chunks(rng, world_size, lengths)))
    ring = list(range(world_size))
    run = student.emulated(
        reduce_scatter_on_rank, ring, world_size=world_size, each=each, allow=MESSAGES
    )
    expect_once_round(
        run.timeline, ring, world_size, lengths, {rank: lengths[rank] for rank in ring}, "its own"
    )


# ring_all_gather


@points(1, cell="check_ring_all_gather")
def check_all_gather_gives_everybody_all_chunks(student, rng):
    """Every rank ends with every chunk, in place: what the rank at the chunk's place had."""
    world_size = 5
    chunks = drawn_chunks(rng, world_size, [whole(rng, 3, 9)] * world_size)
    ring = list(range(world_size))
    each = list(enumerate(chunks))
    run = student.emulated(
        all_gather_on_rank, ring, world_size=world_size, each=each, allow=MESSAGES
    )
    wanted = [chunks[place][place] for place in ring]
    for place in ring:
        hint = "What is received replaces the chunk: nothing is added any more."
        for rank, value in enumerate(run.values):
            picture = partial(
                draw_chunks, run.values, [wanted] * world_size, [f"chunk {one}" for one in ring]
            )
            what = f"chunk {place} on rank {rank}"
            expect_close(item(value, place), wanted[place], what, hint, picture=picture)
    expect_over_the_wire(
        student, rng, run, all_gather_on_rank, ring, world_size=world_size, each=each
    )


@points(1, cell="check_ring_all_gather", needs=["check_all_gather_gives_everybody_all_chunks"])
def check_all_gather_keeps_to_any_ring(student, rng):
    """On any ring and any lengths, each rank sends N - 1 messages, one chunk each, and only to the
    rank after it.
    """
    world_size, size = 5, 4
    ring = drawn_ring(rng, world_size, size)
    lengths = shuffled(rng, range(1, 10))[:size]
    chunks = drawn_chunks(rng, world_size, lengths)
    each = list(enumerate(chunks))
    run = student.emulated(
        all_gather_on_rank, ring, world_size=world_size, each=each, allow=MESSAGES
    )
    for place, owner in enumerate(ring):
        for rank in ring:
            hint = "A rank's place is ring.index(rank)."
            what = f"chunk {place} on rank {rank} of the ring {ring}"
            expect_close(item(run.values[rank], place), chunks[owner][place], what, hint)
    after = {rank: lengths[(place + 1) % size] for place, rank in enumerate(ring)}
    expect_once_round(run.timeline, ring, world_size, lengths, after, "that of the next rank")


# ring_all_reduce


@points(1.5, cell="check_ring_all_reduce")
def check_all_reduce_gives_everybody_the_sum(student, rng):
    """Every rank ends with the sum, in place and to the same bit, from what came over the wire."""
    world_size = 5
    num = world_size * whole(rng, 20, 30)
    tensors = [[positive(rng, num)] for _ in range(world_size)]
    ring = list(range(world_size))
    each = list(enumerate(tensors))
    run = student.emulated(
        all_reduce_on_rank, ring, world_size=world_size, each=each, allow=MESSAGES
    )
    expect_sums(run.values, [0] * world_size, total([own[0] for own in tensors]), "the sum")
    expect_over_the_wire(
        student, rng, run, all_reduce_on_rank, ring, world_size=world_size, each=each
    )


@points(0.5, cell="check_ring_all_reduce", needs=["check_all_reduce_gives_everybody_the_sum"])
def check_all_reduce_takes_any_size(student, rng):
    """Any number of elements, in any shape: not divisible by the ranks, fewer than ranks, 1, 0."""
    world_size = 4
    shapes = [(world_size + 1,), (5 * world_size - 2,), (world_size - 1,), (3, 7), (1,), (), (0,)]
    tensors = [[positive(rng, *shape) for shape in shapes] for _ in range(world_size)]
    ring = list(range(world_size))
    each = list(enumerate(tensors))
    run = student.emulated(
        all_reduce_on_rank, ring, world_size=world_size, each=each, allow=MESSAGES
    )
    for place, shape in enumerate(shapes):
        wanted = total([own[place] for own in tensors])
        expect_sums(
            run.values,
            [place] * world_size,
            wanted,
            f"the sum of shape {shape} on {world_size} ranks",
        )


@points(0.5, cell="check_ring_all_reduce", needs=["check_all_reduce_gives_everybody_the_sum"])
def check_all_reduce_takes_any_float_type(student, rng):
    """float64, float16 and bfloat16 tensors are summed in their own type."""
    world_size = 3
    dtypes = [torch.float64, torch.float16, torch.bfloat16]
    tensors = [
        [
            positive(rng, 12, dtype=torch.float64),
            *(small_wholes(rng, 12, dtype) for dtype in dtypes[1:]),
        ]
        for _ in range(world_size)
    ]
    ring = list(range(world_size))
    each = list(enumerate(tensors))
    run = student.emulated(
        all_reduce_on_rank, ring, world_size=world_size, each=each, allow=MESSAGES
    )
    for place, dtype in enumerate(dtypes):
        wanted = total([own[place] for own in tensors])
        expect_sums(
            run.values, [place] * world_size, wanted, f"the {dtype} sum", rtol=1e-12, atol=0.0
        )


@points(0.5, cell="check_ring_all_reduce", needs=["check_all_reduce_gives_everybody_the_sum"])
def check_all_reduce_takes_views(student, rng):
    """Transposes and every second column of a matrix are summed in place; the memory between does
    not change.
    """
    world_size = 3
    matrices = [[positive(rng, 4, 6), positive(rng, 6, 8)] for _ in range(world_size)]
    ring = list(range(world_size))
    each = [(own,) for own in matrices]
    run = student.emulated(
        all_reduce_views_on_rank, ring, world_size=world_size, each=each, allow=MESSAGES
    )
    expect_summed_views(run.values, matrices)


def expect_summed_views(values: Sequence[Any], matrices: list[Tensors], **close: float) -> None:
    """Raise CheckFailed unless each rank's transpose and columns 0, 2, ... are summed in place."""
    transposed, strided = (total([own[place] for own in matrices]) for place in (0, 1))
    for rank, value in enumerate(values):
        beside = matrices[rank][1].clone()
        beside[:, ::2] = strided[:, ::2]
        hint = (
            "A copy that reshape or contiguous made is summed, and the tensor is not: copy the"
            " result back."
        )
        if is_nearly(item(value, 0), transposed) and is_nearly(item(value, 1), beside):
            hint = "That is right to seven digits: numbers went through float32."
        what = f"a matrix whose columns 0, 2, ... are summed, on rank {rank}"
        expect_close(item(value, 0), transposed, f"a transpose on rank {rank}", hint, **close)
        expect_close(item(value, 1), beside, what, hint, **close)


def is_nearly(value: Any, wanted: torch.Tensor) -> bool:
    """True for these numbers to a few digits."""
    is_fit = isinstance(value, torch.Tensor) and value.dtype == wanted.dtype
    return is_fit and value.shape == wanted.shape and torch.allclose(value, wanted, rtol=1e-4)


@points(0.5, cell="check_ring_all_reduce", needs=["check_all_reduce_gives_everybody_the_sum"])
def check_all_reduce_takes_any_ring(student, rng):
    """The ring may be some of the ranks in any order, or a single one; other ranks take no part."""
    world_size, size = 5, 4
    ring = drawn_ring(rng, world_size, size)
    tensors = [[positive(rng, 4 * size)] for _ in range(world_size)]
    each = list(enumerate(tensors))
    for of_ring in (ring, ring[:1]):
        run = student.emulated(
            all_reduce_on_rank, of_ring, world_size=world_size, each=each, allow=MESSAGES
        )
        places = [0 if rank in of_ring else None for rank in range(world_size)]
        expect_sums(
            run.values,
            places,
            total([tensors[rank][0] for rank in of_ring]),
            f"the sum over the ring {of_ring}",
        )
        expect_ring(run.timeline, of_ring, world_size)


@points(1, cell="check_ring_all_reduce", needs=["check_all_reduce_gives_everybody_the_sum"])
def check_all_reduce_sends_as_little_as_it_can(student, rng):
    """Each rank sends 2(N - 1) messages of one chunk, to the next rank alone: 2(N - 1)/N of the
    tensor, plus padding.
    """
    world_size = 4
    num = world_size * whole(rng, 200, 400) + whole(rng, 2, world_size - 1)
    tensors = [[small_wholes(rng, num, torch.bfloat16)] for _ in range(world_size)]
    ring = list(range(world_size))
    each = list(enumerate(tensors))
    run = student.emulated(
        all_reduce_on_rank, ring, world_size=world_size, each=each, allow=MESSAGES
    )
    num_steps, chunk_bytes = 2 * (world_size - 1), 2 * ceil(num, world_size)
    what = f"{num_steps} chunks of {num} bfloat16 numbers cut in {world_size}"
    hint = (
        "A chunk goes round twice: once to be summed, once to be handed out. Whole tensors need not"
        " travel."
    )
    expect_bytes(run.timeline, dict.fromkeys(ring, num_steps * chunk_bytes), what, hint)
    expect_ring(run.timeline, ring, world_size)
    for rank in ring:
        expect_messages(run.timeline, rank, num_steps, chunk_bytes)


@points(1, cell="check_ring_all_reduce", needs=["check_all_reduce_sends_as_little_as_it_can"])
def check_all_reduce_takes_the_time_of_its_formula(student, rng):
    """On a cluster of known latency alpha and rate beta, S bytes take 2(N - 1)(alpha + S / (N
    beta)) seconds.
    """
    world_size, cluster = 4, drawn_cluster(rng, 4)
    num = world_size * whole(rng, 10_000, 40_000)
    ring = list(range(world_size))
    each = [(rank, [torch.ones(num)]) for rank in ring]
    run = student.emulated(
        all_reduce_on_rank, ring, world_size=4, each=each, cluster=cluster, allow=MESSAGES
    )
    link = cluster.intra
    wanted_s = (
        2 * (world_size - 1) * (link.latency_s + 4 * num / world_size / link.bandwidth_bytes_per_s)
    )
    slower = {"Each step takes two messages, one after the other.": TWICE * wanted_s}
    expect_time(run.timeline, wanted_s, f"{2 * (world_size - 1)} steps", slower)


@points(0.5, cell="check_ring_all_reduce", needs=["check_all_reduce_gives_everybody_the_sum"])
def check_all_reduce_holds_few_copies(student, rng):
    """However many ranks there are, at most twice the tensor's bytes plus two chunks are held
    besides it.
    """
    world_size = 5
    chunk_bytes = 4 * whole(rng, 800, 1500)
    size_bytes, ring = world_size * chunk_bytes, list(range(world_size))
    run = student.emulated(
        memory_on_rank, ring, size_bytes // 4, world_size=world_size, allow=MESSAGES
    )
    limit_bytes = 3 * size_bytes + 2 * chunk_bytes
    for rank, most_bytes in enumerate(map(integer, run.values)):
        if most_bytes is None or most_bytes > limit_bytes:
            actual = (
                f"{most_bytes:,} bytes, {most_bytes / size_bytes:.1f} times"
                if most_bytes is not None
                else "none"
            )
            raise CheckFailed(
                f"at most {limit_bytes:,} bytes of tensors at once on rank {rank}: the tensor's"
                f" {size_bytes:,}, twice that and two chunks, with {world_size} ranks",
                actual,
                "What a step receives is one chunk. It is added, or put in its place, and can then"
                " be let go: give a step an inbox of one chunk, and keep no list of inboxes or of"
                " tensors of other ranks.",
                partial(draw_held, limit_bytes, run.values),
            )


def draw_held(limit_bytes: int, held: Sequence[Any]) -> Drawn:
    """The bytes that each rank may hold at once and those that it held."""
    from worldsize.draw.contrast import bars

    expected = {f"rank {rank}": limit_bytes / 1e3 for rank in range(len(held))}
    actual = {f"rank {rank}": size / 1e3 for rank, size in enumerate(held) if isinstance(size, int)}
    return bars(expected, actual, "Most bytes of tensors at once, on each rank", "kB")


@points(1, cell="check_ring_all_reduce", needs=["check_all_reduce_gives_everybody_the_sum"])
def check_all_reduce_comes_to_an_end_on_real_sockets(student, rng):
    """Over real sockets, with Gloo, a tensor of some megabytes is summed without a deadlock."""
    world_size, num = 3, 1_500_000 + whole(rng, 1, 9)
    seeds = [whole(rng, 0, 10**9) for _ in range(world_size)]
    # what is left over is a check of its own, and rarely drawn here
    num_divided = num // world_size * world_size
    places = torch.randint(num_divided, (200,), generator=rng)
    ring = list(range(world_size))
    each = [(seed, num, places) for seed in seeds]
    values = student.run(
        all_reduce_large_on_rank, ring, world_size=world_size, each=each, allow=MESSAGES
    )
    wanted = total(
        [torch.rand(num, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    )[places]
    for rank, value in enumerate(values):
        hint = (
            "Wait for a receive before you read its data, and for a send before you change what it"
            " sends."
        )
        expect_close(value, wanted, f"200 elements of the sum on rank {rank}", hint)


# hierarchical_all_reduce


def drawn_nodes(rng: torch.Generator, num_nodes: int, num_local: int) -> list[list[int]]:
    """Nodes in which a rank cannot guess its node or its place, if there are several."""
    while True:
        ranks = shuffled(rng, range(num_nodes * num_local))
        is_of_node = all(
            rank // num_local == place // num_local for place, rank in enumerate(ranks)
        )
        is_in_place = all(rank % num_local == place % num_local for place, rank in enumerate(ranks))
        if (num_nodes == 1 or not is_of_node) and (num_local == 1 or not is_in_place):
            return [ranks[start : start + num_local] for start in range(0, len(ranks), num_local)]


@points(1, cell="check_hierarchical_all_reduce")
def check_hierarchical_gives_everybody_the_sum(student, rng):
    """Every rank of every node ends with the sum over all of them, in place and to the same bit."""
    nodes, world_size = drawn_nodes(rng, 3, 2), 6
    tensors = [[positive(rng, world_size * 10)] for _ in range(world_size)]
    each = [(own,) for own in tensors]
    run = student.emulated(
        hierarchical_on_rank, nodes, world_size=world_size, each=each, allow=MESSAGES
    )
    expect_sums(
        run.values,
        [0] * world_size,
        total([own[0] for own in tensors]),
        f"the sum over the nodes {nodes}",
    )
    expect_over_the_wire(
        student, rng, run, hierarchical_on_rank, nodes, world_size=world_size, each=each
    )


@points(
    0.5, cell="check_hierarchical_all_reduce", needs=["check_hierarchical_gives_everybody_the_sum"]
)
def check_hierarchical_takes_any_nodes_and_sizes(student, rng):
    """A single node, nodes of one rank, and tensors whose size does not divide or is below the
    number of ranks.
    """
    for num_nodes, num_local in ((1, 3), (3, 1), (2, 2)):
        nodes, world_size = drawn_nodes(rng, num_nodes, num_local), num_nodes * num_local
        sizes = [4 * world_size + 1, world_size - 1, 1, 0]
        tensors = [
            [positive(rng, size, dtype=torch.float64) for size in sizes] for _ in range(world_size)
        ]
        each = [(own,) for own in tensors]
        run = student.emulated(
            hierarchical_on_rank, nodes, world_size=world_size, each=each, allow=MESSAGES
        )
        for place, size in enumerate(sizes):
            wanted = total([own[place] for own in tensors])
            expect_sums(
                run.values,
                [place] * world_size,
                wanted,
                f"the sum of {size} elements over the nodes {nodes}",
            )


@points(
    0.5, cell="check_hierarchical_all_reduce", needs=["check_hierarchical_gives_everybody_the_sum"]
)
def check_hierarchical_takes_views_and_any_float_type(student, rng):
    """Views are summed in place, and float64, float16 and bfloat16 numbers are summed and sent in
    their own type.
    """
    num_nodes, num_local = 2, 2
    nodes, world_size = drawn_nodes(rng, num_nodes, num_local), num_nodes * num_local
    matrices = [
        [positive(rng, *shape, dtype=torch.float64) for shape in ((4, 6), (6, 8))]
        for _ in range(world_size)
    ]
    each = [(own,) for own in matrices]
    run = student.emulated(
        hierarchical_views_on_rank, nodes, world_size=world_size, each=each, allow=MESSAGES
    )
    expect_summed_views(run.values, matrices, rtol=1e-12, atol=0.0)
    num, sent = world_size * whole(rng, 10, 20), {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        tensors = [[small_wholes(rng, num, dtype)] for _ in range(world_size)]
        each = [(own,) for own in tensors]
        run = student.emulated(
            hierarchical_on_rank, nodes, world_size=world_size, each=each, allow=MESSAGES
        )
        wanted = total([own[0] for own in tensors])
        expect_sums(run.values, [0] * world_size, wanted, f"the {dtype} sum", rtol=0.0, atol=0.0)
        sent[dtype] = sum(map(run.timeline.bytes_sent, range(world_size)))
        # how many numbers are sent is another check's business
        if dtype.itemsize == 2 and 2 * sent[dtype] > sent[torch.float32]:
            raise CheckFailed(
                f"a {dtype} tensor to take half the bytes of a float32 tensor of its size, which"
                f" took {sent[torch.float32]:,.0f}",
                f"{sent[dtype]:,.0f} bytes",
                "Numbers travel in the tensor's own dtype.",
            )


@points(
    2, cell="check_hierarchical_all_reduce", needs=["check_hierarchical_gives_everybody_the_sum"]
)
def check_hierarchical_crosses_nodes_as_little_as_it_can(student, rng):
    """Each node sends 2(M - 1)/M of the tensor, plus padding, to other nodes; each of its ranks
    sends an equal part of that.
    """
    num_nodes, num_local = 3, 2
    world_size = num_nodes * num_local
    num = world_size * whole(rng, 90, 150) - 1  # parts differ, and the longest needs no more
    nodes = [list(range(start, start + num_local)) for start in range(0, world_size, num_local)]
    each = [([positive(rng, num)],) for _ in range(world_size)]
    cluster = drawn_cluster(rng, num_local, num_nodes)
    run = student.emulated(
        hierarchical_on_rank,
        nodes,
        world_size=world_size,
        each=each,
        cluster=cluster,
        allow=MESSAGES,
    )
    crossed = {rank: crossing_bytes(run.timeline, cluster, rank) for rank in range(world_size)}
    of_rank = 4 * 2 * (num_nodes - 1) * ceil(ceil(num, num_local), num_nodes)
    of_nodes = {number: sum(crossed[rank] for rank in node) for number, node in enumerate(nodes)}
    picture = partial(draw_crossings, dict.fromkeys(of_nodes, num_local * of_rank), of_nodes)
    for number, size_bytes in of_nodes.items():
        if size_bytes > num_local * of_rank:
            raise CheckFailed(
                f"at most {num_local * of_rank:,} bytes out of node {number}: 2 *"
                f" {num_nodes - 1}/{num_nodes} of {4 * num:,}, and padding",
                f"{size_bytes:,} bytes",
                "Sum inside each node first. Then only the node's sum has to cross.",
                picture,
            )
    for rank, size_bytes in crossed.items():
        if size_bytes > of_rank:
            partly = PartlyHeld(
                0.5,
                f"each rank to send at most {of_rank:,} bytes to other nodes",
                f"{size_bytes:,} from rank {rank}",
                "The bytes are as few as possible, but one rank sends them for all. After a"
                " reduce-scatter inside the node, each rank has a part of the sum: let each take"
                " its own part across.",
            )
            partly.picture = partial(draw_bytes, dict.fromkeys(crossed, of_rank), crossed)
            raise partly


def crossing_bytes(timeline: Timeline, cluster: Cluster, rank: int) -> int:
    """The bytes that a rank sent to other nodes."""
    node = cluster.node_of(rank)
    return sum(
        one.size_bytes for one in sends_of(timeline, rank) if cluster.node_of(one.peers[0]) != node
    )


def draw_crossings(wanted: dict[int, int], crossed: dict[int, int]) -> Drawn:
    """The bytes that must leave each node and those that did."""
    from worldsize.draw.contrast import bars

    expected, actual = (
        {f"node {node}": float(size) for node, size in one.items()} for one in (wanted, crossed)
    )
    return bars(expected, actual, "Bytes sent out of each node", "bytes")


@points(
    1,
    cell="check_hierarchical_all_reduce",
    needs=["check_hierarchical_crosses_nodes_as_little_as_it_can"],
)
def check_hierarchical_is_faster_than_a_flat_ring(student, rng):
    """On two nodes of four GPUs: 2(G - 1)(alpha + S/(G beta)) inside, 2(M - 1)(alpha' + S/(GM
    beta')) between.
    """
    num_nodes, num_local = 2, 4
    cluster = drawn_cluster(rng, num_local, num_nodes)
    num = 8 * whole(rng, 50_000, 100_000)
    nodes = [[0, 1, 2, 3], [4, 5, 6, 7]]
    each = [([torch.ones(num)],)] * 8
    run = student.emulated(
        hierarchical_on_rank, nodes, world_size=8, each=each, cluster=cluster, allow=MESSAGES
    )
    assert cluster.inter is not None
    fast, slow, size_bytes = cluster.intra, cluster.inter, 4 * num
    inside_s = (
        2 * (num_local - 1) * (fast.latency_s + size_bytes / num_local / fast.bandwidth_bytes_per_s)
    )
    between_s = 2 * (num_nodes - 1) * (slow.latency_s + size_bytes / 8 / slow.bandwidth_bytes_per_s)
    flat_s = 2 * 7 * (slow.latency_s + size_bytes / 8 / slow.bandwidth_bytes_per_s)
    reason = (
        f"That is faster than a flat ring ({flat_s * 1e6:.1f} µs). Let each rank take its own part"
        " alone across, and inside a node each part travel once to be summed and once to be handed"
        " out."
    )
    expect_time(
        run.timeline,
        inside_s + between_s,
        "the steps inside and between nodes",
        {reason: 0.9 * flat_s},
    )
