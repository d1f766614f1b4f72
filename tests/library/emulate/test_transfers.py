"""Transfers between a GPU, its host and storage: what they take, what they share, and what waits for them."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worldsize import emulate, hardware
from worldsize.emulate.launcher.simulator import ClusterPrices, replay
from worldsize.emulate.protocol.record import COMPUTE, JOIN, MARK, POST, WAIT, Operation, Step
from worldsize.faults import Faults, SlowLink
from worldsize.hardware import Host, Link, StorageSystem
from worldsize.units import GB, MB, US

SOURCE = "made up, 2026"
PCIE = Link("PCIe", 2 * US, 50 * GB, SOURCE, kind="pcie")
HOST = Host("host", PCIE, 2_000 * GB, 1_000 * GB, SOURCE)
DRIVES = StorageSystem("drives", 20 * GB, 10 * GB, 0.0, SOURCE)
STORE = StorageSystem("store", 40 * GB, 20 * GB, 0.001, SOURCE, 100 * GB, 50 * GB)
CLUSTER = replace(hardware.H100_NDR, num_nodes=8, host=HOST, local_storage=DRIVES, shared_storage=STORE)
NETWORK_BYTES_PER_S = 48 * GB


def transfer(way, size_bytes, lane=""):
    return Step(way, round(size_bytes), lane=lane)


def prices(cluster=CLUSTER, faults=()):
    found = Faults(faults, cluster, cluster.world_size)
    return ClusterPrices(
        cluster.route, found.capacity_bytes_per_s, lambda one: None, transfer_route=cluster.transfer_route
    )


def ends_s(steps, cluster=CLUSTER, faults=(), operations=()):
    """When each rank's last work ends."""
    timeline = replay(steps, operations, prices(cluster, faults))
    return [
        max((event.end_s for event in timeline.of(rank) if event.is_work), default=0.0) for rank in range(len(steps))
    ]


def test_a_copy_of_20_mb_over_pcie_5_takes_its_latency_and_its_bytes():
    (end_s,) = ends_s([[transfer("to host", 20 * MB)]], hardware.DGX_H100)
    assert end_s == pytest.approx(6 * US + 20 * MB / (55.4 * GB), rel=1e-12)
    assert end_s == pytest.approx(367 * US, rel=1e-3)


def test_a_transfer_is_on_the_timeline_with_its_bytes():
    step = Step("write", 5_000, 0.0, "save", "checkpoint")
    (event,) = replay([[Step(COMPUTE, duration_s=1.0), step]], [], prices()).events[1:]
    assert (event.stream, event.kind, event.name, event.size_bytes, event.start_s) == (
        "compute",
        "checkpoint",
        "save",
        5_000,
        1.0,
    )


def test_a_transfer_of_no_bytes_takes_the_latency():
    assert ends_s([[transfer("read", 0)]]) == [0.001]


@pytest.mark.parametrize("way", ["read local", "write local"])
@pytest.mark.parametrize("num_ranks", [1, 3, 8])
def test_the_ranks_of_a_node_share_its_drives(way, num_ranks):
    rate = DRIVES.read_bytes_per_s if way == "read local" else DRIVES.write_bytes_per_s
    took_s = ends_s([[transfer(way, GB)] for _ in range(num_ranks)])
    assert took_s == pytest.approx([num_ranks * GB / rate] * num_ranks)


def test_the_ranks_of_other_nodes_do_not_share_them():
    steps = [[transfer("read local", GB)] if rank % 8 == 0 else [] for rank in range(24)]
    assert [end_s for end_s in ends_s(steps) if end_s] == pytest.approx([GB / DRIVES.read_bytes_per_s] * 3)


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 8])
def test_a_checkpoint_takes_the_longer_of_a_nodes_rate_and_the_whole_stores(num_nodes):
    steps = [[transfer("write", 2 * GB)] for _ in range(8 * num_nodes)]
    per_node_s = 8 * 2 * GB / STORE.write_bytes_per_s
    in_all_s = num_nodes * 8 * 2 * GB / STORE.total_write_bytes_per_s
    assert max(ends_s(steps)) == pytest.approx(0.001 + max(per_node_s, in_all_s))


def test_two_directions_of_pcie_do_not_share():
    steps = [[transfer("to host", GB), transfer("to device", GB, "offload")]]
    assert ends_s(steps) == pytest.approx([2 * US + GB / (50 * GB)])


def test_two_copies_in_one_direction_share():
    steps = [[transfer("to host", GB), transfer("to host", GB, "offload")]]
    assert ends_s(steps) == pytest.approx([2 * US + 2 * GB / (50 * GB)])


@pytest.mark.parametrize(("gpus_per_uplink", "num_sharing"), [(1, 1), (2, 2), (4, 4)])
def test_the_gpus_of_a_switch_share_its_uplink(gpus_per_uplink, num_sharing):
    cluster = replace(CLUSTER, host=replace(HOST, gpus_per_uplink=gpus_per_uplink))
    took_s = ends_s([[transfer("to device", GB)] for _ in range(8)], cluster)
    assert took_s == pytest.approx([2 * US + num_sharing * GB / (50 * GB)] * 8)


@pytest.mark.parametrize("bandwidth", [100 * GB, 300 * GB, 1_000 * GB])
def test_all_copies_of_a_node_share_the_hosts_memory(bandwidth):
    cluster = replace(CLUSTER, host=replace(HOST, memory_bandwidth_bytes_per_s=bandwidth))
    steps = [[transfer("to host" if rank % 2 else "to device", GB)] for rank in range(8)]
    assert max(ends_s(steps, cluster)) == pytest.approx(2 * US + max(GB / (50 * GB), 8 * GB / bandwidth))


def test_a_store_on_the_nics_shares_them_with_messages():
    message = Operation("send", (0, 8), GB, parts={0: 1, 8: 1})
    steps = [
        [Step(POST, 1), transfer("write", GB), Step(WAIT, 1)],
        *([] for _ in range(7)),
        [Step(POST, 1), Step(WAIT, 1)],
    ]
    wide = replace(STORE, write_bytes_per_s=100 * GB, total_write_bytes_per_s=100 * GB, latency_s=14 * US)
    on_nics = replace(CLUSTER, shared_storage=replace(wide, is_on_nics=True))
    apart = replace(CLUSTER, shared_storage=wide)
    assert ends_s(steps, on_nics, operations=[message])[0] == pytest.approx(14 * US + 2 * GB / NETWORK_BYTES_PER_S)
    assert ends_s(steps, apart, operations=[message])[0] == pytest.approx(14 * US + GB / (100 * GB))


def test_copies_share_a_pcie_boxs_ports_with_messages():
    message = Operation("send", (0, 1), GB, parts={0: 1, 1: 1})
    steps = [[Step(POST, 1), transfer("to host", GB), Step(WAIT, 1)], [Step(POST, 1), Step(WAIT, 1)]]
    box = hardware.PCIE_BOX.without_latency()
    port = box.intra.bandwidth_bytes_per_s
    assert ends_s(steps, box, operations=[message])[0] == pytest.approx(2 * GB / port)
    assert ends_s([steps[0][1:2]], box)[0] == pytest.approx(GB / port)


@pytest.mark.parametrize(("load_s", "compute_s"), [(1.0, 3.0), (3.0, 1.0), (2.0, 2.0)])
def test_a_step_with_a_loader_lane_takes_the_longer_of_load_and_compute(load_s, compute_s):
    size_bytes = load_s * DRIVES.read_bytes_per_s
    steps = [transfer("read local", size_bytes, "loader"), Step(MARK, 1, lane="loader")]
    for number in range(1, 6):
        steps += [transfer("read local", size_bytes, "loader"), Step(MARK, number + 1, lane="loader")]
        steps += [Step(JOIN, number), Step(COMPUTE, duration_s=compute_s)]
    timeline = replay([steps], [], prices())
    starts_s = [event.start_s for event in timeline.of(0) if event.stream == "compute"]
    between_s = [after - before for before, after in itertools.pairwise(starts_s)]
    assert between_s == pytest.approx([max(load_s, compute_s)] * 4)


@pytest.mark.parametrize(
    ("hop", "way", "cluster"),
    [
        ("gpu0 to host", "to host", CLUSTER),
        ("node0 uplink0 to device", "to device", replace(CLUSTER, host=replace(HOST, gpus_per_uplink=2))),
        ("node0 memory", "to host", replace(CLUSTER, host=replace(HOST, memory_bandwidth_bytes_per_s=GB))),
        ("node0 local read", "read local", CLUSTER),
        ("node0 shared write", "write", CLUSTER),
        ("all shared read", "read", replace(CLUSTER, shared_storage=replace(STORE, total_read_bytes_per_s=GB))),
    ],
)
def test_a_slow_link_slows_a_transfer(hop, way, cluster):
    cluster = cluster.without_latency()
    (usual_s,), (slow_s,) = (ends_s([[transfer(way, GB)]], cluster, faults) for faults in ([], [SlowLink(hop, 3.0)]))
    assert slow_s == pytest.approx(3 * usual_s)


WAYS = st.sampled_from(hardware.TRANSFERS)
RANKS = st.lists(st.lists(st.tuples(WAYS, st.integers(0, GB), st.sampled_from(["", "other"])), max_size=4), max_size=10)


@settings(deadline=None, max_examples=50)
@given(RANKS)
def test_no_hop_carries_more_than_it_can_and_each_transfer_goes_at_most_at_its_own_rate(of_ranks):
    timeline = replay([[transfer(*one) for one in of_rank] for of_rank in of_ranks], [], prices())
    assert len(timeline.events) == sum(map(len, of_ranks))
    for event in timeline.events:
        assert event.duration_s >= event.size_bytes / (50 * GB) * (1 - 1e-9)
    for direction in ("read", "write"):
        total = sum(size for of_rank in of_ranks for way, size, _ in of_rank if way == direction)
        assert timeline.end_s >= total / getattr(STORE, f"total_{direction}_bytes_per_s") * (1 - 1e-9)


def test_a_size_may_be_a_whole_float_and_nothing_else():
    emulate.transfer(0.5 * GB, "read")
    for size_bytes in (0.5, float("nan"), "2GB", None):
        with pytest.raises(ValueError, match=rf"size_bytes is {size_bytes!r}; it must be a whole number of bytes"):
            emulate.transfer(size_bytes, "read")
