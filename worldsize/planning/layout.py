"""One layout of a model on a cluster: the size of each mesh dimension, and how each rank trains its shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from worldsize.hardware import Cluster
from worldsize.models.shapes import Shape
from worldsize.published import DATA, TENSOR_OR_PIPELINE

RECOMPUTES = ("none", "selective", "full")
ZERO_STAGES = (0, 1, 2, 3)
AXES = ("tp", "cp", "dp", "pp")  # mesh dimensions, innermost first, as in Megatron-LM (2024), core/parallel_state.py


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A layout of a decoder on all GPUs of a cluster, for steps of `global_batch` sequences of `length` tokens.

    The ranks are a mesh of tp, cp, dp and pp, the innermost first. With tp, sequences are sharded too wherever tensors
    are not (sequence parallelism). `micro_batch`: sequences per forward pass and replica. `num_chunks`: virtual stages
    per rank; more than one makes an interleaved pipeline. In a model with experts, `ep` ranks among the dp * cp with
    the same attention weights share the experts of each layer.

    `recompute`: "full" keeps only the input of each layer; "selective" recomputes what needs no matmul (norms and
    activation functions) and, for a "gpt", the attention scores as in Korthikanti et al. 2022. `zero_stage` is what is
    sharded over the dp * cp ranks with the same weights: 1 the optimizer state, 2 gradients too, 3 weights too.
    """

    model: Shape = field(repr=False)
    cluster: Cluster = field(repr=False)
    global_batch: int
    length: int
    dp: int
    tp: int
    pp: int
    cp: int
    ep: int = 1
    micro_batch: int
    num_chunks: int
    recompute: str
    zero_stage: int

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches per replica in a step."""
        return self.global_batch // (self.dp * self.micro_batch)

    @property
    def num_tokens(self) -> int:
        """Tokens in a step, over all ranks."""
        return self.global_batch * self.length

    @property
    def num_micro_batch_tokens(self) -> int:
        """Tokens of a micro-batch on one rank: with cp, a part of each sequence."""
        return self.micro_batch * self.length // self.cp

    @property
    def num_stage_layers(self) -> tuple[int, ...]:
        """Layers per pipeline stage.

        If the layers do not divide evenly but would with two more, the embedding and the LM head count as a layer each.
        """
        return stage_layers(self.model.num_layers, self.pp, self.num_chunks)

    @property
    def num_shards(self) -> int:
        """The number of ranks that have the same weights and sum their gradients, over which ZeRO shards: dp * cp."""
        return self.dp * self.cp

    @property
    def num_expert_shards(self) -> int:
        """The number of ranks that have the same experts: dp * cp / ep."""
        return self.num_shards // self.ep

    @property
    def num_layer_parameters(self) -> int:
        """Parameters of a layer on a rank, before any sharding by ZeRO."""
        return _num_parameters(self.model, 1, False, False, self.tp) + self.num_layer_expert_parameters

    def num_parameters(self, stage: int) -> int:
        """Parameters on a rank of this stage before ZeRO's sharding: matrices sharded by tp, others replicated."""
        others = _num_parameters(self.model, self.num_stage_layers[stage], stage == 0, stage == self.pp - 1, self.tp)
        return others + self.num_expert_parameters(stage)

    def num_expert_parameters(self, stage: int) -> int:
        """Expert parameters included in `num_parameters`, which differ between the ranks of ep; 0 without experts."""
        return self.num_stage_layers[stage] * self.num_layer_expert_parameters

    @property
    def num_layer_expert_parameters(self) -> int:
        """Expert parameters included in `num_layer_parameters`."""
        return _num_expert_weights(self.model) // (self.ep * self.tp)

    @cached_property
    def most_parameters(self) -> int:
        """Parameters on a rank of the stage that has the most."""
        return max(self.num_parameters(stage) for stage in {0, min(1, self.pp - 1), self.pp - 1})

    @property
    def tp_ranks(self) -> range:
        """The ranks in rank 0's tp group."""
        return range(self.tp)

    @property
    def cp_ranks(self) -> range:
        """The ranks in rank 0's cp group."""
        return range(0, self.tp * self.cp, self.tp)

    @property
    def shard_ranks(self) -> range:
        """The ranks that sum their gradients with rank 0."""
        return range(0, self.tp * self.num_shards, self.tp)

    @property
    def ep_ranks(self) -> range:
        """The ranks in rank 0's ep group."""
        return range(0, self.tp * self.ep, self.tp)

    @property
    def pp_ranks(self) -> range:
        """The ranks of rank 0's pipeline."""
        return range(0, self.cluster.world_size, self.tp * self.num_shards)

    @property
    def family(self) -> str:
        """The family of layouts, as in `worldsize.published`; empty if no published program is of it."""
        if self.cp > 1 or self.model.num_experts > 1:
            return ""
        return TENSOR_OR_PIPELINE if self.tp > 1 or self.pp > 1 else DATA

    @property
    def mesh(self) -> dict[str, int]:
        """The sizes of the mesh dimensions, outermost first, for `draw.mesh`."""
        return {axis: getattr(self, axis) for axis in reversed(AXES)}

    def __str__(self) -> str:
        parts = [f"{axis}{size}" for axis in ("tp", "pp", "dp", "cp", "ep") if (size := getattr(self, axis)) > 1]
        chunks = f" of {self.num_chunks} chunks" if self.num_chunks > 1 else ""
        parts = [part + chunks if part.startswith("pp") else part for part in parts]
        return (
            f"{' '.join(parts) or 'one GPU'}, micro-batch {self.micro_batch}, "
            f"recompute {self.recompute}, ZeRO-{self.zero_stage}"
        )


def beside(ranks: range, cluster: Cluster) -> Iterator[range]:
    """Yield the other groups of a mesh like rank 0's `ranks` that may share a NIC, a bridge or the network with it.

    In a network that limits nothing between the NICs, these are the groups with a rank on rank 0's node.
    """
    stride, block = ranks.step, len(ranks) * ranks.step
    num_seen = cluster.gpus_per_node if cluster.has_full_network else cluster.world_size
    firsts = {rank // block * block + rank % stride for rank in range(num_seen)}
    for first in sorted(firsts - {0}):
        yield range(first, first + block, stride)


@lru_cache(maxsize=4096)
def stage_layers(num_layers: int, num_stages: int, num_chunks: int = 1) -> tuple[int, ...]:
    """Return the layers of each stage; empty if they cannot be split into equal chunks.

    Source of counting embedding and head as layers: Llama Team 2024, arXiv 2407.21783, section 3.3.2.
    """
    num_parts = num_stages * num_chunks
    if num_layers % num_parts == 0:
        return (num_layers // num_stages,) * num_stages
    if (num_layers + 2) % num_parts or num_stages == 1:
        return ()
    most = (num_layers + 2) // num_stages
    return (most - 1, *[most] * (num_stages - 2), most - 1)


def _num_parameters(model: Shape, num_layers: int, is_first: bool, is_last: bool, tp: int) -> int:
    """Return the parameters on a rank, without experts."""
    matrices = num_layers * (model.num_layer_weights - _num_expert_weights(model))
    whole = num_layers * (model.num_layer_parameters - model.num_layer_weights)
    if is_first:
        matrices += model.num_embedding_parameters
    if is_last:
        matrices += model.num_head_parameters
        if model.is_tied and not is_first:
            matrices += model.vocab_size * model.width  # a copy of the embedding
    return matrices // tp + whole


def _num_expert_weights(model: Shape) -> int:
    """Return the weights of a layer's experts; an MLP without a router is not an expert."""
    return model.num_experts * model.num_mlp_weights if model.num_experts > 1 else 0
