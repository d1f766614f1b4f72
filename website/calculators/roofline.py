"""Which limit binds a kernel?

A kernel computes, and it moves bytes between the GPU's memory and its cores. Both happen at the same time, so the
slower of the two binds. The **arithmetic intensity** of a kernel is its FLOPs over its bytes. The **ridge point** of a
GPU is its peak FLOP/s over its memory bandwidth. Below the ridge point memory binds, above it compute. The **roofline**
is the most that a kernel can reach: the smaller of the peak and the bandwidth times the intensity.

A matmul of m x k by k x n does 2mnk FLOPs and moves at least mk + kn + mn numbers; each matrix crosses once. Adding two
matrices of m x n does mn FLOPs and moves 3mn numbers. The roofline takes the peaks of the data sheet, and the expected
time comes from [what published kernels reach](../docs/clusters.md): 0.51 to 0.97 of a GPU's peak, 0.83 to 0.89 of its
bandwidth, and a start-up of 2.7 to 10 µs for each matmul. On A100, H100 and H200 it is within 12% of measured square
matmuls of 1,024 to 32,768. Where nothing was published for a GPU and a type, the last row of the table says whose rate
stands in. A matmul whose sides do not suit the kernel's tiles takes up to 1.6 times as long. The peak is that of
matmuls; an addition is so far below the ridge point that its own, lower peak does not matter.

Try this:

- Decode one token with a matrix of 8,192 x 8,192. The intensity is 1, and an H100 reaches 0.3% of its peak: it reads
  every weight for a single multiplication and addition.
- Decode 512 tokens at a time instead: a matmul with m = 512. The same weights now serve 512 rows, and compute binds.
  With 256 rows memory still binds: the limit is near 320.
- Change a square bfloat16 matmul of 1,024 to one of 512. On an H100 memory then binds instead of compute, but neither
  matters much: the start-up takes twice as long as the work at 1,024, and ten times as long at 512.
- Change the H100 to an H200. The peak is the same and the memory is faster, so the ridge point falls from 295 to 206.
- Change bfloat16 to float8. The ridge point doubles, but each number takes one byte, so decoding still needs over 300
  tokens at a time.

[Week 11](../weeks/week11_find_the_bottleneck.ipynb) uses the roofline to find what limits a training step.
"""

from __future__ import annotations

from calculators import charts
from calculators.calculator import Answer, Question
from worldsize import operators
from worldsize.hardware import Gpu, catalogue
from worldsize.operators import Operator
from worldsize.units import format_bytes, format_count, format_time_s, significant

GPUS = {
    gpu.name: gpu
    for gpu in (
        catalogue.V100,
        catalogue.A100,
        catalogue.H100,
        catalogue.H200,
        catalogue.B200,
        catalogue.MI300X,
    )
}
ITEM_BYTES = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
MATMUL, DECODE, ADDITION = "matmul", "decode", "addition"
QUESTION = Question(
    "A kernel on an H100 computes in bfloat16. How many FLOPs must it do for each byte that it moves, so that compute "
    "limits it and not memory?",
    "FLOP/byte",
    "The peak is 989 TFLOP/s and the memory moves 3.35 TB/s. For each byte that arrives, 295 FLOPs could be done.",
)
LABELS = {"gpu": "GPU", "m": "m, rows (1 in a decode)", "n": "n, columns", "k": "k, inner (not of an addition)"}
RANGES = {
    "operation": {
        "matmul of m x k by k x n": MATMUL,
        "decode: the same with m = 1": DECODE,
        "add two matrices of m x n": ADDITION,
    },
    "gpu": {name: name for name in GPUS},
    "dtype": list(ITEM_BYTES),
    "m": (1, 65536, "x2"),
    "n": (64, 65536, "x2"),
    "k": (64, 65536, "x2"),
}
_EXAMPLE_SIZE = 8192
_LEFT, _RIGHT = 2.0**-5, 2.0**16  # FLOP/byte: every kernel of the controls is between them


def answer(
    operation: str = MATMUL,
    gpu: str = catalogue.H100.name,
    dtype: str = "bfloat16",
    m: int = 4096,
    n: int = 4096,
    k: int = 4096,
) -> Answer:
    """The intensity, what binds, and the times of the roofline and of published kernels."""
    one, work = GPUS[gpu], kernel(operation, dtype, m, n, k)
    if dtype not in one.peak_flops_per_s:
        raise ValueError(f"the {gpu} has no peak for {dtype}; choose {_either(list(one.peak_flops_per_s))}")
    peak, bandwidth = one.peak_flops_per_s[dtype], one.memory_bandwidth_bytes_per_s
    ridge, intensity = peak / bandwidth, work.flops / work.size_bytes
    allowed = min(peak, intensity * bandwidth)
    least_s, expected_s = work.flops / allowed, operators.time_s(work, one)
    start_s = operators.time_s(work._replace(flops=0.0, size_bytes=0.0), one)
    binds = "compute" if intensity >= ridge else "memory"
    starts = ", most of it to start" if start_s > expected_s / 2 else ""
    return Answer(
        f"{binds.capitalize()} binds: {_described(operation, m, n, k)} in {dtype} does {_number(intensity)} FLOP for "
        f"each byte, and the ridge point of the {gpu} is {_number(ridge)}. The roofline allows {_rate(allowed)}, which "
        f"takes {format_time_s(least_s)}; at the rates of published kernels it takes about "
        f"{format_time_s(expected_s)}{starts}.",
        ridge,
        ("what", "how much"),
        [
            ["FLOPs", format_count(work.flops)],
            ["bytes", format_bytes(work.size_bytes)],
            ["arithmetic intensity", f"{_number(intensity)} FLOP/byte"],
            ["ridge point", f"{_number(ridge)} FLOP/byte: {_rate(peak)} over {format_bytes(bandwidth)}/s"],
            ["what binds", binds],
            ["time that the roofline allows", f"{format_time_s(least_s)}, at {_rate(allowed)}"],
            [
                "time at the rates of published kernels",
                f"{format_time_s(expected_s)}, of which {format_time_s(start_s)} to start",
            ],
            ["fraction of the peak", _percent(work.flops / expected_s / peak)],
            ["fraction of the roofline", _percent(least_s / expected_s)],
            ["where the rate comes from", _source(one, work)],
        ],
        _chart(one, dtype, (intensity, work.flops / expected_s / 1e12)),
    )


def kernel(operation: str, dtype: str, m: int, n: int, k: int) -> Operator:
    """The work of a kernel; a matmul in float8 writes 16 bits."""
    item = ITEM_BYTES[dtype]
    if operation == ADDITION:
        return Operator("elementwise", dtype, m * n, 3 * item * m * n)
    m = 1 if operation == DECODE else m
    return Operator("matmul", dtype, 2 * m * n * k, item * (m * k + k * n) + max(item, 2) * m * n)


def _chart(gpu: Gpu, dtype: str, mine: tuple[float, float]) -> dict[str, object]:
    """The roofline of the data sheet, that of published kernels, and the expected rate of some kernels."""
    peak, bandwidth = gpu.peak_flops_per_s[dtype], gpu.memory_bandwidth_bytes_per_s
    size = _EXAMPLE_SIZE
    reached = operators.flops_per_s("matmul", dtype, gpu)
    moved = operators.kernels_of(gpu).elementwise.fraction * bandwidth
    examples = {
        f"matmul of {size:,} squared": kernel(MATMUL, dtype, size, size, size),
        "decode": kernel(DECODE, dtype, 1, size, size),
        "addition": kernel(ADDITION, dtype, size, size, 1),
    }
    return charts.lines(
        {"roofline": _roof(peak, bandwidth), "rates of published kernels": _roof(reached, moved)},
        "FLOP/byte",
        "TFLOP/s",
        [mine],
        named={
            name: (one.flops / one.size_bytes, one.flops / operators.time_s(one, gpu) / 1e12)
            for name, one in examples.items()
        },
        ticks="~g",
    )


def _roof(flops_per_s: float, bytes_per_s: float) -> list[tuple[float, float]]:
    """The corners of a roofline, in TFLOP/s."""
    places = (_LEFT, flops_per_s / bytes_per_s, _RIGHT)
    return [(at, min(flops_per_s, at * bytes_per_s) / 1e12) for at in places]


def _source(gpu: Gpu, work: Operator) -> str:
    """The source of the rate that decides the expected time."""
    kernels = operators.kernels_of(gpu)
    if work.kind == "matmul":
        moving_s = work.size_bytes / (kernels.elementwise.fraction * gpu.memory_bandwidth_bytes_per_s)
        if work.flops / operators.flops_per_s("matmul", work.dtype, gpu) >= moving_s:
            return (kernels.matmul.get(work.dtype) or kernels.matmul[""]).source
    return kernels.elementwise.source


def _described(operation: str, m: int, n: int, k: int) -> str:
    if operation == ADDITION:
        return f"adding two matrices of {m:,} x {n:,}"
    if operation == DECODE:
        return f"the decode of one token by {k:,} x {n:,}"
    return f"a matmul of {m:,} x {k:,} by {k:,} x {n:,}"


def _rate(flops_per_s: float) -> str:
    return f"{_number(flops_per_s / 1e12)} TFLOP/s"


def _percent(fraction: float) -> str:
    return f"{significant(100 * fraction, 2)}%"


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else significant(value)


def _either(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
