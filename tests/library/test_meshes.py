import re
from dataclasses import replace
from functools import cache
from itertools import pairwise, permutations
from random import Random

import pytest

from worldsize import hardware
from worldsize.faults import Faults, SlowLink
from worldsize.hardware import Hop, Mesh, cluster
from worldsize.hardware.meshes import Rings
from worldsize.pricing import FITTED, price
from worldsize.units import GB, GIB, MIB, US

DGX_1V, BRIDGED = hardware.DGX_1V, hardware.PCIE_BOX_BRIDGED
LINK = replace(hardware.NVLINK2_LINK, name="link")
STEADY = FITTED["volta"].steady_fraction


def complete(num_gpus, num_links=1):
    return Mesh(LINK, tuple(tuple(num_links * (i != j) for j in range(num_gpus)) for i in range(num_gpus)))


def bus_bytes_per_s(gpus, found):
    """The bus bandwidth of an all-reduce so large that only bytes count."""
    size_bytes = 4000 * GIB
    return 2 * (len(gpus) - 1) / len(gpus) * size_bytes / price("all_reduce", size_bytes, gpus, found).time_s


def test_a_hybrid_cube_mesh_has_the_rings_that_were_measured():
    # bus bandwidths of 22.6, 45.1, 85.4, 37.2, 45.7, 87.0 and 134.5 GB/s: VIA-Research/vTrain trace/v100 (2024)
    found = [DGX_1V.mesh.rings(range(num_gpus)) for num_gpus in range(2, 9)]
    assert [rings.number for rings in found] == [1, 2, 4, 2, 2, 4, 6]
    assert [rings.link_fraction for rings in found] == [1] * 7
    assert [rings.is_direct for rings in found] == [True, True, True, False, True, True, True]


@pytest.mark.parametrize("num_gpus", range(2, 9))
def test_a_complete_mesh_has_rings_over_all_of_its_links(num_gpus):
    # complete directed graphs fall into rings, but for 4 and 6: Tillson, J. Combinatorial Theory B 29(1), 1980
    whole, halves = Rings(num_gpus - 1, 1.0, True), Rings(2 * (num_gpus - 1), 0.5, True)
    assert complete(num_gpus).rings(range(num_gpus)) == (halves if num_gpus in (4, 6) else whole)
    assert complete(num_gpus, 2).rings(range(num_gpus)) == Rings(2 * (num_gpus - 1), 1.0, True)


def most_rings(mesh):
    """The most direct rings at once, by trying every ring on what is left of the links."""
    gpus = range(mesh.num_gpus)
    rings = [tuple(pairwise((0, *order, 0))) for order in permutations(gpus[1:])]

    @cache
    def most(left):
        here = dict(left)
        fitting = [ring for ring in rings if all(here[arc] for arc in ring)]
        return max((1 + most(tuple((arc, here[arc] - (arc in ring)) for arc in here)) for ring in fitting), default=0)

    return most(tuple(((i, j), mesh.num_links[i][j]) for i, j in permutations(gpus, 2)))


def test_the_search_finds_as_many_rings_as_trying_them_all():
    rng, numbers = Random(0), set()
    for _ in range(40):
        pairs = {pair: rng.choice((0, 1, 1, 2)) for pair in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]}
        if not any(pairs.values()):
            continue
        mesh = Mesh.of_pairs(LINK, 4, pairs)
        found, most = mesh.rings(range(4)), most_rings(mesh)
        numbers.add(most)
        if found and found.is_direct:
            assert found.number == most if found.link_fraction == 1 else found.number > 2 * most
        else:
            assert most == 0
    assert len(numbers) > 2


def test_a_pair_without_a_link_goes_over_the_gpu_between_that_has_most():
    mesh = Mesh.of_pairs(LINK, 4, {(0, 1): 1, (1, 3): 2, (0, 2): 2, (2, 3): 3})
    assert mesh.path(0, 1) == ((0, 1),)
    assert mesh.path(0, 3) == ((0, 2), (2, 3))
    assert mesh.path(0, 3, through=[1]) == ((0, 1), (1, 3))
    assert mesh.path(0, 3, through=[]) == ()
    assert BRIDGED.mesh.path(0, 2) == ()


def test_a_message_takes_the_links_of_its_pair_or_the_ports():
    assert DGX_1V.route(0, 3).hops == (Hop("link", "gpu0 to gpu3"),)
    assert DGX_1V.route(0, 7).hops == (Hop("link", "gpu0 to gpu4"), Hop("link", "gpu4 to gpu7"))
    assert DGX_1V.route(0, 7).latency_s == hardware.NVLINK2_LINK.latency_s
    assert [DGX_1V.capacity_bytes_per_s(DGX_1V.hop(f"gpu{gpu} to gpu0")) for gpu in (1, 4)] == [20 * GB, 40 * GB]
    assert [hop.name for hop in BRIDGED.route(1, 2).hops] == ["gpu1 out", "node0 bridge", "gpu2 in"]


def test_a_mesh_is_on_every_node():
    several = replace(BRIDGED, num_nodes=2, inter=hardware.ETHERNET_10G)
    assert several.route(10, 11).hops == (Hop("link", "gpu10 to gpu11"),)
    assert several.capacity_bytes_per_s(several.hop("gpu11 to gpu10")) == 240 * GB
    assert several.route(7, 8).hops[1].name == "node0 nic0 out"
    with pytest.raises(ValueError, match="has no hop 'gpu7 to gpu8'"):
        several.hop("gpu7 to gpu8")
    assert several.without_latency().route(10, 11).latency_s == 0


def test_collectives_run_on_the_rings_that_their_gpus_have():
    groups = {(0, 1): 1, (0, 3): 2, (0, 1, 2, 3): 4, (4, 5, 6, 7): 4, tuple(range(8)): 6}
    for gpus, rings in groups.items():
        assert bus_bytes_per_s(gpus, DGX_1V) == pytest.approx(rings * STEADY * 20 * GB, rel=1e-3)
    assert bus_bytes_per_s(range(8), hardware.MI300X_NODE) == pytest.approx(7 * 48 * GB, rel=1e-3)
    assert bus_bytes_per_s(range(4), hardware.MI300X_NODE) == pytest.approx(3 * 48 * GB, rel=1e-3)


def test_each_ring_is_a_channel_of_the_tuner():
    # 14 steps of LL128 on six channels of at most 20 GB/s
    latency_s = (14.0 + 14 * 1.9 + 20) * US
    expected_s = latency_s + 14 / 8 * 4 * MIB / (6 * 20 * GB)
    assert price("all_reduce", 4 * MIB, range(8), DGX_1V).time_s == pytest.approx(expected_s, rel=1e-9)


def test_gpus_that_no_ring_of_links_joins_go_through_the_host():
    assert bus_bytes_per_s((0, 5), DGX_1V) == pytest.approx(hardware.PCIE3.bandwidth_bytes_per_s, rel=1e-3)
    assert price("all_reduce", 8, (0, 5), DGX_1V).time_s > price("all_reduce", 8, (0, 4), DGX_1V).time_s
    narrow = replace(BRIDGED, bridge_bytes_per_s=24 * GB)
    # two of the four steps of a ring through two pairs cross the bridge, all of those through one GPU of each pair
    assert bus_bytes_per_s(range(4), narrow) == pytest.approx(12 * GB, rel=1e-3)
    assert bus_bytes_per_s((0, 2, 4, 6), narrow) == pytest.approx(6 * GB, rel=1e-3)


def test_a_pair_with_a_bridge_is_as_fast_as_its_links():
    assert bus_bytes_per_s((0, 1), BRIDGED) > 8 * bus_bytes_per_s((1, 2), BRIDGED)
    assert price("all_to_all", GIB, (0, 1), BRIDGED).time_s == pytest.approx(GIB / 2 / (240 * GB), rel=0.05)


def test_a_slow_link_slows_the_groups_that_have_both_of_its_gpus():
    faults = Faults([SlowLink("gpu0 to gpu3", factor=4.0)], DGX_1V, 8)
    assert faults.capacity_bytes_per_s(DGX_1V.hop("gpu0 to gpu3")) == 10 * GB
    assert faults.capacity_bytes_per_s(DGX_1V.hop("gpu3 to gpu0")) == 40 * GB
    assert faults.cluster_of([0, 1, 2, 3]).mesh.link.bandwidth_bytes_per_s == 5 * GB
    assert faults.cluster_of([4, 5, 6, 7]) == faults.cluster_of([0, 1, 2]) == DGX_1V


def test_a_drawn_slow_link_is_one_of_the_mesh():
    drawn = {SlowLink(seed=seed).on(DGX_1V, 4).hop for seed in range(20)}
    assert "gpu3 to gpu0" in drawn
    assert all(" to " in hop and DGX_1V.hop(hop) for hop in drawn)


@pytest.mark.parametrize(
    ("num_links", "sentence"),
    [
        (((0, 1), (2, 0)), "num_links[0][1] is 1 and num_links[1][0] is 2; give both the same number"),
        (((1, 1), (1, 0)), "num_links[0][0] is 1; it must be 0, because no link connects a GPU to itself"),
        (((0, -1), (-1, 0)), "num_links[0][1] is -1; it must be a number of links, 0 or more"),
        (((0, 0.5), (0.5, 0)), "num_links[0][1] is 0.5; it must be a number of links, 0 or more"),
        (((0, 1, 1), (1, 0)), "num_links has rows of lengths [3, 2]; give 2 to 8 rows as long as their number"),
        (((0,) * 9,) * 9, "give 2 to 8 rows as long as their number"),
        (((0, 0), (0, 0)), "num_links connects no GPUs; leave the mesh out"),
    ],
)
def test_a_mesh_says_what_is_wrong_with_it(num_links, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Mesh(LINK, num_links)


def test_a_mesh_is_of_links_between_the_gpus_of_its_node():
    with pytest.raises(ValueError, match=re.escape("(0, 4) is not a pair of GPUs of the node, which are 0 to 3")):
        Mesh.of_pairs(LINK, 4, {(0, 4): 1})
    with pytest.raises(ValueError, match="a mesh needs links of kind='nvlink'; PCIe 4 x16 is of kind 'pcie'"):
        Mesh(hardware.PCIE4, ((0, 1), (1, 0)))
    with pytest.raises(ValueError, match="dgx-a100: the mesh has 4 GPUs, but a node has 8"):
        replace(cluster("dgx-a100"), mesh=complete(4))
