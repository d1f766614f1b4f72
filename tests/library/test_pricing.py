import math
import re
from dataclasses import replace

import published
import pytest

from worldsize import hardware, pricing
from worldsize.hardware import cluster, clusters
from worldsize.pricing import ALGORITHMS, OPS, bus_factor, price
from worldsize.units import GB, GIB, KIB, MIB, MS, US

SIZES_BYTES = [2**power for power in range(34)]
COMPARED = published.compared()
FROM_CSV = [one for one in COMPARED if one.role != published.HELD_OUT]


def time_s(op, size_bytes, name, algorithm=None):
    found = cluster(name)
    ranks = range(2) if op == "send" else range(found.world_size)
    return price(op, size_bytes, ranks, found, algorithm).time_s


def test_the_a100_nodes_curve_is_met_within_15_percent_in_the_median():
    curve = [one for one in COMPARED if one.name.startswith("vtrain_ar_A100")]
    assert len(curve) == 18
    assert published.median_error(curve) <= 0.15, published.table(curve)


def test_the_large_sizes_are_met_within_10_percent_in_the_median_and_at_worst():
    large = [one for one in FROM_CSV if one.size_bytes >= published.LARGE_BYTES]
    assert len(large) >= 35
    assert published.median_error(large) <= 0.10
    assert abs(published.worst(large).error_fraction) <= 0.10, published.table([published.worst(large)])


def test_figures_that_went_into_no_constant_are_met_too():
    predicted = [one for one in COMPARED if one.role == published.PREDICTED]
    assert len(predicted) >= 15
    assert abs(published.worst(predicted).error_fraction) <= 0.10, published.table([published.worst(predicted)])


def test_reports_that_were_held_out_are_met_at_the_ends_of_the_curve():
    held_out = [one for one in COMPARED if one.role == published.HELD_OUT and one.name != "issue_178"]
    latency, middle, ring, tree = [one.error_fraction for one in held_out]
    assert abs(latency) <= 0.10
    assert abs(ring) <= 0.10
    assert abs(tree) <= 0.20
    # a ring over five nodes took twice the tuner's time for 1 MiB: what this model is known not to know
    assert 0.7 < middle < 1.0, published.table(held_out)


def test_bridged_pairs_are_met_on_their_links_and_through_the_host():
    on_links, through_the_host = [one.error_fraction for one in COMPARED if one.name == "issue_178"]
    assert abs(on_links) <= 0.10
    assert abs(through_the_host) <= 0.25


def test_every_number_of_gpus_of_a_hybrid_cube_mesh_is_met():
    found = [one for one in COMPARED if one.name.startswith("vtrain_ar_V100") and one.size_bytes == GIB]
    assert [one.num_ranks for one in found] == [2, 4, 8, 3, 5, 6, 7]
    assert published.median_error(found) <= 0.03, published.table(found)
    assert abs(published.worst(found).error_fraction) <= 0.10, published.table(found)


def test_the_report_shows_small_sizes_apart_and_what_is_worst():
    large, small = published.report(COMPARED).split("\n\n")
    assert re.match(r"More than 16.0 MiB: 70 figures, median error 1\.\d%, worst \+20.0% \(issue_178\)", large)
    assert re.match(r"At most 16.0 MiB: 20 figures, median error \d\.\d%, worst \+86.2% \(issue_1368\)", small)
    assert len(large.splitlines()) - 2 == 70 and len(small.splitlines()) - 2 == 20


def test_every_measured_row_is_compared_or_left_out_with_a_reason():
    compared = {one.name.removesuffix(" off") for one in FROM_CSV}
    left_out = {row["id"] for row in published.rows() if published.why_left_out(row["id"])}
    assert compared | left_out == {row["id"] for row in published.rows()}
    assert not compared & left_out


def test_nccl_takes_the_switches_when_enough_gpus_of_a_hopper_node_take_part():
    chosen = [price("all_reduce", GIB, range(num), hardware.DGX_H100).algorithm for num in (2, 3, 8)]
    assert chosen == ["nccl-ring", "nccl-ring", "nvls"]
    assert price("all_gather", GIB, range(8), hardware.DGX_H100).algorithm == "nccl-ring"
    assert price("all_reduce", GIB, range(8), hardware.DGX_A100).algorithm == "nccl-ring"


def test_small_messages_take_the_low_latency_protocol_and_large_ones_the_simple():
    chosen = [price("all_reduce", size, range(8), hardware.DGX_A100).protocol for size in (KIB, 4 * MIB, GIB)]
    assert chosen == ["LL", "LL128", "Simple"]
    assert {price("all_reduce", size, range(8), hardware.PCIE_BOX).protocol for size in SIZES_BYTES} == {"LL", "Simple"}


def test_of_a_library_whose_protocols_are_not_known_the_simple_one_is_priced():
    assert {price("all_reduce", size, range(8), hardware.MI300X_NODE).protocol for size in SIZES_BYTES} == {"Simple"}


def test_a_few_bytes_take_the_latencies_that_stand_in_the_tuner():
    ring_s, tree_s = [price("all_reduce", 1, range(8), hardware.DGX_H100, one).time_s for one in ALGORITHMS[1:3]]
    assert [ring_s, tree_s] == pytest.approx([(6.6 + 14 * 0.6) * US, (6.8 + 14 * 0.6) * US], rel=1e-4)
    ring_s, tree_s = [time_s("all_reduce", 1, "h100-ndr-x8", one) for one in ALGORITHMS[1:3]]
    assert ring_s == pytest.approx((6.6 + 112 * 1.0 + 14 * 2.7) * US, rel=1e-4)
    assert tree_s == pytest.approx((6.8 + 14 * 0.6 + 2 * 3 * 5.0) * US, rel=1e-4)


def test_many_nodes_take_a_tree_for_little_and_a_ring_for_much():
    many = cluster("a100-hdr-x32")
    assert price("all_reduce", 8, range(256), many).algorithm == "nccl-tree"
    assert price("all_reduce", 16 * GIB, range(256), many).algorithm == "nccl-ring"
    assert price("all_gather", 8, range(256), many).algorithm == "nccl-ring"


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "name",
    [
        *("dgx-a100", "dgx-b200", "dgx-1v", "mi300x", "pcie-box", "pcie-box-bridged"),
        *("a100-hdr", "h100-ndr-x4", "a100-slingshot-x3", "a100-10gbe-x3"),
    ],
)
def test_more_bytes_never_take_less_time(op, name):
    sizes_bytes = sorted({round(size * factor) for size in SIZES_BYTES for factor in (0.75, 1, 1.25)})
    times_s = [time_s(op, size, name) for size in sizes_bytes]
    assert times_s == sorted(times_s)


@pytest.mark.parametrize("name", ["dgx-a100", "a100-hdr-x4"])
def test_more_bytes_never_take_a_tree_less_time(name):
    times_s = [time_s("all_reduce", size, name, "nccl-tree") for size in range(KIB, 32 * MIB, 13 * KIB)]
    assert times_s == sorted(times_s)


@pytest.mark.parametrize("name", ["a100-hdr", "h100-ndr", "b200-ndr", "h100-pods", "a100-100gbe", "pcie-box-10gbe"])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_more_nodes_are_never_faster_for_large_tensors(op, name):
    times_s = [time_s(op, 4 * GIB, f"{name}-x{num_nodes}") for num_nodes in (1, 2, 4, 8)]
    assert times_s == sorted(times_s)


@pytest.mark.parametrize(("name", "link"), [("dgx-h100", hardware.NVLINK4), ("a100-100gbe", hardware.ETHERNET_100G)])
def test_the_textbook_ring_takes_the_textbooks_time(name, link):
    num_ranks = cluster(name).world_size
    exact_s = 2 * (num_ranks - 1) * (link.latency_s + GIB / (num_ranks * link.bandwidth_bytes_per_s))
    assert time_s("all_reduce", GIB, name, "ring") == pytest.approx(exact_s, rel=1e-12)
    limit_s = 2 * (num_ranks - 1) / num_ranks * 1000 * GIB / link.bandwidth_bytes_per_s
    assert time_s("all_reduce", 1000 * GIB, name, "ring") == pytest.approx(limit_s, rel=1e-3)


def test_the_textbook_ring_shares_the_bridge_of_a_pcie_box():
    box = replace(hardware.PCIE_BOX, bridge_bytes_per_s=16 * GB)
    pure_s = 14 / 8 * 1000 * GIB / (2 * GB)
    assert price("all_reduce", 1000 * GIB, range(8), box, "ring").time_s == pytest.approx(pure_s, rel=1e-3)
    assert price("all_reduce", 1000 * GIB, range(8), box).time_s == pytest.approx(pure_s, rel=1e-3)


def test_an_all_gather_and_a_reduce_scatter_are_half_an_all_reduce():
    for algorithm in ("ring", "nccl-ring"):
        whole_s = time_s("all_reduce", 64 * GIB, "dgx-h100", algorithm)
        for op in ("all_gather", "reduce_scatter"):
            assert 2 * time_s(op, 64 * GIB, "dgx-h100", algorithm) == pytest.approx(whole_s, rel=0.01)


@pytest.mark.parametrize("op", [op for op in OPS if op != "send"])
def test_one_rank_waits_for_nobody(op):
    assert price(op, GIB, [3], hardware.DGX_A100).time_s == 0
    assert price(op, GIB, [3], hardware.DGX_A100).sent_bytes_per_rank == 0


def test_ranks_are_priced_where_they_are():
    two_nodes = cluster("a100-hdr")
    same_node = price("all_reduce", GIB, [0, 1], two_nodes).time_s
    same_rail = price("all_reduce", GIB, [0, 8], two_nodes).time_s
    assert same_node == price("all_reduce", GIB, [0, 1], hardware.DGX_A100).time_s
    assert same_rail > 5 * same_node
    assert price("all_reduce", GIB, range(16), two_nodes).time_s < same_rail


def test_oversubscribed_leaves_slow_an_all_to_all_but_not_ranks_on_one_leaf():
    flat = replace(cluster("a100-hdr-x4"), nodes_per_leaf=2, is_rail=False)
    thin = replace(flat, oversubscription=4)
    ratio = price("all_to_all", GIB, range(32), thin).time_s / price("all_to_all", GIB, range(32), flat).time_s
    assert 2 < ratio <= 4
    within = [price("all_to_all", GIB, range(16), one).time_s for one in (flat, thin)]
    assert within[0] == within[1]


@pytest.mark.parametrize("is_rail", [False, True])
def test_a_ring_over_leaves_is_bound_by_their_uplinks(is_rail):
    thin = replace(cluster("a100-hdr-x4"), nodes_per_leaf=2, is_rail=is_rail, oversubscription=16)
    bytes_s = 62 / 32 * 16 * GIB / (2 * 8 * hardware.IB_HDR.bandwidth_bytes_per_s / 16)
    assert price("all_reduce", 16 * GIB, range(32), thin).time_s == pytest.approx(bytes_s, rel=0.01)


def test_an_all_to_all_between_nodes_is_bound_by_the_nics():
    bytes_s = GIB * 24 / 32 / hardware.IB_NDR.bandwidth_bytes_per_s
    assert time_s("all_to_all", GIB, "h100-ndr-x4") == pytest.approx(bytes_s, rel=0.01)


PEERS = [(rank, rank + 8) for rank in range(8)]


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "send", "all_to_all"])
@pytest.mark.parametrize("num_nics", [8, 4, 1])
def test_groups_side_by_side_share_the_nics_of_their_nodes(op, num_nics):
    nodes = replace(cluster("h100-ndr-x2"), nics_per_node=num_nics).without_latency()
    alone, beside = (price(op, GIB, PEERS[0], nodes, beside=others).time_s for others in ((), PEERS[1:]))
    assert beside == pytest.approx(alone * 8 / num_nics, rel=0.01)
    elsewhere = price(op, GIB, (0, 8), cluster("h100-ndr-x4"), beside=[(16, 24)]).time_s
    assert elsewhere == price(op, GIB, (0, 8), cluster("h100-ndr-x4")).time_s


@pytest.mark.parametrize(
    ("op", "ranks", "beside", "message"),
    [
        ("all_reduce", (0, 8), [()], "beside has a group without ranks"),
        ("all_reduce", (0, 8), [(0, 8)], "rank 0 is there several times"),
        ("all_reduce", (0, 8), [(1, 9), (9, 2)], "rank 9 is there several times"),
        ("send", (0, 8), [(0, 8)], r"the message \(0, 8\) is there several times"),
        ("all_reduce", (0, 8), [(1, 99)], "rank 99 is not on"),
    ],
)
def test_groups_side_by_side_are_different_ones(op, ranks, beside, message):
    with pytest.raises(ValueError, match=message):
        price(op, GIB, ranks, cluster("h100-ndr-x2"), beside=beside)


def test_messages_side_by_side_take_what_the_emulated_cluster_takes():
    """0.36 ms for one and 2.7 ms for eight over one NIC, as eight pairs of emulated ranks took in 2026."""
    nodes = replace(cluster("h100-ndr-x2"), nics_per_node=1)
    assert price("send", 16e6, (0, 8), nodes).time_s == pytest.approx(0.356 * MS, rel=0.01)
    assert price("send", 16e6, (0, 8), nodes, beside=PEERS[1:]).time_s == pytest.approx(2.689 * MS, rel=0.01)


def test_groups_side_by_side_share_the_uplinks_of_their_leaves():
    thin = replace(cluster("a100-hdr-x4"), nodes_per_leaf=2, oversubscription=4).without_latency()
    pairs = [(rank, rank + 16) for rank in range(16)]
    alone = price("send", GIB, pairs[0], thin).time_s
    same_rail = [pair for pair in pairs if pair[0] % 8 == 0]
    assert len(same_rail) == 2
    # two senders on a rail have half a NIC's rate together
    assert price("send", GIB, pairs[0], thin, beside=pairs[1:]).time_s == pytest.approx(2 * alone, rel=0.01)


def test_an_all_to_all_beside_nothing_is_the_same_counted_pair_by_pair():
    nodes, ranks = cluster("h100-ndr-x4"), range(0, 32, 4)
    far = [(30, 31)]  # on a node of the group, but on no NIC of it
    assert price("all_to_all", GIB, ranks, nodes, beside=far).time_s == pytest.approx(
        price("all_to_all", GIB, ranks, nodes).time_s
    )


def test_pairs_in_a_pcie_box_share_its_bridge():
    box = cluster("pcie-box")
    pairs = [(0, 1), (2, 3), (4, 5), (6, 7)]
    bus_bytes_per_s = [GIB / price("all_reduce", GIB, pairs[0], box, beside=pairs[1:n]).time_s for n in (1, 2, 4)]
    assert bus_bytes_per_s[0] == pytest.approx(24e9, rel=0.01) == bus_bytes_per_s[1]  # the link's
    assert bus_bytes_per_s[2] == pytest.approx(112e9 / 8, rel=0.01)  # eight messages cross the bridge


def test_groups_on_gloo_are_priced_alone():
    with pytest.raises(ValueError, match="uses Gloo, whose groups are priced alone; leave `beside` out"):
        price("all_reduce", GIB, (0, 1), replace(cluster("pcie-box"), library="gloo"), beside=[(2, 3)])


def test_gather_and_scatter_are_bound_by_the_root():
    bytes_s = GIB * 7 / 8 / hardware.NVLINK3.bandwidth_bytes_per_s
    assert time_s("gather", GIB, "dgx-a100") == pytest.approx(bytes_s, rel=0.02)
    assert time_s("gather", GIB, "dgx-a100") == time_s("scatter", GIB, "dgx-a100")


def test_each_rank_sends_what_its_algorithm_needs():
    def sent(op, algorithm=None):
        return price(op, 800, range(8), hardware.DGX_H100, algorithm).sent_bytes_per_rank

    assert [sent("all_reduce", one) for one in ALGORITHMS[:4]] == [1400, 1400, 1600, 900]
    assert [sent(op) for op in ("all_gather", "reduce_scatter", "all_to_all", "scatter")] == [700] * 4
    assert [sent(op) for op in ("broadcast", "reduce", "gather")] == [800, 800, 100]
    assert price("send", 800, [5, 2], hardware.DGX_H100).sent_bytes_per_rank == 800


def test_a_barrier_takes_an_all_reduce_of_a_byte_whatever_its_size():
    assert time_s("barrier", GIB, "h100-ndr") == time_s("all_reduce", 1, "h100-ndr")


def test_times_are_of_the_size_that_people_know():
    assert 10 * US < time_s("all_reduce", 8, "dgx-h100") < 40 * US
    assert 4 * MS < time_s("all_reduce", GIB, "dgx-h100", "nccl-ring") < 6 * MS
    assert time_s("all_reduce", GIB, "a100-10gbe") > 0.5


@pytest.mark.parametrize("name", clusters())
def test_every_operation_has_a_price_on_every_cluster(name):
    assert all(time_s(op, MIB, name) > 0 for op in OPS)


def test_bus_bandwidth_counts_as_nccl_tests_does():
    assert [bus_factor(op, 4) for op in ("all_reduce", "all_gather", "broadcast")] == [1.5, 0.75, 1]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("allreduce", 8, range(8)), "no operation is called 'allreduce'; the priced ones are all_reduce, "),
        (("all_reduce", 8, range(8), "star"), "no algorithm is called 'star'; take None or one of ring, nccl-ring, "),
        (("all_reduce", -1, range(8)), "size_bytes is -1; it must be 0 or more"),
        (("all_reduce", math.nan, range(8)), "size_bytes is nan; it must be 0 or more and finite"),
        (("all_reduce", math.inf, range(8)), "size_bytes is inf; it must be 0 or more and finite"),
        (("all_reduce", 8, [0, 0]), "ranks are [0, 0]; give at least one rank, each once"),
        (("all_reduce", 8, []), "ranks are []; give at least one rank, each once"),
        (("all_reduce", 8, [0, 8]), "rank 8 is not on dgx-a100; its ranks are 0 to 7"),
        (("all_reduce", 8, [99]), "rank 99 is not on dgx-a100; its ranks are 0 to 7"),
        (("send", 8, [0, 1, 2]), "send has 3 ranks; give two, the sender and the receiver"),
        (("all_reduce", 8, range(8), "nvls"), "'nvls' cannot do all_reduce among these 8 ranks of dgx-a100"),
        (("broadcast", 8, range(8), "ring"), "the textbook ring does all_reduce, all_gather, reduce_scatter and"),
    ],
)
def test_a_wrong_question_is_told_the_right_one(args, sentence):
    op, size_bytes, ranks, *algorithm = args
    with pytest.raises(ValueError, match=re.escape(sentence)):
        price(op, size_bytes, ranks, hardware.DGX_A100, *algorithm)


def test_ranks_without_gpus_have_no_price_with_nccl():
    hosts = replace(hardware.DGX_A100, gpu=replace(hardware.A100, architecture=hardware.HOST))
    with pytest.raises(ValueError, match=r"No collectives of NCCL are known for A100.*, whose architecture is cpu"):
        price("all_reduce", 8, range(8), hosts)


def test_a_rack_of_72_is_within_its_measurements_and_nothing_larger_is_priced():
    rack = replace(hardware.DGX_B200, name="gb200-nvl72", gpus_per_node=72)
    measured = {512 * MIB: 586.06, GIB: 681.17, 2 * GIB: 757.78, 4 * GIB: 839.16, 8 * GIB: 834.57}
    for size_bytes, busbw in measured.items():
        found = price("all_reduce", size_bytes, range(72), rack)
        assert found.algorithm == "nvls"
        assert size_bytes / found.time_s * 2 * 71 / 72 / GB == pytest.approx(busbw, rel=0.04)
    eight, all_of_them = (price("all_reduce", GIB, range(num), rack).time_s for num in (8, 72))
    assert eight == price("all_reduce", GIB, range(8), hardware.DGX_B200).time_s < all_of_them
    for gpu_node, most in (hardware.DGX_B200, 72), (hardware.DGX_H100, 8):
        larger = replace(gpu_node, name="larger", gpus_per_node=2 * most)
        with pytest.raises(ValueError, match=f"larger: {2 * most} GPUs on one set of NVLink switches; .* has {most}"):
            price("all_reduce", GIB, range(2 * most), larger)
        price("all_gather", GIB, range(2 * most), larger)  # by rings, which take no part of the switches


def test_every_architecture_has_all_of_its_figures():
    for architecture in hardware.ARCHITECTURES:
        gpu = replace(hardware.A100, architecture=architecture)
        node, fabric = (replace(found, gpu=gpu) for found in (hardware.DGX_A100, cluster("a100-hdr")))
        assert all(price(op, MIB, range(8), node).time_s > 0 for op in OPS if op != "send")
        assert all(price(op, MIB, range(16), fabric).time_s > 0 for op in OPS if op != "send")


@pytest.mark.parametrize("library", ["nccl", "gloo"])
def test_an_operation_without_a_formula_has_no_price(monkeypatch, library):
    found = replace(hardware.DGX_A100, library=library)
    for names in ("COLLECTIVES", "ROUTED"):
        with monkeypatch.context() as patch:
            patch.setattr(pricing, names, (*getattr(pricing, names), "gossip"))
            patch.setattr(pricing, "OPS", (*pricing.OPS, "gossip"))
            with pytest.raises(ValueError, match="no formula for the time of 'gossip'"):
                price("gossip", MIB, range(8), found)


@pytest.mark.parametrize("ranks", [[0, 1, 8], [0, 1, 8, 9], range(9), range(16)], ids=str)
@pytest.mark.parametrize("name", ["h100-ndr", "b200-ndr"])
def test_no_sum_is_faster_than_its_bytes_come_into_a_node(name, ranks):
    found = cluster(name)
    num_nics = min(len({found.nic_of(rank) for rank in ranks if found.node_of(rank) == node}) for node in (0, 1))
    assert price("all_reduce", GIB, ranks, found).time_s >= GIB / (num_nics * found.inter.bandwidth_bytes_per_s)
