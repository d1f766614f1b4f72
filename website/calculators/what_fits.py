"""What fits on a GPU?

Training keeps 16 bytes for each parameter: 2 each for the weight and its gradient in 16 bits, and 12 for float32: a
copy of the weight and Adam's two moments. ZeRO shards these over the data-parallel ranks: stage 1 the optimizer state,
stage 2 the gradients too, stage 3 the weights too. Stages 2 and 3 also hold one layer's whole gradients, and stage 3
two layers' whole weights: the one in use and the next. Activations come on top: they grow with the tokens of a
micro-batch, and recomputation trades them for time: "full" keeps only the input of each layer, and "selective"
recomputes norms and activation functions, and for GPT the attention scores. The numbers are estimates of
[`worldsize.planning`](../docs/plan.md). Four measured peaks were 1.09 to 1.73 times theirs. So up to 58% of a GPU's
memory fits, up to 92% perhaps, and more hardly.

[Week 7](../weeks/week07_zero_and_fsdp.ipynb) writes these stages, and [week
6](../weeks/week06_precision_and_activations.ipynb) measures the activations.
"""

from __future__ import annotations

from collections.abc import Mapping

from calculators import charts
from calculators.calculator import Answer, Question
from worldsize import hardware
from worldsize.models import shapes
from worldsize.planning.layout import RECOMPUTES, ZERO_STAGES, Plan
from worldsize.planning.memory_estimate import MemoryEstimate, fits, held
from worldsize.units import format_bytes

GPUS = {"A100 80 GB": "a100-hdr", "H100 80 GB": "h100-ndr", "H200 141 GB": "h200-ndr", "B200 180 GB": "b200-ndr"}
PARTS = ("weights", "gradients", "optimizer state", "activations")
QUESTION = Question(
    "Llama 3 8B trains with plain data parallelism on 8 GPUs, a sequence of 8,192 tokens at a time, and recomputes "
    "everything. How many GB does each GPU hold?",
    "GB",
    "8.03 billion parameters at 16 bytes are 128 GB, whatever the number of GPUs; the rest is activations.",
)
LABELS = {
    "num_gpus": "GPUs",
    "gpu": "GPU",
    "tp": "tensor parallel",
    "micro_batch": "sequences per micro-batch",
    "length": "tokens per sequence",
}
RANGES = {
    "model": {name: name for name in shapes.SHAPES if name not in ("tiny", "small")},
    "gpu": GPUS,
    "num_gpus": (8, 4096, "x2"),
    "tp": [1, 2, 4, 8],
    "micro_batch": [1, 2, 4, 8],
    "length": [2048, 4096, 8192, 16384, 32768],
    "recompute": list(RECOMPUTES),
}


def answer(
    model: str = "llama-3-8b",
    gpu: str = "h100-ndr",
    num_gpus: int = 8,
    tp: int = 1,
    micro_batch: int = 1,
    length: int = 8192,
    recompute: str = "full",
) -> Answer:
    """The bytes of each stage of ZeRO on the fullest GPU."""
    shape, cluster = shapes.shape(model), hardware.cluster(gpu)
    if shape.num_heads % tp or shape.num_kv_heads % tp:
        raise ValueError(f"{shape.name} has {shape.num_kv_heads} key/value heads; {tp} ranks cannot share them evenly")
    memory = cluster.gpu.memory_bytes
    found = {stage: _held(shape, cluster, num_gpus, tp, micro_batch, length, recompute, stage) for stage in ZERO_STAGES}
    said = {stage: said_of(one.total_bytes, memory) for stage, one in found.items()}
    return Answer(
        f"{shape.name} on {num_gpus:,} GPUs of {format_bytes(memory)} {_verdict(said)}.",
        found[0].total_bytes / 1e9,
        ("ZeRO", "of the GPU's memory", "total", *PARTS),
        [
            [
                _name(stage),
                f"{one.total_bytes / memory:.0%}, {said[stage]}",
                format_bytes(one.total_bytes),
                *map(format_bytes, _parts(one)),
            ]
            for stage, one in found.items()
        ],
        charts.bars(
            (
                (_name(stage), part, amount / 1e9)
                for stage, one in found.items()
                for part, amount in zip(PARTS, _parts(one), strict=True)
            ),
            "GB on the fullest GPU",
            memory / 1e9,
            f"the GPU's {format_bytes(memory)}",
            PARTS,
        ),
    )


def _held(
    shape: shapes.Shape,
    cluster: hardware.Cluster,
    num_gpus: int,
    tp: int,
    micro_batch: int,
    length: int,
    recompute: str,
    stage: int,
) -> MemoryEstimate:
    dp = num_gpus // tp
    return held(
        Plan(
            model=shape,
            cluster=cluster,
            global_batch=dp * micro_batch,
            length=length,
            dp=dp,
            tp=tp,
            pp=1,
            cp=1,
            micro_batch=micro_batch,
            num_chunks=1,
            recompute=recompute,
            zero_stage=stage,
        )
    )


def _parts(one: MemoryEstimate) -> tuple[float, ...]:
    return one.weights_bytes, one.gradients_bytes, one.optimizer_bytes, one.activations_bytes


def said_of(total_bytes: float, memory_bytes: float) -> str:
    """Whether an estimate fits, in the library's words, and "no" if it does not."""
    return fits(total_bytes, memory_bytes) if total_bytes <= memory_bytes else "no"


def _verdict(said: Mapping[int, str]) -> str:
    """What fits from which stage of ZeRO on: a stage holds no more than the one before it."""
    stages = {word: [stage for stage, one in said.items() if one == word] for word in ("yes", "perhaps", "hardly")}
    parts = [f"{word} fits {' and '.join(map(_where, of))}" for word, of in stages.items() if of and word != "yes"]
    if sure := stages["yes"]:
        parts.insert(0, f"fits from ZeRO stage {sure[0]} on" if sure[0] else "fits without ZeRO")
    return "; ".join(parts) or "does not fit, ZeRO or not"


def _where(stage: int) -> str:
    return f"with ZeRO stage {stage}" if stage else "without ZeRO"


def _name(stage: int) -> str:
    return f"stage {stage}" if stage else "none"
