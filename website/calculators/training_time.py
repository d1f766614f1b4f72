"""How long does a training run take?

A decoder with N parameters that reads D tokens computes about 6ND FLOPs: two for each parameter and token in forward,
four in backward. Attention comes on top, and grows with the length of a sequence. The fraction of its peak that a GPU
reaches is the model FLOPs utilization, MFU, and there are two definitions: [week
1](../weeks/week01_why_one_gpu_is_not_enough.ipynb) counts 6ND alone, and PaLM's paper and most published figures count
attention too, with all its scores. The same MFU then stands for a longer run. The table has both.

Days and GPU-hours follow by division, and dollars by rents listed in May 2026, which vary by a factor of three; all for
a run that never stops: [failures and checkpoints](checkpoints.md) come on top.

- Choose llama-3-405b, 15.6T tokens, 16,384 H100 and 40%, the exercise of week 1. By 6ND it takes 67.8 days: the
  exercise has 67.7, because it rounds N from 405.9 to 405 billion. With attention over 8,192 tokens it takes 73.1.
- The model card of Llama 3.1 states 30.84 million GPU-hours of H100 for the 405B. Move the MFU until the GPU-hours
  agree: 37 to 38% with attention, 34 to 35% by 6ND. The paper states 38 to 43% for its steps; the hours may include
  lost work too.
- Choose 32,768 tokens per sequence. Attention then does more than a third of all FLOPs of Llama 3 70B, and 6ND does
  not change.

[Week 14](../weeks/week14_capstone.ipynb) plans such a run.
"""

from __future__ import annotations

from calculators import charts
from calculators.calculator import Answer, Question
from worldsize.hardware import catalogue
from worldsize.hardware.equipment import RENTS
from worldsize.models import shapes
from worldsize.units import DAY, HOUR, format_count, format_time_s

GPUS = {gpu.name: gpu for gpu in (catalogue.A100, catalogue.H100, catalogue.H200)}
QUESTION = Question(
    "Llama 3 70B reads 15 trillion tokens on 1,024 H100, at an MFU of 40% by 6ND. For how many days?",
    "days",
    "6ND is 6 · 70.6 billion · 15 trillion, 6.4e24 FLOPs, and the GPUs do 4.1e17 in a second. If the MFU counts "
    "attention too, it is 206 days: 7.2e24 FLOPs.",
)
LABELS = {
    "gpu": "GPU",
    "num_gpus": "GPUs",
    "mfu_percent": "MFU, %",
    "num_tokens": "tokens",
    "length": "tokens per sequence",
}
RANGES = {
    "model": {
        name: name for name, one in shapes.SHAPES.items() if one.num_experts == 1 and name not in ("tiny", "small")
    },
    "num_tokens": [3e11, 1e12, 2e12, 5e12, 15e12, 15.6e12, 30e12],
    "gpu": {name: name for name in GPUS},
    "num_gpus": (8, 16384, "x2"),
    "mfu_percent": (10, 60, 1),
    "length": [2048, 4096, 8192, 16384, 32768],
}


def answer(
    model: str = "llama-3-70b",
    num_tokens: float = 15e12,
    gpu: str = catalogue.H100.name,
    num_gpus: int = 1024,
    mfu_percent: int = 40,
    length: int = 8192,
) -> Answer:
    """The days, GPU-hours and rent, by each definition of the MFU."""
    shape, one = shapes.shape(model), GPUS[gpu]
    peak, usd_per_hour = one.peak_flops_per_s["bfloat16"], RENTS[one.name].usd_per_hour
    flops = (6 * shape.num_parameters * num_tokens, shape.flops(int(num_tokens), length))
    gpu_hours = [each / (peak * mfu_percent / 100) / HOUR for each in flops]
    times_s = [hours / num_gpus * HOUR for hours in gpu_hours]
    counts = [2**power for power in range(3, 15)]
    return Answer(
        f"{shape.name} takes {format_time_s(times_s[0])} for {format_count(num_tokens)} tokens on {num_gpus:,} "
        f"{one.name} if {mfu_percent}% is an MFU by 6ND, as in week 1, and {format_time_s(times_s[1])} if it counts "
        f"attention too, over sequences of {length:,} tokens.",
        times_s[0] / DAY,
        ("what", "6ND, as in week 1", "with attention, as in PaLM"),
        [
            ["FLOPs of the run", *(f"{each:.2e}" for each in flops)],
            ["peak of a GPU, bfloat16", *[f"{peak / 1e12:,.0f} TFLOP/s"] * 2],
            ["time", *map(format_time_s, times_s)],
            ["GPU-hours", *(format_count(round(hours, -3)) for hours in gpu_hours)],
            [
                f"rent, at ${usd_per_hour:.2f} per GPU-hour",
                *(f"${hours * usd_per_hour / 1e6:,.3g} million" for hours in gpu_hours),
            ],
        ],
        charts.lines(
            {
                name: [(count, hours * HOUR / count / DAY) for count in counts]
                for name, hours in zip(("6ND", "with attention"), gpu_hours, strict=True)
            },
            "GPUs",
            f"days at an MFU of {mfu_percent}%",
            [(num_gpus, time_s / DAY) for time_s in times_s],
        ),
    )
