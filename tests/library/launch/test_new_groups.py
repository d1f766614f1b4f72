"""`new_group` is a call of all ranks: where they make different groups, the report says so."""

import pytest

import worldsize as ws

CURE = "; every rank must call new_group for every group, in the same order, including groups without it."


def makes_only_its_own():
    import torch
    import torch.distributed as dist

    group = dist.new_group([0, 1] if dist.get_rank() < 2 else [2, 3])
    dist.all_reduce(torch.ones(2), group=group)


def makes_them_in_another_order():
    import torch
    import torch.distributed as dist

    lists = [[0, 1], [2, 3]] if dist.get_rank() != 3 else [[2, 3], [0, 1]]
    for ranks, group in [(ranks, dist.new_group(ranks)) for ranks in lists]:
        if dist.get_rank() in ranks:
            dist.all_reduce(torch.ones(2), group=group)


@pytest.mark.parametrize("cluster", [None, "dgx-h100"], ids=["real", "emulated"])
@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (makes_only_its_own, "Ranks 0 and 1 call new_group([0, 1]), ranks 2 and 3 call new_group([2, 3])"),
        (makes_them_in_another_order, "Rank 3 calls new_group([2, 3]), ranks 0, 1 and 2 call new_group([0, 1])"),
    ],
)
def test_different_groups_are_named(parts, told, cluster):
    with pytest.raises(ws.RunTimeout) as raised:
        for _ in range(
            3
        ):  # on Gloo both pairs meet under one name: if one is done before the other begins, nothing hangs
            ws.run(parts, world_size=4, cluster=cluster, echo=False, timeout_s=60, stalled_s=1)
    assert f"Collectives do not match: {told}{CURE}" in str(raised.value)


def makes_what_others_need_not_know():
    import torch
    import torch.distributed as dist

    pair = dist.get_rank() // 2 * 2
    group = dist.new_group([pair, pair + 1], use_local_synchronization=True)
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    total = torch.ones(1)
    for members in (group, mesh.get_group("dp"), mesh.get_group("tp"), dist.group.WORLD):
        dist.all_reduce(total, group=members)
    return total.item()


@pytest.mark.parametrize("cluster", [None, "dgx-h100"], ids=["real", "emulated"])
def test_groups_that_only_their_members_make_are_no_mismatch(cluster):
    run = ws.run(makes_what_others_need_not_know, world_size=4, cluster=cluster, echo=False, timeout_s=60)
    assert run.values == [32.0] * 4
    assert "new_group" not in {event.name for event in run.timeline.events}


def makes_one_of_what_can_be_read_once():
    import torch.distributed as dist

    return dist.get_world_size(dist.new_group(rank for rank in (0, 1)))


def test_a_list_of_ranks_that_can_be_read_once_is_left_to_torch():
    assert ws.run(makes_one_of_what_can_be_read_once, world_size=2, echo=False).values == [2, 2]
