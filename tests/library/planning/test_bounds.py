"""No cost is accepted that the hardware forbids, and every published step is longer than its bound."""

import math
from dataclasses import replace

import published_steps
import pytest

import worldsize as ws
from worldsize import capstone, hardware
from worldsize.models import shape
from worldsize.planning import bounds
from worldsize.planning.bounds import Impossible
from worldsize.published import DATA, TENSOR_OR_PIPELINE
from worldsize.units import format_times_s

GOOD = capstone.example("ten_thousand_h100")


def plan_of(model="llama-3-8b", cluster="dgx-h100", global_batch=64, **choices):
    found = ws.plan(model, cluster, lambda plan: math.inf, global_batch=global_batch, memory=lambda plan: 0, **choices)
    return found.best


def bound_of(plan, work):
    (found,) = [bound for bound in bounds.bounds(plan) if work in bound.work]
    return found.seconds


def test_products_at_the_peak_are_counted_without_what_a_mask_discards():
    plan = plan_of(tp=8, recompute="none", micro_batch=1)
    model, num_tokens = plan.model, 64 * 8192
    of_weights = 6 * num_tokens * (32 * model.num_layer_weights + model.vocab_size * model.width)
    of_attention = 32 * 3 * num_tokens * 4 * 8192 * model.width / 2
    assert bound_of(plan, "products") == pytest.approx((of_weights + of_attention) / (8 * 989e12))
    again = replace(plan, recompute="full")
    layers_s = bound_of(plan, "products") - 6 * num_tokens * model.vocab_size * model.width / (8 * 989e12)
    last_s = 32 * 2 * num_tokens * model.width * model.hidden_width / (8 * 989e12)  # torch's checkpoint stops before it
    assert bound_of(again, "products") - bound_of(plan, "products") == pytest.approx(layers_s / 3 - last_s)
    assert bounds.least(plan, "float8").seconds < bounds.least(plan).seconds


def test_the_fullest_stage_bounds_the_products():
    plan = plan_of("llama-3-405b", "h100-ndr-x16", pp=16, tp=8, recompute="full", micro_batch=1)
    assert plan.num_stage_layers == (7, *[8] * 14, 7)
    even = bound_of(plan, "products") * 126 / 16 / 8
    model = plan.model
    flops = 4 * 126 * (model.layer_flops(8192) - 2 * 8192 * model.width) - 126 * 2 * model.width * model.hidden_width
    assert even == pytest.approx(64 * 8192 * flops / (128 * 989e12))


def test_a_gpu_reads_its_weights_for_every_micro_batch():
    plan = plan_of("llama-3-70b", tp=8, micro_batch=1, recompute="none")
    per_gpu = 2 * 64 * (2 * 80 * plan.num_layer_parameters - 256e6) + 28 * plan.most_parameters
    assert bound_of(plan, "memory") == pytest.approx(per_gpu / 3.35e12)
    small = plan_of("tiny", tp=1, dp=8, micro_batch=1, zero_stage=0)  # its weights stay in the cache
    assert bound_of(small, "memory") == pytest.approx(28 * small.most_parameters / 3.35e12)


def test_a_node_sends_its_gradients_once_and_messages_between_stages():
    plan = plan_of("llama-3-70b", "h100-ndr-x4", tp=8, dp=4, micro_batch=1, recompute="none", zero_stage=1)
    layers = 80 * plan.num_layer_parameters
    assert bound_of(plan, "NICs") == pytest.approx(8 * 2 * layers * 3 / 4 / (8 * 50e9))
    gathered = replace(plan, zero_stage=3)  # which may go by chunk, with all micro-batches through one after the other
    assert bound_of(gathered, "NICs") == bound_of(plan, "NICs")
    one_nic = replace(plan, cluster=replace(plan.cluster, nics_per_node=1))
    assert bound_of(one_nic, "1 NIC (") == pytest.approx(8 * bound_of(plan, "NICs"))
    staged = plan_of("llama-3-70b", "h100-ndr-x4", tp=8, pp=4, micro_batch=1, recompute="none", num_chunks=1)
    messages = 8 * 64 * 2 * 3 / 4 * 2 * 8192 * 8192 / 8
    assert bound_of(staged, "NICs") == pytest.approx(messages / (8 * 50e9))


def test_tensor_parallelism_gathers_over_nvlink():
    plan = plan_of(tp=8, micro_batch=1, recompute="none")
    gathered = 4 * 32 * 64 * 2 * 8192 * 4096 * 7 / 8
    assert bound_of(plan, "tp 8 gathers") == pytest.approx(gathered / 450e9)
    assert not [bound for bound in bounds.bounds(plan_of(tp=1)) if "gathers" in bound.work]


@pytest.mark.parametrize(
    ("choices", "work"),
    [
        ({"tp": 8, "micro_batch": 1}, "its products at the H100 SXM's peak of 989 TFLOP/s in bfloat16"),
        ({"length": 8, "micro_batch": 1, "tp": 1}, "weights and optimizer state through the H100 SXM's memory"),
        (
            {"cluster": "h100-ndr-x16", "length": 64, "zero_stage": 3, "dp": 64, "tp": 1},
            "what a node sends over its 8 NICs",
        ),
        ({"cluster": "a100-pcie", "tp": 8, "micro_batch": 1}, "what tp 8 gathers over PCIe"),
    ],
)
def test_a_cost_below_the_hardware_is_refused_by_the_work_that_forbids_it(choices, work):
    if choices.get("cluster") == "a100-pcie":
        choices |= {"cluster": replace(hardware.DGX_A100, intra=hardware.PCIE4, name="a100-pcie")}
    plan = plan_of(**choices)
    least = bounds.least(plan)
    assert work in least.work
    sizes = {name: getattr(plan, name) for name in ("tp", "pp", "dp", "cp", "micro_batch", "recompute", "zero_stage")}
    asked = {"global_batch": 64, "length": plan.length, "num_chunks": plan.num_chunks, **sizes}
    ws.plan(plan.model, plan.cluster, lambda _: least.seconds, memory=lambda _: 0, **asked)
    with pytest.raises(Impossible, match=r"cost is .* for .*ZeRO-\d, and no program takes less than ") as caught:
        ws.plan(plan.model, plan.cluster, lambda _: least.seconds * 0.99, memory=lambda _: 0, **asked)
    assert work in str(caught.value)


def test_a_dtype_that_the_gpu_multiplies_in_lowers_the_bound():
    choices = {"global_batch": 64, "tp": 8, "pp": 1, "micro_batch": 1, "recompute": "none", "memory": lambda plan: 0}
    with pytest.raises(Impossible, match="in bfloat16"):
        ws.plan("llama-3-8b", "dgx-h100", lambda plan: 2.0, **choices)
    assert ws.plan("llama-3-8b", "dgx-h100", lambda plan: 2.0, dtype="float8", **choices)
    with pytest.raises(ValueError, match=r"dtype is 'float8'; the A100 .* multiplies in '"):
        ws.plan("llama-3-8b", "dgx-a100", lambda plan: 2.0, dtype="float8", **choices)


def test_a_design_is_not_run_at_an_impossible_cost():
    (said,) = capstone.check(GOOD, lambda plan: 0.5)
    assert said.startswith("cost is 500 ms for tp8 pp10") and "its products at the H100" in said
    with pytest.raises(Impossible):
        capstone.run(GOOD, lambda plan: 0.5)


def test_no_published_step_is_shorter_than_its_bound():
    shares = {
        row["id"]: bounds.least(plan).seconds / published_steps.published_s(row)
        for row in published_steps.rows()
        if not published_steps.why_left_out(row) and row["layers"] != "1"
        if (plan := published_steps.plan_of(row)).num_stage_layers
    }
    assert len(shares) == 70 and max(shares.values()) < 0.7


def test_plans_say_how_near_the_cheapest_is_to_its_bound():
    choices = {"global_batch": 64, "tp": 8, "pp": 1, "micro_batch": 1, "recompute": "none", "memory": lambda plan: 0}
    least_s = bounds.least(plan_of(tp=8, micro_batch=1, recompute="none")).seconds
    plans = ws.plan("llama-3-8b", "dgx-h100", lambda plan: 1.25 * least_s, **choices)
    assert "The cheapest takes 1.25 times the least that the hardware allows" in plans.note
    assert "published programs with tensor or pipeline parallelism on 1 to 4,096 GPUs (ampere) took" in plans.note


def test_the_bound_of_a_model_with_experts_counts_those_of_a_token():
    mixtral = shape("mixtral-8x7b")
    plan = plan_of(mixtral, tp=1, micro_batch=1, recompute="none", ep=8)
    one = replace(mixtral, num_experts=1, num_active_experts=1, name="dense")
    assert bound_of(plan, "products") > bound_of(plan_of(one, tp=1, micro_batch=1, recompute="none"), "products")
    assert bound_of(plan, "products") < 2 * bound_of(plan_of(one, tp=1, micro_batch=1, recompute="none"), "products")


def test_plans_of_a_published_kind_have_its_range():
    plan = plan_of(cluster="dgx-a100", tp=8, pp=1)
    least_s = bounds.least(plan).seconds
    assert bounds.describe_step(2 * least_s, plan) == (
        "takes 2.00 times the least that the hardware allows; published programs of this kind took 1.70 to 3.20 times "
        f"that least (43 rows), which is {format_times_s(1.7 * least_s, 3.2 * least_s)}."
    )


@pytest.mark.parametrize(
    ("sizes", "family"),
    [({}, DATA), ({"tp": 2}, TENSOR_OR_PIPELINE), ({"pp": 2}, TENSOR_OR_PIPELINE), ({"tp": 2, "cp": 2}, "")],
)
def test_a_plan_is_of_the_family_of_its_layout(sizes, family):
    wanted = {"tp": 1, "pp": 1, "cp": 1} | sizes
    assert plan_of(**wanted).family == family and plan_of("mixtral-8x7b", **wanted).family == ""
