"""The cluster on which ranks are emulated if this machine has too few cores or GPUs."""

from __future__ import annotations

from worldsize.hardware import HOST, Cluster, Gpu, Link
from worldsize.units import GB

_ROUND = "round figures for a classroom of desktop machines, chosen in 2026; no product's"

CLASSROOM = Cluster(
    name="classroom",
    gpu=Gpu(
        name="one core of a desktop processor",
        architecture=HOST,
        memory_bytes=16 * GB,
        memory_bandwidth_bytes_per_s=45e9,
        peak_flops_per_s={"float32": 32e9},
        source=_ROUND,
    ),
    gpus_per_node=1,
    intra=Link("PCIe", 5e-6, 12e9, _ROUND, kind="pcie"),
    num_nodes=64,
    inter=Link("Ethernet 1 Gb/s, TCP", 30e-6, 0.117e9, _ROUND, kind="tcp"),
    library="gloo",
    source=_ROUND,
)
