"""GPUs and links: every number with its source and date. Bandwidths are per direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from worldsize.hardware.timings import Timings
from worldsize.hardware.validation import need_one_of, need_positive, need_source

DTYPES = ("float64", "float32", "tf32", "float16", "bfloat16", "float8")
ARCHITECTURES = ("volta", "ampere", "ada", "hopper", "blackwell", "cdna3")
HOST = "cpu"  # the architecture of a rank without a GPU
LINK_KINDS = ("nvlink", "pcie", "rdma", "tcp")


@dataclass(frozen=True)
class Gpu:
    """One GPU; `peak_flops_per_s` maps dtypes to dense rates, on tensor cores if they support the dtype.

    `launch_s` is added to every kernel; it is 0 in the catalogue, because programs launch ahead of the GPU. `power_w`
    is the data sheet's maximum, without the rest of the node (`hardware.NODES`).
    """

    name: str
    architecture: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float] = field(hash=False)
    source: str
    launch_s: float = 0.0
    power_w: float | None = None
    timings: Timings | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        need_one_of(f"{self.name}: architecture", self.architecture, (*ARCHITECTURES, HOST))
        need_positive(f"{self.name}: memory_bytes", self.memory_bytes)
        need_positive(f"{self.name}: memory_bandwidth_bytes_per_s", self.memory_bandwidth_bytes_per_s)
        for dtype, flops_per_s in self.peak_flops_per_s.items():
            need_one_of(f"{self.name}: a key of peak_flops_per_s", dtype, DTYPES)
            need_positive(f"{self.name}: peak_flops_per_s of {dtype}", flops_per_s)
        if not self.peak_flops_per_s:
            raise ValueError(f"{self.name}: peak_flops_per_s is empty; give the rate of at least one dtype")
        if self.launch_s < 0:
            raise ValueError(f"{self.name}: launch_s is {self.launch_s}; it must be 0 or more seconds")
        if self.power_w is not None:
            need_positive(f"{self.name}: power_w", self.power_w)
        need_source(self.name, self.source)


@dataclass(frozen=True)
class Link:
    """A GPU's port or a NIC: the achievable rate, the data sheet's peak, and the time of a small send.

    `kind` is "nvlink" for all links from GPU to GPU, including AMD's xGMI.
    """

    name: str
    latency_s: float
    bandwidth_bytes_per_s: float
    source: str
    peak_bytes_per_s: float | None = None
    kind: str = "rdma"

    def __post_init__(self) -> None:
        need_one_of(f"{self.name}: kind", self.kind, LINK_KINDS)
        need_positive(f"{self.name}: bandwidth_bytes_per_s", self.bandwidth_bytes_per_s)
        if self.latency_s < 0:
            raise ValueError(f"{self.name}: latency_s is {self.latency_s}; it must be 0 or more seconds")
        if self.peak_bytes_per_s is not None and self.peak_bytes_per_s < self.bandwidth_bytes_per_s:
            raise ValueError(
                f"{self.name}: the peak of {self.peak_bytes_per_s:g} B/s is below the rate that transfers reach, "
                f"{self.bandwidth_bytes_per_s:g} B/s; give the data sheet's figure as peak_bytes_per_s"
            )
        need_source(self.name, self.source)
