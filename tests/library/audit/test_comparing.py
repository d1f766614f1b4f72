"""`ws.compare`: programs that compute the same, and the first thing in which others differ."""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

import worldsize as ws


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 50), nn.Tanh(), nn.Linear(50, 3))


def batch(step, rank, world_size, num_rows=12):
    generator = torch.Generator().manual_seed(step)
    inputs, targets = torch.randn(num_rows, 8, generator=generator), torch.randint(3, (num_rows,), generator=generator)
    return inputs[rank::world_size], targets[rank::world_size]


def train(model, whole=False, optimizer=None, average=False, divisor=None, rows=12, num_steps=3, batch_of=batch):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    rank, world_size = (0, 1) if whole else (dist.get_rank(), dist.get_world_size())
    for step in range(num_steps):
        inputs, targets = batch_of(step, rank, world_size, rows)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        if average:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= divisor or world_size
        optimizer.step()


def plain():
    train(network(), whole=True)


def with_ddp():
    train(DDP(network()))


def by_hand():
    train(network(), average=True)


def with_fsdp():
    model = network()
    for part in (model[0], model[2], model):
        fully_shard(part, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    train(model)


def with_tensor_parallelism():
    model = network()
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    train(model, whole=True)


def in_another_order():
    model = network()
    inner = model.forward
    model.forward = lambda inputs: inner(inputs.flip(0)).flip(0)
    train(model, whole=True)


def sums():
    train(network(), average=True, divisor=1)


def divides_twice():
    train(DDP(network()), average=True, divisor=4)


def starts_elsewhere():
    train(network(seed=1), average=True)


def drops_a_row():
    train(DDP(network()), rows=10)


def steps_too_far():
    model = DDP(network())
    train(model, optimizer=torch.optim.AdamW(model.parameters(), lr=0.02))


class ByThrees(nn.Module):
    """A layer that mixes the rows of a batch, as a statistic over a rank's part of it does."""

    def forward(self, rows):
        return rows - rows.mean(0)


def mixes_rows():
    model = network()
    model.insert(1, ByThrees())
    return model


def plain_with_mixed_rows():
    train(mixes_rows(), whole=True)


def with_rows_mixed_by_rank():
    train(DDP(mixes_rows()))


def with_other_activation():
    model = network()
    model[1] = nn.GELU(approximate="tanh")
    train(DDP(model))


def with_other_batches():
    def shifted(step, *args):
        return batch(step + 1, *args)

    train(DDP(network()), batch_of=shifted)


def with_other_targets():
    def shifted(*args):
        inputs, targets = batch(*args)
        return inputs, (targets + 1) % 3

    train(DDP(network()), batch_of=shifted)


def in_micro_batches():
    """Each rank splits its rows in two, recomputes its activations, and evaluates in between."""
    model, micro = network(), 2
    ddp = DDP(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)
    inner = model.forward
    model.forward = lambda inputs: checkpoint(inner, inputs, use_reentrant=False)
    for step in range(3):
        inputs, targets = batch(step, dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        for rows, classes in zip(inputs.chunk(micro), targets.chunk(micro), strict=True):
            (F.cross_entropy(ddp(rows), classes) / micro).backward()
        optimizer.step()
        with torch.no_grad():
            ddp(inputs)


def with_one_more():
    model = network()
    model.append(nn.Linear(3, 3))
    train(DDP(model))


@pytest.mark.parametrize(
    "candidate",
    [with_ddp, by_hand, with_fsdp, with_tensor_parallelism, in_another_order, in_micro_batches],
    ids=lambda one: one.__name__,
)
def test_programs_that_compute_the_same_are_equal(candidate):
    comparison = ws.compare(plain, candidate, world_sizes=(1, 2))
    assert comparison.is_equal and comparison.num_steps == 3, comparison
    assert "Equal to within rounding in 3 steps (1 against 2 ranks)" in repr(comparison)


def test_one_program_is_compared_on_several_numbers_of_ranks():
    assert ws.compare(by_hand, world_sizes=(1, 3)).is_equal
    assert ws.compare(with_ddp, world_sizes=(2, 4), cluster="dgx-h100").is_equal


@pytest.mark.parametrize(
    ("candidate", "step", "which", "factor", "meaning"),
    [
        (sums, 1, "gradient of 2.bias", 2, "Summed over 2 ranks and not averaged."),
        (divides_twice, 1, "gradient of 2.bias", 0.5, "Divided by 2 once too often"),
        (starts_elsewhere, 1, "weight of 0.weight", None, "They start from different weights"),
        (drops_a_row, 1, "input of the model", None, "The first run trains on 12 rows in this step, the other on 10."),
        (with_other_batches, 1, "input of the model", None, "look at the data, its order"),
        (with_other_activation, 1, "output of 1", None, "its buffers, and at what is computed after 0."),
        (with_other_targets, 1, "gradient of 2.weight", None, "look at the targets, the loss"),
        (steps_too_far, 2, "weight of 0.weight", None, "compare the optimizers"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_first_difference_is_named(candidate, step, which, factor, meaning):
    comparison = ws.compare(plain, candidate, world_sizes=(1, 2))
    first = comparison.first
    assert not comparison.is_equal
    assert f"Different from step {step} on (1 against 2 ranks): the {which}" in repr(comparison)
    assert first.factor == (None if factor is None else pytest.approx(factor, rel=1e-3))
    assert meaning in repr(comparison) and first.relative > 1e-4
    assert first.step == step


def test_a_layer_that_mixes_a_ranks_rows_is_named():
    first = ws.compare(plain_with_mixed_rows, with_rows_mixed_by_rank, world_sizes=(1, 2)).first
    assert (first.step, first.kind, first.name) == (1, "output", "1")


def test_what_has_no_counterpart_is_named():
    comparison = ws.compare(plain, with_one_more, world_sizes=(1, 2))
    assert comparison.left_out == ["3.bias", "3.weight"] and not comparison.is_equal
    assert "Not compared: 3.bias, 3.weight" in repr(comparison)


def test_a_program_that_takes_no_step_is_not_called_equal():
    comparison = ws.compare(functools.partial(train, network(), True, num_steps=0), world_sizes=(1, 2))
    assert not comparison.is_equal and "Nothing to compare" in repr(comparison)


def test_two_world_sizes_are_needed():
    with pytest.raises(ValueError, match="give two, of the reference and of the other run"):
        ws.compare(plain, world_sizes=(1, 2, 4))
