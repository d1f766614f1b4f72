"""Programs that call `init_process_group` on ranks that `ws.run` has joined already."""

import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import hardware


def leave_and_join(times):
    """A sum after joining again, as a tutorial does it."""
    total = torch.ones(2)
    for _ in range(times):
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        dist.all_reduce(total)
    return total.tolist()


@pytest.mark.parametrize("cluster", [None, hardware.DGX_H100], ids=["real", "emulated"])
def test_a_rank_that_has_left_can_join_again(cluster):
    run = ws.run(leave_and_join, 2, world_size=2, cluster=cluster, echo=False)
    assert run.values == [[4.0, 4.0]] * 2


def join():
    dist.init_process_group("gloo")


@pytest.mark.parametrize("cluster", [None, hardware.DGX_H100], ids=["real", "emulated"])
def test_a_rank_that_has_joined_learns_that_it_has(cluster):
    with pytest.raises(ws.RankFailed, match="this rank has joined its process group already") as caught:
        ws.run(join, world_size=2, cluster=cluster, echo=False)
    assert "in join" in str(caught.value)


def join_by_its_own_store():
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist.get_world_size()


def test_a_store_of_the_programs_own_is_taken():
    assert ws.run(join_by_its_own_store, world_size=1, echo=False).values == [1]
