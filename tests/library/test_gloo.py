"""Gloo's collectives by hand: what each of them takes follows from the order of its messages."""

import re
from dataclasses import replace

import pytest

from worldsize import hardware
from worldsize.gloo import MAX_SEGMENT_BYTES, cost
from worldsize.hardware import Cluster, Link
from worldsize.pricing import OPS, price
from worldsize.units import GB, MB, MS

WAY_S, RATE = 3 * MS, 0.1 * GB
HOSTS = Cluster(
    name="hosts",
    gpu=hardware.A100_PCIE,
    gpus_per_node=1,
    intra=hardware.PCIE4,
    num_nodes=8,
    inter=Link("slow", 2 * WAY_S, RATE, "made up for this test, 2026", kind="tcp"),
    library="gloo",
)


def time_s(op, size_bytes, num_ranks, cluster=HOSTS):
    return price(op, size_bytes, range(num_ranks), cluster).time_s


def test_a_message_waits_for_word_that_it_may_come():
    assert time_s("send", MB, 2) == pytest.approx(2 * WAY_S + MB / RATE)


def test_two_ranks_all_reduce_in_the_textbooks_time_while_two_segments_are_enough():
    textbook_s = 2 * (2 * WAY_S + 2 * MB / RATE)
    assert time_s("all_reduce", 4 * MB, 2) == pytest.approx(textbook_s)
    assert time_s("all_reduce", 4 * MB, 2) == pytest.approx(price("all_reduce", 4 * MB, [0, 1], HOSTS, "ring").time_s)


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 8])
def test_every_segment_beyond_two_under_way_costs_one_way_more(num_ranks):
    size_bytes = 4 * num_ranks * MAX_SEGMENT_BYTES
    num_segments = 4 * (num_ranks - 1)
    phase_s = num_segments * MAX_SEGMENT_BYTES / RATE + (2 + num_segments - 2) * WAY_S
    assert time_s("all_reduce", size_bytes, num_ranks) == pytest.approx(2 * phase_s)


@pytest.mark.parametrize(("op", "rounds"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 2)])
def test_without_delay_a_ring_takes_its_bytes_over_the_rate(op, rounds):
    near = replace(HOSTS, inter=replace(HOSTS.inter, latency_s=0.0))
    assert time_s(op, 64 * MB, 4, near) == pytest.approx(rounds * 3 / 4 * 64 * MB / RATE)


def test_short_segments_come_in_pairs_that_each_wait_for_word():
    segment_s = 0.01 * WAY_S
    size_bytes = 6 * segment_s * RATE  # three ranks, two segments each
    assert time_s("all_reduce", size_bytes, 3) == pytest.approx(2 * (4 * WAY_S + 4 * segment_s), rel=0.02)


@pytest.mark.parametrize(
    ("num_ranks", "num_ways", "num_sends"), [(2, 2, 1), (3, 2, 2), (4, 3, 3), (5, 3, 4), (8, 4, 6)]
)
def test_a_broadcast_goes_down_a_binomial_tree(num_ranks, num_ways, num_sends):
    assert time_s("broadcast", MB, num_ranks) == pytest.approx(num_ways * WAY_S + num_sends * MB / RATE)


@pytest.mark.parametrize(("num_ranks", "rounds"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3)])
def test_a_barrier_takes_a_round_for_every_doubling(num_ranks, rounds):
    assert time_s("barrier", 0, num_ranks) == pytest.approx(rounds * 2 * WAY_S)


@pytest.mark.parametrize("op", ["gather", "scatter", "all_to_all"])
def test_direct_messages_share_the_busiest_link(op):
    assert time_s(op, 4 * MB, 4) == pytest.approx(2 * WAY_S + 3 * MB / RATE)


def test_a_reduce_is_half_a_ring_and_then_a_gather():
    half_s = (2 + 4) * WAY_S + 6 * MB / 2 / RATE  # six segments of half a chunk
    assert time_s("reduce", 4 * MB, 4) == pytest.approx(half_s + 2 * WAY_S + 3 * MB / RATE)


def test_what_a_rank_sends_follows_from_how_it_is_done():
    sent = {op: cost(op, 400, range(4), HOSTS).sent_bytes for op in OPS if op not in ("send", "barrier")}
    assert sent.pop("broadcast") == 800  # the root, to its two children
    assert sent == {
        "all_reduce": 600,
        "reduce_scatter": 600,
        "all_gather": 300,
        "reduce": 400,
        "all_to_all": 300,
        "scatter": 300,
        "gather": 100,
    }


@pytest.mark.parametrize("op", [op for op in OPS if op != "send"])
def test_more_bytes_never_take_less_time(op):
    times_s = [time_s(op, 2**power, 5) for power in range(0, 30)]
    assert times_s == sorted(times_s)


def test_the_library_of_the_cluster_decides():
    assert price("all_reduce", MB, range(4), HOSTS).algorithm == "gloo-ring"
    assert price("all_reduce", MB, range(4), replace(HOSTS, library="nccl")).algorithm.startswith("nccl")
    assert price("all_reduce", MB, [3], HOSTS).time_s == 0
    with pytest.raises(
        ValueError, match=re.escape("hosts uses Gloo, which has one algorithm per operation; pass algorithm=None")
    ):
        price("all_reduce", MB, range(4), HOSTS, "nccl-tree")
    with pytest.raises(ValueError, match=r"hosts: library is 'mpi'; it must be one of nccl, gloo"):
        replace(HOSTS, library="mpi")
