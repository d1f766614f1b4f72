"""Whether what ranks received suffices for the sum of all their shares."""

import pytest
import torch

from autograder.checks import StudentFailed, expect_sum_travelled, hinted, received
from autograder.judging.report import Outcome
from worldsize.check import CheckFailed
from worldsize.emulate.launcher.exchanges import Exchange

GRADIENTS = torch.rand(3, 40, generator=torch.Generator().manual_seed(1)) + 0.5
COUNTS = torch.tensor([[1.0], [2.0], [4.0]])
SHARES = GRADIENTS * COUNTS / 7


def exchange(op, bodies, ranks=(0, 1, 2), root=None, reduction="SUM", posted_s=0.0, done_s=1.0):
    sent = {rank: bytes(body.contiguous().view(torch.uint8).numpy()) for rank, body in bodies.items()}
    posted, done = dict.fromkeys(ranks, posted_s), dict.fromkeys(ranks, done_s)
    return Exchange(op, ranks, "0", "float32", reduction, root, sent, dict.fromkeys(ranks, 1), posted, done)


def rows(matrix):
    return dict(enumerate(matrix))


def message(sender, receiver, body, posted_s, done_s):
    return exchange("send", {sender: body}, (sender, receiver), posted_s=posted_s, done_s=done_s)


def through_rank_0(early=False):
    weighted = GRADIENTS * COUNTS
    up = [message(rank, 0, weighted[rank], 0.0, 1.0) for rank in (1, 2)]
    down_s = 0.5 if early else 1.0
    return up + [message(0, rank, weighted.sum(dim=0) / 7, down_s, 2.0) for rank in (1, 2)]


@pytest.mark.parametrize(
    "exchanges",
    [
        [exchange("all_reduce", rows(SHARES))],
        [exchange("all_reduce", rows(GRADIENTS * COUNTS))],
        [exchange("all_reduce", rows(torch.cat([COUNTS, GRADIENTS * COUNTS], dim=1)))],
        [exchange("all_reduce", rows(SHARES[:, part])) for part in (slice(0, 15), slice(15, 40))],
        [
            exchange("reduce", rows(SHARES), root=0),
            exchange("broadcast", {0: SHARES.sum(dim=0)}, root=0, posted_s=1.0, done_s=2.0),
        ],
        [exchange("all_gather", rows(GRADIENTS))],
        [exchange("barrier", rows(torch.empty(3, 0))), exchange("all_reduce", rows(SHARES))],
        through_rank_0(),
    ],
    ids=["weighted", "counted", "with the counts", "in parts", "reduced", "gathered", "with a barrier", "messages"],
)
def test_any_algorithm_will_do(exchanges):
    expect_sum_travelled(exchanges, SHARES, COUNTS, "the average")


@pytest.mark.parametrize(
    "exchanges",
    [
        [],
        [exchange("all_reduce", rows(torch.zeros(3, 40)))],
        [exchange("all_reduce", rows(GRADIENTS))],
        [exchange("all_reduce", rows(SHARES), reduction="MAX")],
        [exchange("all_reduce", rows(SHARES[:, :39]))],
        [exchange("reduce", rows(SHARES), root=0)],
        [exchange("broadcast", {1: SHARES[1]}, root=1)],
    ],
    ids=["nothing", "zeros", "unweighted", "the largest", "all but one number", "to one rank", "of one rank"],
)
def test_what_does_not_suffice_is_refused(exchanges):
    with pytest.raises(CheckFailed, match=r"the average on rank \d to be made of what it received"):
        expect_sum_travelled(exchanges, SHARES, COUNTS, "the average")


def test_no_sum_leaves_before_it_can_be_there():
    with pytest.raises(
        CheckFailed, match="rank 0 to send sums for the average only after all their terms have arrived"
    ):
        expect_sum_travelled(through_rank_0(early=True), SHARES, COUNTS, "the average")


def test_a_rank_without_samples_need_not_be_heard():
    counts, shares = torch.tensor([[0.0], [2.0], [4.0]]), SHARES * torch.tensor([[0.0], [1.0], [1.0]])
    heard = {1: shares[1], 2: shares[2]}
    expect_sum_travelled([exchange("all_reduce", {0: torch.zeros(40), **heard})], shares, counts, "the average")


def test_each_rank_receives_its_own():
    (sent,) = received(message(0, 1, SHARES[0], 0.0, 1.0), 1)
    assert torch.equal(sent, SHARES[0].double()) and received(message(0, 1, SHARES[0], 0.0, 1.0), 0) == []
    assert received(exchange("reduce", rows(SHARES), root=0), 1) == []


def test_a_hint_is_added_to_what_stopped():
    with pytest.raises(StudentFailed, match="rank 0 waits\nAll ranks call it") as caught, hinted("All ranks call it."):
        raise StudentFailed(Outcome.HUNG, "rank 0 waits", may_be_external=True)
    assert caught.value.outcome is Outcome.HUNG and caught.value.may_be_external


def test_a_crash_has_a_text_of_its_own():
    with pytest.raises(StudentFailed, match=r"^not allowed$"), hinted("All ranks call it."):
        raise StudentFailed(Outcome.FORBIDDEN, "not allowed")


@pytest.mark.parametrize(
    ("hint", "others", "outcome", "text"),
    [
        ("Look.", (Outcome.CRASHED,), Outcome.CRASHED, "it ended\nLook."),
        ("Look.", (Outcome.CRASHED,), Outcome.FORBIDDEN, "it ended"),
        ({Outcome.HUNG: "Wait.", Outcome.CRASHED: "Look."}, (), Outcome.CRASHED, "it ended\nLook."),
        ({Outcome.CRASHED: "Look."}, (), Outcome.HUNG, "it ended"),
    ],
)
def test_hints_are_chosen_by_how_a_run_ended(hint, others, outcome, text):
    with pytest.raises(StudentFailed) as caught, hinted(hint, *others):
        raise StudentFailed(outcome, "it ended")
    assert (str(caught.value), caught.value.outcome) == (text, outcome)
