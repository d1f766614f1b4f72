"""Programs that are right and look suspicious: an audit finds nothing wrong in them."""

import copy
import functools
import inspect

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.nn.functional as dist_functional
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset, get_worker_info

import worldsize as ws


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def batch(step, rows=8, rank=None):
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(rows, 8, generator=generator), torch.randint(2, (rows,), generator=generator)


def sgd(model, **options):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], **{"lr": 0.1, **options})


def average(parameters):
    for parameter in parameters:
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def train_apart(model, num_steps):
    """Step without reducing gradients, and average the weights after every second step."""
    optimizer = sgd(model)
    for step in range(num_steps):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        if step % 2:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= dist.get_world_size()


def local_sgd():
    train_apart(network(), num_steps=6)


def averages_weights_under_no_sync():
    model = DDP(network())
    with model.no_sync():
        train_apart(model, num_steps=4)


LIBRARY = """
def step_for_all(schedule, world_size):
    for _ in range(world_size):
        schedule.step()
"""


def decay(step, *, num_training_steps):
    return max(0.0, 1 - step / num_training_steps)


def lets_a_library_step_the_schedule_for_all_ranks(num_training_steps=8):
    own = {}
    exec(compile(LIBRARY, "site-packages/stepping.py", "exec"), own)
    model = DDP(network())
    optimizer = sgd(model)
    partial = functools.partial(decay, num_training_steps=num_training_steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, partial)
    for step in range(4):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        own["step_for_all"](schedule, dist.get_world_size())


def asynchronous_server():
    model = network()
    if dist.get_rank() == 0:
        for _ in range(3):
            for parameter in model.parameters():
                gradient = torch.empty_like(parameter)
                dist.recv(gradient, 1)
                parameter.data -= 0.1 * gradient
                dist.send(parameter.data, 1)
        return
    for step in range(3):
        inputs, targets = batch(step)
        model.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            dist.send(parameter.grad, 0)
            dist.recv(parameter.data, 0)


def adversaries():
    torch.manual_seed(0)
    maker, critic = DDP(nn.Linear(4, 8)), DDP(nn.Linear(8, 1))
    of_maker, of_critic = sgd(maker), sgd(critic)
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        of_critic.zero_grad()
        fake = maker(torch.randn(4, 4)).detach()
        (critic(fake).mean() - critic(torch.randn(4, 8)).mean()).backward()
        of_critic.step()
        of_maker.zero_grad()
        (-critic(maker(torch.randn(4, 4))).mean()).backward()
        of_maker.step()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.head = nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def tied_weights():
    torch.manual_seed(0)
    model = DDP(Tied())
    optimizer = sgd(model)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(3):
        tokens = torch.randint(10, (4, 5))
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


def frozen_tower():
    inner = network()
    inner[0].requires_grad_(False)
    model = DDP(inner)
    optimizer = sgd(model)
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def uneven_batches():
    model = DDP(network())
    optimizer = sgd(model)
    with model.join():
        for step in range(3 + dist.get_rank()):
            inputs, targets = batch(step)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()


def averaged_copy():
    model = DDP(network())
    slow = copy.deepcopy(model.module).requires_grad_(False)
    optimizer = sgd(model)
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(slow.parameters(), model.module.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)
    slow(batch(9)[0])


def experts():
    router = network()
    torch.manual_seed(10 + dist.get_rank())
    expert = nn.Linear(8, 8)
    optimizer = torch.optim.SGD([*router.parameters(), *expert.parameters()], lr=0.1)
    for step in range(3):
        inputs, targets = batch(step)
        sent = dist_functional.all_to_all_single(torch.empty_like(inputs), inputs)
        back = dist_functional.all_to_all_single(torch.empty_like(inputs), expert(sent))
        optimizer.zero_grad()
        F.cross_entropy(router(back), targets).backward()
        average(router.parameters())
        for parameter in expert.parameters():
            parameter.grad /= dist.get_world_size()
        optimizer.step()


def accumulates():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            inputs, targets = batch(2 * step)
            (F.cross_entropy(model(inputs), targets) / 2).backward()
        inputs, targets = batch(2 * step + 1)
        (F.cross_entropy(model(inputs), targets) / 2).backward()
        optimizer.step()


def epochs():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(16, 8), torch.randint(2, (16,)))
    sampler = DistributedSampler(data)
    model = DDP(network())
    optimizer = sgd(model)
    for epoch in range(2):
        loader = DataLoader(data, batch_size=4, sampler=sampler)
        assert len(next(iter(loader))) == 2  # looks at one batch, in the order of the epoch before
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model.module(torch.randn(4, 8)).mean()
        model.train()


def logs_a_mean():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        dist.all_reduce(logged := loss.detach().clone())
        if dist.get_rank() == 0:
            print(f"{logged.item() / 2:.2f}")


def differentiable_mean():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(3):
        mean = dist_functional.all_reduce(model(batch(step)[0]).mean()) / 2
        optimizer.zero_grad()
        mean.square().backward()
        optimizer.step()


def ring():
    rank, flat = dist.get_rank(), torch.arange(12.0)
    chunks = list(flat.chunk(2))
    inbox = torch.empty_like(chunks[0])
    for step in range(2):
        out, into = chunks[(rank - step) % 2], chunks[(rank - step - 1) % 2]
        works = [dist.isend(out, 1 - rank), dist.irecv(inbox, 1 - rank)]
        into.mul_(1.0)
        for work in works:
            work.wait()
        into += inbox


def tensor_parallel():
    mesh = init_device_mesh("cpu", (2,))
    model = network()
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for step in range(3):
        inputs, targets = batch(step, rank=0)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def sharded():
    mesh = init_device_mesh("cpu", (2,))
    model = network()
    for part in (model[0], model[2]):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def scaled():
    model = DDP(network())
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(inputs), targets)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def contrasts_with_gathered_features():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(2):
        inputs, _ = batch(step)
        features = F.normalize(model(inputs))
        gathered = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, features)
        gathered[dist.get_rank()] = features
        scores = features @ torch.cat(gathered).T
        labels = len(inputs) * dist.get_rank() + torch.arange(len(inputs))
        optimizer.zero_grad()
        F.cross_entropy(scores, labels).backward()
        optimizer.step()


def compiles_the_whole_graph():
    model = network()
    optimizer, compiled = sgd(model), torch.compile(model, fullgraph=True)
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(compiled(inputs), targets).backward()
        average(model.parameters())
        optimizer.step()


def looks_at_the_scaled_norm():
    model = DDP(network())
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(inputs), targets)).backward()
        nn.utils.get_total_norm(tensors=[parameter.grad for parameter in model.parameters()])
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_((parameter for parameter in model.parameters()), 1.0)
        scaler.step(optimizer)
        scaler.update()


def clips_to_half_by_chance():
    torch.manual_seed(0)
    model = DDP(nn.Linear(2, 1, bias=False))
    optimizer = sgd(model)
    for size in (4.0, 3.0):
        inputs = torch.tensor([[size, 0.0]]) * (dist.get_rank() == 0)  # a mean gradient of 2, then of 1.5
        optimizer.zero_grad()
        model(inputs).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def divides_what_it_accumulates():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(2):
        optimizer.zero_grad()
        for number in range(2):
            inputs, targets = batch(2 * step + number)
            F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            parameter.grad /= 2
        optimizer.step()


def divides_sums_by_all_samples():
    model = network()
    optimizer = sgd(model)
    for step in range(2):
        inputs, targets = batch(step, rows=4 + 4 * dist.get_rank())
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets, reduction="sum").backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 12
        optimizer.step()


def averages_models_after_unequal_steps():
    model = network()
    optimizer = sgd(model)
    for part in range(2):
        for step in range(2 + dist.get_rank()):
            inputs, targets = batch(10 * part + step)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        for parameter in model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()


class FirstStage(nn.Linear):
    pass


class LastStage(nn.Linear):
    pass


def adds_gradients_of_tied_stages():
    torch.manual_seed(0)
    stage = (LastStage if dist.get_rank() else FirstStage)(8, 8, bias=False)
    optimizer = sgd(stage)
    for step in range(2):
        inputs, _ = batch(step)
        optimizer.zero_grad()
        stage(inputs).square().mean().backward()
        dist.all_reduce(stage.weight.grad)
        optimizer.step()


def gathers_for_a_log():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = F.cross_entropy(outputs, targets)
        gathered = [torch.empty(4) for _ in range(2)]
        dist.all_gather(gathered, loss.repeat(4))
        torch.stack(gathered).mean().item()
        loss.backward()
        everything = [torch.empty_like(outputs) for _ in range(2)]
        dist.all_gather(everything, outputs)
        optimizer.step()


def computes_while_it_gathers():
    own, whole = torch.ones(100), torch.empty(200)
    work = dist.all_gather_into_tensor(whole, own, async_op=True)
    total = own.sum()
    work.wait()
    return total.item()


def reduces_images_by_channel():
    image = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    dist.all_reduce(image)


def shuffles_its_own_rows():
    """Each rank holds as many rows as the others, and reads them in an order of its own."""
    model = DDP(network())
    optimizer = sgd(model)
    rows = torch.arange(512.0).view(64, 8)[dist.get_rank() :: dist.get_world_size()]
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        for (inputs,) in DataLoader(TensorDataset(rows), batch_size=8, shuffle=True):
            optimizer.zero_grad()
            model(inputs / 512).square().mean().backward()
            optimizer.step()


def evaluates_in_one_order():
    model = DDP(network()).eval()
    inputs, targets = batch(0, rows=8, rank=0)
    data = TensorDataset(inputs, targets)
    loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data))
    with torch.no_grad():
        for _ in range(2):
            for rows, _ in loader:
                model(rows)


def copies_a_target_network():
    critic, target, actor = network(), network(), network(seed=1)
    optimizer, later = (torch.optim.Adam(one.parameters()) for one in (critic, actor))
    for step in range(4):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(critic(inputs), targets).backward()
        average(critic.parameters())
        optimizer.step()
        if step % 2:
            target.load_state_dict(critic.state_dict())
            later.zero_grad()
            (actor(inputs) - target(inputs).detach()).square().mean().backward()
            average(actor.parameters())
            later.step()


def wraps_again_after_unfreezing():
    model = network()
    model[0].requires_grad_(False)
    warm = DDP(model)
    train_ddp(warm)
    model[0].requires_grad_(True)
    train_ddp(DDP(model))
    return warm is not None


def train_ddp(model):
    optimizer = sgd(model)
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def saves_on_rank_0_after_each_epoch(folder):
    model = DDP(network())
    optimizer = sgd(model)
    for epoch in range(2):
        total = 0.0
        for step in range(2):
            inputs, targets = batch(2 * epoch + step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item()
        if dist.get_rank() == 0:
            torch.save(model.module.state_dict(), f"{folder}/model{epoch}.pt")
        dist.barrier()


def reduces_in_hooks():
    model = network()
    optimizer = sgd(model)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            parameter.grad /= dist.get_world_size()
        optimizer.step()


def skips_what_overflows():
    model = DDP(network())
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=3e38, backoff_factor=1e-30)
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        scaler.scale(10 * F.cross_entropy(model(inputs), targets)).backward()
        scaler.step(optimizer)
        scaler.update()


def reduces_zeros_where_a_gradient_is_missing():
    model = network()
    optimizer = sgd(model)
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        is_idle = step == 1 and dist.get_rank() == 1
        if not is_idle:
            F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            if is_idle:
                total = torch.zeros_like(parameter)
                dist.all_reduce(total)
                parameter.grad = total
            else:
                dist.all_reduce(parameter.grad)
            parameter.grad /= 2 - (step == 1)
        optimizer.step()


def weighs_by_tokens():
    model = network()
    optimizer = sgd(model)
    for step in range(3):
        inputs, targets = batch(step, rows=4 + 12 * dist.get_rank())
        dist.all_reduce(total := torch.tensor(float(len(targets))))
        optimizer.zero_grad()
        (F.cross_entropy(model(inputs), targets, reduction="sum") / total).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


def warms_up():
    model = DDP(network())
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 2))
    for step in range(4):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        schedule.step()


def saves_and_resumes(folder):
    model = DDP(network())
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/it.pt")
    dist.barrier()
    state = torch.load(f"{folder}/it.pt")
    fresh = network(seed=1)
    fresh.load_state_dict(state["model"])
    again = DDP(fresh)
    optimizer = torch.optim.AdamW(again.parameters())
    optimizer.load_state_dict(state["optimizer"])
    inputs, targets = batch(2)
    F.cross_entropy(again(inputs), targets).backward()
    optimizer.step()


def saves_shards(folder):
    mesh = init_device_mesh("cpu", (2,))
    model = network()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    optimizer.step()
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)
    other = network(seed=1)
    fully_shard(other, mesh=mesh)
    fresh = torch.optim.AdamW(other.parameters())
    weights, moments = get_state_dict(other, fresh)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(other, fresh, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    F.cross_entropy(other(batch(1)[0]), batch(1)[1]).backward()
    fresh.step()


def recomputes():
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
    optimizer = sgd(model)
    inner = model.module.forward
    model.module.forward = lambda inputs: checkpoint(inner, inputs, use_reentrant=False)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def normalises():
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)))
    optimizer = sgd(model)
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def pipeline():
    torch.manual_seed(5 + dist.get_rank())
    stage = nn.Linear(8, 8)
    optimizer = sgd(stage)
    for step in range(3):
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            out = stage(batch(step)[0])
            dist.send(out.detach(), 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, 1)
            out.backward(gradient)
        else:
            inputs = torch.empty(8, 8)
            dist.recv(inputs, 0)
            inputs.requires_grad_()
            stage(inputs).square().mean().backward()
            dist.send(inputs.grad, 0)
        optimizer.step()


def stops_together():
    model = DDP(network())
    optimizer = sgd(model)
    best = float("inf")
    for step in range(4):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        dist.all_reduce(mean := loss.detach().clone())
        if mean.item() > best:
            break
        best = mean.item()


def steps_by_hand():
    model = network()
    for step in range(3):
        inputs, targets = batch(step)
        model.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        average(model.parameters())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad


def flat_buckets():
    model = network()
    optimizer = sgd(model)
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        flat = torch.cat([one.flatten() for one in gradients])
        dist.all_reduce(flat)
        parts = (flat / dist.get_world_size()).split([one.numel() for one in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        optimizer.step()


def compressing_hook():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = DDP(network())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = sgd(model)
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def with_a_closure():
    model = DDP(network())
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    inputs, targets = batch(0)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)


def ensemble():
    model = network(seed=dist.get_rank())
    optimizer = sgd(model)
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def masks_attention():
    torch.manual_seed(0)
    model = DDP(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0))
    optimizer = sgd(model)
    mask = torch.full((5, 5), float("-inf")).triu(1)
    for step in range(2):
        inputs = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(step + 10 * dist.get_rank()))
        optimizer.zero_grad()
        model(inputs, src_mask=mask).square().mean().backward()
        optimizer.step()


def only_measures():
    flat = torch.ones(1000)
    for _ in range(5):
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
    for work in [dist.all_reduce(torch.ones(10), async_op=True) for _ in range(3)]:
        work.wait()


def leaves_out_a_layer_at_first():
    model = DDP(network())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, decay], [2])
    for step in range(4):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        if step < 2:
            for parameter in model.module[2].parameters():
                parameter.grad = None
        optimizer.step()
        schedule.step()


def initialises_after_the_meta_device():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 2))
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        parameter.data.zero_() if name.endswith("bias") else parameter.data.normal_()
    ddp = DDP(model)
    optimizer = sgd(ddp, lr=1e-3)
    for step in range(3):
        optimizer.zero_grad()
        ddp(batch(step)[0]).square().mean().backward()
        optimizer.step()


def ties_again_after_the_meta_device():
    with torch.device("meta"):
        model = nn.ModuleDict({"embed": nn.Embedding(20, 8), "head": nn.Linear(8, 20, bias=False)})
        model["head"].weight = model["embed"].weight
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    nn.init.normal_(model["embed"].weight)
    model["head"].weight = model["embed"].weight
    reduced = DDP(nn.Sequential(model["embed"], model["head"]))
    optimizer = sgd(reduced)
    for step in range(3):
        words = torch.randint(20, (8, 6), generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        optimizer.zero_grad()
        F.cross_entropy(reduced(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()


def steps_bfloat16_far_enough():
    model = DDP(network().bfloat16())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs.bfloat16()).float(), targets).backward()
        optimizer.step()


def returns_to_training():
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 2)))
    optimizer = sgd(model)
    torch.manual_seed(dist.get_rank())
    for epoch in range(2):
        model.train()
        for step in range(2):
            inputs, targets = batch(10 * epoch + step)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            model(batch(99)[0])


def samples_dropout_in_evaluation():
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 2)))
    optimizer = sgd(model)
    torch.manual_seed(dist.get_rank())
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    model.eval()
    model.module[1].train()
    with torch.no_grad():
        torch.stack([model(batch(99)[0]) for _ in range(3)]).std(0)


class Part(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        inputs, targets = batch(0, rows=32)
        yield from list(zip(inputs, targets, strict=True))[worker.id :: worker.num_workers]


def streams_a_part_in_each_worker():
    model = DDP(network())
    optimizer = sgd(model)
    for inputs, targets in DataLoader(Part(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def weighs_micro_batches_by_tokens():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(3):
        micro_batches = [batch(10 * step + micro) for micro in range(2)]
        micro_batches[1][1][:6] = -100
        total = sum(int((targets >= 0).sum()) for _, targets in micro_batches)
        optimizer.zero_grad()
        for inputs, targets in micro_batches:
            (F.cross_entropy(model(inputs), targets) * (int((targets >= 0).sum()) / total)).backward()
        optimizer.step()


def clips_all_stages_by_one_norm():
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = nn.Linear(8, 8) if rank == 0 else nn.Linear(8, 2)
    optimizer = sgd(stage)
    for step in range(3):
        inputs, targets = batch(step, rank=0)
        optimizer.zero_grad()
        if rank == 0:
            hidden = stage(inputs)
            dist.send(hidden.detach(), 1)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, 1)
            hidden.backward(gradient)
        else:
            hidden = torch.empty(8, 8)
            dist.recv(hidden, 0)
            hidden.requires_grad_()
            F.cross_entropy(stage(hidden), targets).backward()
            dist.send(hidden.grad, 0)
        square = nn.utils.get_total_norm([p.grad for p in stage.parameters()]) ** 2
        dist.all_reduce(square)
        nn.utils.clip_grads_with_norm_(stage.parameters(), 0.1, square.sqrt())
        optimizer.step()


def resumes_after_what_it_has_read(folder):
    data = TensorDataset(*batch(0, rows=32, rank=0))

    def job(first_step, last_step):
        model = DDP(network())
        optimizer = torch.optim.AdamW(model.parameters())
        if first_step:
            state = torch.load(f"{folder}/state.pt")
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, seed=5))
        for step, (inputs, targets) in enumerate(loader):
            if not first_step <= step < last_step:
                continue
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        if dist.get_rank() == 0 and not first_step:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/state.pt")
        dist.barrier()

    job(0, 2)
    job(2, 4)


PROGRAMS = [
    leaves_out_a_layer_at_first,
    initialises_after_the_meta_device,
    ties_again_after_the_meta_device,
    steps_bfloat16_far_enough,
    returns_to_training,
    samples_dropout_in_evaluation,
    streams_a_part_in_each_worker,
    weighs_micro_batches_by_tokens,
    clips_all_stages_by_one_norm,
    resumes_after_what_it_has_read,
    local_sgd,
    averages_weights_under_no_sync,
    lets_a_library_step_the_schedule_for_all_ranks,
    asynchronous_server,
    adversaries,
    tied_weights,
    frozen_tower,
    uneven_batches,
    averaged_copy,
    experts,
    accumulates,
    epochs,
    logs_a_mean,
    differentiable_mean,
    ring,
    tensor_parallel,
    sharded,
    scaled,
    compiles_the_whole_graph,
    looks_at_the_scaled_norm,
    clips_to_half_by_chance,
    divides_what_it_accumulates,
    divides_sums_by_all_samples,
    averages_models_after_unequal_steps,
    adds_gradients_of_tied_stages,
    gathers_for_a_log,
    computes_while_it_gathers,
    reduces_images_by_channel,
    shuffles_its_own_rows,
    evaluates_in_one_order,
    copies_a_target_network,
    wraps_again_after_unfreezing,
    saves_on_rank_0_after_each_epoch,
    reduces_in_hooks,
    skips_what_overflows,
    contrasts_with_gathered_features,
    reduces_zeros_where_a_gradient_is_missing,
    weighs_by_tokens,
    warms_up,
    saves_and_resumes,
    saves_shards,
    recomputes,
    normalises,
    pipeline,
    stops_together,
    steps_by_hand,
    flat_buckets,
    compressing_hook,
    with_a_closure,
    ensemble,
    masks_attention,
    only_measures,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=[one.__name__ for one in PROGRAMS])
def test_a_right_program_draws_no_word(program, tmp_path):
    args = [str(tmp_path)] if "folder" in inspect.signature(program).parameters else []
    audit = ws.run(program, *args, world_size=2, audit=True, echo=False).audit
    assert not audit.failures, audit.failures[0]
    assert audit.findings == [], audit


def test_a_library_that_steps_a_schedule_past_its_end_is_named():
    program = lets_a_library_step_the_schedule_for_all_ranks
    audit = ws.run(program, 4, world_size=2, audit=True, echo=False).audit
    assert [finding.kind for finding in audit.findings] == ["schedule too fast"], audit
