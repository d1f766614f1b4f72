"""The answers of week 3's templates, each computed by another way than the template's own formula."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from quiz_oracles import oracle, ring, sent_by, time_of
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import worldsize as ws
from worldsize import emulate, hardware

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@oracle("w03-efficiency")
def _(compute_ms: int, comm_ms: int, factor: int) -> float:
    """Small pieces of work, of which a faster GPU does several in the time of one, then the communication."""
    events, now_s = [], 0.0
    for _ in range(0, 6 * compute_ms, factor):  # sixths of a millisecond of the old GPU
        events.append(ws.Event(0, "main", "compute", "piece", now_s, now_s + 1 / 6000))
        now_s += 1 / 6000
    events.append(ws.Event(0, "main", "communication", "all-reduce", now_s, now_s + comm_ms / 1e3))
    return 100 * ws.Timeline.of_events(events).share("compute")


# --- overlap ---------------------------------------------------------------------------------------------------------


def step_played(parts_ms: list[float], sends_ms: list[float], forward_ms: float) -> float:
    """Milliseconds of a step, played in steps of its link: what is ready waits for the link, one after the other."""
    now_ms, ready = forward_ms, []
    for part_ms, send_ms in zip(parts_ms, sends_ms, strict=True):
        now_ms += part_ms
        ready.append((now_ms, send_ms))
    events = [ws.Event(0, "main", "backward", "backward", 0.0, now_ms)]
    for ready_ms, send_ms in ready:
        free_ms = max((event.end_s for event in events if event.stream == "link"), default=0.0)
        start_ms = ready_ms if ready_ms > free_ms else free_ms
        events.append(ws.Event(0, "link", "communication", "all-reduce", start_ms, start_ms + send_ms))
    return ws.Timeline.of_events(events).end_s


@oracle("w03-overlap-limit")
def _(num_parts: int, layer_ms: int, part_ms: float) -> float:
    return step_played([layer_ms] * num_parts, [part_ms] * num_parts, num_parts * layer_ms / 2)


def _overlapping_step(num_parts: int, layer_ms: int, part_ms: float) -> float:
    """Virtual milliseconds of a step on this rank, whose link carries 10 kB in a millisecond."""
    emulate.spend(num_parts * layer_ms / 2e3)
    under_way = []
    for part in torch.ones(num_parts, round(10_000 * part_ms / 4)):
        emulate.spend(layer_ms / 1e3)
        under_way.append(dist.all_reduce(part, async_op=True))
    for work in under_way:
        work.wait()
    return 1e3 * emulate.elapsed()


@oracle("w03-overlap-limit", sample=20)
def _(num_parts: int, layer_ms: int, part_ms: float) -> float:
    """Two ranks with real all-reduces, on a link without latency."""
    link = hardware.Link("a question's", 0.0, 1e7, "the question bank, 2026", kind="pcie")
    two = hardware.Cluster(name="two", gpu=hardware.A100, gpus_per_node=2, intra=link, library="gloo")
    step = (num_parts, layer_ms, part_ms)
    return max(ws.run(_overlapping_step, *step, world_size=2, cluster=two, compute="none", echo=False).values)


@oracle("w03-bucket-size")
def _(num_ranks: int, alpha_us: int, backward_ms: int, bytes_ms: int) -> list[str]:
    """Layer by layer, bucket by bucket, and in each bucket the ring's messages."""
    times_ms = {}
    # a tensor of 1 over a link on which the bytes of a whole ring take as long as is said
    bandwidth = sent_by(0, ring(num_ranks)) / bytes_ms
    for name, layers in {
        "1 bucket": 64,
        "4 buckets of 16 layers": 16,
        "16 buckets of 4 layers": 4,
        "64 buckets of 1 layer": 1,
    }.items():
        parts_ms = [sum([backward_ms / 64] * layers) for _ in range(0, 64, layers)]
        send_ms = time_of(ring(num_ranks), layers / 64, alpha_us / 1e3, bandwidth)
        times_ms[name] = step_played(parts_ms, [send_ms] * len(parts_ms), backward_ms / 2)
    return sorted(times_ms, key=times_ms.__getitem__)


# --- what torch does -------------------------------------------------------------------------------------------------


@lru_cache
def hooks_of_a_chain(num_layers: int) -> list[int]:
    """The layers of a network in the order in which their gradients become ready."""
    layers, arrived = [nn.Linear(1, 1, bias=False) for _ in range(num_layers)], []
    for place, layer in enumerate(layers):
        layer.weight.register_post_accumulate_grad_hook(lambda _, place=place: arrived.append(place))
    nn.Sequential(*layers)(torch.ones(1, 1)).sum().backward()
    return arrived


@oracle("w03-order")
def _(num_layers: int, layer_mb: int, cap_mb: int, layer_ms: float) -> dict[str, Any]:
    """Buckets cut by torch's own function, of gradients in the order in which torch has them ready; a byte for a MB."""
    order = hooks_of_a_chain(num_layers)
    gradients = [torch.empty(layer_mb, dtype=torch.uint8) for _ in order]
    buckets, _ = dist._compute_bucket_assignment_by_size(gradients, [cap_mb])
    first = {order[place] for place in buckets[0]}
    is_at_end = first == set(range(num_layers - len(first), num_layers))
    return {
        "which": "last" if is_at_end else "first",
        "why": "ready first" if first == set(order[: len(first)]) else "?",
        "left": sum(layer_ms for _ in first),
        "count": len(buckets),
    }


@lru_cache
def flops_and_bytes(num_layers: int, num_rows: int) -> tuple[int, int]:
    """Counted by torch, of a step of linear layers on a device that holds no data."""
    model = nn.Sequential(*[nn.Linear(64, 64, bias=False, device="meta") for _ in range(num_layers)])
    rows = torch.empty(num_rows, 64, device="meta", requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model(rows).sum().backward()
    return counter.get_total_flops(), sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)


@oracle("w03-bytes-per-flop")
def _(rows: int, teraflops: int, beta: int, larger: int, more: int) -> dict[str, float]:
    def added_percent(num_layers: int, num_rows: int) -> float:
        flops, size_bytes = flops_and_bytes(num_layers, num_rows)
        return 100 * time_of(ring(2), size_bytes, 0.0, beta * 1e9) / (flops / (teraflops * 1e12))

    return {
        "now": added_percent(2, rows),
        "model": added_percent(2 * larger, rows),
        "batch": added_percent(2, more * rows),
    }


def step_us(millions: float, num_rows: float, teraflops: float) -> float:
    """Microseconds of compute, by torch's count for a layer of 64 rows."""
    flops, size_bytes = flops_and_bytes(1, 64)
    return flops / (size_bytes / 4) / 64 * (millions * 1e6) * num_rows / (teraflops * 1e12) * 1e6


@oracle("w03-break-even")
def _(millions: float, rows: int, teraflops: int, beta: int, latency_us: int) -> dict[str, Any]:
    """One GPU and two, timed; and the batch for which both are equal where latency is nothing, by bisection."""

    def two_are_faster(size: float, num_rows: float, latency: float) -> bool:
        # two steps of the ring, each with half of the latency
        sent_us = time_of(ring(2), 4e6 * size, latency / len(ring(2)), beta * 1e3)
        return step_us(size, num_rows / 2, teraflops) + sent_us < step_us(size, num_rows, teraflops)

    assert not two_are_faster(millions, rows, latency_us)
    low, high = 1.0, 1e6
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if two_are_faster(1e3, middle, 0.0) else (middle, high)
    larger = "faster on two" if two_are_faster(10 * millions, rows, latency_us) else "slower on two as well"
    return {"least": low, "larger": larger}


def _accumulated(nums_batches: tuple[int, ...]) -> None:
    """For each number of batches: a step of torch's DDP that adds up that many, marked by a span with the number."""
    parallel = nn.parallel.DistributedDataParallel(nn.Linear(_WIDTH, _WIDTH, bias=False))
    rows = torch.ones(1, _WIDTH)
    for num_batches in nums_batches:
        with ws.span(str(num_batches), kind="step"):
            emulate.spend(1.0)  # what is sent in it shows by its time
            with parallel.no_sync():
                for _ in range(num_batches - 1):
                    parallel(rows).sum().backward()
            parallel(rows).sum().backward()


_WIDTH = 48  # its square divides by the ranks
_BATCHES = (3, 4, 5, 6, 8, 10, 12, 16)


@lru_cache
def sent_per_byte(num_ranks: int) -> dict[int, float]:
    """By the number of batches: what rank 0 sends in a step of DDP for each byte of the gradient."""
    run = ws.run(_accumulated, _BATCHES, world_size=num_ranks, cluster="dgx-h100", compute="none", echo=False)
    sent = dict.fromkeys(_BATCHES, 0.0)
    begun = {num: min(event.start_s for event in run.timeline.of(0) if event.name == str(num)) for num in _BATCHES}
    for event in run.timeline.of(0):
        if (event.name, event.kind) == ("all_reduce", "communication"):
            sent[max(num for num in _BATCHES if begun[num] < event.start_s)] += event.sent_bytes
    return {num: size_bytes / (4 * _WIDTH**2) for num, size_bytes in sent.items()}


@oracle("w03-no-sync", can=lambda variant: variant.parameters["num_ranks"] in (4, 8))
def _(num_ranks: int, millions: int, batches: int) -> float:
    """Torch's DDP on emulated ranks."""
    return sent_per_byte(num_ranks)[batches] * torch.empty(millions * 10**6, device="meta").nbytes / 1e9


@oracle("w03-no-sync")
def _(num_ranks: int, millions: int, batches: int) -> float:
    """Batch after batch by hand: who is silent sends nothing."""
    sent = 0.0
    for batch in range(1, batches + 1):
        is_silent = batch < batches
        sent += 0.0 if is_silent else sent_by(0, ring(num_ranks))
    return sent * torch.empty(millions * 10**6, device="meta").nbytes / 1e9


class Language(nn.Module):
    """An embedding, something between, and an output layer with the same weight."""

    def __init__(self, vocabulary: int, width: int, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, **options)
        self.between = nn.Linear(width, width, bias=False, **options)
        self.output = nn.Linear(width, vocabulary, bias=False, **options)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.output(self.between(self.embedding(tokens)))


@lru_cache
def hooks_of_a_tied_weight() -> list[str]:
    """What happens in a backward pass, in order: hooks of the parameters, and the ends of two modules' backward."""
    model, seen = Language(5, 3), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(name))
    model(torch.tensor([1, 2])).sum().backward()
    return seen


@oracle("w03-tied")
def _(vocabulary: int, width: int, dtype: str) -> dict[str, Any]:
    model = Language(vocabulary, width, device="meta", dtype=DTYPES[dtype])
    (weight,) = [parameter for parameter in model.parameters() if len(parameter) == vocabulary]
    hooks = hooks_of_a_tied_weight()
    is_last = hooks.index("embedding.weight") > hooks.index("between.weight")
    return {
        "size": weight.nbytes / 1e6,
        "times": {1: "once", 2: "twice"}[hooks.count("embedding.weight")],
        "when": "the input embedding" if is_last else "the output layer",
    }


@oracle("w03-accumulated-efficiency")
def _(compute_ms: int, comm_ms: int, num_micro: int) -> float:
    """Two optimizer steps as a timeline, in which only the last micro-batch of each is followed by an all-reduce."""
    events, now_s = [], 0.0
    for micro in range(1, 2 * num_micro + 1):
        events.append(ws.Event(0, "main", "compute", "micro-batch", now_s, now_s + compute_ms / 1e3))
        now_s += compute_ms / 1e3
        if micro % num_micro == 0:
            events.append(ws.Event(0, "main", "communication", "all-reduce", now_s, now_s + comm_ms / 1e3))
            now_s += comm_ms / 1e3
    return 100 * ws.Timeline.of_events(events).share("compute")
