"""What notes a program's calls never changes how they end."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize.launch.worker import call_tracer

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


def with_a_second_group_of_all():
    """Rank 0 broadcasts in a group of its own making, and rank 1 receives."""
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(4))
    tensor = torch.ones(1 << 23)  # more than the connection between two ranks holds
    if dist.get_rank() == 0:
        dist.broadcast(tensor, 0, group=group)
    else:
        dist.recv(tensor, src=0)


@pytest.mark.parametrize("world", WORLDS, ids=["real", "emulated"])
def test_a_hang_across_two_groups_of_all_ranks_is_a_circle(world):
    with pytest.raises(ws.RunTimeout, match="Ranks 0 and 1 wait for each other: rank 0 waits for rank 1 in coll"):
        ws.run(with_a_second_group_of_all, world_size=2, stalled_s=2, echo=False, **world)


def reduce_in_groups():
    """An all-reduce in two groups of all ranks, and one in a group that lacks the last rank."""
    groups = [dist.new_group([0, 1]), dist.new_group([0, 1]), dist.new_group([0])]
    for group in groups:
        dist.all_reduce(torch.ones(4), group=group)
    if dist.get_rank() == 0:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(4))


@pytest.mark.filterwarnings("ignore")
def test_each_group_counts_its_own_collectives():
    with pytest.raises(ws.RunTimeout, match="Rank 0 calls collective 1, barrier, rank 1 calls collective 1, all"):
        ws.run(reduce_in_groups, world_size=2, cluster="dgx-h100", echo=False)


def test_events_name_the_group_of_their_call():
    timeline = ws.run(reduce_in_two_groups, world_size=2, backend="gloo", echo=False).timeline
    reduces = [event for event in timeline.of(0) if (event.kind, event.name) == ("communication", "all_reduce")]
    assert [event.sequence for event in reduces] == [1, 1, 2] and len({event.group for event in reduces}) == 2
    assert reduces[0].group != reduces[1].group == reduces[2].group


def reduce_in_two_groups():
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    for group in (first, second, second):
        dist.all_reduce(torch.ones(4), group=group)


def test_a_flight_recorder_that_has_changed_is_done_without(monkeypatch):
    from torch._C import _distributed_c10d

    for recorded in ('{"entries": [{}]}', "[]", "{", '{"entries": [{"is_p2p": false, "process_group": 3}]}'):
        monkeypatch.setattr(_distributed_c10d, "_dump_fr_trace_json", lambda recorded=recorded: recorded)
        assert call_tracer.native() == {}


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
