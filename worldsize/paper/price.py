"""The price of records on a cluster, computed as for emulation with `worldsize.operators` and `worldsize.pricing`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from worldsize import operators, pricing
from worldsize.emulate.launcher.simulator import ClusterPrices, Unanswered, replay_of
from worldsize.emulate.protocol.record import COMPUTE, Operation, Step
from worldsize.hardware import Cluster, Gpu
from worldsize.paper.record import BEGIN, END, RECOMPUTE, Boundary, RankRecord, RecordedPost
from worldsize.timeline import Timeline

_WITH_DATA = "run it on an emulated cluster of a few ranks, by ws.run(..., cluster=...), which names the lines"


@dataclass(frozen=True)
class PricedRecords:
    """Records on a cluster: their timeline, and by rank start and end of the last training step, and its flops.

    `useful_flops` exclude recomputation.
    """

    timeline: Timeline
    spans_s: Mapping[int, tuple[float, float]]
    flops: Mapping[int, float]
    useful_flops: Mapping[int, float]


def price(records: Sequence[RankRecord], cluster: Cluster) -> PricedRecords:
    """The price of the recorded ranks, which run side by side; other ranks are taken to be in time.

    Raises:
        ValueError: the calls of the recorded ranks do not match, so with data they would hang or fail.
    """
    steps = {one.rank: _timed(one, cluster.gpu) for one in records}
    try:
        replayed = replay_of(steps, _operations(records), _prices(cluster))
    except Unanswered as error:
        raise ValueError(_hang(records, error.posts)) from None
    spans = {one.rank: _last_step(one.boundaries) for one in records}
    end_s = replayed.timeline.end_s
    spans_s = {
        rank: (
            replayed.marks_s[rank, start.mark] if start else 0.0,
            replayed.marks_s[rank, stop.mark] if stop else end_s,
        )
        for rank, (start, stop) in spans.items()
    }
    flops = {one.rank: _flops(one, *spans[one.rank], is_useful=False) for one in records}
    useful = {one.rank: _flops(one, *spans[one.rank], is_useful=True) for one in records}
    return PricedRecords(replayed.timeline, spans_s, flops, useful)


def _timed(record: RankRecord, gpu: Gpu) -> list[Step]:
    """Return the steps, with the duration of each batch of work."""
    seconds = [operators.time_s(work.operator, gpu, work.name, work.phase) for work in record.works]
    batches_s = [sum(number * seconds[place] for place, number in batch.items()) for batch in record.batches]
    return [
        step._replace(number=0, duration_s=batches_s[step.number - 1]) if step.kind == COMPUTE and step.number else step
        for step in record.steps
    ]


def _prices(cluster: Cluster) -> ClusterPrices:
    cost = lru_cache(maxsize=None)(lambda op, size_bytes, ranks: pricing.price(op, size_bytes, ranks, cluster))
    return ClusterPrices(
        cluster.route,
        cluster.capacity_bytes_per_s,
        lambda one: cost(one.op, one.size_bytes, one.ranks),
        is_rendezvous=cluster.library == "gloo",
        transfer_route=cluster.transfer_route,
    )


def _operations(records: Sequence[RankRecord]) -> list[Operation]:
    """Match posts to operations: the n-th send with a tag to a rank matches the n-th receive with that tag.

    An operation that a recorded member does not post never happens.

    Raises:
        ValueError: matched posts differ.
    """
    found: dict[object, Operation] = {}
    num_messages: dict[object, int] = defaultdict(int)
    for record in records:
        for post in record.posts:
            key, operation = _of_post(record, post, num_messages)
            known = found.setdefault(key, operation)
            _refuse_mismatch(known, record, post, operation)
            size_bytes = max(known.size_bytes, operation.size_bytes)  # the rank that sends most decides
            found[key] = known._replace(size_bytes=size_bytes, parts={**known.parts, record.rank: post.number})
    recorded = {one.rank for one in records}
    members = {id(one.ranks): recorded.intersection(one.ranks) for one in found.values()}
    return [one for one in found.values() if len(one.parts) == len(members[id(one.ranks)])]


def _refuse_mismatch(known: Operation, record: RankRecord, post: RecordedPost, operation: Operation) -> None:
    """Raise ValueError unless a rank's part fits into an operation as far as it is known."""
    is_same_size = operation.op != "send" or known.size_bytes == operation.size_bytes
    if (known.op, known.root) == (operation.op, operation.root) and is_same_size:
        return
    other = next(iter(known.parts))
    there = f"{known.op} from rank {known.root}" if known.root is not None else known.op
    raise ValueError(
        f"on paper the calls of ranks {other} and {record.rank} do not match: rank {record.rank} is in "
        f"{_called(post)} of {post.size_bytes:,} bytes, and rank {other} in {there} of {known.size_bytes:,}; "
        f"{_WITH_DATA}"
    )


def _hang(records: Sequence[RankRecord], posts: Mapping[int, int]) -> str:
    """Describe in a sentence what the recorded ranks wait for in vain."""
    waits = [
        f"rank {record.rank} in {_called(record.posts[posts[record.rank] - 1])}"
        for record in records
        if record.rank in posts
    ]
    return f"on paper these recorded ranks wait for something that never happens: {', '.join(waits)}; {_WITH_DATA}"


def _called(post: RecordedPost) -> str:
    if post.peer is None:
        return post.op
    return f"{post.op} {'to' if post.op == 'send' else 'from'} rank {post.peer}"


def _of_post(record: RankRecord, post: RecordedPost, num_messages: dict[object, int]) -> tuple[object, Operation]:
    group, rank = record.groups[post.group], record.rank
    if post.op not in ("send", "recv"):
        operation = Operation(post.op, group.ranks, post.size_bytes, group.name, post.sequence, root=post.peer)
        return (group, post.sequence), operation
    peer = rank if post.peer is None else post.peer
    ends = (rank, peer) if post.op == "send" else (peer, rank)
    num_messages[post.op, ends, post.tag] += 1
    return (ends, post.tag, num_messages[post.op, ends, post.tag]), Operation("send", ends, post.size_bytes, group.name)


def _last_step(boundaries: Sequence[Boundary]) -> tuple[Boundary | None, Boundary | None]:
    """Return the bounds of the last training step: updates by one optimizer with a forward pass between them.

    With several optimizers, the one that steps most often counts. A single step begins with the first forward pass.
    If no module has a forward pass, the updates alone are the bounds.
    """
    begins = [place for place, one in enumerate(boundaries) if one.kind == BEGIN]
    first = begins[0] if begins else -1
    ends = [place for place, one in enumerate(boundaries) if one.kind == END]
    often = Counter(boundaries[place].optimizer for place in ends if place > first)
    if not often:
        return boundaries[first] if begins else None, None
    most = max(often.values())
    last = max(place for place in ends if often[boundaries[place].optimizer] == most)
    begin = max((place for place in begins if place < last), default=last)
    same = (place for place in ends if boundaries[place].optimizer == boundaries[last].optimizer)
    start = max((place for place in same if place < begin), default=first)
    return boundaries[start] if start >= 0 else None, boundaries[last]


def _flops(record: RankRecord, start: Boundary | None, stop: Boundary | None, is_useful: bool) -> float:
    works = [0.0 if is_useful and work.phase == RECOMPUTE else work.operator.flops for work in record.works]
    batches = record.batches[start.num_batches if start else 0 : stop.num_batches if stop else None]
    return sum(number * works[place] for batch in batches for place, number in batch.items())
