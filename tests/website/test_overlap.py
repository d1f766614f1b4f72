"""What the page about overlap says holds in its numbers, and they agree with weeks 3 and 5."""

import itertools
import json
import sys

import pytest
from repository import ROOT

sys.path.insert(0, str(ROOT / "website"))

from calculators import calculator, overlap
from calculators.collectives import CLUSTERS, placed

from worldsize import models, operators
from worldsize.event import COMMUNICATION
from worldsize.units import MIB

A100, H100, ETHERNET = "a100-hdr", "h100-ndr", "a100-100gbe"
TINY = overlap.TINY_LLAMA.name
SIZES_MIB = (1, 2, 4, 8, 16, 25, 32, 64, 128, 256, 512)


def step(model=TINY, cluster=A100, num_gpus=64, num_sequences=1, bucket=25):
    return overlap.step(overlap.MODELS[model], placed(cluster, num_gpus), num_gpus, num_sequences, bucket)


def exposed_ms(*chosen, **changed):
    return step(*chosen, **changed).exposed_communication_s(0) * 1e3


def test_gradients_add_up_to_those_of_the_shape():
    for shape in (*overlap.MODELS.values(), models.shape("gpt-3-175b"), models.shape("llama-3-405b")):
        found = overlap.gradients_of(shape, shape.context_length)
        assert sum(one.num_parameters for one in found) == shape.num_parameters
        backward = 2 * (shape.num_layers * shape.layer_flops(shape.context_length) + shape.head_flops)
        assert sum(one.flops for one in found) == pytest.approx(backward)


@pytest.mark.slow
def test_gradients_come_in_the_reverse_order_of_torchs_parameters():
    shape = models.shape("tiny")
    counts = [weight.numel() for weight in models.Transformer(shape).parameters()]
    assert [one.num_parameters for one in overlap.gradients_of(shape, shape.context_length)] == counts[::-1]


def test_gpt_2_and_tiny_llama_have_their_published_sizes():
    assert overlap.GPT_2.num_parameters == 124_439_808  # huggingface.co/gpt2
    assert overlap.TINY_LLAMA.num_parameters == 1_100_048_384  # "1.1B": README of jzhang38/TinyLlama


def test_a_step_follows_the_formula():
    for bucket, cluster in itertools.product((1, 25, 128), (A100, ETHERNET)):
        found = step(cluster=cluster, bucket=bucket)
        compute_s = found.time_s(0, "forward") + found.time_s(0, "backward")
        calls = [one for one in found.of(0) if one.kind == COMMUNICATION]
        gradients = overlap.gradients_of(overlap.TINY_LLAMA, 2048)
        all_flops = sum(one.flops for one in gradients)
        full, waiting_bytes, flops = [], 0, 0.0
        for one in gradients:
            waiting_bytes, flops = waiting_bytes + 2 * one.num_parameters, flops + one.flops
            if waiting_bytes >= bucket * MIB:
                full, waiting_bytes = [*full, flops / all_flops], 0
        full += [1.0] if waiting_bytes else []
        through_s = 0.0
        for fraction, call in zip(full, calls, strict=True):
            ready_s = found.time_s(0, "forward") + fraction * found.time_s(0, "backward")
            through_s = max(ready_s, through_s) + call.duration_s
            assert call.end_s == pytest.approx(through_s)
        assert found.end_s == pytest.approx(max(compute_s, through_s))
        assert found.exposed_communication_s(0) == pytest.approx(found.end_s - compute_s)
        assert sum(one.size_bytes for one in calls) == 2 * overlap.TINY_LLAMA.num_parameters


def test_the_question_is_answered_and_explained():
    found = step()
    calls = [one for one in found.of(0) if one.kind == COMMUNICATION]
    backward_ms, total_ms = found.time_s(0, "backward") * 1e3, found.time_s(0, COMMUNICATION) * 1e3
    assert (backward_ms, total_ms) == (pytest.approx(38.9, abs=0.05), pytest.approx(40.5, abs=0.05))
    first_ms = (calls[0].start_s - found.time_s(0, "forward")) * 1e3
    assert first_ms == pytest.approx(2.1, abs=0.05)
    assert all(later.start_s == earlier.end_s for earlier, later in itertools.pairwise(calls))
    assert overlap.answer().value == pytest.approx(first_ms + total_ms - backward_ms) == pytest.approx(3.7, abs=0.01)
    assert "3.70 ms are exposed: the step takes 62.1 ms, an efficiency of 94.0%" in overlap.answer().sentence


def test_small_buckets_cost_latency_and_a_single_one_hides_nothing():
    smallest, single = step(bucket=1), step(bucket=float("inf"))
    assert smallest.time_s(0, COMMUNICATION) > smallest.time_s(0, "backward")
    assert single.exposed_communication_s(0) == pytest.approx(single.time_s(0, COMMUNICATION))
    assert exposed_ms(bucket=1) > 4 * exposed_ms(bucket=25) and exposed_ms(bucket=512) > 1.9 * exposed_ms(bucket=25)


def test_the_last_bucket_is_always_exposed():
    for model, cluster, num_gpus, bucket in itertools.product(overlap.MODELS, (A100, H100), (8, 64), (1, 25, 512)):
        found = step(model, cluster, num_gpus, 4, bucket)
        last = max((one for one in found.events if one.kind == COMMUNICATION), key=lambda one: one.end_s)
        assert found.exposed_communication_s(0) >= 0.999 * last.duration_s
        if model != overlap.GPT_2.name:
            shape = overlap.MODELS[model]
            assert last.size_bytes >= 2 * shape.num_embedding_parameters
            assert max(one.num_parameters for one in overlap.gradients_of(shape, 1)) == shape.num_embedding_parameters


def test_more_ranks_ask_for_larger_buckets():
    assert exposed_ms(num_gpus=1024, bucket=64) < 0.52 * exposed_ms(num_gpus=1024, bucket=25)
    best = [min(SIZES_MIB, key=lambda one: exposed_ms(num_gpus=num_gpus, bucket=one)) for num_gpus in (8, 64, 1024)]
    assert best == [4, 64, 64]  # MiB; week 3: 1, then 4, then all of 24 layers, of 88 MB each


def test_a_ring_of_1024_would_send_all_at_once_and_nccl_does_not():
    # the last row of week 3's best_bucket is 8,192 rows on 1,024 H100: 24 of 24 layers
    assert exposed_ms(TINY, H100, 1024, 4, 25) == pytest.approx(1.05, abs=0.01)
    assert exposed_ms(TINY, H100, 1024, 4, float("inf")) == pytest.approx(12.3, abs=0.05)


def test_two_sequences_leave_little_more_than_the_last_bucket():
    found = step(num_sequences=2)
    last = max((one for one in found.events if one.kind == COMMUNICATION), key=lambda one: one.end_s)
    assert found.exposed_communication_s(0) < 1.1 * last.duration_s


def test_llama_3_8b_is_hidden_on_infiniband_and_not_on_ethernet():
    # week 5: nothing is exposed on NVLink and InfiniBand, more than half of the step on Ethernet of 100 Gb/s
    fast, slow = (step("llama-3-8b", cluster, 64, 1, 25) for cluster in (H100, ETHERNET))
    assert fast.exposed_communication_s(0) / fast.end_s == pytest.approx(0.010, abs=0.001)
    last = max((one for one in fast.events if one.kind == COMMUNICATION), key=lambda one: one.end_s)
    assert last.duration_s < fast.exposed_communication_s(0) < 1.1 * last.duration_s
    assert slow.exposed_communication_s(0) / slow.end_s > 0.5
    assert "128 GB on each GPU, which has 80.0 GB" in overlap.answer("llama-3-8b", H100, 64, 1, 25).sentence
    assert "ZeRO" not in overlap.answer().sentence


def test_gpus_reach_78_to_82_percent_of_their_peak():
    for cluster in CLUSTERS.values():
        gpu = placed(cluster, 8).gpu
        rate = operators.flops_per_s("matmul", "bfloat16", gpu)
        assert 0.775 < rate / gpu.peak_flops_per_s["bfloat16"] < 0.825


def test_the_ends_of_all_controls_have_answers():
    controls = calculator.controls("overlap")
    assert [control.text(control.value) for control in controls] == [
        TINY,
        next(text for text, name in CLUSTERS.items() if name == A100),
        "64",
        "1",
        "25",
    ]
    ends = [range(len(control.options)) if control.kind == "list" else (0, -1) for control in controls]
    num_gpus = len(controls[2].options) - 1  # the most take longest
    for model, cluster, bucket in itertools.product(ends[0], ends[1], ends[4]):
        places = (model, cluster, num_gpus, 0, bucket)
        found = json.loads(calculator.answer("overlap", places))
        assert found["html"] and found["chart"]["layer"][1]["data"]["values"]
