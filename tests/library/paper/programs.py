"""Programs that run on an emulated cluster and on paper alike. Nothing here knows of either."""

import dataclasses
import datetime

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from worldsize.models import shape
from worldsize.models.transformer import Transformer

BATCH, LENGTH = 2, 32


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(batch_size=BATCH):
    torch.manual_seed(1)
    tokens = torch.randint(0, 256, (batch_size, LENGTH))
    return tokens, tokens.roll(-1, 1)


def train(model, num_steps=2):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, targets = batch()
    for _ in range(num_steps):
        loss = loss_of(model(tokens), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def by_fsdp(is_recomputed=False):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    model = Transformer(shape("tiny"))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, block in model.layers.items():
        if is_recomputed:
            block = model.layers[name] = checkpoint_wrapper(block)
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return train(model)


def by_recomputing_fsdp():
    return by_fsdp(is_recomputed=True)


def by_stages_of_gpipe():
    by_stages("ScheduleGPipe")


def by_interleaved_stages(num_pieces=4):
    """Each rank has two of four stages."""
    from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B

    rank, num_ranks, cpu = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    sizes = dataclasses.replace(shape("tiny"), num_layers=2 * num_ranks)
    places = (rank, rank + num_ranks)
    models = [Transformer(sizes, layers=range(place, place + 1)) for place in places]
    stages = [PipelineStage(model, on, 2 * num_ranks, cpu) for model, on in zip(models, places, strict=True)]
    schedule = ScheduleInterleaved1F1B(stages, num_pieces, loss_fn=loss_of)
    tokens, targets = batch(num_pieces)
    schedule.step(*([tokens] if rank == 0 else []), target=targets if rank == num_ranks - 1 else None)


def by_zero_bubble():
    by_split_backwards("InterleavedZeroBubble")


def by_zero_bubble_in_a_v():
    by_split_backwards("ZBVZeroBubble", is_v=True)


def by_dual_pipe():
    by_split_backwards("DualPipeV", is_v=True)


def by_split_backwards(schedule, is_v=False, num_pieces=4):
    """Backward in two parts, those of inputs before those of weights; in a V the first rank has the last stage, too."""
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    rank, num_ranks, cpu = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    sizes = dataclasses.replace(shape("tiny"), num_layers=2 * num_ranks)
    places = (rank, 2 * num_ranks - 1 - rank if is_v else rank + num_ranks)
    models = [Transformer(sizes, layers=range(place, place + 1)) for place in places]
    stages = [PipelineStage(model, on, 2 * num_ranks, cpu) for model, on in zip(models, places, strict=True)]
    tokens, targets = batch(num_pieces)
    made = get_schedule_class(schedule)(stages, num_pieces, loss_fn=loss_of)
    made.step(*([tokens] if rank == 0 else []), target=targets if 2 * num_ranks - 1 in places else None)


def by_context_parallelism():
    """Each rank has a part of the sequence and gathers keys and values; every query sees all of them."""
    from torch.distributed.nn.functional import all_gather

    queries, keys, values = (torch.randn(1, 4, LENGTH, 16, requires_grad=True) for _ in range(3))
    keys, values = (torch.cat(all_gather(one), 2) for one in (keys, values))
    F.scaled_dot_product_attention(queries, keys, values).sum().backward()


def by_hsdp():
    """Shards within a pair of ranks, replicas over the pairs."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = Transformer(shape("tiny"))
    for block in [*model.layers.values(), model]:
        fully_shard(block, mesh=mesh)
    return train(model)


def by_selective_checkpointing():
    """What products give is kept, all else is computed again."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(_context, operator, *_args, **_kwargs):
        is_product = operator is torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    model = Transformer(shape("tiny"))
    for name, block in model.layers.items():
        model.layers[name] = checkpoint_wrapper(block, context_fn=lambda: create_selective_checkpoint_contexts(policy))
    return train(model)


def by_autocast():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(torch.randn(8, 64)), torch.randint(0, 8, (8,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def by_experts(is_declared=True):
    """An expert on each rank. Tokens go to the rank of theirs and come back; the router spreads them evenly."""
    import worldsize as ws

    num_ranks, num_tokens, width = dist.get_world_size(), 32, 64
    router, expert = torch.nn.Linear(width, num_ranks), torch.nn.Linear(width, width)
    x = torch.randn(num_tokens, width)
    scores = router(x).softmax(-1)
    chosen = torch.arange(num_tokens) % num_ranks if is_declared else scores.argmax(-1)
    order = chosen.argsort()
    counts = torch.bincount(chosen, minlength=num_ranks)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    evenly = [num_tokens // num_ranks] * num_ranks
    sent = ws.declared(counts, on_paper=evenly) if is_declared else counts.tolist()
    received = ws.declared(theirs, on_paper=evenly)
    tokens = _Exchanged.apply(x[order], sent, received)
    back = _Exchanged.apply(expert(tokens).relu(), received, sent)
    (back * scores.gather(1, chosen[:, None])[order]).sum().backward()


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received):
        ctx.sizes = sent, received
        out = x.new_empty(sum(received), *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, grad):
        sent, received = ctx.sizes
        out = grad.new_empty(sum(sent), *grad.shape[1:])
        dist.all_to_all_single(out, grad.contiguous(), sent, received)
        return out, None, None


def by_converted_parameters():
    """A model in 16 bits whose parameters have had gradients, and one that begins without storage."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64))
    model(torch.ones(8, 64)).sum().backward()
    model.to(torch.bfloat16)
    with torch.device("meta"):
        other = torch.nn.Linear(64, 64)
    other.to_empty(device="cpu").to(torch.bfloat16)
    optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters()])
    for _ in range(2):
        other(model(torch.ones(8, 64, dtype=torch.bfloat16))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def by_empty_parameters():
    """A model that has no storage until it is sharded."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        model = Transformer(shape("tiny"))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    for block in [*model.layers.values(), model]:
        fully_shard(block, mesh=mesh)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return train(model)


def by_hand_over():
    """Each rank sends a tensor of its own size to the next, without torch's pipelining."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    x = torch.ones(1000)
    if rank > 0:
        dist.recv(x, rank - 1)
    x = x * 2 + x @ x
    if rank < num_ranks - 1:
        dist.send(x, rank + 1)


def say_device():
    from worldsize import device

    return str(torch.ones(1, device=device()).device)


def look(how):
    """Look at data in the middle of a program."""
    x = torch.ones(3).sum() * dist.get_rank()
    if how == "branch" and x > 1:
        return 1
    if how == "size":
        return torch.nonzero(torch.ones(3)).shape[0]
    if how == "integer":
        return int(torch.ones(3).argmax())
    return x.item()


def split_layers(model, mesh):
    """Split a Transformer's layers over the ranks of a mesh, by Megatron's plan with sequence parallelism."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    gathered = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    columns = ["attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up"]
    rows = ["attention.output", "mlp.down"]
    plan = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel(output_layouts=Shard(1)) for name in rows}
    plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
    plan |= {"attention": gathered, "mlp": gathered}
    for block in model.layers.values():
        parallelize_module(block, mesh, plan)
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, ends)


def by_tp():
    from torch.distributed.device_mesh import init_device_mesh

    model = Transformer(shape("small"))
    split_layers(model, init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",)))
    return train(model)


def by_tp_and_fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    model = Transformer(shape("tiny"))
    split_layers(model, mesh["tp"])
    for block in model.layers.values():
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    return train(model)


def by_ddp():
    from torch.nn.parallel import DistributedDataParallel

    return train(DistributedDataParallel(Transformer(shape("tiny")), bucket_cap_mb=0.1))


def by_ddp_that_accumulates():
    """Two pieces a step, the first without communication, compressed to float16; the last layer has no part."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    model = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
    model.forward = lambda x: model[1](model[0](x)).relu() + model[2](x)
    ddp = DistributedDataParallel(model, find_unused_parameters=True, bucket_cap_mb=0.02)
    ddp.register_comm_hook(None, fp16_compress_hook)
    for _ in range(2):
        with ddp.no_sync():
            ddp(torch.ones(8, 64)).sum().backward()
        ddp(torch.ones(8, 64)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad


def by_stages(schedule="Schedule1F1B", num_layers=2, num_pieces=4):
    """Each rank has some layers; four micro-batches."""
    from torch.distributed import pipelining
    from torch.distributed.pipelining import PipelineStage

    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    per_stage = num_layers // num_ranks
    sizes = dataclasses.replace(shape("tiny"), num_layers=num_layers)
    model = Transformer(sizes, layers=range(rank * per_stage, (rank + 1) * per_stage))
    stage = PipelineStage(model, rank, num_ranks, torch.device("cpu"))
    made = getattr(pipelining, schedule)(stage, num_pieces, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens, targets = batch(num_pieces)
    for _ in range(2):
        made.step(*([tokens] if rank == 0 else []), target=targets if rank == num_ranks - 1 else None)
        optimizer.step()
        optimizer.zero_grad()


def mlp():
    """Three layers with activations between them."""
    layers = [torch.nn.Linear(512, 512) for _ in range(3)]
    return torch.nn.Sequential(layers[0], torch.nn.ReLU(), layers[1], torch.nn.ReLU(), layers[2])


def by_static_graph():
    """DDP that learns in the first backward which parameters are used."""
    model = DistributedDataParallel(mlp(), static_graph=True)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(3):
        model(torch.ones(8, 512)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def by_kept_gradients():
    """DDP whose gradients are there when its buckets are made anew."""
    model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    for _ in range(3):
        model(torch.ones(8, 1024)).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def by_functional_collectives():
    """Collectives that return their result, one of them from a root."""
    x = torch.ones(1 << 19)
    gathered = functional.all_gather_tensor(x, 0, dist.group.WORLD) * 2
    copied = functional.broadcast(x, 0, dist.group.WORLD)
    return functional.all_reduce(copied, "sum", dist.group.WORLD) + gathered[: 1 << 19]


def by_scaled_losses():
    """A scaler of losses, and gradients that are clipped."""
    model = DistributedDataParallel(mlp())
    optimizer, scaler = torch.optim.AdamW(model.parameters(), foreach=True), torch.amp.GradScaler("cpu")
    for _ in range(2):
        scaler.scale(model(torch.ones(8, 512)).mean()).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def by_loaded_batches():
    """Batches that loaders draw, in an order of their own and by ranks."""
    data = torch.utils.data.TensorDataset(torch.ones(64, 512), torch.ones(64))
    shared = torch.utils.data.DistributedSampler(data)
    model = DistributedDataParallel(mlp())
    for order in ({"shuffle": True}, {"sampler": shared}):
        for x, _ in torch.utils.data.DataLoader(data, batch_size=8, **order):
            model(x).mean().backward()


def by_resharding_to_pairs():
    """FSDP2 whose weights are spread over two ranks between forward and backward."""
    model = mlp()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, reshard_after_forward=2)
    fully_shard(model)
    for _ in range(2):
        model(torch.ones(8, 512)).mean().backward()


def by_scatter():
    """What the root alone knows the size of."""
    parts = [torch.ones(1 << 18) for _ in range(dist.get_world_size())]
    dist.scatter(torch.zeros(1 << 18), parts if dist.get_rank() == 0 else None, src=0)


def by_tagged_messages():
    """Two messages whose receives are posted in the other order."""
    small, large = torch.ones(1000), torch.ones(1 << 17)
    if dist.get_rank() == 0:
        works = [dist.isend(small, 1, tag=1), dist.isend(large, 1, tag=2)]
    elif dist.get_rank() == 1:
        works = [dist.irecv(large, 0, tag=2), dist.irecv(small, 0, tag=1)]
    else:
        works = []
    for work in works:
        work.wait()


def by_monitored_barriers():
    """A barrier that names who does not come."""
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=datetime.timedelta(minutes=1))


def by_compiled_layers():
    """Layers given to a compiler, which runs none of it on paper."""
    model = torch.compile(mlp())
    for _ in range(2):
        model(torch.ones(8, 512)).mean().backward()
