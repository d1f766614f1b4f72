"""The picture of a node shows what its cluster's description says, and the way of a byte is what is priced."""

import re
from itertools import combinations

import pytest
from matplotlib.patches import Circle

from worldsize import draw, hardware
from worldsize.draw._node_layout import layout_of
from worldsize.draw._node_path import way

pytestmark = pytest.mark.filterwarnings("error")


def texts(picture):
    return [text.get_text() for text in picture.axes[0].texts]


def hops(cluster, *path):
    return [str(hop) for hop, _ in way(layout_of(hardware.cluster(cluster)), path, 8.4).rates]


def paths(cluster):
    """Ways of every kind that a cluster has."""
    last = cluster.gpus_per_node - 1
    found = [None, ("gpu0", "gpu1"), ("gpu0", f"gpu{last}"), (f"gpu{last}", "gpu1")]
    found += [("gpu1", "host"), ("host", f"gpu{last}")] if cluster.host else []
    found += [("gpu1", "storage"), ("storage", f"gpu{last}")] if cluster.shared_storage else []
    found += [("gpu1", "drives")] if cluster.local_storage else []
    return found + ([("gpu1", f"node1.gpu{last}"), ("node1.gpu0", "gpu2")] if cluster.num_nodes > 1 else [])


@pytest.mark.parametrize("name", hardware.clusters())
def test_no_text_and_no_number_covers_another(name):
    for path in paths(hardware.cluster(name)):
        picture = draw.node(name, path)
        picture.draw_without_rendering()
        axes = picture.axes[0]
        boxes = [(text.get_text(), text.get_window_extent()) for text in axes.texts if text.get_text()]
        written = [(text, box) for text, box in boxes if not text.isdigit()]
        badges = [patch.get_window_extent() for patch in axes.patches if isinstance(patch, Circle)]
        clashes = [(one, other) for (one, a), (other, b) in combinations(boxes, 2) if a.overlaps(b)]
        clashes += [text for text, box in written if any(box.overlaps(badge) for badge in badges)]
        clashes += [path for one, other in combinations(badges, 2) if one.overlaps(other)]
        assert clashes == [], path
        assert all(picture.bbox.x0 <= box.x0 and box.x1 <= picture.bbox.x1 for _, box in boxes)
        assert all(picture.bbox.y0 <= box.y0 and box.y1 <= picture.bbox.y1 for _, box in boxes)


def test_a_node_is_described():
    picture = draw.node("dgx-h100")
    assert picture.alt == (
        "A node of dgx-h100, rates in one direction, published. 8 GPUs (H100 SXM) on an NVLink switch, NVLink 4, "
        "371 GB/s each; copies to the host 55.4 GB/s a GPU, 2 GPUs on one uplink; host memory 504 GB/s; drives "
        "8 NVMe drives, PCIe 4: reads 50 GB/s, writes 40 GB/s; shared storage Lustre on flash: reads 40 GB/s, writes "
        "20 GB/s a node, 125 GB/s and 62 GB/s for all nodes together."
    )
    assert {"8 × H100 SXM", "NVLink 4\n371 GB/s a GPU", "NVLink switch", "PCIe switches"} <= {*texts(picture)}


def test_what_is_not_described_is_not_drawn():
    written = texts(draw.node("mi300x"))
    assert not {"NVLink switch", "PCIe switches", "shared storage", "the node's drives"} & {*written}
    assert "one xGMI of MI300X\n48 GB/s a link" in written
    assert not any("NIC" in text for text in texts(draw.node("dgx-a100")))


def test_a_pcie_box_shows_the_bridge_that_all_share():
    written = texts(draw.node("pcie-box"))
    assert "host bridge" in written and "112 GB/s, shared by all GPUs" in written
    assert "112 GB/s, shared by all GPUs and NICs" in texts(draw.node("pcie-box-10gbe"))


def test_links_of_a_mesh_are_as_thick_as_they_are_many():
    layout = layout_of(hardware.DGX_1V)
    assert sorted(line.num_links for line in layout.lines if line.kind == "gpus") == [1] * 8 + [2] * 8


def test_the_other_nodes_are_beside():
    assert "node 1,\nlike node 0" in texts(draw.node("h100-ndr-x2"))
    assert "nodes 1\nto 3,\nlike node 0" in texts(draw.node("h100-ndr-x4"))
    assert "node 3,\nlike node 0" in texts(draw.node("h100-ndr-x4", ("gpu0", "node3.gpu5")))
    assert not any("like node 0" in text for text in texts(draw.node("h100-ndr-x1")))


def test_the_hops_of_a_way_are_those_that_are_priced():
    assert hops("dgx-h100", "gpu0", "gpu5") == ["gpu0 out", "gpu5 in"]
    assert hops("pcie-box", "gpu0", "gpu5") == ["gpu0 out", "node0 bridge", "gpu5 in"]
    assert hops("dgx-1v", "gpu0", "gpu7") == ["gpu0 to gpu4", "gpu4 to gpu7"]
    assert hops("h100-ndr", "gpu1", "node1.gpu6") == ["node0 nic1 out", "node1 nic6 in"]
    assert hops("h100-ndr", "node1.gpu6", "gpu1") == ["node1 nic6 out", "node0 nic1 in"]
    assert hops("dgx-a100", "gpu3", "host") == ["gpu3 to host", "node0 uplink1 to host", "node0 memory"]
    assert hops("dgx-a100", "host", "gpu3") == ["node0 memory", "node0 uplink1 to device", "gpu3 to device"]
    stored = ["gpu0 to host", "node0 uplink0 to host", "node0 memory", "node0 shared write", "all shared write"]
    assert hops("dgx-h100", "gpu0", "storage") == stored
    read = ["all shared read", "node0 shared read", "node0 memory", "node0 uplink0 to device", "gpu0 to device"]
    assert hops("dgx-h100", "storage", "gpu0") == read
    assert hops("dgx-h100", "drives", "gpu0")[0] == "node0 local read"


@pytest.mark.parametrize("name", hardware.clusters())
def test_every_way_has_all_its_hops_and_goes_on_from_where_it_was(name):
    cluster = hardware.cluster(name)
    for path in paths(cluster)[1:]:
        taken = way(layout_of(cluster), path, 8.4)
        if all("gpu" in end for end in path):
            ranks = [cluster.gpus_per_node * ("node1" in end) + int(end[-1]) for end in path]
            assert [hop for hop, _ in taken.rates] == list(cluster.route(*ranks).hops)
            assert taken.latency_s == cluster.route(*ranks).latency_s
        for one, other in zip(taken.legs, taken.legs[1:], strict=False):
            (x0, y0), (x1, y1) = one.points[-1], other.points[0]  # on through a NIC, or along the host
            assert x0 == pytest.approx(x1) or y0 == pytest.approx(y1)


def test_the_slowest_hops_are_named():
    picture = draw.node("a100-10gbe", ("storage", "gpu2"))
    assert picture.alt.endswith("The slowest is node0 shared read.")
    assert "node0 shared read: 500 MiB/s, slowest" in texts(picture)
    assert texts(picture)[0] == "From storage to gpu2 on a100-10gbe: 500 MiB/s, computed from published rates"
    assert draw.node("dgx-h100", ("gpu0", "gpu5")).alt.endswith(
        " A small message takes 3.4 µs; the hops carry: gpu0 out 371 GB/s, gpu5 in 371 GB/s. "
        "The slowest are gpu0 out and gpu5 in."
    )


def test_a_cluster_of_ones_own_has_a_title_of_ones_own():
    mine = hardware.Cluster(name="mine", gpu=hardware.L40S, gpus_per_node=16, intra=hardware.PCIE4)
    assert texts(draw.node(mine, title="Sixteen on PCIe"))[0] == "Sixteen on PCIe"


@pytest.mark.parametrize(
    ("cluster", "path", "sentence"),
    [
        ("dgx-h100", ("gpu0", "gpu8"), "dgx-h100 has no gpu8; it has 1 node of 8 GPUs, counted from 0"),
        ("h100-ndr", ("gpu0", "node2.gpu0"), "h100-ndr has no node2.gpu0; it has 2 nodes of 8 GPUs"),
        ("dgx-h100", ("gpu0", "cpu"), "'cpu' is not an end of a path; give"),
        ("dgx-h100", ("gpu0", "gpu0"), "give its two ends, as in"),
        ("dgx-h100", ("gpu0",), "give its two ends, as in"),
        ("dgx-h100", ("host", "storage"), "one of its ends must be a GPU of node 0"),
        ("mi300x", ("gpu0", "storage"), "mi300x has no shared storage"),
        ("v100-quad", ("gpu0", "host"), "v100-quad has no host"),
        ("dgx-z", None, "no cluster is called 'dgx-z'"),
        (hardware.Cluster(name="rack", gpu=hardware.B200, gpus_per_node=72, intra=hardware.NVLINK5), None, "24 can be"),
    ],
)
def test_what_cannot_be_drawn_is_refused(cluster, path, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        draw.node(cluster, path)
