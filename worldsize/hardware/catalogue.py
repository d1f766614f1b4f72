"""The catalogue of named GPUs, links and clusters."""

from __future__ import annotations

import difflib
import re
from dataclasses import replace
from itertools import combinations

from worldsize.hardware.devices import Gpu, Link
from worldsize.hardware.meshes import Mesh
from worldsize.hardware.networks import Dragonfly, FatTree, Level
from worldsize.hardware.storage import Host, StorageSystem
from worldsize.hardware.topology import Cluster
from worldsize.units import GB, MIB, MS, TB, US

TFLOPS = 1e12


def cluster(name: str) -> Cluster:
    """Return the catalogue's cluster of this name; a suffix such as `-x4` sets four nodes, as in `h100-ndr-x4`.

    Raises:
        ValueError: the cluster is unknown; the message suggests the most similar name and lists all.
    """
    base, count = name, None
    if match := re.fullmatch(r"(.+)-x(\d+)", name):
        base, count = match[1], int(match[2])
    if base not in _CLUSTERS:
        nearest = difflib.get_close_matches(base, _CLUSTERS, n=1, cutoff=0.0)[0]
        raise ValueError(f"no cluster is called {name!r}; did you mean {nearest!r}? Known: {', '.join(clusters())}")
    return _CLUSTERS[base] if count is None else replace(_CLUSTERS[base], name=name, num_nodes=count)


def clusters() -> list[str]:
    """List the names that `cluster` knows, clusters of one node first."""
    return list(_CLUSTERS)


# The vendors' data sheets are cited by title and date; "recalled" marks figures that were not checked again for this
# file.
_AMPERE_FLOPS = {
    "float64": 19.5 * TFLOPS,
    "float32": 19.5 * TFLOPS,
    "tf32": 156 * TFLOPS,
    "float16": 312 * TFLOPS,
    "bfloat16": 312 * TFLOPS,
}
_HOPPER_FLOPS = {
    "float64": 67 * TFLOPS,
    "float32": 67 * TFLOPS,
    "tf32": 494.5 * TFLOPS,
    "float16": 989 * TFLOPS,
    "bfloat16": 989 * TFLOPS,
    "float8": 1979 * TFLOPS,
}

V100 = Gpu(
    "V100 SXM2 32 GB",
    "volta",
    32 * GB,
    0.9 * TB,
    {"float64": 7.8 * TFLOPS, "float32": 15.7 * TFLOPS, "float16": 125 * TFLOPS},
    "NVIDIA V100 data sheet (2020), recalled in 2026; power: the same data sheet, recalled",
    power_w=300,
)
A100 = Gpu(
    "A100 SXM 80 GB",
    "ampere",
    80 * GB,
    2.039 * TB,
    _AMPERE_FLOPS,
    "NVIDIA A100 80GB data sheet (2021), as tabled in glennklockwood.com/garden/processors/A100, read 2026; "
    "power: as in Luccioni et al., JMLR 24 (2023)",
    power_w=400,
)
A100_PCIE = Gpu(
    "A100 PCIe 80 GB",
    "ampere",
    80 * GB,
    1.935 * TB,
    _AMPERE_FLOPS,
    "NVIDIA A100 80GB data sheet (2021); memory bandwidth as tabled in thundercompute.com/blog, read 2026; "
    "power: the same data sheet, recalled",
    power_w=300,
)
H100 = Gpu(
    "H100 SXM",
    "hopper",
    80 * GB,
    3.35 * TB,
    _HOPPER_FLOPS,
    "NVIDIA H100 data sheet (2023), as tabled in stas00/ml-engineering compute/accelerator (2024), read 2026; "
    "float64 recalled; "
    "power: model card of Llama 3.1 (2024)",
    power_w=700,
)
H200 = Gpu(
    "H200 SXM",
    "hopper",
    141 * GB,
    4.8 * TB,
    _HOPPER_FLOPS,
    "NVIDIA H200 data sheet (2023), as tabled in stas00/ml-engineering compute/accelerator (2024), read 2026; "
    "float64 recalled; "
    "power: as the H100's, recalled",
    power_w=700,
)
B200 = Gpu(
    "B200 SXM",
    "blackwell",
    180 * GB,
    8 * TB,
    {
        "float64": 37 * TFLOPS,
        "float32": 75 * TFLOPS,
        "tf32": 1100 * TFLOPS,
        "float16": 2250 * TFLOPS,
        "bfloat16": 2250 * TFLOPS,
        "float8": 4500 * TFLOPS,
    },
    "NVIDIA HGX B200 specifications (2025), copied in zdszero.github.io, halved where they count sparsity, read 2026; "
    "memory bandwidth from stas00/ml-engineering (2025): 8 TB/s, later HGX tables say 7.7; "
    "power: awesomeagents.ai, read 2026",
    power_w=1000,
)
MI300X = Gpu(
    "MI300X",
    "cdna3",
    192 * GB,
    5.3 * TB,
    {
        "float64": 81.7 * TFLOPS,
        "float32": 163.4 * TFLOPS,
        "tf32": 653.7 * TFLOPS,
        "float16": 1307.4 * TFLOPS,
        "bfloat16": 1307.4 * TFLOPS,
        "float8": 2614.9 * TFLOPS,
    },
    "AMD MI300X data sheet (2023), bfloat16 and memory bandwidth as tabled in stas00/ml-engineering (2025), others "
    "recalled in 2026; "
    "power: the same data sheet, recalled",
    power_w=750,
)
L40S = Gpu(
    "L40S",
    "ada",
    48 * GB,
    0.864 * TB,
    {
        "float64": 1.431 * TFLOPS,
        "float32": 91.6 * TFLOPS,
        "tf32": 183 * TFLOPS,
        "float16": 362.05 * TFLOPS,
        "bfloat16": 362.05 * TFLOPS,
        "float8": 733 * TFLOPS,
    },
    "NVIDIA L40S data sheet (2023), as copied by mullet.se and, for float64, itcreations.com, read 2026; "
    "power: the same data sheet, recalled",
    power_w=350,
)

# One step of NCCL's ring with the Simple protocol stands for the time of a small send. A network card alone is quicker.
_ALPHA = "latency: ring step, Simple, NCCL 2.28.3 (2025) src/graph/tuning.cc"
_NCCL_RATE = "rate: links x GB/s per link in NCCL 2.28.3 (2025) src/graph/topo.h"
_GTC = "rate: NVIDIA GTC 2024 talk S62129, all-reduce bus bandwidth"
_PEAK = "peak: stas00/ml-engineering network/README.md (2025)"

NVLINK3 = Link("NVLink 3", 3.4 * US, 12 * 20.0 * GB, f"{_ALPHA}; {_NCCL_RATE}: 12 x 20.0; {_PEAK}", 300 * GB, "nvlink")
NVLINK4 = Link("NVLink 4", 3.4 * US, 18 * 20.6 * GB, f"{_ALPHA}; {_NCCL_RATE}: 18 x 20.6; {_PEAK}", 450 * GB, "nvlink")
NVLINK5 = Link("NVLink 5", 3.4 * US, 18 * 40.1 * GB, f"{_ALPHA}; {_NCCL_RATE}: 18 x 40.1; {_PEAK}", 900 * GB, "nvlink")
# one link of a mesh
_NVLINK_SPEC = "peak: 25 GB/s each way, as 150 for 6 and 300 for 12 in stas00/ml-engineering network/README.md (2025)"
NVLINK2_LINK = Link("one NVLink 2", 3.4 * US, 20.0 * GB, f"{_ALPHA}; {_NCCL_RATE}; {_NVLINK_SPEC}", 25 * GB, "nvlink")
NVLINK3_LINK = Link("one NVLink 3", 3.4 * US, 20.0 * GB, f"{_ALPHA}; {_NCCL_RATE}; {_NVLINK_SPEC}", 25 * GB, "nvlink")
XGMI_LINK = Link(
    "one xGMI of MI300X",
    3.4 * US,
    48 * GB,
    f"{_ALPHA}, as NVLink; rate: ncclTopoXGMISpeed in RCCL src/graph/topo.h, ROCm/rccl issue 1210 (2024); {_PEAK}",
    64 * GB,
    "nvlink",
)
PCIE3 = Link(
    "PCIe 3 x16",
    5.7 * US,
    12 * GB,
    f"{_ALPHA}; rate: PCI_BW in NCCL 2.28.3 (2025) src/graph/topo.h; peak: 8 GT/s x 16 x 128/130 bits, PCIe 3.0 (2010)",
    15.75 * GB,
    "pcie",
)
PCIE4 = Link("PCIe 4 x16", 5.7 * US, 24 * GB, f"{_ALPHA}; {_GTC}; {_PEAK}", 31 * GB, "pcie")
PCIE5 = Link("PCIe 5 x16", 5.7 * US, 48 * GB, f"{_ALPHA}; {_GTC}; {_PEAK}", 63 * GB, "pcie")
IB_HDR = Link("InfiniBand HDR", 14 * US, 24 * GB, f"{_ALPHA}; {_GTC}, 200 Gb/s RDMA; {_PEAK}", 25 * GB)
IB_NDR = Link("InfiniBand NDR", 14 * US, 48 * GB, f"{_ALPHA}; {_GTC}, 400 Gb/s RDMA; {_PEAK}", 50 * GB)
ROCE_100G = Link(
    "RoCE 100 Gb/s", 14 * US, 12 * GB, f"{_ALPHA}; rate: NET_BW in NCCL 2.28.3 (2025) src/graph/topo.h", 12.5 * GB
)
ROCE_400G = Link("RoCE 400 Gb/s", 14 * US, 48 * GB, f"{_ALPHA}; {_GTC}, 400 Gb/s RDMA; {_PEAK}", 50 * GB)
SLINGSHOT_11 = Link(
    "Slingshot 11",
    14 * US,
    24 * GB,
    f"{_ALPHA}; {_GTC}, 200 Gb/s RDMA; peak: 200 Gb/s, docs.nersc.gov/systems/perlmutter/architecture, read 2026",
    25 * GB,
)
_TCP = (
    "latency: the upper end of 10 to 30 µs one way through the kernel's TCP/IP, kentino.com, latency dissection (read "
    "2026); between two network namespaces `make netlab` measured 4 µs by TCP alone and 46 by Gloo, at best (2026)"
)
ETHERNET_100G = Link(
    "Ethernet 100 Gb/s, TCP",
    30 * US,
    10 * GB,
    f"{_TCP}; {_GTC}, 100GbE TCP",
    12.5 * GB,
    "tcp",
)
ETHERNET_10G = Link(
    "Ethernet 10 Gb/s, TCP",
    30 * US,
    1.17 * GB,
    f"{_TCP}; rate: 1448 of each 1538 bytes on the wire carry data "
    "(IEEE 802.3-2018 frame with a 1500-byte MTU, IP and TCP headers with time stamps)",
    1.25 * GB,
    "tcp",
)

# Copies of pinned memory by the GPU's copy engine; the time of one call stands for a small copy.
_COPY = "latency: 5 to 7 µs a call of cudaMemcpyAsync, DualPath (arXiv 2602.21548, 2026)"
PCIE4_HOST = Link(
    "PCIe 4 x16 to the host",
    6 * US,
    24.8 * GB,
    f"{_COPY}; rate: nvbandwidth on 8 A100, forums.developer.nvidia.com 352186 (2025); {_PEAK}",
    31 * GB,
    "pcie",
)
PCIE5_HOST = Link(
    "PCIe 5 x16 to the host",
    6 * US,
    55.4 * GB,
    f"{_COPY}; rate: stas00/ml-engineering network/README.md (2026); {_PEAK}",
    63 * GB,
    "pcie",
)
PCIE3_HOST = Link(
    "PCIe 3 x16 to the host",
    6 * US,
    12 * GB,
    f"{_COPY}; rate: one GPU's link in ZeRO-Infinity (arXiv 2104.07857, 2021); peak: as {PCIE3.name}'s",
    15.75 * GB,
    "pcie",
)
_SWITCHES = "two GPUs on each of four PCIe switches, besthub.dev on 8-GPU servers (2024), an uplink of x16: our reading"
HOST_DDR4 = Host(
    "two sockets of DDR4-3200, PCIe 4",
    PCIE4_HOST,
    2 * TB,
    378 * GB,
    "memory: NVIDIA DGX A100 640 GB data sheet (2021), recalled; bandwidth: STREAM at 189 GB/s a socket of EPYC 7003, "
    f"Micron (2022); {_SWITCHES}",
    gpus_per_uplink=2,
)
HOST_DDR5 = Host(
    "two sockets of DDR5-4800, PCIe 5",
    PCIE5_HOST,
    2 * TB,
    504 * GB,
    "memory: NVIDIA DGX BasePOD reference architecture, DGX H100 (2023); bandwidth: 16 channels of 38.4 GB/s, of which "
    f"82% are reached, as by STREAM on EPYC 9004, Micron (2022); {_SWITCHES}",
    gpus_per_uplink=2,
)
HOST_DGX_1V = Host(
    "two sockets of DDR4-2133, PCIe 3",
    PCIE3_HOST,
    512 * GB,
    112 * GB,
    "memory: NVIDIA DGX-1 with Tesla V100 (2017), recalled; bandwidth: 8 channels of 17.1 GB/s, of which 82% are "
    "reached, as by STREAM on EPYC 9004, Micron (2022); two GPUs on each of four PCIe switches (2017), recalled",
    gpus_per_uplink=2,
)

# An operation is an open; on local drives, plus the first read of flash.
_OPENS = "latency: opens of `import torch` on NVMe and Lustre, stas00/ml-engineering storage/README.md (2026)"
NVME_4 = StorageSystem(
    "4 NVMe drives, PCIe 4",
    25 * GB,
    20 * GB,
    110 * US,
    f"rates: half of 8 drives'; {_OPENS}, and 100 µs for flash, flashgenius.net (2026)",
)
NVME_8 = StorageSystem(
    "8 NVMe drives, PCIe 4",
    50 * GB,
    40 * GB,
    110 * US,
    f"rates: the DGX H100's drives, 50 to 56 and 40 to 48 GB/s in all, flashgenius.net (2026); {_OPENS}, and 100 µs "
    "for flash, flashgenius.net (2026)",
)
LUSTRE = StorageSystem(
    "Lustre on flash",
    40 * GB,
    20 * GB,
    2.3 * MS,
    "rates: reads of 40 GB/s a node, NVIDIA DGX SuperPOD reference architecture RA-11333 v11 (2023); the others of the "
    f"same table recalled, the totals for 32 nodes; {_OPENS}",
    125 * GB,
    62 * GB,
)
NFS = StorageSystem(
    "NFS",
    500 * MIB,
    500 * MIB,
    2.7 * MS,
    "Amazon EFS user guide, performance (2023): a client's rate, the lower of the totals, latency of a write",
    3 * 1024 * MIB,
    1024 * MIB,
)
OBJECT_STORE = StorageSystem(
    "object store",
    12.5 * GB,
    12.5 * GB,
    150 * MS,
    "Amazon S3 user guide, performance design patterns (read 2026): up to 100 Gb/s an instance, 100 to 200 ms; "
    "'multiple terabits per second' in all, here 2",
    250 * GB,
    250 * GB,
)

_DGX = (
    "8 GPUs a node on NVSwitch: NVIDIA DGX data sheets (2020 to 2024), recalled; storage over adapters of its own: "
    "NVIDIA DGX BasePOD reference architecture (2023)"
)
DGX_A100 = Cluster(
    name="dgx-a100",
    gpu=A100,
    gpus_per_node=8,
    intra=NVLINK3,
    host=HOST_DDR4,
    local_storage=NVME_4,
    shared_storage=LUSTRE,
    source=_DGX,
)
DGX_H100 = Cluster(
    name="dgx-h100",
    gpu=H100,
    gpus_per_node=8,
    intra=NVLINK4,
    host=HOST_DDR5,
    local_storage=NVME_8,
    shared_storage=LUSTRE,
    source=_DGX,
)
DGX_H200 = replace(DGX_H100, name="dgx-h200", gpu=H200)
DGX_B200 = replace(DGX_H100, name="dgx-b200", gpu=B200, intra=NVLINK5)
PCIE_BOX = Cluster(
    name="pcie-box",
    gpu=A100_PCIE,
    gpus_per_node=8,
    intra=PCIE4,
    is_switched=False,
    bridge_bytes_per_s=112 * GB,
    host=replace(HOST_DDR4, gpus_per_uplink=1),
    local_storage=NVME_4,
    shared_storage=NFS,
    source="bridge: half of the 8 flows of 28 GB/s that 8 RTX 5090 reach on PCIe 5, NVIDIA/nccl issue 1639 (2025); "
    "the halving for PCIe 4 is ours",
)

DGX_1V = Cluster(
    name="dgx-1v",
    gpu=V100,
    gpus_per_node=8,
    intra=PCIE3,
    host=HOST_DGX_1V,
    shared_storage=NFS,
    mesh=Mesh(
        NVLINK2_LINK,
        (
            (0, 1, 1, 2, 2, 0, 0, 0),
            (1, 0, 2, 1, 0, 2, 0, 0),
            (1, 2, 0, 2, 0, 0, 1, 0),
            (2, 1, 2, 0, 0, 0, 0, 1),
            (2, 0, 0, 0, 0, 1, 1, 2),
            (0, 2, 0, 0, 1, 0, 2, 1),
            (0, 0, 1, 0, 1, 2, 0, 2),
            (0, 0, 0, 1, 2, 1, 2, 0),
        ),
    ),
    source="hybrid cube mesh: topology file in NVIDIA/nccl issue 671 (2022) for GPUs 0 and 1, others recalled in 2026; "
    "the rings that these links allow 2 to 8 GPUs are those that VIA-Research/vTrain measured, trace/v100 (2024)",
)
V100_QUAD = Cluster(
    name="v100-quad",
    gpu=V100,
    gpus_per_node=4,
    intra=PCIE3,
    mesh=Mesh.of_pairs(NVLINK2_LINK, 4, dict.fromkeys(combinations(range(4), 2), 2)),
    source="2 links a pair: nvidia-smi topo of a Dell C4140 in NVIDIA/nccl-tests issue 68 (2021)",
)
MI300X_NODE = Cluster(
    name="mi300x",
    gpu=MI300X,
    gpus_per_node=8,
    intra=PCIE5,
    host=replace(HOST_DDR5, gpus_per_uplink=1),
    mesh=Mesh.of_pairs(XGMI_LINK, 8, dict.fromkeys(combinations(range(8), 2), 1)),
    source="a link a pair: ROCm/rccl pull request 1270 (2024)",
)
PCIE_BOX_BRIDGED = replace(
    PCIE_BOX,
    name="pcie-box-bridged",
    mesh=Mesh.of_pairs(NVLINK3_LINK, 8, {(0, 1): 12, (2, 3): 12, (4, 5): 12, (6, 7): 12}),
    source=f"{PCIE_BOX.source}; pairs: nvidia-smi topo of 8 A100 PCIe in NVIDIA/nccl-tests issue 178 (2023)",
)

_EIGHT_NICS = "8 GPUs and 8 NICs a node, rails: NVIDIA DGX SuperPOD reference architecture (2023), recalled"
_NFS_ON_NICS = replace(NFS, is_on_nics=True)
_ONE_NIC = "an 8-GPU node with a single ordinary NIC: our example, 2026"
A100_HDR = replace(DGX_A100, name="a100-hdr", num_nodes=2, inter=IB_HDR, nics_per_node=8, source=_EIGHT_NICS)
H100_NDR = replace(DGX_H100, name="h100-ndr", num_nodes=2, inter=IB_NDR, nics_per_node=8, source=_EIGHT_NICS)
H200_NDR = replace(DGX_H200, name="h200-ndr", num_nodes=2, inter=IB_NDR, nics_per_node=8, source=_EIGHT_NICS)
B200_NDR = replace(DGX_B200, name="b200-ndr", num_nodes=2, inter=IB_NDR, nics_per_node=8, source=_EIGHT_NICS)
H100_ROCE = replace(H100_NDR, name="h100-roce", inter=ROCE_400G)
A100_100GBE = replace(
    DGX_A100,
    name="a100-100gbe",
    num_nodes=2,
    inter=ETHERNET_100G,
    shared_storage=_NFS_ON_NICS,
    source=_ONE_NIC,
)
A100_10GBE = replace(A100_100GBE, name="a100-10gbe", inter=ETHERNET_10G)
PCIE_BOX_10GBE = replace(PCIE_BOX, name="pcie-box-10gbe", num_nodes=2, inter=ETHERNET_10G, shared_storage=_NFS_ON_NICS)

H100_PODS = replace(
    H100_ROCE,
    name="h100-pods",
    network=FatTree((Level("leaf", 2), Level("pod", 384, 7.0)), is_rail=False),
    source="Llama 3's training cluster, 3,072 nodes: 16 GPUs a rack, pods of 192 racks, 1:7 between pods: "
    "The Llama 3 Herd of Models (2024), section 3.3.1",
)
A100_SLINGSHOT = Cluster(
    name="a100-slingshot",
    gpu=A100,
    gpus_per_node=4,
    intra=PCIE4,
    mesh=Mesh.of_pairs(NVLINK3_LINK, 4, dict.fromkeys(combinations(range(4), 2), 4)),
    host=Host(
        "one socket of DDR4-3200, PCIe 4",
        PCIE4_HOST,
        256 * GB,
        189 * GB,
        "memory: docs.nersc.gov/systems/perlmutter/architecture, read 2026; bandwidth: STREAM on EPYC 7003, Micron "
        "(2022)",
    ),
    shared_storage=LUSTRE,
    num_nodes=2,
    inter=SLINGSHOT_11,
    nics_per_node=4,
    network=Dragonfly(nics_per_router=16, routers_per_group=32, links_between_groups=4, is_rail=True),
    source="Perlmutter's nodes: docs.nersc.gov/systems/perlmutter/architecture, read 2026; groups as Frontier's, whose "
    "74 have 4 links between each two: glennklockwood.com/garden/systems/frontier, read 2026; that a node has a NIC on "
    "each of its chassis' four switches is recalled",
)

_CLUSTERS = {
    found.name: found
    for found in (
        DGX_A100,
        DGX_H100,
        DGX_H200,
        DGX_B200,
        DGX_1V,
        V100_QUAD,
        MI300X_NODE,
        PCIE_BOX,
        PCIE_BOX_BRIDGED,
        A100_HDR,
        H100_NDR,
        H200_NDR,
        B200_NDR,
        H100_ROCE,
        H100_PODS,
        A100_SLINGSHOT,
        A100_100GBE,
        A100_10GBE,
        PCIE_BOX_10GBE,
    )
}
