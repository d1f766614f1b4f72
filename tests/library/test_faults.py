"""What goes wrong on an emulated cluster: who is slow, what is slow, who is lost."""

import math
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import emulate, hardware
from worldsize.faults import Faults, LostRank, SilentError, SlowLink, SlowRank

DGX = hardware.DGX_H100


def emulated(fn, *args, world_size=4, **kwargs):
    return ws.run(fn, *args, world_size=world_size, cluster=DGX, echo=False, compute="none", **kwargs)


def work_and_meet(num_steps=4):
    for _ in range(num_steps):
        emulate.spend(1.0)
        dist.barrier()


def test_a_slow_rank_holds_up_all():
    timeline = emulated(work_and_meet, faults=[SlowRank(2, factor=5.0)]).timeline
    assert [timeline.time_s(rank, "compute") for rank in range(4)] == [4.0, 4.0, 20.0, 4.0]
    assert timeline.time_s(0, "wait") == pytest.approx(16.0, abs=1e-3)
    assert timeline.end_s == pytest.approx(20.0, abs=1e-3)


def test_a_rank_that_is_slow_now_and_then_is_so_by_its_seed():
    def took_s(seed):
        fault = SlowRank(1, factor=3.0, share=0.5, seed=seed)
        return emulated(work_and_meet, 20, world_size=2, faults=[fault]).timeline.time_s(1, "compute")

    assert took_s(1) == took_s(1)
    assert 20 < took_s(1) < 60
    assert len({took_s(seed) for seed in range(4)}) > 1


def test_each_lane_of_a_slow_rank_has_draws_of_its_own():
    def slowed(*lanes):
        faults = Faults([SlowRank(0, factor=2.0, share=0.5, seed=1)], hardware.DGX_H100, 2)
        return [(lane, faults.slowed_s(0, 1.0, lane)) for lane in lanes]

    main, other = slowed(*[""] * 9), slowed(*["loader"] * 9)
    mixed = slowed(*["", "loader"] * 9)  # lanes report in any order
    assert mixed[::2] == main and mixed[1::2] == other
    assert [took_s for _, took_s in main] != [took_s for _, took_s in other]


def send_a_megabyte():
    if dist.get_rank() == 0:
        dist.send(torch.ones(1 << 18), 1)
    if dist.get_rank() == 1:
        dist.recv(torch.ones(1 << 18), 0)
    if dist.get_rank() == 2:
        dist.send(torch.ones(1 << 18), 3)
    if dist.get_rank() == 3:
        dist.recv(torch.ones(1 << 18), 2)


def test_a_slow_link_slows_the_messages_that_cross_it_and_no_others():
    timeline = emulated(send_a_megabyte, faults=[SlowLink("gpu0 out", factor=10.0)]).timeline
    slow_s, fast_s = (timeline.time_s(rank, "communication") - DGX.intra.latency_s for rank in (1, 3))
    assert slow_s == pytest.approx(10 * fast_s)


def reduce_a_lot():
    dist.all_reduce(torch.ones(1 << 22))


def test_a_slow_link_slows_the_collectives_that_cross_it():
    link = SlowLink("gpu3 out", factor=4.0)
    sound_s, slow_s = (emulated(reduce_a_lot, faults=faults).timeline.end_s for faults in ([], [link]))
    assert 2.5 < slow_s / sound_s <= 4
    aside = emulated(reduce_a_lot, faults=[SlowLink("gpu7 out", factor=4.0)]).timeline.end_s
    assert aside == sound_s, "ranks 0 to 3 do not use it"


def test_a_slow_network_slows_collectives_between_nodes_alone():
    faults = Faults([SlowLink("node1 nic0 in", factor=4.0)], hardware.H100_NDR, 16)
    within, between = faults.cluster_of(range(8)), faults.cluster_of(range(16))
    assert within == hardware.H100_NDR
    assert between.inter.bandwidth_bytes_per_s == hardware.IB_NDR.bandwidth_bytes_per_s / 4
    assert between.intra == hardware.NVLINK4


def test_a_lost_rank_is_told_as_such_and_who_waits_for_it():
    with pytest.raises(ws.RankFailed, match=r"Rank 2 of 4 failed with a planned loss: gone after 3 calls") as caught:
        emulated(work_and_meet, 8, faults=[LostRank(2, after_calls=3)])
    assert caught.value.failures[0].rank == 2
    assert "barrier" in str(caught.value)


def test_a_slow_bridge_slows_the_collectives_within_its_node():
    faults = Faults([SlowLink("node0 bridge", factor=4.0)], hardware.PCIE_BOX_10GBE, 16)
    bridge_bytes_per_s = hardware.PCIE_BOX_10GBE.bridge_bytes_per_s
    assert bridge_bytes_per_s
    expected = replace(hardware.PCIE_BOX_10GBE, bridge_bytes_per_s=bridge_bytes_per_s / 4)
    assert faults.cluster_of(range(4)) == expected
    assert faults.cluster_of(range(8, 12)) == hardware.PCIE_BOX_10GBE


def test_faults_of_one_link_multiply_and_of_those_that_lose_a_rank_the_first_counts():
    faults = Faults([SlowLink("gpu0 out", factor=10.0), SlowLink("gpu0 out", factor=2.0)], DGX, 4)
    assert faults.capacity_bytes_per_s(DGX.hop("gpu0 out")) == DGX.intra.bandwidth_bytes_per_s / 20
    assert faults.cluster_of(range(4)).intra.bandwidth_bytes_per_s == DGX.intra.bandwidth_bytes_per_s / 20
    faults = Faults([LostRank(1, after_calls=3), LostRank(1, after_calls=7)], DGX, 4)
    assert [faults.loss(1, num_calls) for num_calls in (2, 3, 9)] == [None, *[LostRank(1, after_calls=3)] * 2]


def ask_and_meet(num_steps):
    for step in range(num_steps):
        emulate.elapsed()
        dist.barrier()
        print(f"met {step}")


def test_who_asks_for_the_time_calls_nothing():
    with pytest.raises(ws.RankFailed, match="gone after 2 calls") as caught:
        emulated(ask_and_meet, 5, world_size=2, faults=[LostRank(0, after_calls=2)])
    assert caught.value.output[0].count("met") == 2


def test_a_fault_that_is_not_said_is_drawn_the_same_by_the_same_seed():
    def drawn(fault):
        return fault.on(DGX, 8)

    assert {drawn(SlowRank(seed=seed)).rank for seed in range(50)} == set(range(8))
    assert drawn(LostRank(seed=3)) == drawn(LostRank(seed=3)) != drawn(LostRank(seed=4))
    assert drawn(SlowLink(seed=1)) == drawn(SlowLink(seed=1))
    assert drawn(SlowLink(seed=1)).hop in {f"gpu{rank} {way}" for rank in range(8) for way in ("in", "out")}
    assert drawn(LostRank(5, after_calls=0)) == LostRank(5, after_calls=0)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda: SlowRank(0, factor=0.5), "factor is 0.5; it must be how many times slower, 1 or more"),
        (lambda: SlowRank(0, factor=math.inf), "factor is inf; it must be how many times slower, 1 or more and finite"),
        (lambda: SlowLink(factor=math.inf), "factor is inf; it must be how many times slower, 1 or more and finite"),
        (lambda: SlowRank(0, share=2), "share is 2; it must be the fraction of the rank's steps"),
        (lambda: LostRank(0, after_calls=-1), "after_calls must be a number of operations, 0 or more; got -1"),
        (lambda: SlowRank(9), "a fault names rank 9, but the run has ranks 0 to 3"),
        (lambda: LostRank(9), "a fault names rank 9"),
        (lambda: SlowLink("gpu0 up"), "dgx-h100 has no hop 'gpu0 up'"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(fault, words):
    with pytest.raises(ValueError, match=words):
        emulated(work_and_meet, faults=[fault()])


def test_what_is_no_fault_is_refused():
    with pytest.raises(ValueError, match=r"'slow' is not a fault; give one of SlowRank, SlowLink"):
        emulated(work_and_meet, faults=["slow"])
    for faults in (3, "slow"):
        with pytest.raises(ValueError, match="is not a fault; give one of"):
            emulated(work_and_meet, faults=faults)
    with pytest.raises(ValueError, match=r"faults must be a list; write faults=\[SlowRank\(rank=0"):
        emulated(work_and_meet, faults=SlowRank(0))


def test_faults_without_a_cluster_are_refused():
    with pytest.raises(ValueError, match="faults are for an emulated cluster"):
        ws.run(work_and_meet, world_size=2, faults=[SlowRank(0)])


def gather_twice(dtype):
    mine = torch.full((3,), 1 + dist.get_rank(), dtype=dtype)
    parts = [[torch.empty_like(mine) for _ in range(dist.get_world_size())] for _ in range(2)]
    dist.barrier()
    for received in parts:
        dist.all_gather(received, mine)
    return torch.stack([torch.stack(received) for received in parts])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_silent_error_changes_the_sign_of_one_number_once(dtype):
    clean, spoiled = (
        emulated(gather_twice, dtype, world_size=3, faults=faults).values
        for faults in ([], [SilentError(1, after_calls=0)])
    )
    for before, after in zip(clean, spoiled, strict=True):
        assert torch.equal(before.abs(), after.abs())
        assert [tuple(place)[:2] for place in (before != after).nonzero().tolist()] == [(0, 1)]
    again = emulated(gather_twice, dtype, world_size=3, faults=[SilentError(1, after_calls=0)]).values
    assert torch.equal(again[0], spoiled[0])
    later = emulated(gather_twice, dtype, world_size=3, faults=[SilentError(1, after_calls=2)]).values
    assert [tuple(place)[:2] for place in (later[0] != clean[0]).nonzero().tolist()] == [(1, 1)]


def reduce_once():
    dist.all_reduce(torch.ones(3))


def test_faults_without_effect_are_named():
    came = [SilentError(0, 0), SlowLink("gpu0 out")]
    missed = [LostRank(1, 5), SilentError(0, 3), SlowLink("gpu5 out")]
    run = emulated(reduce_once, world_size=2, faults=[*came, *missed])
    assert run.warnings == [
        "The loss of rank 1 did not happen: it was to come after 5 calls, and the rank made 1.",
        "The silent error of rank 0 did not happen: it was to come after 3 calls, and the rank made 1.",
        "The slow link gpu5 out slowed nothing: nothing crossed it.",
    ]
