"""Lab 9's solution against torch's own pipelines: the tables of schedules, gradients, and time."""

import itertools

import pytest
import torch
from pipeline_by_hand import gradients_after, solution_source, solved, virtual_step_s
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

import worldsize as ws

pytestmark = pytest.mark.slow

SOURCE = solution_source()
LAB = solved(SOURCE)
EMULATED = {"world_size": 2, "cluster": "dgx-h100", "echo": False, "timeout_s": 240}


def table_of(schedule, *sizes):
    """Torch's actions of each rank, without those that are neither F nor B."""
    table = get_schedule_ops(schedule, *sizes)
    return [[str(one) for one in actions if one is not None and "REDUCE" not in str(one)] for actions in table]


def written(schedule):
    return [[f"{one.stage}{one.kind}{one.micro_batch}" for one in actions] for actions in schedule]


@pytest.mark.parametrize("sizes", [(3, 5), (5, 7), (4, 8)])
def test_gpipe_is_torchs(sizes):
    assert written(LAB.gpipe(*sizes)) == table_of(schedules.ScheduleGPipe, *sizes)


@pytest.mark.parametrize("sizes", [(3, 5), (5, 7), (4, 8)])
def test_1f1b_is_torchs(sizes):
    own, theirs = written(LAB.one_f_one_b(*sizes)), table_of(schedules.Schedule1F1B, *sizes)
    assert own[:-1] == theirs[:-1]
    # torch's table, which only draws the schedule, counts the last rank's F one too far
    last = sizes[0] - 1
    shifted = [f"{last}F{int(one[2:]) - 1}" if one[1] == "F" else one for one in theirs[-1]]
    assert own[-1] == shifted


@pytest.mark.parametrize("sizes", [(4, 4, 2), (3, 6, 3), (3, 6, 2), (4, 8, 2), (4, 5, 2), (5, 7, 3)])
def test_interleaved_is_torchs(sizes):
    assert written(LAB.interleaved(*sizes)) == table_of(schedules.ScheduleInterleaved1F1B, *sizes)


def test_every_size_has_the_length_and_the_peak_of_its_formula():
    for num_ranks, num, v in itertools.product(range(1, 6), range(1, 12), range(1, 4)):
        for time_s in ({"F": 1.0, "B": 2.0}, {"F": 3.0, "B": 1.0}, {"F": 1.0, "B": 1.0}):
            if num < num_ranks:  # which the contract leaves out
                continue
            schedule = LAB.interleaved(num_ranks, num, v)
            played = LAB.play(schedule, v * num_ranks, num, time_s)
            assert played.timeline.end_s == (v * num + num_ranks - 1) * sum(time_s.values())
            first = -(-num // max(1, num // num_ranks))
            for rank, most in enumerate(played.in_flight):
                wanted = (v - 1) * first + 2 * (num_ranks - 1 - rank) + 1 if v > 1 else num_ranks - rank
                assert most <= min(wanted, v * num)


def test_gradients_are_torchs_and_those_of_real_ranks():
    emulated = ws.run(gradients_after, "by hand", SOURCE, 2, compute="none", **EMULATED)
    theirs = ws.run(gradients_after, "torch", SOURCE, 2, compute="none", **EMULATED)
    real = ws.run(gradients_after, "by hand", SOURCE, 2, world_size=2, backend="gloo", echo=False)
    for own, other, on_gloo in zip(emulated.values, theirs.values, real.values, strict=True):
        for calls in range(2):
            assert torch.equal(own[calls], on_gloo[calls])
            torch.testing.assert_close(own[calls], other[calls], rtol=1e-4, atol=1e-6)
            torch.testing.assert_close(own[calls], (calls + 1) * own[0], rtol=1e-4, atol=1e-6)


def test_torchs_default_scales_earlier_calls_away():
    theirs = ws.run(gradients_after, "torch", SOURCE, 3, 4, True, compute="none", **EMULATED)
    for of_call in theirs.values:
        for found, factor in zip(of_call, (1, 1.25, 1.3125), strict=True):
            torch.testing.assert_close(found, factor * of_call[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("length", [16, 64])
def test_an_emulated_step_takes_as_long_as_torchs(length):
    own_s, theirs_s = (
        max(ws.run(virtual_step_s, how, SOURCE, 6, length, **EMULATED).values) for how in ("by hand", "torch")
    )
    assert own_s < 1.01 * theirs_s
