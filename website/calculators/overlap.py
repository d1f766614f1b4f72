"""How much communication does backward hide?

DDP fills buckets with gradients in the order in which backward computes them, from the last layer to the first. A full
bucket is all-reduced at once, while backward goes on; all-reduces go one after another. What backward does not cover is
**exposed**: it makes the step longer. Efficiency is the fraction of the step in which nothing is exposed. Let F and W
be the times of forward and backward, and bucket k take c_k and be full after a fraction w_k of backward. It has been
reduced at

> e_k = max(F + w_k · W, e_(k − 1)) + c_k

and the step ends at the later of F + W and the last e_k.

The last bucket is not full before backward ends, so it is always exposed. With small buckets it is small, but each
all-reduce pays its latency; with large ones the first leaves late, and the last is large. A bucket is closed once it
has *reached* its size, as in torch, and no gradient is split, so it may be much larger: in these Llamas the gradient of
the embedding comes last, and only the LM head's is as large.

The GPU computes at the rate of large matmuls, 78 to 82% of its peak (`worldsize.operators`), faster than a real step
does: at an MFU of 40% backward takes twice as long and hides twice as much. Gradients have 16 bits, and
`worldsize.pricing` has the time of each all-reduce. Not counted: the optimizer's step, and that NCCL's kernels slow
down those of backward.

Each bullet changes the settings at the start. A sequence has the model's context length: 1,024 tokens for GPT-2, 2,048
for TinyLlama, 4,096 for Llama 2 and 8,192 for Llama 3.

- Move the bucket size. At 1 MiB the all-reduces take 52 ms and backward 39, so 15 ms are exposed; at 25 MiB it is 3.7.
  The last row of the table, a single bucket, hides nothing.
- Set 1,024 GPUs. Latencies are longer, and 64 MiB leave half as much exposed as 25, torch's default.
- Set 2 sequences on 64 GPUs. Backward takes twice as long, and the exposed time is little more than that of the last
  bucket.
- Set 4 sequences on 1,024 H100. In the table of [week 3](../weeks/week03_ddp_from_first_principles.ipynb) a single
  bucket is best there, because its formula assumes one ring of all ranks. NCCL's trees have less latency: here 25 MiB
  leaves 1 ms exposed, and a single bucket 12 ms.
- Set Llama 3 8B with 1 sequence on each of 64 H100, the case of [week 5](../weeks/week05_say_less.ipynb): 1% of the
  step is exposed, nearly all of it the last bucket. Week 5 exposes nothing there, because it counts no buckets. On A100
  with one Ethernet card a node it is more than half, and compression would pay.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from calculators import charts
from calculators.calculator import Answer, Question
from calculators.collectives import CLUSTERS, placed
from worldsize import hardware, operators
from worldsize.event import COMMUNICATION, Event
from worldsize.models import shapes
from worldsize.pricing import price
from worldsize.timeline import Timeline
from worldsize.units import MIB, format_bytes, format_time_s

_DTYPE, _DTYPE_BYTES, _STATE_BYTES = "bfloat16", 2, 16
GPT_2 = shapes.Shape(
    name="gpt-2-124m",
    family="gpt",
    num_layers=12,
    width=768,
    num_heads=12,
    num_kv_heads=12,
    hidden_width=4 * 768,
    vocab_size=50_257,
    context_length=1024,
    is_tied=True,
    source="Radford et al. 2019, table 2; heads: hparams.json of openai/gpt-2 (2019), recalled in 2026",
)
TINY_LLAMA = replace(
    shapes.shape("llama-2-7b"),
    name="tiny-llama-1.1b",
    num_layers=22,
    width=2048,
    num_kv_heads=4,
    hidden_width=5632,
    context_length=2048,
    source="README of jzhang38/TinyLlama, 2024",
)
MODELS = {shape.name: shape for shape in (GPT_2, TINY_LLAMA, shapes.shape("llama-2-7b"), shapes.shape("llama-3-8b"))}
_SHOWN = (1, 8, 25, 64, 128, 512)
QUESTION = Question(
    "TinyLlama has 1.1 billion parameters. On 64 A100, with a sequence of 2,048 tokens on each, backward takes 38.9 "
    "ms, and the all-reduces of its gradients, in buckets of 25 MiB, take 40.5. How many ms of them are exposed?",
    "ms",
    "The first bucket, the LM head's gradient, is full 2.1 ms into backward. From then on the network is never idle, "
    "so it is done after 2.1 + 40.5 ms, 3.7 ms after backward.",
)
LABELS = {
    "cluster": "nodes of 8 GPUs",
    "num_gpus": "GPUs",
    "bucket_cap_mb": "bucket size, MiB",
    "num_sequences": "sequences per GPU",
}
RANGES = {
    "model": {name: name for name in MODELS},
    "cluster": CLUSTERS,
    "num_gpus": (2, 1024, "x2"),
    "num_sequences": (1, 64, "x2"),
    "bucket_cap_mb": (1, 512, "x2"),
}


class Gradient(NamedTuple):
    """A parameter's gradient, and the FLOPs for each token that backward computes before it is there."""

    layer: str
    num_parameters: int
    flops: float


def answer(
    model: str = TINY_LLAMA.name,
    cluster: str = "a100-hdr",
    num_gpus: int = 64,
    num_sequences: int = 1,
    bucket_cap_mb: int = 25,
) -> Answer:
    """The step with this bucket size, beside others."""
    shape, place = MODELS[model], placed(cluster, num_gpus)
    caps = sorted({*_SHOWN, bucket_cap_mb})
    found = {float(cap): step(shape, place, num_gpus, num_sequences, cap) for cap in caps}
    found[math.inf] = step(shape, place, num_gpus, num_sequences, math.inf)
    one = found[bucket_cap_mb]
    exposed_s, step_s = one.exposed_communication_s(0), one.end_s
    state_bytes, memory = _STATE_BYTES * shape.num_parameters, place.gpu.memory_bytes
    too_large = (
        f" With Adam, DDP would hold {format_bytes(state_bytes)} on each GPU, which has {format_bytes(memory)}: "
        "ZeRO shards that."
    )
    return Answer(
        f"Of {format_time_s(one.time_s(0, COMMUNICATION))} of all-reduces {format_time_s(exposed_s)} are exposed: the "
        f"step takes {format_time_s(step_s)}, an efficiency of {1 - exposed_s / step_s:.1%}."
        + (too_large if state_bytes > memory else ""),
        exposed_s * 1e3,
        ("bucket size", "all-reduces", "their time", "exposed", "step", "efficiency"),
        [_row(cap, one) for cap, one in found.items()],
        charts.spans(
            (
                ("GPU" if event.is_work else "network", event.kind, event.name, event.start_s * 1e3, event.end_s * 1e3)
                for event in sorted(one.events, key=lambda e: (not e.is_work, e.start_s))
            ),
            "ms",
            charts.KINDS,
        ),
    )


def _row(cap: float, one: Timeline) -> list[str]:
    calls = sum(event.kind == COMMUNICATION for event in one.events)
    exposed_s = one.exposed_communication_s(0)
    return [
        f"{cap:.0f} MiB" if cap < math.inf else "all in one",
        str(calls),
        format_time_s(one.time_s(0, COMMUNICATION)),
        format_time_s(exposed_s),
        format_time_s(one.end_s),
        f"{1 - exposed_s / one.end_s:.1%}",
    ]


def step(
    shape: shapes.Shape, place: hardware.Cluster, num_gpus: int, num_sequences: int, bucket_cap_mb: float
) -> Timeline:
    """Rank 0 of a step: each layer's work, and an all-reduce for each bucket, one after another."""
    length, num_tokens = shape.context_length, num_sequences * shape.context_length
    rate = operators.flops_per_s("matmul", _DTYPE, place.gpu)
    now_s = shape.flops(num_tokens, length) / 3 / rate
    events = [Event(0, "compute", "forward", "forward", 0.0, now_s)]
    free_s, waiting_bytes, layer, began_s = 0.0, 0, "", now_s
    prices_s: dict[int, tuple[float, float]] = {}
    gradients = gradients_of(shape, length)
    for index, one in enumerate(gradients):
        if one.layer != layer and now_s > began_s:
            events.append(Event(0, "compute", "backward", f"backward of {layer}", began_s, now_s))
            began_s = now_s
        layer = one.layer
        now_s += one.flops * num_tokens / rate
        waiting_bytes += _DTYPE_BYTES * one.num_parameters
        if waiting_bytes >= bucket_cap_mb * MIB or index == len(gradients) - 1:
            if waiting_bytes not in prices_s:
                cost = price("all_reduce", waiting_bytes, range(num_gpus), place)
                prices_s[waiting_bytes] = cost.time_s, cost.sent_bytes_per_rank
            time_s, sent_bytes = prices_s[waiting_bytes]
            start_s = max(now_s, free_s)
            free_s = start_s + time_s
            name = f"all-reduce of {format_bytes(waiting_bytes)}"
            events.append(Event(0, COMMUNICATION, COMMUNICATION, name, start_s, free_s, waiting_bytes, sent_bytes))
            waiting_bytes = 0
    if now_s > began_s:
        events.append(Event(0, "compute", "backward", f"backward of {layer}", began_s, now_s))
    return Timeline.of_events(events)


def gradients_of(shape: shapes.Shape, length: int) -> list[Gradient]:
    """The gradients of a dense decoder in the order in which backward computes them, from the last layer to the first.

    `Shape` counts parameters and FLOPs by layer; here a layer's FLOPs are spread evenly over its parameters.
    """
    width, kv_width, hidden = shape.width, shape.kv_width, shape.hidden_width
    if shape.family == "gpt":  # each matrix with its bias; query, key and value are one
        norm = [width, width]
        mlp, output = [hidden * width, width, hidden * width, hidden], [width * width, width]
        inputs = [width * (width + 2 * kv_width), width + 2 * kv_width]
        embeddings = [shape.context_length * width, shape.vocab_size * width]
    else:
        norm, mlp, output = [width], [hidden * width] * 3, [width * width]
        inputs, embeddings = [width * kv_width, width * kv_width, width * width], [shape.vocab_size * width]
    head = norm if shape.is_tied else [shape.vocab_size * width, *norm]
    layer_flops = 2 * shape.layer_flops(length)
    found = [Gradient("LM head", count, 0 if index else 2 * shape.head_flops) for index, count in enumerate(head)]
    found += [
        Gradient(f"layer {layer}", count, layer_flops * count / shape.num_layer_parameters)
        for layer in reversed(range(shape.num_layers))
        for count in (*mlp, *norm, *output, *inputs, *norm)
    ]
    return found + [Gradient("embedding", count, 0) for count in embeddings]
