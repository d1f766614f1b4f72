"""A judge's cost finds the layouts again that published runs chose, among what their software had."""

import pytest
from chosen_plans import CHOSEN, LLAMA_3, TRILLION

import worldsize as ws
from autograder.capstone.step_times import StepTimes
from worldsize import hardware
from worldsize.models import shape


@pytest.mark.parametrize("chosen", [TRILLION, LLAMA_3], ids=lambda chosen: chosen.name)
def test_the_chosen_layout_is_among_the_best_five(chosen):
    plans = chosen.plans()
    assert plans.place(**chosen.layout) <= min(5, len(plans.layouts) - 1)
    chosen_s, best_s = plans.cheapest(**chosen.layout).step_s, plans[0].step_s
    assert chosen_s <= 1.05 * best_s


@pytest.mark.parametrize("chosen", CHOSEN, ids=lambda chosen: chosen.name)
def test_the_serial_time_has_the_chosen_layout_among_the_best_five(chosen):
    plans = chosen.plans(by_serial_time=True)
    assert plans.place(**chosen.layout) <= 5
    assert plans.cheapest(**chosen.layout).step_s <= 1.08 * plans[0].step_s


def test_the_trillions_layout_is_the_best_that_fitted_and_its_time_is_near_the_published():
    plans = TRILLION.plans()
    best = plans.best
    assert (best.tp, best.pp, best.dp, best.micro_batch) == (8, 64, 6, 1)
    assert plans[0].step_s == pytest.approx(102.6, rel=0.15)  # 163 TFLOP/s a GPU: table 1, by equation 3


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_judges_parts_are_what_formulas_say(recompute):
    cluster, model = hardware.cluster("a100-hdr-x16"), shape("llama-2-7b")
    cost = StepTimes(model, cluster)
    free = {"global_batch": 256, "recompute": recompute, "zero_stage": 0, "memory": lambda plan: 0, "micro_batch": 1}
    one, many = (ws.plan(model, cluster, cost, tp=1, pp=pp, cp=1, num_chunks=1, **free)[0] for pp in (1, 8))
    passes = 4 / 3 if recompute == "full" else 1
    assert 0.4 < passes * one.mfu_fraction * one.step_s / one.parts["compute_s"] < 0.9  # of the peak, by kernels
    assert one.parts["bubble_s"] == one.parts["pp_s"] == one.parts["tp_s"] == one.parts["cp_s"] == 0
    work_s = many.parts["compute_s"]
    assert many.parts["bubble_s"] / work_s == pytest.approx(7 / many.plan.num_micro_batches)
    assert one.parts["compute_s"] < work_s < 1.2 * one.parts["compute_s"]  # the stage with the head has more work
