"""What `torch.cuda` and `torch.accelerator` say of a GPU's memory: what the rank's tensors hold, and the peak."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from typing import Any

import torch

from worldsize.gpus.answers import Gpus
from worldsize.memory import meter
from worldsize.memory.meter import MemoryMeter


class GpuMemory:
    """The memory of a rank's GPU, counted by the run's own meter or, from the program's first question on, by one here.

    What the allocator rounds up and keeps in reserve is not counted, so reserved memory is what tensors hold.
    """

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus

    def answers(self) -> Mapping[str, Callable[..., Any]]:
        """The functions that answer, by their names in `torch.cuda`."""
        return {
            "empty_cache": lambda *_: None,
            "max_memory_allocated": self.peak_bytes,
            "max_memory_reserved": self.peak_bytes,
            "mem_get_info": lambda *_: self._free_and_total(),
            "memory_allocated": self.held_bytes,
            "memory_reserved": self.held_bytes,
            "memory_stats": self.stats,
            "memory_summary": self.summary,
            "reset_peak_memory_stats": self.reset_peak,
        }

    def _free_and_total(self) -> tuple[int, int]:
        total_bytes = self._gpus.total_bytes()
        return total_bytes - self.held_bytes(), total_bytes

    def held_bytes(self, _device: Any = None) -> int:
        """Return the bytes that tensors hold now."""
        return _counted().held_bytes

    def peak_bytes(self, _device: Any = None) -> int:
        """Return the most bytes that they held since the peak was reset, or since they are counted."""
        return _counted().most_bytes

    def summary(self, _device: Any = None, abbreviated: bool = False) -> str:
        """Return a sentence in place of torch's table."""
        return f"tensors hold {self.held_bytes():,} bytes; the most so far were {self.peak_bytes():,}"

    def reset_peak(self, _device: Any = None) -> None:
        """Restart the peak from what is held now."""
        _counted().reset_peak()

    def stats(self, _device: Any = None) -> dict[str, int]:
        """Return those of torch's `memory_stats` that tensors determine."""
        held = {"current": self.held_bytes(), "peak": self.peak_bytes()}
        names = ("allocated_bytes", "reserved_bytes", "active_bytes")
        retried = {"num_alloc_retries": 0, "num_ooms": 0}
        return {f"{name}.all.{when}": held[when] for name in names for when in held} | retried


def _counted() -> MemoryMeter:
    """Return the meter that counts this process's tensors; if there is none, one that begins with those alive."""
    if (counting := meter.current()) is not None:
        return counting
    alive = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    return MemoryMeter(alive).__enter__()
