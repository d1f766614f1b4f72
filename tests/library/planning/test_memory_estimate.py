"""What a plan holds: published figures, and what follows from sharding, stages and recomputation."""

import csv
from dataclasses import replace

import pytest
from repository import ROOT

import worldsize as ws
from worldsize import hardware
from worldsize.models import shape
from worldsize.planning import Plan, memory_estimate
from worldsize.planning.memory_estimate import held, num_in_flight
from worldsize.units import GIB

GB = 1e9
LARGE = replace(hardware.H100, memory_bytes=10**15)


def plan_of(model, num_gpus, global_batch, **sizes):
    node = replace(hardware.DGX_H100, gpu=LARGE, gpus_per_node=num_gpus)
    cluster = node if num_gpus < 8 else replace(hardware.H100_NDR, gpu=LARGE, num_nodes=num_gpus // 8)
    sizes = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "micro_batch": 1, "num_chunks": 1, "recompute": "none"} | sizes
    found = ws.plan(model, cluster, lambda plan: 1000.0, global_batch=global_batch, **{"zero_stage": 0} | sizes)
    assert len(found) == 1
    return found.best


def gpt(num_layers, width, num_heads):
    sizes = {"num_layers": num_layers, "width": width, "num_heads": num_heads, "num_kv_heads": num_heads}
    return replace(shape("gpt-1t"), name="gpt", **sizes, hidden_width=4 * width)


@pytest.mark.parametrize(
    ("zero_stage", "published_gb"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)]
)  # Rajbhandari et al. 2020 (ZeRO), figure 1: 7.5 billion parameters on 64 GPUs
def test_states_are_those_of_zeros_first_figure(zero_stage, published_gb):
    plan = plan_of(replace(shape("llama-2-7b"), vocab_size=125_000), 64, 64, zero_stage=zero_stage)
    assert plan.most_parameters == pytest.approx(7.5 * GB, rel=0.01)
    at_work = plan.model.num_layer_parameters * {2: 2, 3: 2 + 2 * 2}.get(zero_stage, 0)  # layers that are gathered
    assert held(plan).states_bytes - at_work == pytest.approx(published_gb * GB, rel=0.02)


@pytest.mark.parametrize(
    ("recompute", "per_token_and_width"), [("none", "34 + 5as/h"), ("selective", "34"), ("full", "2")]
)
def test_activations_are_korthikantis(recompute, per_token_and_width):
    """Korthikanti et al. 2022, equations 4 and 6 and section 5, with tensor and sequence parallelism."""
    model = gpt(48, 6144, 64)
    plan = plan_of(model, 8, 4, tp=8, micro_batch=4, recompute=recompute)
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    layer = {"none": 34 + 5 * a * s / h, "selective": 34, "full": 2}[recompute]
    at_work = {"none": 0, "selective": 5 * a * s / h, "full": 34 + 5 * a * s / h}[recompute]
    logits = 6 * s * b * 51_200 / t
    assert held(plan).activations_bytes == pytest.approx(s * b * h / t * (48 * layer + at_work) + logits, rel=1e-12)


@pytest.mark.parametrize(
    ("num_chunks", "kept"), [(1, [4, 3, 1]), (2, [(2 * 3 + 4 + 1) / 2, (2 * 2 + 4 + 1) / 2, (4 + 1) / 2])]
)
def test_a_stage_keeps_the_micro_batches_in_flight(num_chunks, kept):
    plan = plan_of(gpt(32, 1024, 16), 4, 16, pp=4, num_chunks=num_chunks)
    assert [num_in_flight(plan, stage) for stage in (0, 1, 3)] == kept
    assert kept[0] == 4 if num_chunks == 1 else kept[0] == 4 * (1 + 3 / (4 * 2))  # Korthikanti, section 4.2.3
    few = plan_of(gpt(32, 1024, 16), 4, 4, pp=4, micro_batch=2)
    assert num_in_flight(few, 0) == 2


def test_the_second_stage_may_hold_most():
    """Llama 3's first stage has a layer less."""
    plan = plan_of(replace(shape("llama-3-405b"), vocab_size=8), 1024, 1024, tp=8, pp=16, cp=8)
    layers, of_layer = plan.num_stage_layers, plan.model.layer_activation_bytes(1, 8192) / 64
    assert layers[0] * 16 < layers[1] * 15
    assert held(plan).activations_bytes == pytest.approx(layers[1] * 15 * of_layer)


def test_context_parallelism_shares_tokens_and_state_alike():
    alone = held(plan_of("llama-3-8b", 8, 8, cp=1, zero_stage=1))
    shared = held(plan_of("llama-3-8b", 8, 8, cp=8, zero_stage=1))
    assert shared.states_bytes == alone.states_bytes
    assert shared.activations_bytes == pytest.approx(alone.activations_bytes / 8)


PEAKS = {
    "run_tt24_8b_8_eager": ("llama-3-8b", {"dp": 8, "micro_batch": 2, "recompute": "selective"}),
    "run_tt24_8b_128_eager": ("llama-3-8b", {"dp": 128, "micro_batch": 2, "recompute": "selective"}),
    "run_tt24_8b_cp1": ("llama-3-8b", {"dp": 8, "micro_batch": 1, "recompute": "full", "length": 32_768}),
    "run_tt24_70b_2d": ("llama-3-70b", {"dp": 32, "tp": 8, "micro_batch": 16, "recompute": "full"}),
}


def test_published_peaks_are_above_their_estimates():
    with (ROOT / "tests/data/published_memory.csv").open(newline="") as file:
        published = {row["id"]: float(row["value"]) * GIB for row in csv.DictReader(file)}
    times = []
    for row, (name, sizes) in PEAKS.items():
        sizes = {"tp": 1, "length": 8192} | sizes
        num_gpus = sizes["dp"] * sizes["tp"]
        cluster = hardware.H100_NDR.with_nodes(num_gpus // 8) if num_gpus > 8 else hardware.DGX_H100
        batch = {"global_batch": sizes["dp"] * sizes["micro_batch"], "pp": 1, "cp": 1, "num_chunks": 1, "zero_stage": 3}
        times.append(published[row] / held(Plan(model=shape(name), cluster=cluster, **batch, **sizes)).total_bytes)
    assert len(times) == memory_estimate.NUM_PEAKS
    assert (min(times), max(times)) == pytest.approx(
        (memory_estimate.LEAST_PEAK, memory_estimate.GREATEST_PEAK), abs=0.005
    )


def test_a_plan_that_fits_by_the_estimate_alone_says_so():
    choices = {"global_batch": 64, "cp": 1}
    tight = ws.plan("llama-3-8b", "dgx-h100", lambda plan: 1e6 - held(plan).total_bytes / 1e9, **choices)
    assert 0.92 < tight[0].held_bytes / 80e9 <= 1
    (said,) = [line for line in tight.note.splitlines() if "by the estimate alone" in line]
    assert said.startswith("The cheapest fits by the estimate alone, ") and said.endswith(
        "of a GPU's memory; 4 measured peaks were 1.09 to 1.73 times theirs."
    )
    loose = ws.plan("llama-3-8b", "dgx-h100", lambda plan: 1e6 + held(plan).total_bytes / 1e9, **choices)
    own = ws.plan("llama-3-8b", "dgx-h100", lambda plan: 1e6, memory=lambda plan: 79e9, **choices)
    assert "by the estimate alone" not in loose.note + own.note


@pytest.mark.parametrize(("zero_stage", "num_kept"), [(0, 1.0), (2, 1 / 8)])
def test_gradients_take_the_bytes_of_their_type(zero_stage, num_kept):
    plan = plan_of("llama-3-8b", 8, 8, dp=8, zero_stage=zero_stage)
    two, four = held(plan), held(plan, gradient_bytes=4)
    extra = 2 * (num_kept * plan.num_parameters(0) + (plan.num_layer_parameters if zero_stage else 0))
    assert four.gradients_bytes == 2 * two.gradients_bytes
    assert four.total_bytes - two.total_bytes == pytest.approx(extra)


@pytest.mark.parametrize("name", ["llama-3-8b", "gpt-3-175b"])
def test_more_recomputation_holds_less(name):
    none, selective, full = (
        held(plan_of(name, 8, 8, tp=8, recompute=recompute)).total_bytes for recompute in ("none", "selective", "full")
    )
    assert none > selective > full


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_experts_are_held_by_ep_and_sharded_by_the_ranks_that_have_the_same(zero_stage):
    mixtral = shape("mixtral-8x7b")
    found = held(plan_of(mixtral, 8, 8, ep=4, zero_stage=zero_stage))
    experts = 32 * 2 * mixtral.num_mlp_weights
    others = mixtral.num_parameters - 4 * experts
    state = 12 * (others + experts) if zero_stage == 0 else 12 * (others / 8 + experts / 2)
    assert found.optimizer_bytes == pytest.approx(state) and found.weights_bytes == 2 * (others + experts)
