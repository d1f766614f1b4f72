"""Sums on the wire, read by whose parts are in them."""

import re

import pytest
import torch

from autograder.checks import (
    Parts,
    draw_parts,
    expect_dtype,
    expect_partial_sums,
    expect_short_messages,
    mask_of,
    named,
)
from worldsize.check import CheckFailed
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.launch import Run

PARTS = Parts(torch.Generator().manual_seed(1), 3, 4)
ONE, TWO, THREE = PARTS.of_rank


def message(sender, receiver, tensor, posted_s, done_s):
    """A message of this tensor."""
    body = bytes(tensor.view(torch.uint8).tolist())
    times = {"posted_s": {sender: posted_s, receiver: posted_s}, "done_s": {sender: done_s, receiver: done_s}}
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Exchange("send", (sender, receiver), "", dtype, "", None, {sender: body}, {sender: 1, receiver: 1}, **times)


def run_of(*messages):
    return Run([], [], 0.0, exchanges=list(messages))


def check(*messages, needed=(), **options):
    wanted = {rank: torch.arange(4) for rank in needed}
    expect_partial_sums(run_of(*messages), PARTS, range(3), wanted, **options)


CHAIN = message(0, 1, ONE, 0.0, 1.0), message(1, 2, ONE + TWO, 1.0, 2.0)


def test_numbers_say_whose_parts_are_in_them():
    masks, elements = PARTS.read(torch.stack([ONE[2] + THREE[2], TWO[0], torch.zeros(()), TWO[0] + 0.5]))
    assert masks.tolist() == [mask_of([0, 2]), mask_of([1]), -1]
    assert elements.tolist()[:2] == [2, 0]
    assert PARTS.mask_in(PARTS.total([0, 1]), ONE) == 3 and PARTS.mask_in([1], ONE) == -1
    assert named(5) == "0 + 2" and named(0) == "none"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_sums_are_exact_in_every_type(dtype):
    parts = Parts(torch.Generator().manual_seed(2), 3, 3, dtype)
    assert parts.of_rank[0].dtype == dtype
    assert parts.read(parts.total(range(3)))[0].tolist() == [7, 7, 7]


def test_sums_may_be_sent_on_once_they_have_come():
    check(*CHAIN, needed=[2])
    check(message(0, 1, torch.zeros(4), 0.0, 1.0))  # which fill up


def test_a_sum_that_left_too_early_is_found():
    with pytest.raises(CheckFailed, match="the part of rank 0 before it arrived over the wire"):
        check(CHAIN[0], message(1, 2, ONE + TWO, 0.5, 2.0))


def test_a_part_that_never_came_is_found():
    with pytest.raises(CheckFailed, match=re.escape("rank 1 over the wire. Got: elements to which the part of rank 2")):
        check(*CHAIN, needed=[1])


def test_other_numbers_are_found_unless_they_are_taken():
    odd = message(0, 1, ONE * 1.5, 0.0, 1.0)
    with pytest.raises(CheckFailed, match="4 of 4 numbers in a message"):
        check(odd)
    check(odd, takes_others=True)


def test_long_messages_and_other_types_are_found():
    owner = torch.zeros(4, dtype=torch.int64)
    expect_short_messages(run_of(CHAIN[0]), PARTS, owner, 1)
    with pytest.raises(CheckFailed, match="at most 2 elements of a tensor of 4"):
        expect_short_messages(run_of(CHAIN[0]), PARTS, owner, 2)
    expect_dtype(run_of(CHAIN[0]), torch.float32)
    with pytest.raises(CheckFailed, match="a float16 tensor to travel as float16"):
        expect_dtype(run_of(CHAIN[0]), torch.float16)


def test_the_picture_says_whose_parts_are_where():
    values = [[PARTS.total(range(3))], [ONE + TWO], [None]]
    drawn = draw_parts(values, [ONE], PARTS, range(3))
    assert "rank 0: all on chunk 0; rank 1: 0 + 1 on chunk 0; rank 2: ? on chunk 0" in drawn.alt
