"""Every legal plan once and no other, those that fit in the order of the caller's cost, and why others were dropped."""

import math
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest

import worldsize as ws
from worldsize import hardware
from worldsize.models import shape
from worldsize.planning import serial
from worldsize.planning.layout import beside, stage_layers
from worldsize.planning.memory_estimate import fits
from worldsize.planning.search import usual_batch
from worldsize.published import SERIAL, find_range
from worldsize.units import format_times_s

TINY, SMALL = shape("tiny"), shape("small")
NODE = hardware.DGX_H100
NODES = hardware.cluster("h100-ndr-x4")


def plans_of(model=SMALL, cluster=NODE, cost=lambda plan: 1.0, global_batch=8, **choices):
    return ws.plan(model, cluster, cost, global_batch=global_batch, **choices)


def key(plan):
    return (
        *(plan.tp, plan.cp, plan.dp, plan.pp, plan.micro_batch, plan.num_chunks),
        *(plan.recompute, plan.zero_stage),
    )


def by_hand(model, gpus_per_node, num_gpus, global_batch, length):
    """Every legal plan by trying all numbers, in the words of docs/plan.md."""
    sizes = range(1, num_gpus + 1)
    for tp, cp, dp, pp in ((a, b, c, d) for a in sizes for b in sizes for c in sizes for d in sizes):
        divides = [model.num_heads, model.num_kv_heads, model.width, model.hidden_width, gpus_per_node]
        if tp * cp * dp * pp != num_gpus or any(number % tp for number in divides) or global_batch % dp:
            continue
        if (cp > 1 and length % (2 * cp)) or length / cp % tp:
            continue
        for micro_batch in range(1, global_batch + 1):
            num_micro_batches = global_batch / dp / micro_batch
            for num_chunks in range(1, model.num_layers + 3 if pp > 1 else 2):
                parts = pp * num_chunks
                is_cut = model.num_layers % parts == 0 or (pp > 1 and (model.num_layers + 2) % parts == 0)
                is_whole = num_micro_batches.is_integer() and (num_chunks == 1 or num_micro_batches % pp == 0)
                if is_cut and is_whole:
                    for recompute in ("none", "selective", "full"):
                        for zero_stage in range(4 if dp * cp > 1 else 1):
                            yield tp, cp, dp, pp, micro_batch, num_chunks, recompute, zero_stage


@pytest.mark.parametrize(
    ("model", "cluster", "global_batch", "length"),
    [
        (TINY, NODE, 4, 128),
        (SMALL, NODE, 6, 256),
        (SMALL, replace(NODES, num_nodes=2), 8, 256),
        (replace(TINY, num_layers=6), replace(NODE, gpus_per_node=6), 12, 96),
        (replace(TINY, num_layers=3, num_kv_heads=4), NODE, 3, 8),
    ],
)
def test_every_legal_plan_is_tried_once(model, cluster, global_batch, length):
    plans = plans_of(model, cluster, global_batch=global_batch, length=length)
    expected = Counter(by_hand(model, cluster.gpus_per_node, cluster.world_size, global_batch, length))
    assert Counter(key(one.plan) for one in plans) == expected and expected


def test_layers_are_cut_into_equal_parts_or_those_with_embedding_and_head():
    assert stage_layers(128, 64) == (2,) * 64
    assert stage_layers(126, 16) == (7, *[8] * 14, 7)  # Llama 3
    assert stage_layers(126, 16, 8) == (7, *[8] * 14, 7)
    assert stage_layers(126, 5) == () and stage_layers(6, 1, 8) == ()


def test_a_plan_says_what_follows_from_its_sizes():
    plan = ws.plan(
        *("llama-3-405b", "h100-ndr-x2048", lambda plan: 100.0),
        **{"global_batch": 2048, "tp": 8, "pp": 16, "dp": 64, "cp": 2, "num_chunks": 8},
        **{"recompute": "full", "zero_stage": 1, "micro_batch": 2},
    ).best
    assert plan.num_micro_batches == 16 and plan.num_tokens == 2**24 and plan.num_micro_batch_tokens == 8192
    assert plan.num_shards == 128 and plan.num_stage_layers == (7, *[8] * 14, 7)
    assert plan.tp_ranks == range(8) and plan.cp_ranks == range(0, 16, 8)
    assert plan.shard_ranks == range(0, 1024, 8) and plan.pp_ranks == range(0, 16384, 1024)
    assert math.prod(plan.mesh.values()) == 16384 and list(plan.mesh) == ["pp", "dp", "cp", "tp"]
    assert str(plan) == "tp8 pp16 of 8 chunks dp64 cp2, micro-batch 2, recompute full, ZeRO-1"
    held = sum(plan.num_parameters(stage) for stage in range(16)) * 8
    whole = 126 * 2 * plan.model.width + plan.model.width
    assert held == pytest.approx(plan.model.num_parameters + 7 * whole, rel=1e-6)  # norms are on all eight
    assert plan.most_parameters == max(plan.num_parameters(stage) for stage in range(16))


def test_experts_are_shared_by_the_ranks_that_have_the_same_attention():
    mixtral = shape("mixtral-8x7b")
    plans = ws.plan(
        mixtral, NODES, lambda plan: plan.ep, global_batch=64, length=4096, pp=2, tp=2, memory=lambda plan: 0
    )
    assert {(one.plan.dp * one.plan.cp, one.plan.ep) for one in plans} == {(8, ep) for ep in (1, 2, 4, 8)}
    plan = plans.cheapest(ep=4).plan
    experts = 16 * 8 * mixtral.num_mlp_weights // (4 * 2)
    assert plan.num_expert_parameters(0) == experts and plan.num_expert_shards == 2 and plan.ep_ranks == range(0, 8, 2)
    alone = plans.cheapest(ep=1).plan
    assert alone.num_parameters(0) - plan.num_parameters(0) == 3 * experts
    assert alone.num_layer_parameters - plan.num_layer_parameters == 3 * experts // 16
    assert "ep" in str(plans.table()) and " ep4" in str(plan) and "ep" not in plans_of().table().columns
    assert {one.plan.ep for one in plans_of()} == {1}


def test_groups_side_by_side_are_those_with_a_rank_on_the_node():
    four = hardware.cluster("h100-ndr-x4")
    assert list(beside(range(8), four)) == []
    assert list(beside(range(0, 32, 8), four)) == [range(first, first + 32, 8) for first in range(1, 8)]
    assert list(beside(range(0, 4, 2), four)) == [range(1, 5, 2), range(4, 8, 2), range(5, 9, 2)]
    thin = replace(four, oversubscription=2)
    assert len(list(beside(range(0, 16, 8), thin))) == 15  # all of them may share an uplink


def test_a_tied_head_needs_a_copy_on_the_last_stage():
    tied = replace(SMALL, is_tied=True)
    plan = plans_of(tied, pp=2, tp=1).best
    assert plan.num_parameters(0) + plan.num_parameters(1) == SMALL.num_parameters
    assert plans_of(tied, pp=1, tp=1).best.num_parameters(0) == tied.num_parameters


def test_plans_come_in_the_order_of_the_cost_and_parts_add_up():
    def cost(plan):
        return {"a_s": plan.tp / 4, "b_s": 1 / plan.pp}

    plans = plans_of(cost=cost)
    steps = [one.step_s for one in plans]
    assert steps == sorted(steps) and len(plans) == len(steps) > 100
    assert (plans.best.tp, plans.best.pp) == (1, 4) == (plans[0].plan.tp, plans[0].plan.pp)
    assert plans[0].parts == {"a_s": 0.25, "b_s": 0.25} and plans[0].step_s == 0.5
    layouts = [(one.plan.tp, one.plan.pp, one.plan.dp, one.plan.cp) for one in plans.layouts]
    assert len(layouts) == len(set(layouts)) and set(layouts) == {
        (one.plan.tp, one.plan.pp, one.plan.dp, one.plan.cp) for one in plans
    }
    lines = str(plans).splitlines()
    assert lines[1].split()[9:] == ["fits", "step", "slower", "mfu", "held", "a", "b"] and "500 ms" in lines[2]


def test_a_place_counts_the_layouts_that_are_cheaper():
    plans = plans_of(cost=lambda plan: plan.tp + (plan.recompute == "full") * 0.5)
    assert plans.place(tp=1) == 1 and plans.cheapest(tp=4).step_s == 4
    num_cheaper = sum(one.plan.tp == 1 for one in plans.layouts)
    assert plans.place(tp=2) == num_cheaper + 1
    others = sum(one.plan.tp < 2 for one in plans.layouts)
    assert plans.place(tp=2, recompute="full") == others + sum(one.plan.tp == 2 for one in plans.layouts)
    with pytest.raises(ValueError, match=r"no plan here has tp 3; ws\.plan\(\.\.\., tp=3\)"):
        plans.place(tp=3)
    with pytest.raises(ValueError, match="a plan has no 'sp'"):
        plans.cheapest(sp=3)


def test_mfu_is_of_the_models_own_operations():
    plans = plans_of("llama-3-8b", global_batch=64, cost=lambda plan: 100.0)
    flops = shape("llama-3-8b").flops(64 * 8192, 8192)
    assert plans[0].mfu_fraction == pytest.approx(flops / 100 / 8 / 989e12)


def test_a_choice_restricts_and_a_named_tp_may_leave_the_node():
    plans = plans_of(recompute=("full", "none"), zero_stage=1, micro_batch={1, 2}, cp=1)
    assert {one.plan.recompute for one in plans} == {"full", "none"}
    assert {(one.plan.zero_stage, one.plan.cp) for one in plans} == {(1, 1)}
    assert {one.plan.micro_batch for one in plans} == {1, 2}
    wide = replace(shape("llama-3-8b"), num_kv_heads=32)
    assert max(one.plan.tp for one in plans_of(wide, NODES)) == 8
    assert {one.plan.tp for one in plans_of(wide, NODES, tp=16)} == {16}


def test_what_is_dropped_is_counted_by_reason():
    plans = ws.plan("llama-3-8b", "dgx-h100", lambda plan: 100.0, global_batch=64, cp=1)
    fitting = ws.plan("llama-3-8b", "dgx-h100", lambda plan: 100.0, global_batch=64, cp=1, memory=lambda plan: 0)
    assert len(plans) + sum(plans.not_fitting.values()) == len(fitting)
    assert all(one.held_bytes <= 80e9 for one in plans) and min(plans.not_fitting.values()) > 0
    alone = sum("alone" in reason and number for reason, number in plans.not_fitting.items())
    by_hand = [one.plan for one in fitting if one.plan.zero_stage == 0 and 16 * one.plan.most_parameters > 80e9]
    assert alone >= len(by_hand) > 0
    note = plans.note
    assert f"{len(plans):,} of {len(fitting):,} legal plans fit in 80.0 GB, in {len(plans.layouts)} layouts" in note
    assert all(f"Does not fit ({number:,} plans): {reason}." in note for reason, number in plans.not_fitting.items())
    odd = plans_of(replace(SMALL, num_layers=5), global_batch=6)
    assert sum(odd.not_legal.values()) == 20 - len(odd.layouts)  # 8 is a product of four numbers in 20 ways
    assert any(reason.startswith("pp does not divide 5 layers, nor 7 with") for reason in odd.not_legal)
    assert any(reason.startswith("dp does not divide a batch of 6") for reason in odd.not_legal)


def test_a_memory_of_ones_own_decides_what_fits():
    plans = plans_of(memory=lambda plan: 1e9 * plan.micro_batch * 40)
    assert {one.plan.micro_batch for one in plans} == {1, 2} and {one.held_bytes for one in plans} == {4e10, 8e10}
    assert all("your own memory function" in reason for reason in plans.not_fitting)


def test_the_table_marks_a_plan_and_shows_it_where_it_is_not_among_the_best():
    plans = plans_of(cost=lambda plan: plan.tp)
    table = plans.table(2, tp=4)
    assert table.marked == {2} and [row[0] for row in table.cells] == ["1", "2", str(plans.place(tp=4))]
    assert plans.table(2, tp=1).marked == {0} and not plans.table(2).marked
    bundle = plans._repr_mimebundle_()
    assert bundle["text/plain"] == repr(plans) and "<table>" in bundle["text/html"]
    assert "small on 8 GPUs of dgx-h100, 8 sequences of 256 tokens (computed)" in bundle["text/html"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": "llama"}, "no shape is called 'llama'; did you mean"),
        ({"cluster": "dgx"}, "no cluster is called 'dgx'; did you mean"),
        ({"global_batch": 0}, "global_batch is 0; give a whole number"),
        ({"length": 2.5}, r"length is 2\.5; give a whole number"),
        ({"cost": 3}, "cost is 3; give a function of a Plan"),
        ({"tp": 0}, "tp is 0; give a whole number of 1 or more, one or several, or leave it out"),
        ({"dp": ()}, r"dp is \(\); give a whole number"),
        ({"pp": True}, "pp is True; give"),
        ({"recompute": "half"}, "recompute is 'half'; give 'none' or 'selective' or 'full'"),
        ({"zero_stage": 4}, "zero_stage is 4; give 0 or 1 or 2 or 3"),
        ({"tp": 3}, "no plan for small on dgx-h100 with tp 3 is legal on its 8 GPUs: no legal layout"),
        ({"tp": 8, "cluster": NODES}, r"tp does not divide 8 heads and 4 key/value heads \(6 layouts\); choose sizes"),
        ({"tp": 4, "length": 2}, r"2 tokens cannot be split into 2 cp pieces.*\(3 layouts\)"),
        ({"model": "llama-3-405b"}, r"fits in memory: the smallest of [\d,]+ legal plans holds \d+ GB, and the H100"),
        ({"memory": lambda plan: "much"}, "memory is 'much' for pp2.*; it must be a number of bytes"),
        ({"cost": lambda plan: None}, "cost is None for pp2.*; it must be a number of seconds, 0 or more"),
        ({"cost": lambda plan: math.nan}, "cost is nan"),
        ({"cost": lambda plan: -1}, "cost is -1"),
        ({"cost": lambda plan: {"bubble_s": "1 s"}}, "cost's part 'bubble_s' is '1 s'"),
    ],
)
def test_errors_say_what_to_do(wrong, message):
    arguments = {"pp": 2, "tp": 1, "cp": 1, "micro_batch": 1} if {"memory", "cost"} & wrong.keys() else {}
    with pytest.raises(ValueError, match=message):
        plans_of(**arguments | wrong)


def test_a_cost_that_raises_keeps_its_error_and_names_the_plan():
    with pytest.raises(ZeroDivisionError) as caught:
        plans_of(cost=lambda plan: 1 / 0)
    assert caught.value.__notes__[0].startswith("This was the cost of Plan(global_batch=8, length=256, dp=")


def test_without_a_cost_plans_are_sorted_by_their_serial_time_beside_the_published_range():
    plans = ws.plan("13B", "a100-hdr-x8")
    assert plans[0].step_s == serial.step_s(plans.best) == sum(plans[0].parts.values())
    assert [one.step_s for one in plans] == sorted(one.step_s for one in plans)
    assert {(one.plan.cp, one.plan.ep) for one in plans} == {(1, 1)}
    assert plans.best.global_batch * plans.best.length == 4 * 2**20
    found = find_range(SERIAL, plans.best.family, "ampere", 64)
    expected = format_times_s(*found.around(plans[0].step_s))
    text = str(plans.table(1))
    assert text.startswith("Best layouts by their serial time at peak rates: llama-2-13b on 64 GPUs")
    assert f"The cheapest would take {expected}: published programs of this kind took 1.30 to 3.35 times" in text
    assert text.count(expected) == 2 and "your cost" not in text
    assert "not compared" in str(ws.plan("70B", "h100-ndr-x8").table(1))


def test_a_serial_time_is_no_step_so_its_mfu_is_the_range_of_published_steps():
    first = ws.plan("13B", "a100-hdr-x8")[0]
    found = find_range(SERIAL, first.plan.family, "ampere", 64)
    assert math.isnan(first.mfu_fraction) and first.step_range_s == found.around(first.step_s)
    least, most = first.mfu_range_fraction
    flops = first.plan.model.flops(first.plan.num_tokens, first.plan.length)
    assert least == pytest.approx(flops / found.high / first.step_s / 64 / 312e12)
    assert most == pytest.approx(flops / found.low / first.step_s / 64 / 312e12)
    uncompared = ws.plan("70B", "h100-ndr-x8")[0]
    assert (uncompared.step_range_s, uncompared.mfu_range_fraction) == (None, None)
    priced = ws.plan("13B", "a100-hdr-x8", lambda plan: 100.0)[0]
    assert priced.mfu_fraction > 0 and (priced.step_range_s, priced.mfu_range_fraction) == (None, None)


def test_the_note_names_the_cheapest_plan_that_fits_by_all_measured_peaks():
    plans = ws.plan("13B", "a100-hdr-x8")
    room = next(one for one in plans if fits(one.held_bytes, 80e9) == "yes")
    slower = room.step_s / plans[0].step_s - 1
    assert fits(plans[0].held_bytes, 80e9) == "perhaps" and slower > 0.01
    assert f'even at 1.73 times its estimate ("yes") is {room.plan}, {slower:.1%} slower.' in plans.note
    assert '"yes"' not in plans_of().note  # the first is such a plan
    full = plans_of(memory=lambda plan: 79e9)
    assert '"yes"' not in full.note  # one's own memory function is not estimated
    tight = ws.plan("13B", "a100-hdr-x8", tp=1, pp=1, zero_stage=2, recompute="selective", micro_batch=2)
    assert 'No plan would fit at 1.73 times its estimate ("yes").' in tight.note


def test_a_context_that_is_named_is_tried_without_a_cost():
    assert {one.plan.cp for one in ws.plan("8B", "dgx-h100", cp=(1, 2))} == {1, 2}


@pytest.mark.parametrize(
    ("num_gpus", "length", "batch"), [(64, 4096, 1024), (384, 8192, 768), (8, 10**9, 1), (10, 2048, 2560)]
)
def test_the_usual_batch_has_four_million_tokens_or_more_and_divides_well(num_gpus, length, batch):
    assert usual_batch(num_gpus, length) == batch


def test_gathers_of_tp_cost_time_on_any_links_and_between_nodes():
    of_mesh = {one.plan.tp: one.parts for one in ws.plan("8B", "mi300x", pp=1, recompute="none", zero_stage=1).layouts}
    assert of_mesh[1]["links_s"] < of_mesh[2]["links_s"] < of_mesh[4]["links_s"]
    spanning = {one.plan.tp: one for one in ws.plan("gpt-3-175b", "a100-hdr-x8", tp=(8, 32)).layouts}
    assert spanning[32].parts["nics_s"] > 10 * spanning[8].parts["nics_s"] and spanning[8].step_s < spanning[32].step_s


def test_shards_within_a_node_cost_time():
    choices = {"tp": 1, "pp": 1, "micro_batch": 1, "recompute": "full"}
    links_s = {stage: ws.plan("7B", "pcie-box", zero_stage=stage, **choices)[0].parts["links_s"] for stage in (2, 3)}
    num = ws.plan("7B", "pcie-box", zero_stage=3, **choices).best.num_micro_batches
    assert links_s[2] > 0 and links_s[3] == pytest.approx(links_s[2] * (2 * num + 1) / 2)


def test_a_context_of_no_ranks_is_refused():
    with pytest.raises(ValueError, match="cp is 0"):
        ws.plan("8B", "dgx-h100", cp=0)


def test_zero_3_gathers_for_each_micro_batch():
    plans = ws.plan("8B", "h100-ndr-x2", tp=1, pp=1, micro_batch=1, recompute="full", zero_stage=(1, 2, 3))
    nics_s = {one.plan.zero_stage: one.parts["nics_s"] for one in plans}
    num = plans.best.num_micro_batches
    assert 0 < nics_s[1] == nics_s[2] and nics_s[3] == pytest.approx(nics_s[2] * (2 * num + 1) / 2)


def test_planning_needs_no_torch():
    program = (
        "import sys, worldsize as ws\n"
        "ws.plan('llama-3-8b', 'dgx-h100', lambda plan: 100.0, global_batch=8, cp=1)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_layouts_that_cost_nearly_the_same_are_said_to_be_equal():
    equal, different = (
        plans_of(tp=(1, 2, 4), pp=1, cp=1, cost=lambda plan, far=far: {1: 100, 2: 104, 4: far}[plan.tp]).note
        for far in (104.9, 105.1)
    )
    assert "The first 3 layouts differ by at most 5%, too little to call one the best" in equal
    assert "The first 2 layouts differ" in different
    assert "layouts differ" not in plans_of(tp=(1, 2), pp=1, cp=1, cost=lambda plan: 100 * plan.tp).note
