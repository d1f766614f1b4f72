"""Hosts and storage: every number with its source and date."""

from __future__ import annotations

from dataclasses import dataclass

from worldsize.hardware.devices import Link
from worldsize.hardware.validation import need_positive, need_source

COPIES = ("to host", "to device")  # between a GPU's memory and its host's
FILES = ("read", "write", "read local", "write local")  # between a host's memory and the shared store, or its node's
TRANSFERS = (*COPIES, *FILES)


@dataclass(frozen=True)
class Host:
    """A node's CPUs and memory, and each GPU's link to them.

    `link` has the achievable rate of copies of pinned memory and the time of a small copy. `gpus_per_uplink` GPUs share
    a PCIe switch, whose uplink to the host is one such link. Reads and writes share `memory_bandwidth_bytes_per_s`.
    """

    name: str
    link: Link
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    source: str
    gpus_per_uplink: int = 1

    def __post_init__(self) -> None:
        for value in ("memory_bytes", "memory_bandwidth_bytes_per_s", "gpus_per_uplink"):
            need_positive(f"{self.name}: {value}", getattr(self, value))
        if self.link.kind not in ("nvlink", "pcie"):
            raise ValueError(
                f"{self.name}: link is {self.link.name}, of kind {self.link.kind!r}; a GPU is connected to its host "
                "by a "
                'Link of kind="pcie" or kind="nvlink"'
            )
        need_source(self.name, self.source)


@dataclass(frozen=True)
class StorageSystem:
    """A place for files: the rates that one node reaches, and the time of an operation before its first byte.

    All nodes together reach at most the total rates; without them each node has its own storage. A node reaches shared
    storage over a separate network or, with `is_on_nics`, through the NICs that also carry messages.
    """

    name: str
    read_bytes_per_s: float
    write_bytes_per_s: float
    latency_s: float
    source: str
    total_read_bytes_per_s: float | None = None
    total_write_bytes_per_s: float | None = None
    is_on_nics: bool = False

    def __post_init__(self) -> None:
        for rate in ("read_bytes_per_s", "write_bytes_per_s"):
            need_positive(f"{self.name}: {rate}", getattr(self, rate))
            if (total := getattr(self, f"total_{rate}")) is not None:
                need_positive(f"{self.name}: total_{rate}", total)
        if (self.total_read_bytes_per_s is None) != (self.total_write_bytes_per_s is None):
            raise ValueError(
                f"{self.name}: give both total_read_bytes_per_s and total_write_bytes_per_s, or neither if each "
                "node has its own store"
            )
        if self.latency_s < 0:
            raise ValueError(f"{self.name}: latency_s is {self.latency_s}; it must be 0 or more seconds")
        if self.is_on_nics and not self.is_shared:
            raise ValueError(f"{self.name}: is_on_nics needs a store that the nodes share; give its total rates")
        need_source(self.name, self.source)

    @property
    def is_shared(self) -> bool:
        """Whether all nodes share one storage."""
        return self.total_read_bytes_per_s is not None
