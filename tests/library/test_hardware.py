import pickle
import random
import re
from collections import Counter
from dataclasses import fields, replace

import pytest

from worldsize import hardware, pricing
from worldsize.hardware import Cluster, Gpu, Hop, Host, Link, Route, StorageSystem, cluster, clusters
from worldsize.units import GB, US

CATALOGUE = [
    value for value in vars(hardware).values() if isinstance(value, Gpu | Link | Host | StorageSystem | Cluster)
]
NIC = Link("NIC", 5 * US, 10 * GB, "made up, 2026")
PORT = Link("port", 1 * US, 100 * GB, "made up, 2026", kind="nvlink")
FAT_TREE = Cluster(
    name="fat tree",
    gpu=hardware.A100,
    gpus_per_node=4,
    intra=PORT,
    inter=NIC,
    num_nodes=8,
    nics_per_node=2,
    nodes_per_leaf=2,
    is_rail=False,
    oversubscription=4,
)


def capacity_bytes_per_s(found, name):
    return found.capacity_bytes_per_s(found.hop(name))


def names_of_hops(found, src, dst):
    return tuple(map(str, found.route(src, dst).hops))


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.name)
def test_every_number_of_the_catalogue_has_a_source_with_a_year(entry):
    assert re.search(r"\b20\d\d\b", entry.source)


def test_the_catalogue_holds_every_generation_and_kind_of_link():
    assert {entry.architecture for entry in CATALOGUE if isinstance(entry, Gpu)} == set(hardware.ARCHITECTURES)
    assert {entry.kind for entry in CATALOGUE if isinstance(entry, Link)} == set(hardware.LINK_KINDS)


def test_a_transfer_reaches_most_of_its_links_peak():
    links = [entry for entry in CATALOGUE if isinstance(entry, Link)]
    assert all(0.75 <= link.bandwidth_bytes_per_s / (link.peak_bytes_per_s or 1) <= 1 for link in links)


def test_half_the_bytes_never_compute_slower():
    for gpu in (entry for entry in CATALOGUE if isinstance(entry, Gpu)):
        peaks = gpu.peak_flops_per_s
        order = [peaks[dtype] for dtype in ("float64", "float32", "tf32", "float16", "float8") if dtype in peaks]
        assert order == sorted(order)
        assert peaks.get("bfloat16", peaks["float16"]) == peaks["float16"]


def test_every_name_gives_its_cluster():
    assert [cluster(name).name for name in clusters()] == clusters()


def test_a_name_can_set_the_number_of_nodes():
    four = cluster("h100-ndr-x4")
    assert (four.name, four.num_nodes, four.world_size) == ("h100-ndr-x4", 4, 32)
    assert four == replace(hardware.H100_NDR.with_nodes(4), name="h100-ndr-x4")


def test_an_unknown_name_is_told_the_nearest_and_all():
    with pytest.raises(ValueError, match=r"'dgx-h10'; did you mean 'dgx-h100'\? Known: dgx-a100, .*10gbe"):
        cluster("dgx-h10")


def test_nodes_without_a_network_cannot_be_two():
    with pytest.raises(ValueError, match=r"dgx-h100-x2: 2 nodes need a network; give inter="):
        cluster("dgx-h100-x2")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gpus_per_node": 0}, "gpus_per_node is 0; it must be more than 0"),
        (
            {"intra": hardware.IB_NDR},
            "intra is InfiniBand NDR, of kind 'rdma'; a node's GPUs are connected by a Link of",
        ),
        ({"nics_per_node": 5}, "5 NICs for 4 GPUs; nics_per_node must be at most gpus_per_node"),
        ({"oversubscription": 0.5}, "oversubscription is 0.5; it must be the downlinks per uplink, 1 or more"),
        ({"nodes_per_leaf": 0}, "nodes_per_leaf is 0; it must be more than 0"),
        ({"is_switched": False}, "give the bridge's capacity if is_switched=False, and only then"),
        ({"bridge_bytes_per_s": 1 * GB}, "give the bridge's capacity if is_switched=False, and only then"),
    ],
)
def test_a_cluster_says_what_is_wrong_with_it(change, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        replace(FAT_TREE, **change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"latency_s": -1.0}, "latency_s is -1.0; it must be 0 or more seconds"),
        ({"bandwidth_bytes_per_s": 0}, "bandwidth_bytes_per_s is 0; it must be more than 0"),
        ({"peak_bytes_per_s": 1 * GB}, "is below the rate that transfers reach"),
        ({"kind": "wifi"}, "kind is 'wifi'; it must be one of nvlink, pcie, rdma, tcp"),
        ({"source": "a friend"}, "names no year"),
    ],
)
def test_a_link_says_what_is_wrong_with_it(change, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        replace(NIC, **change)


@pytest.mark.parametrize(
    ("changed", "change", "sentence"),
    [
        (hardware.HOST_DDR5, {"gpus_per_uplink": 0}, "gpus_per_uplink is 0; it must be more than 0"),
        (hardware.HOST_DDR5, {"link": hardware.IB_NDR}, "of kind 'rdma'; a GPU is connected to its host by a Link of"),
        (hardware.HOST_DDR5, {"source": "a friend"}, "names no year"),
        (hardware.NFS, {"write_bytes_per_s": -1.0}, "write_bytes_per_s is -1.0; it must be more than 0"),
        (hardware.NFS, {"total_read_bytes_per_s": 0.0}, "total_read_bytes_per_s is 0.0; it must be more than 0"),
        (
            hardware.NFS,
            {"total_read_bytes_per_s": None},
            "give both total_read_bytes_per_s and total_write_bytes_per_s",
        ),
        (hardware.NFS, {"latency_s": -1.0}, "latency_s is -1.0; it must be 0 or more seconds"),
        (hardware.NFS, {"source": ""}, "names no year"),
        (hardware.NVME_8, {"is_on_nics": True}, "is_on_nics needs a store that the nodes share; give its total rates"),
        (FAT_TREE, {"local_storage": hardware.NFS}, "local_storage is NFS, which all nodes share"),
        (FAT_TREE, {"shared_storage": hardware.NVME_8}, "of which each node has its own; give the rates that all"),
        (hardware.PCIE_BOX, {"shared_storage": replace(hardware.NFS, is_on_nics=True)}, "give inter=, their Link"),
    ],
)
def test_hosts_and_storage_say_what_is_wrong_with_them(changed, change, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        replace(changed, **change)


@pytest.mark.parametrize(
    ("transfer", "sentence"),
    [
        ("to host", "fat tree has no host; give host=, a Host such as hardware.HOST_DDR5"),
        ("read", "fat tree has no shared storage; give shared_storage=, a StorageSystem such as hardware.LUSTRE"),
        ("write local", "fat tree has no local storage; give local_storage=, a StorageSystem such as hardware.NVME_8"),
        ("upwards", "a transfer is 'upwards'; it must be one of to host, to device, read, write, read local, write"),
    ],
)
def test_a_transfer_says_what_the_cluster_lacks(transfer, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        FAT_TREE.transfer_route(0, transfer)


@pytest.mark.parametrize("name", clusters())
def test_every_hop_of_a_transfer_has_a_capacity_and_is_found_by_its_name(name):
    found = cluster(name)
    for rank in range(found.world_size):
        for transfer in found.transfers:
            route = found.transfer_route(rank, transfer)
            assert route.latency_s > 0
            assert all(found.capacity_bytes_per_s(hop) > 0 and found.hop(hop.name) == hop for hop in route.hops)


def test_named_clusters_have_what_every_transfer_needs_where_it_is_known():
    lack = {name: set(hardware.TRANSFERS) - set(cluster(name).transfers) for name in clusters()}
    local, shared = {"read local", "write local"}, {"read", "write"}
    assert {name: found for name, found in lack.items() if found} == {
        "dgx-1v": local,
        "v100-quad": set(hardware.TRANSFERS),
        "mi300x": local | shared,
        "a100-slingshot": local,
    }


@pytest.mark.parametrize(
    ("name", "transfer", "hops"),
    [
        ("h100-ndr", "to host", ["gpu11 to host", "node1 uplink1 to host", "node1 memory"]),
        ("pcie-box-10gbe", "to device", ["gpu11 in", "gpu11 to device", "node1 bridge", "node1 memory"]),
        ("h100-ndr", "write", ["node1 memory", "node1 shared write", "all shared write"]),
        ("a100-10gbe", "read", ["node1 memory", "node1 nic0 in", "node1 shared read", "all shared read"]),
        ("a100-10gbe", "write local", ["node1 memory", "node1 local write"]),
    ],
)
def test_a_transfer_takes_the_hops_of_its_rank(name, transfer, hops):
    assert list(map(str, cluster(name).transfer_route(11, transfer).hops)) == hops


def test_all_copies_of_a_described_host_fit_into_its_memorys_bandwidth():
    for host in (hardware.HOST_DDR4, hardware.HOST_DDR5):
        num_uplinks = 8 / host.gpus_per_uplink
        assert num_uplinks * host.link.bandwidth_bytes_per_s < host.memory_bandwidth_bytes_per_s


def test_a_gpu_knows_only_torchs_names_of_dtypes():
    with pytest.raises(ValueError, match=r"a key of peak_flops_per_s is 'bf16'; it must be one of float64, "):
        replace(hardware.A100, peak_flops_per_s={"bf16": 1.0})
    with pytest.raises(ValueError, match=r"peak_flops_per_s is empty; give the rate of at least one dtype"):
        replace(hardware.A100, peak_flops_per_s={})


def test_a_message_within_a_node_takes_the_two_gpus_ports():
    assert FAT_TREE.route(1, 3) == Route(1 * US, (Hop("gpu", "gpu1 out"), Hop("gpu", "gpu3 in")))
    assert capacity_bytes_per_s(FAT_TREE, "gpu1 out") == 100 * GB


def test_a_message_to_oneself_takes_nothing():
    assert FAT_TREE.route(3, 3) == Route(0.0, ())


def test_a_message_between_nodes_takes_the_nics_of_its_ranks():
    assert FAT_TREE.route(1, 6) == Route(5 * US, (Hop("nic", "node0 nic0 out"), Hop("nic", "node1 nic1 in")))
    assert capacity_bytes_per_s(FAT_TREE, "node0 nic0 out") == 10 * GB


def test_a_message_between_leaves_takes_their_oversubscribed_uplinks():
    assert names_of_hops(FAT_TREE, 0, 31) == ("node0 nic0 out", "leaf0 up", "leaf3 down", "node7 nic1 in")
    assert capacity_bytes_per_s(FAT_TREE, "leaf0 up") == 2 * 2 * 10 * GB / 4


def test_on_rails_only_an_oversubscribed_message_to_another_rail_takes_uplinks():
    rails = replace(FAT_TREE, is_rail=True, nodes_per_leaf=None)
    assert names_of_hops(rails, 0, 4) == ("node0 nic0 out", "node1 nic0 in")
    assert names_of_hops(rails, 0, 7) == ("node0 nic0 out", "leaf0 up", "leaf1 down", "node1 nic1 in")
    assert capacity_bytes_per_s(rails, "leaf1 down") == 8 * 10 * GB / 4
    assert names_of_hops(replace(rails, oversubscription=1), 0, 7) == ("node0 nic0 out", "node1 nic1 in")


def test_in_a_box_without_switches_all_messages_share_the_bridge():
    assert names_of_hops(hardware.PCIE_BOX, 0, 7) == ("gpu0 out", "node0 bridge", "gpu7 in")
    assert names_of_hops(hardware.PCIE_BOX_10GBE, 0, 9) == (
        "node0 bridge",
        "node0 nic0 out",
        "node1 nic0 in",
        "node1 bridge",
    )
    assert capacity_bytes_per_s(hardware.PCIE_BOX, "node0 bridge") < 8 * hardware.PCIE4.bandwidth_bytes_per_s


def test_eight_gpus_share_the_nics_evenly():
    four_nics = replace(hardware.A100_HDR, nics_per_node=4)
    assert [four_nics.nic_of(rank) for rank in range(8, 16)] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("rank", [-1, 32])
def test_a_rank_out_of_range_is_told_the_range(rank):
    with pytest.raises(ValueError, match=rf"rank {rank} is not on fat tree; its ranks are 0 to 31"):
        FAT_TREE.route(0, rank)


@pytest.mark.parametrize("hop", ["gpu1", "gpu32 out", "node0 nic2 in", "leaf4 up", "node0 bridge", "the internet"])
def test_an_unknown_hop_is_refused(hop):
    with pytest.raises(ValueError, match=rf"fat tree has no hop '{hop}'; take the names from route"):
        FAT_TREE.hop(hop)


def test_a_hop_of_a_kind_that_a_cluster_does_not_have_is_refused():
    with pytest.raises(ValueError, match="dgx-h100 has no leaf, so it has no hop 'leaf0 up'"):
        hardware.DGX_H100.capacity_bytes_per_s(FAT_TREE.hop("leaf0 up"))


@pytest.mark.parametrize("name", clusters())
def test_every_hop_of_every_route_has_a_capacity(name):
    found = cluster(name)
    hops = {hop for rank in range(found.world_size) for hop in found.route(0, rank).hops}
    assert all(found.capacity_bytes_per_s(hop) > 0 and found.hop(hop.name) == hop for hop in hops)


def test_a_cluster_can_be_a_key_and_be_sent_to_a_process():
    found = cluster("h100-ndr-x4")
    assert pickle.loads(pickle.dumps(found)) == found
    assert {found: 1}[cluster("h100-ndr-x4")] == 1


@pytest.mark.parametrize("name", ["dgx-h100", "dgx-1v", "pcie-box-bridged", "h100-ndr", "a100-10gbe", "pcie-box-10gbe"])
@pytest.mark.parametrize(
    ("nodes_per_leaf", "oversubscription", "is_rail"), [(None, 1.0, True), (2, 4.0, True), (2, 4.0, False)]
)
@pytest.mark.parametrize("num_ranks", [2, 5, 24])
def test_the_busiest_hops_of_all_pairs_are_those_of_their_routes(
    name, nodes_per_leaf, oversubscription, is_rail, num_ranks
):
    one = cluster(name)
    several = replace(
        one,
        num_nodes=6 if one.inter else 1,
        nodes_per_leaf=nodes_per_leaf,
        oversubscription=oversubscription,
        is_rail=is_rail,
    )
    ranks = random.Random(num_ranks).sample(range(several.world_size), min(num_ranks, several.world_size))
    routes = [several.route(src, dst) for src in ranks for dst in ranks if src != dst]
    loads = Counter(hop for route in routes for hop in route.hops)
    most = Counter()
    for hop, load in loads.items():
        alike = hop.kind, several.capacity_bytes_per_s(hop)
        most[alike] = max(most[alike], load)
    found = several.busiest_of_all_pairs(ranks)
    assert {(hop.kind, several.capacity_bytes_per_s(hop)): load for hop, load in found} == most
    assert all(loads[hop] == load for hop, load in found)


class Counting(Cluster):
    """A cluster that must not be asked for the route of every pair."""

    def _route_within_node(self, src_rank, dst_rank):
        raise AssertionError("a pair was looked at")

    route = _route_within_node


@pytest.mark.parametrize(
    "found",
    [
        *map(cluster, ("h100-ndr-x1250", "h100-pods-x1250", "a100-slingshot-x2500")),
        replace(hardware.DGX_H100, name="one node", gpus_per_node=10_000),
    ],
    ids=lambda found: found.name,
)
def test_an_all_to_all_of_ten_thousand_ranks_looks_at_no_pairs(found):
    counting = Counting(**{one.name: getattr(found, one.name) for one in fields(found)})
    assert pricing.price("all_to_all", 1 << 30, range(10_000), counting).time_s > 0
