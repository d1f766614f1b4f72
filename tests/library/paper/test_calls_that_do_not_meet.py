"""Ranks on paper whose calls do not meet: what would hang or fail with data is refused, and has no price."""

import pytest
import torch
import torch.distributed as dist

import worldsize as ws


def differing(rank, x):
    if rank == 0:
        dist.send(x, 1)
        dist.all_reduce(x)
    else:
        dist.recv(x, 0)
        dist.broadcast(x, 0)


def of_other_sizes(rank, x):
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x[:500], 0)


def both_first_receiving(rank, x):
    dist.recv(x, 1 - rank)
    dist.send(x, 1 - rank)


def never_received(rank, x):
    if rank == 0:
        dist.send(x, 1)


def without_a_member(rank, x):
    if rank == 0:
        dist.send(x, 1)
        dist.all_reduce(x)
    else:
        dist.recv(x, 0)


def never_awaited(rank, x):
    if rank == 0:
        dist.isend(x, 1)


def on_two_ranks(program):
    program(dist.get_rank(), torch.ones(1000))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (differing, "rank 1 is in broadcast from rank 0 of 4,000 bytes, and rank 0 in all_reduce of 4,000"),
        (of_other_sizes, "rank 1 is in recv from rank 0 of 2,000 bytes, and rank 0 in send of 4,000"),
        (
            both_first_receiving,
            "wait for something that never happens: rank 0 in recv from rank 1, rank 1 in recv from rank 0;",
        ),
        (never_received, "wait for something that never happens: rank 0 in send to rank 1;"),
        (without_a_member, "wait for something that never happens: rank 0 in all_reduce;"),
    ],
)
def test_it_is_refused_with_its_ranks_and_calls(program, message):
    run = ws.paper(on_two_ranks, program, world_size=2, cluster="dgx-h100", echo=False)
    with pytest.raises(ValueError, match=message) as caught:
        _ = run.step_s
    assert "run it on an emulated cluster" in str(caught.value)


def test_a_message_that_nobody_awaits_is_not_sent():
    run = ws.paper(on_two_ranks, never_awaited, world_size=2, cluster="dgx-h100", echo=False)
    assert run.timeline.bytes_sent(0) == 0
