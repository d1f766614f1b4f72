"""What notes a program's calls never changes how they end."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

import worldsize as ws

WORLDS = [{"backend": "gloo"}, {"cluster": "dgx-h100"}]


def calls_with(integer):
    """Every way to name a rank, with integers of another type; the last word of an all-reduce comes back."""
    rank, pair = dist.get_rank(), [torch.ones(2), torch.ones(2)]
    zero, one, other = integer(0), integer(1), integer(1 - dist.get_rank())
    if rank == 0:
        dist.send(pair[0], dst=one, tag=integer(3))
        dist.isend(pair[0], group_dst=one).wait()
    else:
        dist.recv(pair[0], src=zero, tag=integer(3))
        dist.irecv(pair[0], group_src=zero).wait()
    both = [dist.P2POp(dist.isend, pair[0], other, tag=one), dist.P2POp(dist.irecv, pair[1], other, tag=one)]
    for work in dist.batch_isend_irecv(both):
        work.wait()
    dist.broadcast(pair[0], src=zero)
    dist.reduce(pair[0], dst=zero)
    dist.gather(pair[0], pair if rank == 0 else None, dst=zero)
    dist.scatter(pair[0], pair if rank == 0 else None, src=zero)
    dist.all_to_all_single(pair[0], pair[1], [one, one], [one, one])
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


@pytest.mark.parametrize("world", WORLDS, ids=["real", "emulated"])
@pytest.mark.parametrize("integer", [np.int64, torch.tensor])
def test_ranks_and_tags_may_be_numpys_and_torchs_integers(integer, world):
    assert ws.run(calls_with, integer, world_size=2, echo=False, **world).values == [2.0, 2.0]


def wrong_calls():
    """The first words of what each wrong call raises, and that the process group still works."""
    calls = [
        lambda: dist.all_reduce(3.0),
        lambda: dist.all_gather(3, torch.ones(2)),
        lambda: dist.broadcast(torch.ones(2), src="first"),
        lambda: dist.send(torch.ones(2), dst="next"),
        lambda: dist.all_reduce(torch.ones(2), group="everybody"),
    ]
    words = []
    for call in calls:
        with pytest.raises((TypeError, ValueError, RuntimeError, AttributeError)) as caught:
            call()
        words.append(f"{type(caught.value).__name__}: {str(caught.value)[:60]}")
    dist.barrier()
    return words


@pytest.mark.parametrize("world", WORLDS, ids=["real", "emulated"])
def test_a_wrong_call_gets_torchs_own_error(world):
    for words in ws.run(wrong_calls, world_size=2, echo=False, **world).values:
        assert words[0] == "TypeError: Invalid function argument. Expected parameter `tensor` of ty"
        assert words[1] == "TypeError: Invalid function argument. Expected parameter `tensor_list` "
        assert [one.partition(":")[0] for one in words[2:]] == ["TypeError", "TypeError", "ValueError"]


def test_a_rank_outside_of_an_emulated_group_is_named():
    def on_rank():
        dist.send(torch.ones(2), group_dst=5)

    with pytest.raises(ws.RankFailed, match="rank 5 is not in this group of 2 ranks; count from 0 to 1") as caught:
        ws.run(on_rank, world_size=2, cluster="dgx-h100", echo=False)
    assert "test_call_tracer.py" in str(caught.value) and "backend.py" not in str(caught.value), "the student's lines"
