"""The answers of the question bank's templates, each computed by another way than the template's own formula.

An oracle gets a variant's parameters by name, and where it asks for them its `text` and its `timeline`. It gives the
number, the text of the right choice, the texts in order, or a mapping of these by gap.
"""

from __future__ import annotations

import heapq
import inspect
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from rings import ring_all_reduce
from torch.utils.flop_counter import FlopCounterMode

import worldsize as ws
from worldsize import emulate, hardware
from worldsize.quiz import Variant
from worldsize.quiz.question_text import timeline as timeline_of

Message: TypeAlias = tuple[int, int, float]  # from, to, size
Steps: TypeAlias = list[list[Message]]  # messages of one step go at the same time


@dataclass(frozen=True)
class Oracle:
    """A computation of an answer; it takes at most `sample` variants, and those that it `can`."""

    compute: Callable[..., Any]
    sample: int
    can: Callable[[Variant], bool]

    def __call__(self, variant: Variant) -> Any:
        """The answer of this variant."""
        known: dict[str, Any] = {**variant.parameters, "text": variant.text}
        if variant.picture:
            known["timeline"] = timeline_of(variant.picture)
        return self.compute(**{name: known[name] for name in inspect.signature(self.compute).parameters})


ORACLES: dict[str, list[Oracle]] = {}


def oracle(question_id: str, *, sample: int = 120, can: Callable[[Variant], bool] = lambda _: True) -> Callable:
    """Enter the function as an oracle of this question."""

    def enter(compute: Callable[..., Any]) -> Callable[..., Any]:
        ORACLES.setdefault(question_id, []).append(Oracle(compute, sample, can))
        return compute

    return enter


# --- collectives, played message by message --------------------------------------------------------------------------


@lru_cache
def ring(num_ranks: int) -> Steps:
    """A ring all-reduce of a tensor of size 1, played with the ranks that are in each sum, until all are in all."""
    everybody = frozenset(range(num_ranks))
    held = [[frozenset({rank})] * num_ranks for rank in range(num_ranks)]
    steps: Steps = []
    for step in range(10 * num_ranks):
        if all(sums == everybody for chunks in held for sums in chunks):
            return steps
        sent = [(rank, (rank - step) % num_ranks, held[rank][(rank - step) % num_ranks]) for rank in range(num_ranks)]
        for rank, chunk, sums in sent:
            mine = held[(rank + 1) % num_ranks][chunk]
            assert sums == everybody or not mine & sums, "a rank would be added twice"
            held[(rank + 1) % num_ranks][chunk] = mine | sums
        steps.append([(rank, (rank + 1) % num_ranks, 1 / num_ranks) for rank, _, _ in sent])
    raise AssertionError("the ring does not end")


@lru_cache
def ring_all_gather(num_ranks: int) -> Steps:
    """An all-gather by a ring in which each rank has a part of size 1: what came last is passed on."""
    held, last, steps = [{rank} for rank in range(num_ranks)], list(range(num_ranks)), []
    while any(len(parts) < num_ranks for parts in held):
        steps.append([(rank, (rank + 1) % num_ranks, 1.0) for rank in range(num_ranks)])
        last = [last[rank - 1] for rank in range(num_ranks)]
        for rank in range(num_ranks):
            held[rank].add(last[rank])
    return steps


def halving_and_doubling(num_ranks: int) -> Steps:
    """Recursive halving, then doubling: partners exchange ever smaller halves, then ever larger ones."""
    part, distance, there = 1.0, 1, []
    while distance < num_ranks:
        part /= 2
        there.append([(rank, rank ^ distance, part) for rank in range(num_ranks)])
        distance *= 2
    return [*there, *reversed(there)]


def recursive_doubling(num_ranks: int) -> Steps:
    """Partners exchange all that they have, until everybody's sum holds everybody."""
    sums, distance, steps = [{rank} for rank in range(num_ranks)], 1, []
    while any(len(one) < num_ranks for one in sums):
        steps.append([(rank, rank ^ distance, 1.0) for rank in range(num_ranks)])
        sums = [sums[rank] | sums[rank ^ distance] for rank in range(num_ranks)]
        distance *= 2
    return steps


def star(num_ranks: int) -> Steps:
    """Everybody sends to rank 0, one after the other, and gets the sum back, one after the other."""
    return [[(rank, 0, 1.0)] for rank in range(1, num_ranks)] + [[(0, rank, 1.0)] for rank in range(1, num_ranks)]


def time_of(steps: Steps, size: float, latency: float, bandwidth: float) -> float:
    """The time of steps that wait for each other, on links of their own."""
    return sum(max(latency + part * size / bandwidth for _, _, part in step) for step in steps)


def sent_by(rank: int, steps: Steps) -> float:
    """What a rank sends of a tensor of size 1."""
    return sum(part for step in steps for src, _, part in step if src == rank)


# --- the same, run by real ranks on an emulated cluster --------------------------------------------------------------

EMULATED_RANKS = (4, 8)
_NUM_ITEMS = 3 * 2**8  # divides by all of them


def _swap(outgoing: torch.Tensor, partner: int) -> torch.Tensor:
    inbox = torch.empty_like(outgoing)
    for work in (dist.isend(outgoing, partner), dist.irecv(inbox, partner)):
        work.wait()
    return inbox


def _ring(tensor: torch.Tensor) -> None:
    assert ring_all_reduce(_NUM_ITEMS)
    tensor.fill_(sum(range(dist.get_world_size())))


def _halving_and_doubling(tensor: torch.Tensor) -> None:
    rank, part, path, distance = dist.get_rank(), tensor, [], 1
    while distance < dist.get_world_size():
        lower, upper = part.chunk(2)
        part, given = (upper, lower) if rank & distance else (lower, upper)
        part += _swap(given, rank ^ distance)
        path.append((part, given, rank ^ distance))
        distance *= 2
    for kept, given, partner in reversed(path):
        given.copy_(_swap(kept, partner))


def _recursive_doubling(tensor: torch.Tensor) -> None:
    distance = 1
    while distance < dist.get_world_size():
        tensor += _swap(tensor, dist.get_rank() ^ distance)
        distance *= 2


def _star(tensor: torch.Tensor) -> None:
    if dist.get_rank():
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    inbox = torch.empty_like(tensor)
    for other in range(1, dist.get_world_size()):
        dist.recv(inbox, other)
        tensor += inbox
    for other in range(1, dist.get_world_size()):
        dist.send(tensor, other)


def _times_on_rank() -> dict[str, float]:
    """The virtual seconds of each algorithm."""
    times_s = {}
    for algorithm in (_ring, _halving_and_doubling, _recursive_doubling, _star):
        dist.barrier()
        start_s = emulate.elapsed()
        algorithm(tensor := torch.full((_NUM_ITEMS,), float(dist.get_rank())))
        times_s[algorithm.__name__] = emulate.elapsed() - start_s
        assert (tensor == sum(range(dist.get_world_size()))).all()
    return times_s


@dataclass(frozen=True)
class Cost:
    """What an algorithm takes: how many times the latency of a message, how many times the tensor's over a link."""

    num_latencies: float
    num_tensors: float


@lru_cache
def emulated_costs(num_ranks: int) -> dict[str, Cost]:
    """What each algorithm costs: run once on links without bytes' time, and once on links without latency."""
    link = hardware.Link("a question's", 1.0, 1e15, "the question bank, 2026", kind="nvlink")
    slow = hardware.Cluster(name="latency alone", gpu=hardware.A100, gpus_per_node=num_ranks, intra=link)
    narrow = hardware.Link("a question's", 0.0, float(4 * _NUM_ITEMS), "the question bank, 2026", kind="nvlink")
    wide = hardware.Cluster(name="bytes alone", gpu=hardware.A100, gpus_per_node=num_ranks, intra=narrow)
    longest_s: dict[str, list[float]] = {}
    for where in (slow, wide):
        for_ranks = ws.run(_times_on_rank, world_size=num_ranks, cluster=where, compute="none", echo=False).values
        for name in for_ranks[0]:
            longest_s.setdefault(name, []).append(max(times_s[name] for times_s in for_ranks))
    return {name: Cost(*costs) for name, costs in longest_s.items()}


@lru_cache
def emulated_bytes_of_a_ring(num_ranks: int) -> float:
    """What each rank sends of a tensor of one byte."""
    run = ws.run(ring_all_reduce, _NUM_ITEMS, world_size=num_ranks, cluster="dgx-h100", compute="none", echo=False)
    (sent,) = {run.timeline.bytes_sent(rank) for rank in range(num_ranks)}
    return sent / (4 * _NUM_ITEMS)


def _is_emulated(variant: Variant) -> bool:
    return variant.parameters["num_ranks"] in EMULATED_RANKS


# --- week 1 ----------------------------------------------------------------------------------------------------------


@oracle("w01-sum-not-mean")
def _(num_gpus: int, learning_rate: float) -> float:
    """The learning rate that one optimizer needs to make the step that others make with a sum."""
    parts = torch.randn(num_gpus, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(num_gpus))
    weights = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = torch.optim.SGD([weights], lr=learning_rate)
    weights.grad = sum(parts, torch.zeros(5, dtype=torch.float64))
    optimizer.step()
    return (-weights.detach() / parts.mean(dim=0)).mean().item()


def adam_state(num_parameters: int) -> dict[str, int]:
    """Bytes of the tensors of mixed-precision Adam: torch's own, on a device that holds no data."""
    weights = torch.empty(num_parameters, dtype=torch.bfloat16, device="meta")
    gradients = torch.empty_like(weights)
    master = torch.nn.Parameter(torch.empty(num_parameters, dtype=torch.float32, device="meta"))
    optimizer = torch.optim.Adam([master], foreach=False)
    master.grad = torch.empty_like(master)
    optimizer.step()
    moments = [tensor for tensor in optimizer.state[master].values() if tensor.numel() > 1]
    return {
        "weights": weights.nbytes,
        "gradients": gradients.nbytes,
        "optimizer": sum(tensor.nbytes for tensor in [master, *moments]),
    }


@oracle("w01-sixteen-bytes", sample=40)
def _(billions: float) -> float:
    return sum(adam_state(round(billions * 1e9)).values()) / 1e9


@oracle("w01-amdahl-ceiling")
def _(percent: int, num_gpus: int) -> dict[str, float]:
    """Small pieces of work, dealt to the GPUs one by one; for the ceiling, tiny ones with a GPU for each."""
    loads, pieces_per_percent = [0] * num_gpus, num_gpus
    for piece in range((100 - percent) * pieces_per_percent):
        loads[piece % num_gpus] += 1
    return {"speedup": 100 / (percent + max(loads) / pieces_per_percent), "ceiling": 100 / (percent + 1 / 10**9)}


@lru_cache
def flops_per_parameter_and_token() -> float:
    """Counted by torch in a forward and a backward pass of a small network of matrix products."""
    model = torch.nn.Sequential(*[torch.nn.Linear(32, 32, bias=False) for _ in range(3)])
    tokens = torch.randn(7, 32, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    return counter.get_total_flops() / (sum(p.numel() for p in model.parameters()) * len(tokens))


@oracle("exam-time-to-train")
def _(billions: float, tokens: int, num_gpus: int, peak: int, percent: int) -> float:
    flops = flops_per_parameter_and_token() * (billions * 1e9) * (tokens * 1e9)
    per_day = sum(peak * 1e12 * percent / 100 * 24 * 3600 for _ in range(num_gpus))
    return flops / per_day


@oracle("w01-communication-efficiency")
def _(num_gpus: int, size_gb: float, rate: int, compute_ms: int) -> float:
    """The step as a timeline: compute, then every step of the ring."""
    compute_s = compute_ms / 1e3
    events = [ws.Event(rank, "main", "compute", "step", 0.0, compute_s) for rank in range(num_gpus)]
    now_s = compute_s
    for step in ring(num_gpus):
        for src, _, part in step:
            until_s = now_s + part * size_gb / rate
            events.append(ws.Event(src, "wire", "communication", "send", now_s, until_s))
        now_s = max(event.end_s for event in events)
    return 100 * ws.Timeline.of_events(events).share("compute")


@oracle("w01-recovery")
def _(few: int, factor: int, hours: int, interval_min: int, start_min: int) -> float:
    """Failures at all times between two checkpoints, as often as those of all parts of the job together."""
    stops_per_min = sum(1 / (hours * 60) for _ in range(0, few * factor, few))
    moments = [interval_min * (place + 0.5) / 1000 for place in range(1000)]
    lost_min = sum(start_min + since_checkpoint for since_checkpoint in moments) / len(moments)
    return 100 * lost_min * stops_per_min


@oracle("w01-assembly-line")
def _(timeline: ws.Timeline) -> float:
    return 100 * timeline.bubble_fraction()


@oracle("w01-straggler")
def _(timeline: ws.Timeline) -> str:
    """The rank whose work ends last; and it is the one whose all-reduce is the shortest."""
    last = max((event for event in timeline.events if event.kind != "communication"), key=lambda event: event.end_s)
    waits_s = {event.rank: event.end_s - event.start_s for event in timeline.events if event.kind == "communication"}
    assert last.rank == min(waits_s, key=waits_s.__getitem__)
    return f"Rank {last.rank}"


@oracle("w01-throughput")
def _(rate: int, num_gpus: int, percent: int) -> float:
    """Twenty steps as a timeline, and the images that are trained by its end."""
    batch, now_s, events = 64, 0.0, []
    for step in range(20):
        computed_s = now_s + batch / rate
        end_s = computed_s + (computed_s - now_s) * percent / 100
        for rank in range(num_gpus):
            events.append(ws.Event(rank, "main", "compute", f"step {step}", now_s, computed_s))
            events.append(ws.Event(rank, "main", "communication", "all-reduce", computed_s, end_s))
        now_s = end_s
    num_images = batch * sum(event.kind == "compute" for event in events)
    return num_images / ws.Timeline.of_events(events).end_s


# --- week 2 ----------------------------------------------------------------------------------------------------------


@oracle("w02-lower-bound")
def _(num_ranks: int, size_mb: int) -> float:
    (sent,) = {round(sent_by(rank, ring(num_ranks)) * size_mb, 9) for rank in range(num_ranks)}
    return sent


@oracle("w02-lower-bound", can=_is_emulated)
def _(num_ranks: int, size_mb: int) -> float:
    return emulated_bytes_of_a_ring(num_ranks) * size_mb


@oracle("w02-ring-time")
def _(num_ranks: int, size_kb: int, alpha_us: int, beta: float) -> float:
    return 1e6 * time_of(ring(num_ranks), size_kb * 1e3, alpha_us / 1e6, beta * 1e9)


def _cure(latency: float, size: float) -> str:
    """What makes the sum of the two smaller: half of the one, or half of the other."""
    return "fewer steps" if latency / 2 + size < latency + size / 2 else "more bandwidth"


@oracle("w02-which-term")
def _(num_ranks: int, size_kb: int, alpha_us: int, beta: int) -> dict[str, Any]:
    latency = time_of(ring(num_ranks), 0, alpha_us, beta)
    size = time_of(ring(num_ranks), size_kb * 1e3, 0, beta * 1e3)  # bytes, bytes/µs
    return {"latency": latency, "bytes": size, "cure": _cure(latency, size)}


@oracle("w02-which-term", can=_is_emulated)
def _(num_ranks: int, size_kb: int, alpha_us: int, beta: int) -> dict[str, Any]:
    cost = emulated_costs(num_ranks)["_ring"]
    latency, size = cost.num_latencies * alpha_us, cost.num_tensors * (size_kb * 1e3) / (beta * 1e9) * 1e6
    return {"latency": latency, "bytes": size, "cure": _cure(latency, size)}


def _pieces_on_rank(nums_items: list[int]) -> list[tuple[int, bool, int]]:
    """For tensors of these sizes: what this rank has after a reduce-scatter, and what an all-gather adds."""
    return [_pieces(num_items) for num_items in nums_items]


def _pieces(num_items: int) -> tuple[int, bool, int]:
    """How many numbers this rank has, whether each is everybody's sum, how many more come."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(num_items) + 1000.0 * rank
    dist.reduce_scatter(reduced := torch.empty(num_items // size), list(mine.chunk(size)))
    place = torch.arange(num_items).chunk(size)[rank]
    dist.all_gather(gathered := list(torch.full((num_items,), -1.0).chunk(size)), reduced)
    added = sum(part.numel() for other, part in enumerate(gathered) if other != rank and (part >= 0).all())
    return reduced.numel(), torch.equal(reduced, size * place + 1000.0 * sum(range(size))), added


_LARGEST_CHUNK = 40


@oracle("w02-after-reduce-scatter", can=lambda variant: variant.parameters["num_ranks"] == 4)
def _(chunk: int) -> dict[str, Any]:
    ((count, is_sum, more),) = {of_rank[chunk - 1] for of_rank in _emulated_pieces()}
    return {"count": count, "what": "a sum over all ranks" if is_sum else "?", "more": more}


@lru_cache
def _emulated_pieces() -> list[list[tuple[int, bool, int]]]:
    sizes = [4 * chunk for chunk in range(1, _LARGEST_CHUNK + 1)]
    return ws.run(_pieces_on_rank, sizes, world_size=4, cluster="dgx-h100", compute="none", echo=False).values


@oracle("w02-after-reduce-scatter")
def _(num_ranks: int, chunk: int) -> dict[str, Any]:
    """By hand: which rank reduces which number, and who lacks it."""
    owner = [rank for rank in range(num_ranks) for _ in range(chunk)]
    (count,) = set(Counter(owner).values())
    return {"count": count, "what": "a sum over all ranks", "more": sum(rank != 0 for rank in owner)}


@oracle("w02-bus-bandwidth")
def _(num_ranks: int, size_gb: float, time_ms: int) -> float:
    """What passes over the busiest link, by the time."""
    carried = Counter()
    for step in ring(num_ranks):
        for src, dst, part in step:
            carried[src, dst] += part * size_gb
    return max(carried.values()) / (time_ms / 1000)


@oracle("w02-server-link")
def _(num_workers: int, millions: int, dtype: str) -> float:
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    passed = 0
    for _ in range(num_workers):
        passed += torch.empty(millions * 10**6, dtype=kind, device="meta").nbytes  # a gradient in
        passed += torch.empty(millions * 10**6, dtype=kind, device="meta").nbytes  # new weights out
    return passed / 1e9


@oracle("w02-fit-alpha-beta")
def _(text: str) -> dict[str, float]:
    """A line through the two measurements that the text states."""
    found = re.findall(r"([\d.,]+) (kB|MB)\s+takes\s+([\d.,]+) µs", text)
    sizes = [float(size.replace(",", "")) * {"kB": 1, "MB": 1000}[unit] for size, unit, _ in found]
    times = [float(time.replace(",", "")) for _, _, time in found]
    rows = torch.tensor([[1.0, size] for size in sizes], dtype=torch.float64)
    alpha, per_kb = torch.linalg.solve(rows, torch.tensor(times, dtype=torch.float64)).tolist()
    return {"alpha": alpha, "beta": 1 / per_kb}


_NAMES = {
    "A ring": ("_ring", ring),
    "Recursive halving and doubling": ("_halving_and_doubling", halving_and_doubling),
    "Recursive doubling: partners exchange everything": ("_recursive_doubling", recursive_doubling),
    "Through rank 0, one message at a time": ("_star", star),
}


@oracle("w02-tree-or-ring")
def _(num_ranks: int, size_kb: int, alpha_us: int, beta: int) -> list[str]:
    return sorted(_NAMES, key=lambda name: time_of(_NAMES[name][1](num_ranks), size_kb * 1e3, alpha_us, beta * 1e3))


@oracle("w02-tree-or-ring", can=_is_emulated)
def _(num_ranks: int, size_kb: int, alpha_us: int, beta: int) -> list[str]:
    def time_us(name: str) -> float:
        cost = emulated_costs(num_ranks)[_NAMES[name][0]]
        return cost.num_latencies * alpha_us + cost.num_tensors * size_kb * 1e3 / (beta * 1e3)

    return sorted(_NAMES, key=time_us)


@oracle("w02-hierarchy", sample=60)
def _(num_nodes: int, gpus: int, size_gb: float) -> dict[str, Any]:
    """Messages that pass from one node to another, counted at node 0."""
    out_of_node = Counter()
    for step in ring(num_nodes * gpus):
        for src, dst, part in step:
            if src < gpus <= dst:
                out_of_node[src] += part * size_gb
    way = {1: "all through the network card of one of its GPUs"}[len(out_of_node)]
    # in three parts: within a node; each GPU with those of its place in other nodes, on its part; within a node
    between = sum(sent_by(0, ring(num_nodes)) * size_gb / gpus for _ in range(gpus))
    return {"layered": between, "flat": sum(out_of_node.values()), "way": way}


# --- exams -----------------------------------------------------------------------------------------------------------


@oracle("exam-four-pillars")
def _(billions: float, memory_gb: int, num_gpus: int) -> str:
    """What one GPU holds, whole or as one part."""
    whole, part = (sum(adam_state(round(billions * 1e9 / parts)).values()) / 1e9 for parts in (1, num_gpus))
    assert whole > memory_gb > part
    return f"Splitting the model over the {num_gpus} GPUs"


@oracle("exam-ring-or-server", sample=60)
def _(num_workers: int, size_gb: float) -> dict[str, Any]:
    def server(number: int) -> float:  # its link carries all of a star's messages, and itself is no worker
        return sum(part for step in star(number + 1) for _, _, part in step) * size_gb

    def grows(carried: Callable[[int], float]) -> str:
        ratio = carried(2 * num_workers) / carried(num_workers)
        return "double" if ratio > 1.9 else "stay nearly as they are" if ratio < 1.1 else "?"

    def in_ring(number: int) -> float:
        return sent_by(1, ring(number)) * size_gb

    return {
        "server": server(num_workers),
        "ring": in_ring(num_workers),
        "server_grows": grows(server),
        "ring_grows": grows(in_ring),
    }


@oracle("exam-straggler")
def _(num_workers: int, fast_ms: int, factor: int) -> dict[str, float]:
    """Workers that take batch after batch, event by event, for ten batches of the slow one."""
    pace_ms = [fast_ms] * num_workers + [factor * fast_ms]
    end_ms = 10 * pace_ms[-1]
    now_ms = done = 0
    while now_ms < end_ms:  # a step ends when the last worker has come
        now_ms, done = now_ms + max(pace_ms), done + len(pace_ms)
    synchronous = done / now_ms * 1000

    ends = [(pace, worker) for worker, pace in enumerate(pace_ms)]
    heapq.heapify(ends)
    updates, pulled_at, ages = 0, [0] * len(pace_ms), []
    while ends[0][0] <= end_ms:
        now_ms, worker = heapq.heappop(ends)
        if worker == num_workers:
            ages.append(updates - pulled_at[worker])
        updates += 1
        pulled_at[worker] = updates
        heapq.heappush(ends, (now_ms + pace_ms[worker], worker))
    (stale,) = set(ages)
    return {"synchronous": synchronous, "asynchronous": updates / end_ms * 1000, "stale": stale}


@oracle("exam-checkpointing")
def _(num_segments: int, length: int, block_mb: int, input_mb: int) -> dict[str, float]:
    """A forward and a backward pass, block by block: what is held, and what is computed."""

    def step(is_checkpointed: bool) -> tuple[float, int]:
        held, peak, computed = {}, 0, 0
        for block in range(num_segments * length):
            computed += 1
            if not is_checkpointed:
                held[block] = block_mb
            elif block % length == 0:
                held[block] = input_mb
            peak = max(peak, sum(held.values()))
        for segment in reversed(range(num_segments)):
            blocks = range(segment * length, (segment + 1) * length)
            for block in blocks if is_checkpointed else ():
                computed += 1
                held[block] = block_mb  # the first one's input is a part of it
                peak = max(peak, sum(held.values()))
            for block in reversed(blocks):
                computed += 2
                del held[block]
        assert not held
        return peak, computed

    (plain, plain_work), (checkpointed, work) = step(False), step(True)
    return {"plain": plain, "checkpointed": checkpointed, "longer": 100 * (work / plain_work - 1)}


@oracle("exam-training-job", sample=40)
def _(billions: float, tokens: int, num_gpus: int, percent: int) -> dict[str, float]:
    flops = flops_per_parameter_and_token() * (billions * 1e9) * (tokens * 1e9)
    gpu_hours = flops / (989e12 * percent / 100) / 3600
    state = adam_state(math.ceil(billions * 1e9 / num_gpus))  # one GPU's part
    return {
        "flops": flops / 1e21,
        "days": gpu_hours / num_gpus / 24,
        "gb": sum(state.values()) / 1e9,
        "cost": gpu_hours * 2.5 / 1000,
    }


@oracle("exam-ddp-efficiency")
def _(num_gpus: int, batch: int, compute_ms: int, comm_ms: int, hidden_percent: int) -> dict[str, float]:
    """Both steps as timelines, which are asked."""

    def step(hidden_ms: float) -> ws.Timeline:
        start_ms = compute_ms - hidden_ms
        return ws.Timeline.of_events(
            event
            for rank in range(num_gpus)
            for event in (
                ws.Event(rank, "main", "compute", "step", 0.0, compute_ms / 1e3),
                ws.Event(rank, "wire", "communication", "all_reduce", start_ms / 1e3, (start_ms + comm_ms) / 1e3),
            )
        )

    apart, together = step(0), step(comm_ms * hidden_percent / 100)
    return {
        "apart": num_gpus * batch / apart.end_s,
        "exposed": 1e3 * together.exposed_communication_s(0),
        "efficiency": 100 * together.time_s(0, "compute") / together.end_s,
    }


@oracle("exam-top-k")
def _(num_gpus: int, millions: int, percent: float) -> dict[str, Any]:
    num_kept = round(millions * 1e6 * percent / 100)
    kept_mb = (
        sum(torch.empty(num_kept, dtype=kind, device="meta").nbytes for kind in (torch.float32, torch.int32)) / 1e6
    )
    sent = {number: sent_by(0, ring_all_gather(number)) * kept_mb for number in (num_gpus, 2 * num_gpus)}
    dense_mb = torch.empty(millions * 10**6, dtype=torch.float32, device="meta").nbytes / 1e6
    ratio = sent[2 * num_gpus] / sent[num_gpus]
    return {
        "dense": sent_by(0, ring(num_gpus)) * dense_mb,
        "sparse": sent[num_gpus],
        "grows": "about doubles" if ratio > 1.9 else "stays nearly as it is" if ratio < 1.1 else "?",
    }


@oracle("exam-sharding", sample=40)
def _(billions: int, num_gpus: int) -> dict[str, float]:
    """The bytes of tensors, whole or one part of each."""
    whole = adam_state(billions * 10**9)
    part = adam_state(math.ceil(billions * 10**9 / num_gpus))
    sharded_first = ("optimizer", "gradients", "weights")
    stages = [
        sum((part if name in sharded_first[:stage] else whole)[name] for name in whole) / 1e9 for stage in range(4)
    ]
    return dict(zip(("ddp", "one", "two", "three"), stages, strict=True))


@oracle("exam-tensor-parallel")
def _(num_layers: int, width: int, num_gpus: int, batch: int, length: int) -> dict[str, float]:
    """The layers' products on tensors without data: where a rank has a partial sum of the output, all must add."""
    tokens = torch.empty(batch * length, width, dtype=torch.bfloat16, device="meta")
    heads = torch.empty(width, math.ceil(width / num_gpus), dtype=torch.bfloat16, device="meta")
    hidden = torch.empty(width, math.ceil(4 * width / num_gpus), dtype=torch.bfloat16, device="meta")
    reduced = []
    for _ in range(num_layers):
        for by_columns in (heads, hidden):  # attention, MLP
            partial = (tokens @ by_columns) @ by_columns.t()
            assert partial.shape == tokens.shape
            reduced.append(partial.nbytes / 2**20)
    (size,) = set(reduced)
    return {"collectives": len(reduced), "size": size, "sent": sum(sent_by(0, ring(num_gpus)) * one for one in reduced)}


@oracle("exam-pipeline-bubble", sample=40)
def _(stages: int, percent: int) -> int:
    """Schedules played for more and more micro-batches, until the idle part is small enough."""

    def is_enough(num_pieces: int) -> bool:
        end = 0
        free_at = [0] * stages
        arrived = deque([0] * num_pieces)
        for direction, work in (("forward", 1), ("backward", 2)):
            for stage in range(stages) if direction == "forward" else reversed(range(stages)):
                for place in range(num_pieces):
                    free_at[stage] = arrived[place] = max(free_at[stage], arrived[place]) + work
            end = max(free_at)
        idle = sum(end - num_pieces * 3 for _ in range(stages))
        return 100 * idle <= percent * end * stages

    few, many = 0, 1000
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if is_enough(middle) else (middle, many)
    return many


def agree(found: Any, wanted: Any, rel: float = 1e-6) -> bool:
    """True for the same text, the same order, or numbers that differ by rounding alone; of every gap."""
    if isinstance(wanted, dict):
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(agree(found[name], wanted[name], rel) for name in wanted)
        )
    if isinstance(wanted, str) or (isinstance(wanted, Sequence) and wanted and isinstance(wanted[0], str)):
        return found == wanted
    return math.isclose(found, wanted, rel_tol=rel)
