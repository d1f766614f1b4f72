"""The page of the roofline: what its text claims at the positions that it names, and what was measured of kernels."""

import ast
import csv
import json
import random
import subprocess
import sys

import pytest
from repository import ROOT

sys.path.insert(0, str(ROOT / "website"))

from calculators import calculator, roofline

from worldsize import operators
from worldsize.operators import Operator

MEASURED = list(csv.DictReader((ROOT / "tests/data/operators.csv").open(encoding="utf-8")))
NAMES = {name.split()[0]: name for name in roofline.GPUS}  # an H100 is an H100 SXM here
PRODUCTS = [row for row in MEASURED if row["kind"] == "matmul" and row["gpu"] in NAMES]


def rows(**chosen):
    return {row[0]: row[1] for row in roofline.answer(**chosen).rows}


def binds(**chosen):
    return rows(**chosen)["what binds"]


def printed_by_nvidia():
    """The matmuls of NVIDIA's guides that week 11 checks with."""
    tree = ast.parse((ROOT / "weeks/week11_find_the_bottleneck.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PRINTED":
            return ast.literal_eval(node.value)
    raise AssertionError("week 11 has no PRINTED")


def test_the_question_is_the_ridge_point_of_an_h100():
    assert roofline.answer().value == pytest.approx(989e12 / 3.35e12)
    assert "989 TFLOP/s" in roofline.QUESTION.why and "3.35 TB/s" in roofline.QUESTION.why
    assert calculator.judge("roofline", "295").startswith("Close: it is 295 FLOP/byte.")


def test_one_token_reads_every_weight_for_one_multiplication_and_addition():
    found = rows(operation=roofline.DECODE, n=8192, k=8192)
    assert found["arithmetic intensity"] == "1.00 FLOP/byte" and found["what binds"] == "memory"
    assert found["fraction of the peak"] == "0.27%"
    work = roofline.kernel(roofline.DECODE, "bfloat16", 1, 8192, 8192)
    assert work == roofline.kernel(roofline.MATMUL, "bfloat16", 1, 8192, 8192)
    assert 100 * work.flops / work.size_bytes * 3.35e12 / 989e12 == pytest.approx(
        0.34, abs=0.005
    )  # and by the roofline


@pytest.mark.parametrize("dtype", ["bfloat16", "float8"])
def test_512_tokens_at_a_time_are_enough_and_256_are_not(dtype):
    assert binds(m=512, n=8192, k=8192, dtype=dtype) == "compute"
    assert binds(m=256, n=8192, k=8192, dtype=dtype) == "memory"


def test_a_small_square_matmul_waits_for_memory_and_starts_for_longer_than_it_works():
    assert binds(m=1024, n=1024, k=1024) == "compute" and binds(m=512, n=512, k=512) == "memory"
    start_s = operators.time_s(Operator("matmul", "bfloat16", 0, 0), roofline.catalogue.H100)
    work_s = operators.time_s(roofline.kernel(roofline.MATMUL, "bfloat16", 512, 512, 512), roofline.catalogue.H100)
    assert start_s > work_s - start_s
    assert roofline.answer(m=512, n=512, k=512).sentence.endswith("most of it to start.")


def test_memory_and_float8_move_the_ridge_point():
    assert round(roofline.answer(gpu="H200 SXM").value) == 206
    assert roofline.answer(dtype="float8").value == pytest.approx(2 * roofline.answer().value, rel=0.001)


def test_the_text_names_what_published_kernels_reach():
    kernels = [operators.kernels_of(gpu) for gpu in roofline.GPUS.values()]
    reached = [
        one.fraction
        for gpu, found in zip(roofline.GPUS.values(), kernels, strict=True)
        for dtype in gpu.peak_flops_per_s
        for one in [found.matmul.get(dtype) or found.matmul[""]]
    ]
    assert f"{min(reached):.2f} to {max(reached):.2f} of a GPU's peak" in flat_text()
    moved = [one.elementwise.fraction for one in kernels]
    assert f"{min(moved):.2f} to {max(moved):.2f} of its bandwidth" in flat_text()
    starts_us = [1e6 * one.start_s for found in kernels for one in found.matmul.values()]
    assert f"a start-up of {min(starts_us):.2g} to {max(starts_us):.2g} µs" in flat_text()


def test_an_addition_is_below_every_ridge_point():
    for gpu, one in roofline.GPUS.items():
        assert {binds(operation=roofline.ADDITION, gpu=gpu, dtype=dtype) for dtype in one.peak_flops_per_s} == {
            "memory"
        }


def flat_text():
    return " ".join(calculator.text("roofline").split())


@pytest.mark.parametrize("sizes", printed_by_nvidia(), ids=str)
def test_intensities_and_what_binds_are_as_nvidia_printed(sizes):
    intensity, limit = printed_by_nvidia()[sizes]
    num_rows, num_inner, num_columns = sizes
    work = roofline.kernel(roofline.MATMUL, "float16", num_rows, num_columns, num_inner)
    assert work.flops / work.size_bytes == pytest.approx(intensity, rel=0.005)
    assert binds(gpu=NAMES["V100"], dtype="float16", m=num_rows, n=num_columns, k=num_inner) == limit


@pytest.mark.parametrize("row", PRODUCTS, ids=lambda row: " ".join(row[key] for key in ("gpu", "dtype", "m", "n")))
def test_no_measured_matmul_is_above_the_roofline_and_the_expected_time_is_near(row):
    gpu, work = roofline.GPUS[NAMES[row["gpu"]]], kernel_of(row)
    measured_s = work.flops / (float(row["measured"]) * 1e12)
    found = rows(gpu=gpu.name, dtype=row["dtype"], **{side: int(row[side]) for side in "mnk"})
    limits = work.flops / gpu.peak_flops_per_s[row["dtype"]], work.size_bytes / gpu.memory_bandwidth_bytes_per_s
    assert measured_s > max(limits)
    assert found["time that the roofline allows"].startswith(roofline.format_time_s(max(limits)))
    expected_s = operators.time_s(work, gpu)
    assert found["time at the rates of published kernels"].startswith(roofline.format_time_s(expected_s))
    assert expected_s / measured_s - 1 == pytest.approx(0, abs=int(row["error_percent"]) / 100 + 1e-6)


def kernel_of(row):
    return roofline.kernel(roofline.MATMUL, row["dtype"], *(int(row[side]) for side in "mnk"))


@pytest.mark.parametrize(
    "row", [row for row in MEASURED if row["kind"] == "elementwise"], ids=lambda row: f"{row['gpu']} {row['dtype']}"
)
def test_a_pass_over_memory_has_the_published_rate(row):
    gpu, work = roofline.GPUS[NAMES[row["gpu"]]], roofline.kernel(roofline.ADDITION, row["dtype"], 16384, 16384, 1)
    rate = work.size_bytes / operators.time_s(work, gpu)
    assert rate == pytest.approx(float(row["measured"]) * 1e12, rel=0.01)
    assert rate < gpu.memory_bandwidth_bytes_per_s


def test_a_dtype_that_the_gpu_lacks_is_refused_with_those_that_it_has():
    with pytest.raises(ValueError, match=r"V100 .* has no peak for bfloat16; choose float64, float32 or float16$"):
        roofline.answer(gpu=NAMES["V100"])


def test_every_point_of_the_picture_is_on_it_and_below_the_roofline():
    for gpu in roofline.GPUS.values():
        for dtype in gpu.peak_flops_per_s:
            layers = roofline.answer(gpu=gpu.name, dtype=dtype, m=1, n=64, k=64).chart["layer"]
            for point in [*layers[1]["data"]["values"], *layers[2]["data"]["values"]]:
                x, y = point["x"], point["y"]
                roof = min(gpu.peak_flops_per_s[dtype], x * gpu.memory_bandwidth_bytes_per_s) / 1e12
                assert roofline._LEFT < x < roofline._RIGHT and 0 < y < roof
    assert [one["name"] for one in layers[3]["data"]["values"]] == ["matmul of 8,192 squared", "decode", "addition"]


def test_the_source_is_that_of_the_rate_which_decides():
    kernels = operators.kernels_of(roofline.catalogue.H100)
    assert rows()["where the rate comes from"] == kernels.matmul[""].source
    for chosen in ({"operation": roofline.DECODE}, {"operation": roofline.ADDITION}):
        assert rows(**chosen)["where the rate comes from"] == kernels.elementwise.source


def test_any_position_is_answered_or_refused_in_a_sentence():
    places = random.Random(1)
    controls = calculator.controls("roofline")
    problems = set()
    for _ in range(200):
        chosen = [places.randrange(len(control.options)) for control in controls]
        found = json.loads(calculator.answer("roofline", chosen))
        problems |= {found["problem"]} if "problem" in found else set()
    assert problems and all("has no peak for" in problem for problem in problems)


def test_it_needs_the_standard_library_alone():
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'website')!r}]\n"
        "from calculators import calculator, roofline\n"
        "print(calculator.answer('roofline', [control.start for control in calculator.controls('roofline')]))\n"
    )
    said = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "Compute binds" in said
