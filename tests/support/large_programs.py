"""Programs of the published models for runs on paper; nothing here knows of it."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import torch
import torch.distributed as dist
from torch.nn import functional as F

from worldsize.models import shape
from worldsize.models.transformer import Transformer


def fully_sharded(
    num_layers: int,
    name: str,
    num_steps: int = 1,
    recompute: str = "none",
    num_sequences: int = 1,
    length: int | None = None,
) -> None:
    """FSDP2 over all ranks, so many sequences on each; `recompute` is "none", "full" or "operators"."""
    sizes = dataclasses.replace(shape(name), num_layers=num_layers)
    model = _empty(sizes)
    _recompute(model, recompute)
    _shard(model)
    model.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, sizes.vocab_size, (num_sequences, length or sizes.context_length))
    for _ in range(num_steps):
        _loss(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


def split_and_sharded(num_layers: int, name: str, tp: int, num_steps: int = 1, num_sequences: int = 1) -> None:
    """Tensor and sequence parallelism over `tp` ranks, FSDP2 over the others; each layer is computed again.

    The logits stay split, and so does their loss.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import loss_parallel

    mesh = init_device_mesh("cpu", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
    sizes = dataclasses.replace(shape(name), num_layers=num_layers)
    model = _empty(sizes)
    _split(model, mesh["tp"])
    _recompute(model, "full")
    _shard(model, mesh["dp"])
    model.to_empty(device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, sizes.vocab_size, (num_sequences, sizes.context_length))
    for _ in range(num_steps):
        with loss_parallel():
            _loss(model(tokens), tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


def in_stages(num_layers: int, name: str, tp: int, pp: int, num_pieces: int) -> None:
    """torch's 1F1B over `pp` stages, each split over `tp` ranks and sharded over the others, weights kept gathered."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    sizes_of_mesh = (pp, dist.get_world_size() // pp // tp, tp)
    mesh = init_device_mesh("cpu", sizes_of_mesh, mesh_dim_names=("pp", "dp", "tp"))
    place = mesh.get_local_rank("pp")
    sizes = dataclasses.replace(shape(name), num_layers=num_layers)
    bounds = [round(num_layers * stage / pp) for stage in range(pp + 1)]
    model = _empty(sizes, layers=range(*list(pairwise(bounds))[place]))
    _split(model, mesh["tp"], is_sequence_split=False)
    _shard(model, mesh["dp"], reshard_after_forward=False)
    model.to_empty(device="cpu")
    stage = PipelineStage(model, place, pp, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(stage, num_pieces, loss_fn=_loss)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, sizes.vocab_size, (num_pieces, sizes.context_length))
    schedule.step(*([tokens] if place == 0 else []), target=tokens if place == pp - 1 else None)
    optimizer.step()


def _empty(sizes, layers=None):
    with torch.device("meta"):
        return Transformer(sizes, layers=layers)


def _recompute(model, recompute: str) -> None:
    """Compute layers again: whole, or but for attention and every second product, as torchtitan does."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    attention = "aten._scaled_dot_product_flash_attention_for_cpu.default"

    def contexts():
        num_products = {True: 0, False: 0}

        def policy(context, operator, *_args, **_kwargs):
            is_product = str(operator) == "aten.mm.default"
            num_products[context.is_recompute] += is_product
            is_kept = str(operator) == attention or (is_product and num_products[context.is_recompute] % 2)
            return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    if recompute == "none":
        return
    options = {"context_fn": contexts} if recompute == "operators" else {}
    for number, block in model.layers.items():
        model.layers[number] = checkpoint_wrapper(block, **options)


def _loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def _shard(model, mesh=None, **options) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in [*model.layers.values(), model]:
        fully_shard(block, mesh=mesh, mp_policy=policy, **options)


def _split(model, mesh, is_sequence_split: bool = True) -> None:
    """Split matrices by Megatron's plan; between them a rank has all tokens, or its part of them."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    between = Shard(1) if is_sequence_split else Replicate()
    columns = ["attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up"]
    rows = ["attention.output", "mlp.down"]
    plan = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel(output_layouts=between) for name in rows}
    ends = {}
    if model.embedding is not None:
        ends["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if model.head is not None:
        logits = {"output_layouts": Shard(-1), "use_local_output": False} if is_sequence_split else {}
        ends["head"] = ColwiseParallel(input_layouts=between, **(logits or {"output_layouts": Replicate()}))
    if is_sequence_split:
        gathered = PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))
        plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
        plan |= {"attention": gathered, "mlp": gathered}
        ends |= {"norm": SequenceParallel()} if model.norm is not None else {}
    for block in model.layers.values():
        parallelize_module(block, mesh, plan)
    if ends:
        parallelize_module(model, mesh, ends)
