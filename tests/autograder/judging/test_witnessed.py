"""Checks of what something outside the ranks bears out."""

import pytest
import torch

from autograder.checks import (
    InFewColours,
    draw_bars,
    draw_messages,
    draw_timeline,
    expect_after_arrival,
    expect_body,
    expect_end,
    expect_grown,
    expect_same_again,
    expect_work,
)
from worldsize.check import CheckFailed
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.launch import Run
from worldsize.timeline import Event, Timeline


def message(tensor, posted_s=(0.0, 0.0), done_s=(1.0, 1.0), ranks=(0, 1)):
    body, dtype = bytes(tensor.view(torch.uint8).numpy()), str(tensor.dtype).removeprefix("torch.")
    numbers = dict.fromkeys(ranks, 1)
    posted, done = dict(zip(ranks, posted_s, strict=True)), dict(zip(ranks, done_s, strict=True))
    return Exchange("send", ranks, "0", dtype, "", None, {ranks[0]: body}, numbers, posted, done)


def run_of(*works, grown_bytes=()):
    events = [Event(rank, "compute", "compute", "", 0.0, duration_s) for rank, duration_s in enumerate(works)]
    return Run([], [], 0.0, timeline=Timeline.of_events(events), grown_bytes=list(grown_bytes))


def test_two_runs_must_agree_to_the_last_bit():
    expect_same_again([torch.ones(2), 3], [torch.ones(2), 3])
    with pytest.raises(CheckFailed, match="differ on rank 1"):
        expect_same_again([0, torch.ones(2)], [0, torch.tensor([1, 1 + 1e-7])])


def test_a_body_is_compared_in_its_own_dtype():
    expect_body(message(torch.tensor([1.0, 2.0])), torch.tensor([[1.0], [2.0]]), "the first chunk")
    with pytest.raises(CheckFailed, match=r"the first chunk: 2 numbers of float32. Got: 2 of float64"):
        expect_body(message(torch.tensor([1.0, 2.0]).double()), torch.tensor([1.0, 2.0]), "the first chunk")
    with pytest.raises(CheckFailed, match=r"the first chunk to be sent. Got: different numbers"):
        expect_body(message(torch.tensor([1.0, 2.1])), torch.tensor([1.0, 2.0]), "the first chunk")
    near = torch.tensor([1.0, 2.0 + 1e-6])
    expect_body(message(near), torch.tensor([1.0, 2.0]), "the first chunk")
    with pytest.raises(CheckFailed, match="different numbers"):
        expect_body(message(near), torch.tensor([1.0, 2.0]), "the first chunk", rtol=0)


def test_work_that_was_handed_out_is_on_the_record():
    expect_work(run_of(1e-3, 2e-3), {0: 1e-3, 1: 2e-3})
    with pytest.raises(CheckFailed, match=r"rank 1 to do all of the work that it was given, 2000.0 µs"):
        expect_work(run_of(1e-3, 1e-3), {0: 1e-3, 1: 2e-3})


def test_an_end_is_neither_late_nor_impossibly_early():
    expect_end(run_of(1e-3), 1e-3, 1e-3, "one step")
    with pytest.raises(CheckFailed, match=r"1000.0 µs for one step. Got: 1100.0 µs, 1.10 times as long"):
        expect_end(run_of(1.1e-3), 1e-3, 1e-3, "one step")
    with pytest.raises(CheckFailed, match=r"at least 1000.0 µs for one step"):
        expect_end(run_of(0.9e-3), 1e-3, 1e-3, "one step")


def test_data_cannot_leave_before_they_came():
    received = message(torch.ones(1), done_s=(1.0, 1.0))
    on = message(torch.ones(1), posted_s=(1.0, 0.0), ranks=(1, 2))
    expect_after_arrival(on, received, 1, "chunk 0")
    with pytest.raises(CheckFailed, match=r"rank 1 to wait for chunk 0"):
        expect_after_arrival(message(torch.ones(1), posted_s=(0.5, 0.0), ranks=(1, 2)), received, 1, "chunk 0")


def test_the_kernel_counts_the_memory():
    expect_grown(run_of(grown_bytes=[2**20, 2**20]), 2**21, "one sum")
    with pytest.raises(CheckFailed, match=r"rank 1 to need at most 2 MiB more for one sum. Got: 4 MiB"):
        expect_grown(run_of(grown_bytes=[2**20, 2**22]), 2**21, "one sum")


def test_pictures_are_drawn():
    sent = [Event(0, "send", "communication", "send", 0.0, 1.0, 4, 4, (1,))]
    received = [Event(1, "recv", "communication", "recv", 0.0, 1.0, 4, 0, (0,))]
    timeline = Timeline.of_events([*sent, *received])
    pictures = [
        draw_messages(timeline),
        draw_timeline(timeline, "What happened", ["send"]),
        InFewColours(draw_bars({"time": 1.0}, {"time": 2.0}, "Time", "s")),
    ]
    assert all(one.png().startswith(b"\x89PNG") and one.alt for one in pictures)
