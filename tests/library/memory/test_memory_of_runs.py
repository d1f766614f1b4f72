"""What ranks hold, emulated and real, against counts by hand: replicas, ZeRO's stages, FSDP2, tensor parallelism."""

from dataclasses import replace

import pytest

import worldsize as ws
from worldsize import hardware
from worldsize.memory import MemoryUse, count_as, held

N, LAYERS, WIDTH = 4, 4, 64
P = LAYERS * WIDTH * WIDTH * 4  # bytes of all weights in float32
STEP = 4  # bytes of Adam's step count, one a parameter


def layers():
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])


def state(kinds=("weights", "gradients", "optimizer state")):
    """The bytes held of these kinds."""
    return [held()[kind] for kind in kinds]


def train_with_fsdp(num_steps):
    import torch
    from torch.distributed.fsdp import fully_shard

    model = layers()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    found = []
    for _ in range(num_steps):
        model(torch.randn(8, WIDTH)).sum().backward()
        found.append(state())
        optimizer.step()
        optimizer.zero_grad()
        found.append(state())
    return found


@pytest.mark.parametrize("cluster", ["dgx-h100", None])
def test_fsdp_holds_its_shards(cluster):
    run = ws.run(train_with_fsdp, 2, world_size=N, cluster=cluster, echo=False, memory=True)
    moments = 2 * P // N + LAYERS * STEP
    for found, use in zip(run.values, run.memory, strict=True):
        assert found == [
            [P // N, P // N, 0],
            [P // N, 0, moments],
            [P // N, P // N, moments],
            [P // N, 0, moments],
        ]
        # in backward the layer at work is whole, beside it the next that is gathered; the first layer's stays whole
        assert use.peak["weights"] in (P // N + num * P // LAYERS for num in (1, 2))
        assert use.peak["optimizer state"] == moments and use.most_bytes < 2.5 * P


def adam_by_hand(weight, gradient, moments):
    """Update a weight by Adam's rule, without its correction of the first steps."""
    first, second = moments
    first.lerp_(gradient, 0.1)
    second.lerp_(gradient.square(), 0.001)
    weight.sub_(0.01 * first / (second.sqrt() + 1e-8))


def train_with_zero(stage):
    """ZeRO by hand, one shard of each weight a rank: what is held after an update, before the next forward pass."""
    import torch
    import torch.distributed as dist

    rank, model = dist.get_rank(), layers()
    weights = list(model.parameters())
    own = [slice(rank * one.numel() // N, (rank + 1) * one.numel() // N) for one in weights]
    part = N if stage else 1
    moments = [[torch.zeros(one.numel() // part) for _ in range(2)] for one in weights]
    count_as("optimizer state", [one for pair in moments for one in pair])
    shards = [one.detach().view(-1)[place].clone() for one, place in zip(weights, own, strict=True)]
    if stage == 3:
        count_as("weights", shards)
    else:
        del shards

    def reduced(weight, place):
        gradient = weight.grad.view(-1)
        if stage == 0:
            dist.all_reduce(gradient)
            return gradient
        mine = torch.empty(gradient.numel() // N)
        dist.reduce_scatter_tensor(mine, gradient)
        if stage > 1:
            weight.grad = None  # only the shard is kept
        return mine

    def free(weight):
        weight.untyped_storage().resize_(0)

    for weight in weights if stage == 3 else ():
        free(weight)
    for _ in range(2):
        for index, weight in enumerate(weights if stage == 3 else ()):
            weight.untyped_storage().resize_(weight.numel() * 4)
            dist.all_gather_into_tensor(weight.detach().view(-1), shards[index])
        model(torch.randn(8, WIDTH)).sum().backward()
        gradients = [reduced(*pair) for pair in zip(weights, own, strict=True)]
        count_as("gradients", gradients)
        after_backward = state()
        with torch.no_grad():
            for index, (weight, place) in enumerate(zip(weights, own, strict=True)):
                if stage == 3:
                    adam_by_hand(shards[index], gradients[index], moments[index])
                    free(weight)
                    continue
                target = weight.view(-1)[place] if stage else weight.view(-1)
                adam_by_hand(target, gradients[index], moments[index])
                if stage:
                    dist.all_gather_into_tensor(weight.view(-1), target.clone())
        after_update = state()
        del gradients
        model.zero_grad()
    return after_backward, after_update


@pytest.mark.parametrize(
    ("stage", "weights", "gathered", "gradients", "moments"),
    [
        (0, P, 0, P, 2 * P),
        (1, P, 0, P + P // N, 2 * P // N),
        (2, P, 0, P // N, 2 * P // N),
        (3, P // N, P, P // N, 2 * P // N),
    ],
)
def test_zero_by_hand_holds_what_its_stage_says(stage, weights, gathered, gradients, moments):
    run = ws.run(train_with_zero, stage, world_size=N, cluster="dgx-h100", echo=False, memory=True)
    for after_backward, after_update in run.values:
        assert list(after_backward) == [weights + gathered, gradients, moments]
        assert list(after_update) == [weights, gradients, moments]


def train_with_tensor_parallelism():
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(64, 256, bias=False), nn.ReLU(), nn.Linear(256, 64, bias=False))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, init_device_mesh("cpu", (N,)), plan)
    y = model(torch.randn(8, 64))
    y.sum().backward()
    return state(["weights", "gradients"])


def test_tensor_parallelism_holds_its_shards():
    run = ws.run(train_with_tensor_parallelism, world_size=N, cluster="dgx-h100", echo=False, memory=True)
    assert run.values == [[2 * 64 * 256 * 4 // N] * 2] * N
    widths = run.memory[0].peak["activations"]
    assert widths < 8 * 4 * (64 + 2 * 256)  # the hidden layer is a shard, too


def all_reduce_a_bucket():
    import torch
    import torch.distributed as dist

    bucket = torch.ones(1_000)
    dist.all_reduce(bucket)
    return held()["communication"]


@pytest.mark.parametrize("cluster", ["dgx-h100", None])
def test_what_is_sent_is_a_buffer_of_communication(cluster):
    run = ws.run(all_reduce_a_bucket, world_size=2, cluster=cluster, echo=False, memory=True)
    assert run.values == [4_000, 4_000]


def work_in_a_thread():
    import threading

    import torch

    kept = []
    thread = threading.Thread(target=lambda: kept.append(torch.ones(1_000) + 1))
    thread.start()
    thread.join()
    return sum(held().values())


def test_threads_of_an_emulated_rank_are_counted():
    run = ws.run(work_in_a_thread, world_size=1, cluster="dgx-h100", echo=False, memory=True)
    assert run.values == [4_000]


def fill(num_bytes):
    import torch

    weight = torch.nn.Parameter(torch.ones(num_bytes // 4))
    return float((weight * 2).sum())


def small_cluster(memory_bytes):
    return replace(hardware.DGX_H100, gpu=replace(hardware.H100, memory_bytes=memory_bytes))


def test_a_rank_that_passes_its_gpus_memory_fails():
    with pytest.raises(ws.RankFailed) as caught:
        ws.run(fill, 4_000, world_size=2, cluster=small_cluster(7_000), echo=False, memory=True)
    text = str(caught.value)
    assert "OutOfMemory: H100 SXM is out of memory: it has 7.00 kB" in text
    assert "activations 4.00 kB" in text and "weights 4.00 kB" in text and "sharded over 2 ranks" in text
    assert "return float((weight * 2).sum())" in text
    run = ws.run(fill, 4_000, world_size=2, cluster=small_cluster(9_000), echo=False, memory=True)
    assert [use.capacity_bytes for use in run.memory] == [9_000, 9_000]


def test_memory_is_counted_only_when_asked_for():
    run = ws.run(fill, 4_000, world_size=2, cluster=small_cluster(7_000), echo=False)
    assert run.memory == []


def test_a_record_survives_its_way_and_a_forged_one_is_refused():
    run = ws.run(fill, 4_000, world_size=1, echo=False, memory=True)
    (use,) = run.memory
    assert MemoryUse.parse(use.to_fields()) == use and use.capacity_bytes is None
    for forged in ({"operations": [-1]}, {"sizes": {}}, {"holdings": [{"kind": "love"}]}, {"capacity_bytes": "1"}):
        with pytest.raises(ValueError, match=r".+"):
            MemoryUse.parse(use.to_fields() | forged)
