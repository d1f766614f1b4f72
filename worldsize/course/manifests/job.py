"""The description of a training job from which every manifest is made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from worldsize.units import HOUR, TB

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")  # a label of DNS, short enough for what controllers append
_LABEL = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Storage:
    """Shared storage for checkpoints: how large, where ranks see it, and what provides it.

    `provisioner` is the driver with which the cluster makes volumes, and `parameters` are that driver's.
    """

    size_bytes: float = TB
    path: str = "/checkpoints"
    class_name: str = "checkpoints"
    provisioner: str = "nfs.csi.k8s.io"
    parameters: Mapping[str, str] = field(default_factory=lambda: {"server": "nfs.example.org", "share": "/export"})

    def __post_init__(self) -> None:
        if not self.size_bytes > 0:
            raise ValueError(f"size_bytes is {self.size_bytes}; checkpoints need a volume of more than 0 bytes")
        if not re.fullmatch(r"/[\w./-]+", self.path):
            raise ValueError(f"path is {self.path!r}; it must be an absolute path such as '/checkpoints'")
        if not _NAME.fullmatch(self.class_name):
            raise ValueError(f"class_name is {self.class_name!r}; {_NAME_RULE}")


_NAME_RULE = "it must be at most 40 lower-case letters, digits and hyphens, and begin with a letter"


@dataclass(frozen=True)
class Job:
    """A `torchrun` program on several nodes, with everything that a scheduler must know.

    `command` is what torchrun starts on each GPU: a script and its arguments. Without GPUs each node runs one process.
    After a failure the whole job starts again from its last checkpoint, at most `max_restarts` times. `topology` is the
    label of nodes that share the fastest network, such as a rack's: all nodes of the job must then have the same value
    of it. It may be empty. `save_time_s` is the time for a last checkpoint: how long before its end a run is signalled.
    """

    name: str
    image: str
    command: tuple[str, ...]
    num_nodes: int
    gpus_per_node: int
    max_restarts: int = 0
    queue: str = "research"
    storage: Storage = Storage()
    topology: str = ""
    time_limit_s: float = 24 * HOUR
    save_time_s: float = 120

    def __post_init__(self) -> None:
        for what in ("name", "queue"):
            if not _NAME.fullmatch(getattr(self, what)):
                raise ValueError(f"{what} is {getattr(self, what)!r}; {_NAME_RULE}")
        if not self.image or any(letter.isspace() for letter in self.image):
            raise ValueError(f"image is {self.image!r}; name a container image, such as 'registry.example.org/llama:1'")
        if isinstance(self.command, str) or not self.command:
            raise ValueError(
                f"command is {self.command!r}; give the script and its arguments one by one, such as ('train.py',)"
            )
        for what, least in (("num_nodes", 1), ("gpus_per_node", 0), ("max_restarts", 0)):
            if not isinstance(getattr(self, what), int) or getattr(self, what) < least:
                raise ValueError(f"{what} is {getattr(self, what)!r}; it must be a whole number, {least} or more")
        if not self.time_limit_s >= 60:
            raise ValueError(f"time_limit_s is {self.time_limit_s}; schedulers count minutes, so give at least 60 s")
        if not 1 <= self.save_time_s <= 65535:
            raise ValueError(
                f"save_time_s is {self.save_time_s}; it must be 1 to 65535 s, the most that Slurm's --signal takes"
            )
        if self.topology and not _LABEL.fullmatch(self.topology):
            raise ValueError(
                f"topology is {self.topology!r}; it must be a label of nodes, such as 'example.org/rack', or empty"
            )

    @property
    def processes_per_node(self) -> int:
        """One process per GPU; a single one without GPUs."""
        return max(self.gpus_per_node, 1)
