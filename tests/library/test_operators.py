"""The price of an operator: what was published, which roof is the lower, and what changes with size."""

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from worldsize import hardware, operators
from worldsize.emulate.worker.compute import FlopsMeter
from worldsize.hardware import A100, H100, Gpu
from worldsize.models import transformer
from worldsize.models.shapes import shape
from worldsize.operators import Kernels, Operator, Reached, time_s

PUBLISHED = list(csv.DictReader((Path(__file__).parents[1] / "data" / "operators.csv").open(encoding="utf-8")))
ITEM_BYTES = {"float8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "tf32": 4}
GPUS = [gpu for gpu in vars(hardware).values() if isinstance(gpu, Gpu)]


def product(size: int, dtype: str = "bfloat16") -> Operator:
    return Operator("matmul", dtype, 2 * size**3, 3 * size**2 * ITEM_BYTES[dtype])


def published_operator(row: dict[str, str]) -> Operator:
    if row["kind"] == "attention":
        return Operator("attention", row["dtype"], 1e15, 0)
    if row["kind"] != "matmul":
        return Operator(row["kind"], row["dtype"], 0, 1e9)
    m, n, k = (int(row[side]) for side in "mnk")
    item = ITEM_BYTES[row["dtype"]]
    return Operator("matmul", row["dtype"], 2 * m * n * k, item * (m * k + k * n) + max(item, 2) * m * n)


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: " ".join(row[key] for key in ("gpu", "kind", "dtype", "m")))
def test_a_price_is_the_published_time_within_the_stated_error(row):
    operator = published_operator(row)
    measured_s = max(operator.flops, operator.size_bytes) / (float(row["measured"]) * 1e12)
    error_percent = 100 * abs(time_s(operator, getattr(hardware, row["gpu"])) / measured_s - 1)
    stated_percent = int(row["error_percent"])
    assert error_percent <= stated_percent + 1e-9
    assert error_percent > stated_percent - 1.001  # what is stated is no wider than it need be


def test_square_products_are_priced_within_12_percent():
    squares = [row for row in PUBLISHED if row["kind"] == "matmul" and row["m"] == row["n"] == row["k"]]
    assert len(squares) > 20 and max(int(row["error_percent"]) for row in squares) <= 12


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_more_work_takes_longer_and_a_larger_product_is_more_efficient(gpu):
    sizes = [2**power for power in range(4, 16)]
    for dtype in ITEM_BYTES.keys() & gpu.peak_flops_per_s.keys():
        times_s = [time_s(product(size, dtype), gpu) for size in sizes]
        rates = [2 * size**3 / taken_s for size, taken_s in zip(sizes, times_s, strict=True)]
        assert times_s == sorted(times_s) and rates == sorted(rates)
        assert rates[-1] < gpu.peak_flops_per_s[dtype]


def test_half_of_the_rate_is_reached_where_the_flops_take_as_long_as_the_start():
    start_s = operators.kernels_of(A100).matmul["float32"].start_s
    rate = operators.flops_per_s("matmul", "float32", A100)
    half = Operator("matmul", "float32", rate * start_s, 0)
    assert half.flops / time_s(half, A100) == pytest.approx(rate / 2)


def test_the_lower_roof_decides():
    rate, memory = operators.flops_per_s("attention", "bfloat16", H100), 2.97e12
    assert time_s(Operator("attention", "bfloat16", rate, memory / 2), H100) == pytest.approx(1)
    assert time_s(Operator("attention", "bfloat16", rate / 2, memory), H100) == pytest.approx(1)


def test_a_pass_over_memory_has_no_flops_to_wait_for():
    assert time_s(Operator("elementwise", "float32", 1e18, 2.97e12), H100) == pytest.approx(1)
    assert time_s(Operator("copy", "float32", 0, 2.90e12), H100) == pytest.approx(1)


def test_a_launch_is_added_to_every_kernel():
    slow = replace(H100, launch_s=5e-6)
    for operator in (product(64), Operator("copy", "float32", 0, 8), Operator("attention", "bfloat16", 1e6, 8)):
        assert time_s(operator, slow) - time_s(operator, H100) == pytest.approx(5e-6)
    with pytest.raises(ValueError, match=r"launch_s is -1; it must be 0 or more seconds"):
        replace(H100, launch_s=-1)


def test_a_dtype_without_a_peak_has_the_slowest():
    assert operators.flops_per_s("matmul", "", A100) == operators.flops_per_s("matmul", "int8", A100)
    assert operators.flops_per_s("matmul", "float8", A100) < operators.flops_per_s("matmul", "bfloat16", A100)


def test_an_h200_has_figures_of_its_own_and_an_unknown_gpu_those_of_its_architecture():
    assert operators.kernels_of(hardware.H200) != operators.kernels_of(H100)
    assert operators.kernels_of(replace(H100, name="H100 NVL")) == operators.kernels_of(H100)
    assert operators.kernels_of(hardware.A100_PCIE) == operators.kernels_of(A100)


def test_an_mi300x_reaches_what_was_published_of_it():
    assert operators.flops_per_s("matmul", "bfloat16", hardware.MI300X) == pytest.approx(668.4e12)


@pytest.mark.parametrize("name", hardware.clusters())
def test_no_attention_is_faster_than_the_best_product(name):
    gpu = hardware.cluster(name).gpu
    rates = [operators.flops_per_s(kind, "float16", gpu) for kind in ("attention", "matmul")]
    assert rates[0] < rates[1]


def all_reached(kernels: Kernels) -> Iterator[Reached]:
    yield from (*kernels.matmul.values(), kernels.attention, kernels.elementwise, kernels.copy)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_figure_has_a_source_with_its_year(gpu):
    for reached in all_reached(operators.kernels_of(gpu)):
        assert re.search(r"\b20\d\d\b", reached.source)
        assert 0.3 < reached.fraction < 1 and 0 <= reached.start_s < 20e-6


def fused_attention(query, key, value, is_causal, enable_gqa):  # a meta tensor would be given the unfused one
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal)[0]


@pytest.mark.parametrize(
    ("gpu", "length", "published_tflops"),
    [
        # Llama of 7B on H100, 4,096 tokens: Colossal-AI README (2024)
        pytest.param(H100, 4096, 534.18, id="H100"),
        # GPT on A100, 2,048 tokens: Dao-AILab/flash-attention README (2022), "up to 189 TFLOPs/sec per A100"
        pytest.param(A100, 2048, 189, id="A100"),
    ],
)
def test_a_layer_is_faster_than_the_best_whole_step_published_by_less_than_a_fifth(
    gpu, length, published_tflops, monkeypatch
):
    monkeypatch.setattr(F, "scaled_dot_product_attention", fused_attention)
    llama, meter = shape("llama-3-8b"), FlopsMeter(gpu)
    with torch.device("meta"):
        block = transformer.Block(llama).to(torch.bfloat16)
        x = torch.empty(4, length, llama.width, dtype=torch.bfloat16, requires_grad=True)
    with meter:
        block(x).backward(torch.empty_like(x))
        taken_s = meter.take_s()
    tflops = 3 * 4 * length * llama.layer_flops(length) / taken_s / 1e12
    assert 1 < tflops / published_tflops < 1.2  # a step also communicates, updates and waits


@pytest.mark.parametrize(
    ("kind", "dtype", "sentence"),
    [
        (
            "matmul",
            "bf16",
            "no dtype is called 'bf16'; known: float64, float32, tf32, float16, bfloat16, float8, and ''",
        ),
        ("mm", "bfloat16", "no kind of operator is called 'mm'; known: matmul, attention, elementwise, copy"),
    ],
)
def test_an_operator_of_no_known_kind_or_dtype_is_refused(kind, dtype, sentence):
    with pytest.raises(ValueError, match=sentence):
        operators.time_s(Operator(kind, dtype, 1e12, 1e9), H100)
