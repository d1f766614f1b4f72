"""The sends and receives that a run's ranks started and never waited for."""

import worldsize as ws


def swap(waits):
    import torch
    import torch.distributed as dist

    other = 1 - dist.get_rank()
    works = [dist.irecv(torch.empty(2), other), dist.isend(torch.ones(2), other)]
    for work in works if waits else works[1:]:
        work.wait()
    return dist.all_reduce(torch.ones(1), async_op=True) is None


def test_a_run_names_the_messages_that_were_never_waited_for():
    run = ws.run(swap, False, world_size=2, cluster="dgx-h100", echo=False)
    assert [one.partition(", test")[0] for one in run.unawaited] == [
        "rank 0: irecv from rank 1 (float32 [2])",
        "rank 1: irecv from rank 0 (float32 [2])",
    ]
    assert all(one.endswith("line 11, in swap, was never waited for") for one in run.unawaited)


def test_nothing_is_named_where_all_were_waited_for():
    assert ws.run(swap, True, world_size=2, cluster="dgx-h100", echo=False).unawaited == []
