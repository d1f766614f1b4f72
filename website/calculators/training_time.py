"""How long does a training run take?

A decoder with N parameters that reads D tokens computes about 6ND FLOPs: two for each parameter and token in forward,
four in backward; attention comes on top. The fraction of its peak that a GPU reaches in computing these FLOPs is the
model FLOPs utilization, MFU. Days and GPU-hours follow by division, and dollars by rents listed in May 2026, which vary
by a factor of three; all for a run that never stops: [failures and checkpoints](checkpoints.md) come on top.

The model card of Llama 3.1 states 30.84 million GPU-hours of H100 for the 405B. Choose llama-3-405b and 15.6T tokens,
and move the MFU until the GPU-hours agree: 37 to 38%. The paper states 38 to 43% for its steps; the hours may include
lost work too.

[Week 1](../weeks/week01_why_one_gpu_is_not_enough.ipynb) counts the FLOPs, and [week
14](../weeks/week14_capstone.ipynb) plans such a run.
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
    "Llama 3 70B reads 15 trillion tokens on 1,024 H100, at an MFU of 40%. For how many days?",
    "days",
    "6 · 70.6 billion · 15 trillion are 6.4e24 FLOPs; attention makes it 7.2e24, and the GPUs do 4.1e17 in a second.",
)
LABELS = {"gpu": "GPU", "num_gpus": "GPUs", "mfu_percent": "MFU, %", "num_tokens": "tokens"}
RANGES = {
    "model": {
        name: name for name, one in shapes.SHAPES.items() if one.num_experts == 1 and name not in ("tiny", "small")
    },
    "num_tokens": [3e11, 1e12, 2e12, 5e12, 15e12, 15.6e12, 30e12],
    "gpu": {name: name for name in GPUS},
    "num_gpus": (8, 16384, "x2"),
    "mfu_percent": (10, 60, 1),
}


def answer(
    model: str = "llama-3-70b",
    num_tokens: float = 15e12,
    gpu: str = catalogue.H100.name,
    num_gpus: int = 1024,
    mfu_percent: int = 40,
) -> Answer:
    """The days, GPU-hours and rent."""
    shape, one = shapes.shape(model), GPUS[gpu]
    peak = one.peak_flops_per_s["bfloat16"]
    flops = shape.flops(int(num_tokens), shape.context_length)
    time_s = flops / (num_gpus * peak * mfu_percent / 100)
    gpu_hours = num_gpus * time_s / HOUR
    rent = RENTS[one.name].usd_per_hour
    simple = 6 * shape.num_parameters * num_tokens
    counts = [2**power for power in range(3, 15)]
    return Answer(
        f"{shape.name} takes {format_time_s(time_s)} for {format_count(num_tokens)} tokens on {num_gpus:,} {one.name} "
        f"at an MFU of {mfu_percent}%.",
        time_s / DAY,
        ("what", "how much"),
        [
            ["FLOPs of the run", f"{flops:.2e}"],
            ["of which 6ND", f"{simple:.2e}, {simple / flops:.0%}"],
            ["peak of a GPU, bfloat16", f"{peak / 1e12:,.0f} TFLOP/s"],
            ["GPU-hours", format_count(round(gpu_hours, -3))],
            [f"rent, at ${rent:.2f} per GPU-hour", f"${gpu_hours * rent / 1e6:,.3g} million"],
        ],
        charts.lines(
            {f"{model} at {mfu_percent}%": [(count, time_s * num_gpus / count / DAY) for count in counts]},
            "GPUs",
            "days",
            [(num_gpus, time_s / DAY)],
        ),
    )
