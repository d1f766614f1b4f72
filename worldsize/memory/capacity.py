"""The memory of a described GPU, and the report on a rank that needs more: what fills it, and what would fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from worldsize import units
from worldsize.memory.use import ACTIVATIONS, GRADIENTS, OPTIMIZER_STATE, WEIGHTS, describe_kinds

_STAGES = {  # Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020
    "the optimizer state (ZeRO-1)": (OPTIMIZER_STATE,),
    "the optimizer state and the gradients (ZeRO-2)": (OPTIMIZER_STATE, GRADIENTS),
    "the optimizer state, the gradients and the weights (ZeRO-3, FSDP)": (OPTIMIZER_STATE, GRADIENTS, WEIGHTS),
}


@dataclass(frozen=True)
class Capacity:
    """The memory of a described GPU, and the ranks over which a model could be sharded."""

    size_bytes: int
    name: str = "the GPU"
    num_ranks: int = 1

    def explain(self, sizes: Mapping[str, int], is_sharded: bool) -> str:
        """Report on a rank whose tensors hold these bytes by kind; `is_sharded` if they are already shards."""
        held = units.format_bytes(sum(sizes.values()))
        return (
            f"{self.name} is out of memory: it has {units.format_bytes(self.size_bytes)}, and this rank's tensors hold "
            f"{held}: {describe_kinds(sizes)}. {self._advice(sizes, is_sharded)}"
        )

    def _advice(self, sizes: Mapping[str, int], is_sharded: bool) -> str:
        ways = [*self._shardings(sizes, is_sharded), *self._smaller_activations(sizes)]
        if ways:
            return f"What is held so far would fit {', or '.join(ways)}."
        return "It needs a GPU with more memory, or a model split over more GPUs."

    def _shardings(self, sizes: Mapping[str, int], is_sharded: bool) -> list[str]:
        """Describe the first ZeRO stage with which the tensors fit."""
        for what, kinds in _STAGES.items() if self.num_ranks > 1 and not is_sharded else ():
            saved = sum(sizes.get(kind, 0) for kind in kinds) * (1 - 1 / self.num_ranks)
            left_bytes = sum(sizes.values()) - saved
            if left_bytes <= self.size_bytes:
                return [f"with {what} sharded over {self.num_ranks} ranks, in {units.format_bytes(left_bytes)}"]
        return []

    def _smaller_activations(self, sizes: Mapping[str, int]) -> list[str]:
        activations = sizes.get(ACTIVATIONS, 0)
        room_bytes = self.size_bytes - sum(sizes.values()) + activations
        if not activations or room_bytes <= 0:
            return []
        return [f"with activations of at most {units.format_bytes(room_bytes)}, with a smaller batch or recomputation"]
