"""The price of an operator on a GPU: a roofline with the fractions of the peaks that published kernels reach.

An operator takes the longer of the times for its flops and its bytes, each at the rate that kernels of its kind reach.
A matmul has a start-up time in addition, because small ones do not fill the GPU: it reaches half of its rate at the
size whose flops take as long as the start-up.

Not modelled: the shape of a matmul. Square ones of 1,024 to 32,768 are priced within 12% of the measured times; one
whose dimensions do not suit the kernel's tiles takes up to 1.6 times its price.

Sources: the roofline model of Williams, Waterman and Patterson, Communications of the ACM 52(4), 2009; the rate and the
half size of Hockney and Jesshope, "Parallel Computers", 1981.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from worldsize import hardware
from worldsize.hardware import DTYPES, Gpu
from worldsize.units import US

Kind = Literal["matmul", "attention", "elementwise", "copy"]
_KINDS = frozenset(get_args(Kind))
_DTYPES = frozenset({*DTYPES, ""})


class Operator(NamedTuple):
    """One kernel's work.

    `kind`: "matmul" is any product of tensors, including convolutions; "elementwise" any other pass over them, such as
    a norm or a sum; "copy" one that computes nothing, such as an embedding. `dtype` is one of `hardware.DTYPES`, or
    empty for any other. `flops` counts a multiplication and an addition as two, and for attention only the unmasked
    part; `size_bytes` is all data read and written.
    """

    kind: Kind
    dtype: str
    flops: float
    size_bytes: float


@dataclass(frozen=True)
class Reached:
    """The fraction of a GPU's peak that kernels of one kind reach, and the start-up seconds of each."""

    fraction: float
    source: str
    start_s: float = 0.0


@dataclass(frozen=True)
class Kernels:
    """The fractions of peak that a GPU's kernels reach: matmuls by dtype, attention, and others of memory bandwidth.

    A dtype that is not in `matmul` uses `matmul[""]`.
    """

    matmul: Mapping[str, Reached]
    attention: Reached
    elementwise: Reached
    copy: Reached


def time_s(operator: Operator, gpu: Gpu, name: str = "", phase: str = "") -> float:
    """Return the seconds that an operator takes on a GPU.

    Its name in torch and its phase of training matter only if the GPU has measured timings.

    Raises:
        ValueError: the kind or dtype is unknown.
    """
    if operator.kind not in _KINDS:
        raise ValueError(f"no kind of operator is called {operator.kind!r}; known: {', '.join(get_args(Kind))}")
    if operator.dtype not in _DTYPES:
        raise ValueError(f"no dtype is called {operator.dtype!r}; known: {', '.join(DTYPES)}, and '' for any other")
    if gpu.timings is not None:
        peaks = gpu.peak_flops_per_s  # products were measured in float32
        rate = peaks[operator.dtype] / peaks["float32"] if {operator.dtype, "float32"} <= peaks.keys() else 1.0
        return gpu.launch_s + gpu.timings.time_s(name, operator.flops, operator.size_bytes, phase, rate)
    kernels = kernels_of(gpu)
    memory = kernels.copy if operator.kind == "copy" else kernels.elementwise
    moving_s = operator.size_bytes / (memory.fraction * gpu.memory_bandwidth_bytes_per_s)
    if operator.kind == "matmul" or operator.kind == "attention":
        start_s = _reached(kernels, operator.kind, operator.dtype).start_s
        computing_s = operator.flops / flops_per_s(operator.kind, operator.dtype, gpu)
        return gpu.launch_s + start_s + max(computing_s, moving_s)
    return gpu.launch_s + moving_s


def flops_per_s(kind: Literal["matmul", "attention"], dtype: str, gpu: Gpu) -> float:
    """Return the rate that large matmuls or attentions reach; a dtype without a peak uses the lowest peak."""
    peaks = gpu.peak_flops_per_s
    return _reached(kernels_of(gpu), kind, dtype).fraction * peaks.get(dtype, min(peaks.values()))


def kernels_of(gpu: Gpu) -> Kernels:
    """Return the figures for this GPU, or the closest: its architecture's, otherwise those of an H100."""
    return _OF_GPU.get(gpu.name) or _OF_ARCHITECTURE.get(gpu.architecture, _H100)


def _reached(kernels: Kernels, kind: Literal["matmul", "attention"], dtype: str) -> Reached:
    return kernels.attention if kind == "attention" else kernels.matmul.get(dtype) or kernels.matmul[""]


# Fractions are measured rates over the peaks of `hardware`; a start is the mean, over square products of 1,024 and
# 2,048, of the measured time less that of their flops at the rate of 16,384.
_AZURE = "Azure/AI-benchmarking-guide, Azure_Results (2024 to 2025), cuBLASLt on random matrices, "
_MAMF = "stas00/ml-engineering insights/when-to-upgrade-gpus (2026), best shape of a product: "
_FLASH = "stas00/ml-engineering insights/when-to-upgrade-gpus (2026), causal forward and backward, 8,192 tokens, "
_MLI = "mli/transformers-benchmarks (2022), PyTorch 1.13: "
_CHSASANK = "chsasank/device-benchmarks (2024), torch.matmul and a copy: "
_STREAM = "Azure/AI-benchmarking-guide, Azure_Results (2024), BabelStream "
_START_A100 = 10.0 * US  # 18.0 and 77.5 us in float16, less 8.4 and 67.0
_START_H100 = 5.4 * US  # 7.8 and 17.0 us in float8, less 1.6 and 12.5
_START_H200 = 5.1 * US  # 7.4 and 17.0 us in float8, less 1.6 and 12.6
_START_GB200 = 2.7 * US  # 4.4 and 7.7 us in float8, less 0.7 and 5.9

_A100_16_BIT = Reached(256.5 / 312, _AZURE + "ND_A100_v4: float16, 16,384 squared", _START_A100)
_A100_32_BIT = Reached(19 / 19.5, _CHSASANK + "A100 80GB; start as in float16", _START_A100)
_A100 = Kernels(
    {
        "": _A100_16_BIT,
        "tf32": Reached(116 / 156, _MLI + "A100; start as in float16", _START_A100),
        "float32": _A100_32_BIT,
        "float64": replace(_A100_32_BIT, source=f"none: as in float32, {_A100_32_BIT.source}"),
    },
    attention=Reached(
        179.5 / 312, _AZURE.replace("cuBLASLt on random matrices", "FlashAttention-2, head of 64") + "ND_A100_v4"
    ),
    elementwise=Reached(1.70 / 2.039, _STREAM + "triad, ND_A100_v4"),
    copy=Reached(1.61 / 2.039, _STREAM + "copy, ND_A100_v4"),
)

_H100_32_BIT = Reached(
    47.28 / 60,
    "xzwgit/gpu-flops-bench (2026), cuBLASLt on constant matrices, H200 NVL, whose peak of 60 Tflop/s is recalled; "
    "start as in float8",
    _START_H100,
)
_H100 = Kernels(
    {
        "": Reached(794.5 / 989, _MAMF + "H100 and H200 SXM, bfloat16; start as in float8", _START_H100),
        "float8": Reached(1377.3 / 1979, _AZURE + "ND_H100_v5: float8, 16,384 squared", _START_H100),
        "float32": _H100_32_BIT,
        "float64": replace(_H100_32_BIT, source=f"none: as in float32, {_H100_32_BIT.source}"),
    },
    # 447 Tflop/s of three forward passes; with the scores that backward computes again they are 3.5
    attention=Reached(447 * 3.5 / 3 / 989, _FLASH + "FlashAttention-3 on H200 SXM, nearest"),
    elementwise=Reached(2.97 / 3.35, _STREAM + "triad, ND_H100_v5"),
    copy=Reached(2.90 / 3.35, _STREAM + "copy, ND_H100_v5"),
)

_H200 = Kernels(
    {dtype: replace(reached, start_s=_START_H200) for dtype, reached in _H100.matmul.items()}
    | {"float8": Reached(1366.3 / 1979, _AZURE + "ND_H200_v5: float8, 16,384 squared", _START_H200)},
    attention=replace(_H100.attention, source=_FLASH + "FlashAttention-3 on H200 SXM"),
    elementwise=Reached(4.15 / 4.8, _STREAM + "triad, ND_H200_v5"),
    copy=Reached(4.01 / 4.8, _STREAM + "copy, ND_H200_v5"),
)

_START_OF_GB200 = "; start: Azure's of GB200 in float8"
_B200_32_BIT = Reached(47.28 / 60, f"none: as H200, {_H100_32_BIT.source}{_START_OF_GB200}", _START_GB200)
_B200 = Kernels(
    {
        "": Reached(1745 / 2250, _MAMF + "B200 SXM, bfloat16" + _START_OF_GB200, _START_GB200),
        "float8": Reached(3432.5 / 4500, _MAMF + "B200 SXM, float8" + _START_OF_GB200, _START_GB200),
        "float32": _B200_32_BIT,
        "float64": _B200_32_BIT,
    },
    attention=Reached(834 * 3.5 / 3 / 2250, _FLASH + "FlashAttention-4 on B200 SXM"),
    elementwise=replace(_H200.elementwise, source=f"none: as H200, {_H200.elementwise.source}"),
    copy=replace(_H200.copy, source=f"none: as H200, {_H200.copy.source}"),
)

_STREAM_V100 = Reached(0.098 * 8 / 0.9, _MLI + "a vector times a number, V100")
_ATTENTION_AS_A100 = replace(_A100.attention, source=f"none: as A100, {_A100.attention.source}")
_V100 = Kernels(
    {
        "": Reached(95 / 125, _MLI + "float16, V100; start as on A100", _START_A100),
        "float32": Reached(14 / 15.7, _MLI + "float32, V100; start as on A100", _START_A100),
    },
    attention=_ATTENTION_AS_A100,
    elementwise=_STREAM_V100,
    copy=_STREAM_V100,
)

_L40S_32_BIT = Reached(58 / 82.6, _CHSASANK + "RTX 4090, whose peak of 82.6 Tflop/s is recalled", _START_A100)
_STREAM_4090 = Reached(912 / 1008, _CHSASANK + "RTX 4090, whose peak of 1,008 GB/s is recalled")
_L40S = Kernels(
    {
        "": Reached(252 / 362.05, "mag-/gpu_benchmark (2025), best shape of a product, L40S", _START_A100),
        "float32": _L40S_32_BIT,
        "float64": replace(_L40S_32_BIT, source=f"none: as in float32, {_L40S_32_BIT.source}"),
    },
    attention=_ATTENTION_AS_A100,
    elementwise=_STREAM_4090,
    copy=_STREAM_4090,
)

_MATMUL_MI300X = Reached(
    668.4 / 1307.4,
    "stas00/ml-engineering compute/accelerator (2025), best shape: MI300X, bfloat16; start as on H100",
    _START_H100,
)
_MI300X = Kernels(
    {"": _MATMUL_MI300X},
    attention=replace(
        _H100.attention,
        # of the rate of its products, which come less near to its peak than those of an H100
        fraction=_MATMUL_MI300X.fraction * _H100.attention.fraction / _H100.matmul[""].fraction,
        source=f"none: as slow beside a product as on H100, {_H100.attention.source}",
    ),
    elementwise=replace(_H100.elementwise, source=f"none: as H100, {_H100.elementwise.source}"),
    copy=replace(_H100.copy, source=f"none: as H100, {_H100.copy.source}"),
)

_OF_GPU: Mapping[str, Kernels] = {hardware.H200.name: _H200}
_OF_ARCHITECTURE: Mapping[str, Kernels] = {
    "volta": _V100,
    "ampere": _A100,
    "ada": _L40S,
    "hopper": _H100,
    "blackwell": _B200,
    "cdna3": _MI300X,
}
