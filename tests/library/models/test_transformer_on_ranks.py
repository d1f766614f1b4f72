"""Sharded by FSDP2, by DTensor or into stages, the transformer has the whole model's loss and gradients."""

import pytest
import torch
from torch import distributed as dist
from torch.nn import functional as F

import worldsize as ws
from worldsize.models import Transformer, shape


def batch():
    tokens = torch.randint(256, (4, 17), generator=torch.Generator().manual_seed(0))
    return tokens[:, :-1], tokens[:, 1:]


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def gradients(model):
    return {name: full(parameter.grad) for name, parameter in model.named_parameters()}


def full(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def by_fsdp():
    """Each rank takes half of the batch; every block is sharded by itself."""
    from torch.distributed.fsdp import fully_shard

    model = Transformer(shape("tiny"))
    for block in model.layers.values():
        fully_shard(block)
    fully_shard(model)
    loss = loss_of(*[part.chunk(2)[dist.get_rank()] for part in (model(batch()[0]), batch()[1])])
    loss.backward()
    return gradients(model)


def by_tensor_parallelism(is_sequence_sharded):
    """The linear layers are sharded; with `is_sequence_sharded`, the norms see half of the tokens."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2,))
    between = Shard(1) if is_sequence_sharded else Replicate()
    model = Transformer(shape("tiny"))
    plan = {
        **dict.fromkeys(["attention.query", "attention.key", "attention.value"], ColwiseParallel()),
        **dict.fromkeys(["mlp.gate", "mlp.up"], ColwiseParallel()),
        **dict.fromkeys(["attention.output", "mlp.down"], RowwiseParallel(output_layouts=between)),
    }
    if is_sequence_sharded:
        gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
        plan |= {"attention": gather, "mlp": gather}
    for block in model.layers.values():
        parallelize_module(block, mesh, plan)
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    if is_sequence_sharded:
        ends["norm"] = SequenceParallel()
    parallelize_module(model, mesh, ends)
    tokens, targets = batch()
    loss_of(model(tokens), targets).backward()
    return gradients(model)


def by_stages():
    """Each rank has one layer; four micro-batches by 1F1B."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank = dist.get_rank()
    model = Transformer(shape("tiny"), layers=range(rank, rank + 1))
    schedule = Schedule1F1B(PipelineStage(model, rank, 2, torch.device("cpu")), 4, loss_fn=loss_of)
    tokens, targets = batch()
    schedule.step(*([tokens] if rank == 0 else []), target=targets if rank == 1 else None)
    return gradients(model)


def all_ways():
    return {
        "fsdp": by_fsdp(),
        "tensor": by_tensor_parallelism(is_sequence_sharded=False),
        "sequence": by_tensor_parallelism(is_sequence_sharded=True),
        "stages": by_stages(),
    }


@pytest.fixture(scope="module")
def on_two_ranks():
    return ws.run(all_ways, world_size=2, echo=False).values


@pytest.mark.parametrize("way", ["fsdp", "tensor", "sequence", "stages"])
def test_gradients_are_those_of_the_whole_model(on_two_ranks, way):
    model = Transformer(shape("tiny"))
    tokens, targets = batch()
    loss_of(model(tokens), targets).backward()
    expected = gradients(model)
    found = [values[way] for values in on_two_ranks]
    if way == "stages":
        assert not found[0].keys() & found[1].keys()
        found = [found[0] | found[1]]
    for got in found:
        assert got.keys() == expected.keys()
        for name in expected:
            torch.testing.assert_close(got[name], expected[name], msg=lambda said, name=name: f"{name}: {said}")
