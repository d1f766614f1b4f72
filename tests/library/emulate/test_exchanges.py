"""What the conductor keeps of what went over the wire."""

import pytest
import torch
import torch.distributed as dist

from worldsize import emulate
from worldsize.launch import RankFailed
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.protocol.quota import Quota
from worldsize.launch.runner import launch


def exchange():
    rank = dist.get_rank()
    emulate.spend(0.25)
    if rank == 0:
        dist.send(torch.tensor([1.5, 2.5]), 1)
    elif rank == 1:
        dist.recv(torch.empty(2), 0)
    total = torch.tensor([rank + 1], dtype=torch.int64)
    dist.all_reduce(total, dist.ReduceOp.MAX)
    dist.broadcast(total if rank == 2 else torch.empty_like(total), 2)


def send_much():
    if dist.get_rank() == 0:
        for _ in range(17):
            dist.send(torch.ones(1000), 1)
    else:
        for _ in range(17):
            dist.recv(torch.ones(1000), 0)


def test_bodies_ranks_and_times_are_kept():
    run = launch(Spec(exchange, world_size=3, cluster="dgx-h100", keeps_exchanges=True, echo=False))

    message, reduced, handed_out = run.exchanges
    assert (message.op, message.ranks, message.tensor().tolist()) == ("send", (0, 1), [1.5, 2.5])
    assert message.numbers == {0: 1, 1: 1} and message.posted_s == {0: 0.25, 1: 0.25}
    assert message.done_s[1] == run.timeline.of(1)[1].end_s
    assert (reduced.op, reduced.reduction, reduced.dtype) == ("all_reduce", "MAX", "int64")
    assert [reduced.tensor(rank).tolist() for rank in range(3)] == [[1], [2], [3]]
    assert (handed_out.op, handed_out.root, handed_out.tensor().tolist()) == ("broadcast", 2, [3])


def test_nothing_is_kept_unless_asked_for():
    assert launch(Spec(exchange, world_size=3, cluster="dgx-h100", echo=False)).exchanges == []


def test_a_run_that_sends_without_end_is_stopped():
    quota = Quota(value_bytes=4_000)
    with pytest.raises(RankFailed, match="sent far more than this task needs"):
        launch(Spec(send_much, world_size=2, cluster="dgx-h100", keeps_exchanges=True, quota=quota, echo=False))
