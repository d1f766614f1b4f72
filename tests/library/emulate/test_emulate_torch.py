"""What torch itself builds on a process group runs unmodified on the emulated cluster, with Gloo's results."""

import pytest
import torch
import torch.distributed as dist

import worldsize as ws


def fully_sharded():
    """Weights after two steps of FSDP2."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(3)])
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    two_steps(model, optimizer, 16)
    return torch.cat([parameter.full_tensor().flatten() for parameter in model.parameters()]).detach()


def two_steps(model, optimizer, width):
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, width)).square().mean().backward()
        optimizer.step()


def tensor_parallel():
    """Output and gradient of a DTensor block, columns then rows, on one axis of a mesh of two."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    output = model(torch.ones(4, 16) * (1 + mesh.get_local_rank("dp")))
    output.sum().backward()
    return output.detach(), model[0].weight.grad.to_local()  # type: ignore[operator]


def with_a_built_in_hook(kind):
    """A gradient that DDP's own hook has averaged."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, kind))
    model(torch.full((2, 8), 1.0 + dist.get_rank())).sum().backward()
    return model.module.weight.grad


@pytest.mark.parametrize("kind", ["ALLREDUCE", "FP16_COMPRESS"])
def test_built_in_hooks_of_ddp_give_what_they_give_on_gloo(kind):
    emulated = ws.run(with_a_built_in_hook, kind, world_size=2, cluster="dgx-h100", echo=False)
    real = ws.run(with_a_built_in_hook, kind, world_size=2, echo=False)
    assert all(torch.equal(*pair) for pair in zip(emulated.values, real.values, strict=True))
    sizes = {event.size_bytes for event in emulated.timeline.of(0) if event.name == "all_reduce"}
    assert sizes == {72 * (2 if kind == "FP16_COMPRESS" else 4)}


def with_uneven_inputs():
    """A gradient after a rank has run out of samples, divided by the ranks that still had some."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    with model.join(divide_by_initial_world_size=False):
        for number in range(1, 3 + dist.get_rank()):
            model.zero_grad()
            model(torch.full((1, 2), 1.0 * number)).sum().backward()
    return model.module.weight.grad


def test_ddp_joins_uneven_inputs_as_on_gloo():
    emulated = ws.run(with_uneven_inputs, world_size=2, cluster="dgx-h100", echo=False)
    real = ws.run(with_uneven_inputs, world_size=2, echo=False)
    assert all(torch.equal(*pair) for pair in zip(emulated.values, real.values, strict=True))


def along_the_axes():
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    for axis, num_items in (("dp", 10), ("tp", 30)):
        dist.all_reduce(torch.ones(num_items), group=mesh.get_group(axis))
    for group in (mesh.get_group("tp"), None):
        if dist.get_rank() == 0:
            dist.send(torch.ones(5), dst=1, group=group)
        elif dist.get_rank() == 1:
            dist.recv(torch.ones(5), src=0, group=group)


def test_the_timeline_names_the_axis_of_a_mesh():
    timeline = ws.run(along_the_axes, world_size=4, cluster="dgx-h100", echo=False).timeline
    sizes = {event.axis: event.size_bytes for event in timeline.of(1) if event.name == "all_reduce"}
    assert sizes == {"dp": 40, "tp": 120}
    assert timeline.bytes_sent_by_axis(0) == {"dp": 40, "tp": 140, "": 20}
    assert timeline.bytes_sent_by_axis(2) == {"dp": 40, "tp": 120}


def sharded_optimizer():
    """Weights after two steps with ZeroRedundancyOptimizer."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(3)]))
    two_steps(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1), 8)
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def pipeline(kind):
    """Losses, and the gradient of this rank's first layer."""
    from torch.distributed import pipelining

    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    per_rank = 2 if kind == "ScheduleInterleaved1F1B" else 1
    layers = [torch.nn.Linear(8, 8) for _ in range(size * per_rank)]
    places = [rank + size * number for number in range(per_rank)]
    stages = [pipelining.PipelineStage(layers[at], at, len(layers), torch.device("cpu")) for at in places]
    schedule = getattr(pipelining, kind)(
        stages if per_rank > 1 else stages[0], 8, loss_fn=lambda output, target: (output - target).square().mean()
    )
    losses = []
    inputs = [torch.ones(16, 8)] if rank == 0 else []
    wanted = {"target": torch.zeros(16, 8), "losses": losses} if rank == size - 1 else {}
    schedule.step(*inputs, **wanted)
    return [loss.item() for loss in losses], layers[rank].weight.grad.clone()


def communication_hook(kind):
    """Weights after training through one of torch's own DDP hooks."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    if kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        two_steps(model, optimizer, 64)
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def checkpoint(folder):
    """What comes back from torch.distributed.checkpoint."""
    from torch.distributed import checkpoint

    checkpoint.save({"weights": torch.arange(4.0)}, checkpoint_id=folder)
    state = {"weights": torch.zeros(4)}
    checkpoint.load(state, checkpoint_id=folder)
    return state["weights"]


PROGRAMS = [
    (fully_sharded, ()),
    (tensor_parallel, ()),
    (sharded_optimizer, ()),
    (pipeline, ("ScheduleGPipe",)),
    (pipeline, ("Schedule1F1B",)),
    (pipeline, ("ScheduleInterleaved1F1B",)),
    (communication_hook, ("fp16",)),
    (communication_hook, ("powersgd",)),
]


@pytest.mark.parametrize(("fn", "args"), PROGRAMS, ids=["-".join([fn.__name__, *args]) for fn, args in PROGRAMS])
def test_it_gives_what_gloo_gives(fn, args):
    here = ws.run(fn, *args, world_size=4, cluster="dgx-h100", echo=False)
    there = ws.run(fn, *args, world_size=4, backend="gloo", echo=False)
    torch.testing.assert_close(here.values, there.values)
    assert here.timeline.end_s > 0


def test_a_distributed_checkpoint_comes_back(tmp_path):
    values = ws.run(checkpoint, str(tmp_path), world_size=4, cluster="dgx-h100", echo=False).values
    assert [value.tolist() for value in values] == [[0, 1, 2, 3]] * 4


def along_an_axis_of_a_second_world():
    from torch.distributed.device_mesh import init_device_mesh

    dist.all_reduce(torch.ones(4))
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(8))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(torch.ones(30), group=mesh.get_group("tp"))


def test_a_world_that_is_joined_again_is_no_axis():
    timeline = ws.run(along_an_axis_of_a_second_world, world_size=4, cluster="dgx-a100", echo=False).timeline
    sent = timeline.bytes_sent_by_axis(0)
    assert sent.keys() == {"", "tp"}
    assert sent["tp"] == 120
