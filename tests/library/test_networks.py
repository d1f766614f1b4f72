import re
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from worldsize import hardware
from worldsize.faults import Faults, SlowLink
from worldsize.hardware import Dragonfly, FatTree, Level, cluster
from worldsize.pricing import price
from worldsize.units import GB, GIB, MS

NIC_BYTES_PER_S = hardware.IB_NDR.bandwidth_bytes_per_s
# one rank a node, so that ranks are nodes
NODES = replace(hardware.H100_NDR, name="nodes", gpus_per_node=1, nics_per_node=1, num_nodes=64, is_rail=False)
EIGHT_A_LEAF = replace(NODES, nodes_per_leaf=8, oversubscription=8.0)
BY_LEAF = list(range(64))
ACROSS = [8 * (place % 8) + place // 8 for place in range(64)]  # every step to another leaf
THREE_LEVELS = FatTree((Level("leaf", 2), Level("pod", 8, 4.0), Level("hall", 32, 2.0)), is_rail=False)


def names_of_hops(found, src, dst):
    return [hop.name for hop in found.route(src, dst).hops]


def capacity_bytes_per_s(found, name):
    return found.capacity_bytes_per_s(found.hop(name))


def test_messages_climb_a_fat_tree_no_higher_than_they_must():
    found = replace(NODES, network=THREE_LEVELS, is_rail=True)
    assert names_of_hops(found, 0, 1) == ["node0 nic0 out", "node1 nic0 in"]
    assert names_of_hops(found, 0, 2)[1:-1] == ["leaf0 up", "leaf1 down"]
    assert names_of_hops(found, 0, 9)[1:-1] == ["leaf0 up", "pod0 up", "pod1 down", "leaf4 down"]
    assert names_of_hops(found, 63, 0)[1:4] == ["leaf31 up", "pod7 up", "hall1 up"]
    assert names_of_hops(found, 63, 0)[4:-1] == ["hall0 down", "pod0 down", "leaf0 down"]


def test_each_level_of_a_fat_tree_thins_out_what_the_one_below_lets_through():
    found = replace(NODES, network=THREE_LEVELS, is_rail=True)
    capacities = [capacity_bytes_per_s(found, name) for name in ("leaf3 up", "pod2 down", "hall1 up")]
    assert capacities == [2 * NIC_BYTES_PER_S, 8 * NIC_BYTES_PER_S / 4, 32 * NIC_BYTES_PER_S / 8]
    assert price("send", 1000 * GIB, [0, 63], found).time_s == pytest.approx(1000 * GIB / NIC_BYTES_PER_S, rel=1e-3)
    with pytest.raises(ValueError, match="nodes has no hop 'hall2 up'"):
        found.hop("hall2 up")


def test_leaves_of_rails_stand_below_switches_for_all_rails():
    network = FatTree((Level("leaf", 4), Level("pod", 8, 2.0)))
    rails = replace(hardware.H100_NDR, num_nodes=16, network=network)
    assert names_of_hops(rails, 0, 32)[1:-1] == []
    assert names_of_hops(rails, 0, 64)[1:-1] == ["pod0 up", "pod1 down"]
    assert capacity_bytes_per_s(rails, "pod0 up") == 8 * 8 * NIC_BYTES_PER_S / 2


def test_the_cluster_of_llama_3_is_full_within_pods_and_one_in_seven_between_them():
    llama = cluster("h100-pods-x3072")
    assert llama.world_size == 24_576
    assert names_of_hops(llama, 0, 24_575)[1:-1] == ["leaf0 up", "pod0 up", "pod7 down", "leaf1535 down"]
    assert llama.capacity_bytes_per_s(llama.route(0, 24_575).hops[2]) == 3072 * NIC_BYTES_PER_S / 7
    one_pod, two_pods = (price("all_to_all", 16 * GIB, range(num), llama).time_s for num in (3072, 6144))
    assert two_pods / one_pod == pytest.approx(7 / 2, rel=0.01)


CANONICAL = Dragonfly(nics_per_router=2, routers_per_group=4)  # p = h = 2, a = 4: nine groups, a link between each two
ONE_NIC = replace(NODES, num_nodes=72, network=CANONICAL, is_rail=True)


def test_a_dragonfly_takes_at_most_three_hops():
    assert names_of_hops(ONE_NIC, 0, 1) == ["node0 nic0 out", "node1 nic0 in"]
    assert names_of_hops(ONE_NIC, 0, 7)[1:-1] == ["router0 to router3"]
    assert names_of_hops(ONE_NIC, 6, 71)[1:-1] == ["group0 to group8", "router32 to router35"]
    assert {len(ONE_NIC.route(0, rank).hops) - 2 for rank in range(1, 72)} == {0, 1, 2, 3}


def test_the_global_links_of_a_group_are_dealt_out_evenly_and_join_the_same_routers_both_ways():
    leaving, ends = Counter(), {}
    for router in range(36):
        for other in range(36):
            hops = names_of_hops(ONE_NIC, 2 * router, 2 * other)[1:-1]
            if hops and hops[0].startswith("group"):
                leaving[router] += len(hops) == 1
                if len(hops) == 1:
                    ends[router, other] = True
    assert all(leaving[router] == 2 for router in range(36))
    assert all((other, router) in ends for router, other in ends)


def test_a_ring_of_nodes_with_a_nic_on_each_of_several_routers_has_the_rate_of_its_nics():
    slingshot = cluster("a100-slingshot-x512")
    assert names_of_hops(slingshot, 0, 60)[1:-1] == []
    assert names_of_hops(slingshot, 1, 65)[1:-1] == ["router1 to router5"]
    size_bytes = 1000 * GIB
    took_s = price("all_gather", size_bytes, range(2048), slingshot).time_s
    assert took_s == pytest.approx(size_bytes / (4 * 24 * GB), rel=0.01)
    in_turn = replace(slingshot, network=replace(slingshot.network, is_rail=False))
    assert price("all_gather", size_bytes, range(2048), in_turn).time_s == pytest.approx(4 * took_s, rel=0.01)


@pytest.mark.parametrize(
    "name",
    ["group0 to group9", "group1 to group1", "router0 to router4", "router35 to router36", "leaf0 up", "router3"],
)
def test_an_unknown_hop_of_a_dragonfly_is_refused(name):
    with pytest.raises(ValueError, match=f"nodes has no hop '{name}'; take the names from route"):
        ONE_NIC.hop(name)


def test_the_links_between_groups_are_several():
    slingshot = cluster("a100-slingshot-x9472")
    local, between = (
        next(hop for hop in slingshot.route(0, rank).hops if hop.kind == kind)
        for rank, kind in ((100, "local"), (30_000, "global"))
    )
    assert slingshot.capacity_bytes_per_s(local) == 24 * GB
    assert slingshot.capacity_bytes_per_s(between) == 4 * 24 * GB
    # of all pairs, a group's 512 NICs share 73 x 4 links: 1.75 times a NIC's load on each
    loads = {hop.kind: load for hop, load in slingshot.busiest_of_all_pairs(range(slingshot.world_size))}
    assert loads["global"] / 4 / loads["nic"] == pytest.approx(512 / (73 * 4), rel=0.02)
    assert loads["local"] < loads["global"] / 4


@pytest.mark.parametrize(
    "network",
    [
        THREE_LEVELS,
        FatTree((Level("leaf", 2, 2.0), Level("pod", 4, 2.0))),
        CANONICAL,
        Dragonfly(4, 3, links_between_groups=2),
        Dragonfly(1, 8, links_between_groups=3, links_between_routers=2),
        Dragonfly(4, 8, links_between_groups=2, is_rail=True),
    ],
)
@pytest.mark.parametrize("nics_per_node", [1, 2, 4])
def test_the_busiest_hops_of_all_pairs_are_those_of_their_routes(network, nics_per_node):
    found = replace(hardware.H100_NDR, gpus_per_node=4, nics_per_node=nics_per_node, num_nodes=32, network=network)
    ranks = Random(nics_per_node).sample(range(found.world_size), 70)
    loads = Counter(hop for src in ranks for dst in ranks if src != dst for hop in found.route(src, dst).hops)
    assert all(found.hop(hop.name) == hop and found.capacity_bytes_per_s(hop) > 0 for hop in loads)
    kinds = {hop.kind for hop in loads}
    assert {hop.kind: load for hop, load in found.busiest_of_all_pairs(ranks)} == {
        kind: max(load for hop, load in loads.items() if hop.kind == kind) for kind in kinds
    }
    assert all(loads[hop] == load for hop, load in found.busiest_of_all_pairs(ranks))


def test_a_ring_that_crosses_leaves_at_every_step_pays_for_it():
    textbook = [price("all_reduce", GIB, order, EIGHT_A_LEAF, "ring").time_s for order in (BY_LEAF, ACROSS)]
    assert textbook == pytest.approx([45.8 * MS, 354.1 * MS], rel=1e-3)
    for algorithm in (None, "nccl-ring"):
        by_leaf, across = (
            price("all_reduce", GIB, order, EIGHT_A_LEAF, algorithm).time_s for order in (BY_LEAF, ACROSS)
        )
        assert by_leaf == price("all_reduce", GIB, BY_LEAF, NODES, algorithm).time_s
        assert across / by_leaf == pytest.approx(textbook[1] / textbook[0], rel=0.02) or algorithm is None


def test_an_order_that_stays_on_leaves_costs_what_the_network_lets_through():
    rng = Random(0)
    groups = [rng.sample(range(8 * leaf, 8 * leaf + 8), 8) for leaf in rng.sample(range(8), 8)]
    order = [node for group in groups for node in group]
    ring = [price("all_reduce", GIB, nodes, EIGHT_A_LEAF, "nccl-ring").time_s for nodes in (BY_LEAF, order)]
    assert ring[0] == ring[1]
    half = [node for leaf in range(8) for node in range(8 * leaf, 8 * leaf + 4)]
    half += [node for leaf in range(8) for node in range(8 * leaf + 4, 8 * leaf + 8)]
    twice = price("all_reduce", 1000 * GIB, half, EIGHT_A_LEAF, "nccl-ring").time_s
    assert twice / price("all_reduce", 1000 * GIB, BY_LEAF, EIGHT_A_LEAF, "nccl-ring").time_s == pytest.approx(2, 1e-3)


def test_the_order_of_ranks_within_a_node_costs_nothing():
    found = replace(cluster("h100-ndr-x4"), nodes_per_leaf=2, oversubscription=8.0)
    shuffled = [8 * node + gpu for node in range(4) for gpu in Random(node).sample(range(8), 8)]
    dealt = [8 * node + gpu for gpu in range(8) for node in range(4)]
    prices = {price("all_reduce", GIB, ranks, found, "nccl-ring").time_s for ranks in (range(32), shuffled, dealt)}
    assert len(prices) == 1
    assert price("all_reduce", GIB, [*range(8), *range(16, 24), *range(8, 16), *range(24, 32)], found).time_s > 0


def test_trees_pay_for_the_order_by_what_they_cross():
    # of NCCL's trees over four nodes, 1-2, 0-2, 2-3 and 1-2, 1-3, 0-1, four edges cross in either order
    four = replace(NODES, num_nodes=4, nodes_per_leaf=2, oversubscription=4.0)
    usual, crossing, same = [0, 1, 2, 3], [0, 2, 1, 3], [1, 0, 3, 2]

    def time_s(order, algorithm):
        return price("all_reduce", 1000 * GIB, order, four, algorithm).time_s

    assert time_s(crossing, "nccl-ring") / time_s(usual, "nccl-ring") == pytest.approx(2, rel=1e-3)
    assert time_s(crossing, "nccl-tree") == time_s(usual, "nccl-tree")
    assert time_s(same, "nccl-ring") == time_s(usual, "nccl-ring")
    by_leaf, across = (price("all_reduce", GIB, order, EIGHT_A_LEAF, "nccl-tree").time_s for order in (BY_LEAF, ACROSS))
    assert by_leaf == price("all_reduce", GIB, BY_LEAF, NODES, "nccl-tree").time_s
    assert across > 2 * by_leaf


# the first tree over 13 nodes as drawn in NCCL's src/graph/trees.cc; the second is moved on by one
THIRTEEN = [(0, 8), (8, 4), (8, 12), (4, 2), (4, 6), (2, 1), (2, 3), (6, 5), (6, 7), (12, 10), (10, 9), (10, 11)]
# over 14, 12 has 13 below it as well, and the second is the mirror image
FOURTEEN = [*THIRTEEN, (12, 13)]


@pytest.mark.parametrize(
    ("num_nodes", "trees"),
    [
        (13, [*THIRTEEN, *(((i + 1) % 13, (j + 1) % 13) for i, j in THIRTEEN)]),
        (14, [*FOURTEEN, *((13 - i, 13 - j) for i, j in FOURTEEN)]),
    ],
)
def test_a_tree_is_slower_by_as_much_more_as_it_crosses(num_nodes, trees):
    found = replace(NODES, num_nodes=num_nodes, nodes_per_leaf=5, oversubscription=16.0)

    def most_crossing(order):
        return max(sum((order[i] // 5 == leaf) != (order[j] // 5 == leaf) for i, j in trees) for leaf in range(3))

    def time_s(order):
        return price("all_reduce", 1000 * GIB, order, found, "nccl-tree").time_s

    usual, ratios = list(range(num_nodes)), set()
    for seed in range(8):
        order = Random(seed).sample(usual, num_nodes)
        ratio = max(1.0, most_crossing(order) / most_crossing(usual))
        assert time_s(order) / time_s(usual) == pytest.approx(ratio, rel=1e-3)
        ratios.add(ratio)
    assert len(ratios) > 2


def test_ranks_on_different_rails_share_the_uplinks():
    rails = replace(cluster("h100-ndr-x8"), oversubscription=16.0)
    same, other = ([0, 8, 16, 24], [0, 9, 18, 27])
    assert price("all_reduce", GIB, other, rails).time_s > 1.9 * price("all_reduce", GIB, same, rails).time_s
    flat = replace(rails, oversubscription=1.0)
    assert price("all_reduce", GIB, other, flat).time_s == price("all_reduce", GIB, same, flat).time_s


@pytest.mark.parametrize(
    ("found", "num_groups", "nodes_per_group"),
    [
        (replace(hardware.H100_NDR, num_nodes=32, network=FatTree((Level("leaf", 2), Level("pod", 8, 4.0)))), 4, 8),
        (cluster("a100-slingshot-x512"), 4, 128),
    ],
    ids=["pods", "groups"],
)
def test_the_order_of_pods_and_groups_counts_too(found, num_groups, nodes_per_group):
    nodes = [group * nodes_per_group + node for node in range(8) for group in range(num_groups)]
    ranks = [node * found.gpus_per_node + gpu for node in nodes for gpu in range(found.gpus_per_node)]
    usual, crossing = (price("all_reduce", 16 * GIB, order, found).time_s for order in (sorted(ranks), ranks))
    assert crossing > 1.5 * usual


def test_a_slow_uplink_or_global_link_slows_what_crosses_it():
    found = cluster("a100-slingshot-x256")
    hop = next(hop for hop in found.route(0, 1023).hops if hop.kind == "global")
    faults = Faults([SlowLink(hop.name, factor=8.0)], found, 1024)
    assert faults.capacity_bytes_per_s(hop) == 4 * 24 * GB / 8
    assert faults.cluster_of([0, 1023]).inter.bandwidth_bytes_per_s == 24 * GB / 8
    assert faults.cluster_of([0, 4]) == found


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: FatTree(()), "the levels are called []; give at least one level"),
        (lambda: FatTree((Level("nic", 2),)), "the levels are called ['nic']"),
        (
            lambda: FatTree((Level("leaf", 2, 0.5),)),
            "oversubscription is 0.5; it must be the downlinks per uplink, 1 or more",
        ),
        (lambda: FatTree((Level("leaf", 0),)), "leaf: num_nodes is 0; it must be more than 0"),
        (
            lambda: FatTree((Level("leaf", 4), Level("pod", 6))),
            "a pod has 6 nodes, and a leaf below it has 4: each level needs",
        ),
        (lambda: FatTree((Level("leaf"), Level("pod", 6))), "a pod has 6 nodes, and a leaf below it has None"),
        (lambda: Dragonfly(0, 4), "a dragonfly's nics_per_router is 0; it must be more than 0"),
        (lambda: replace(NODES, network=CANONICAL, oversubscription=2.0), "with network=, describe its levels there"),
        (lambda: replace(hardware.DGX_H100, network=CANONICAL), "a network needs inter=, the Link of its NICs"),
        (
            lambda: replace(hardware.H100_NDR, network=Dragonfly(3, 4)),
            "routers_per_group is 12; it must be a multiple of nics_per_node, which is 8",
        ),
    ],
)
def test_a_network_says_what_is_wrong_with_it(make, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        make()


@pytest.mark.parametrize("name", ["leaf0 up", "leaf1 down"])
def test_leaves_that_limit_nothing_are_no_hops(name):
    with pytest.raises(ValueError, match=f"h100-ndr-x4 has no hop '{name}'"):
        cluster("h100-ndr-x4").hop(name)


@pytest.mark.parametrize("name", ["nic", "uplink", "memory", "host link", "shared read", "all write", "local read"])
def test_a_level_is_not_called_what_another_hop_is(name):
    with pytest.raises(ValueError, match=rf"the levels are called \['{name}'\]; give at least one"):
        FatTree((Level(name, 1, 2.0),))
