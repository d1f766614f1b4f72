"""Programs that train and are wrong: each is named with its line, which ends in `# FAULT`."""

import contextlib
import inspect
import linecache

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import worldsize as ws
from worldsize.audit.cures import CURES

GENERATOR = np.random.default_rng(0)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def batch(step, rows=8):
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(rows, 8, generator=generator), torch.randint(2, (rows,), generator=generator)


def train(model, optimizer, loss_of=None, average=False, num_steps=3):
    for step in range(num_steps):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        (loss_of or F.cross_entropy)(model(inputs), targets).backward()
        if average:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
                parameter.grad /= dist.get_world_size()
        optimizer.step()


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def reads_too_early():
    flat = torch.ones(1000)
    work = dist.all_reduce(flat, async_op=True)
    total = flat.sum()  # FAULT
    work.wait()
    return total.item()


def writes_while_it_is_sent():
    buffer, other = torch.full((100,), 1.0), torch.empty(100)
    rank = dist.get_rank()
    works = [dist.isend(buffer, 1 - rank), dist.irecv(other, 1 - rank)]
    buffer.zero_()  # FAULT
    for work in works:
        work.wait()


def drops_a_handle():
    flat = torch.ones(1000)
    dist.all_reduce(flat, async_op=True)  # FAULT
    dist.barrier()


def reads_what_nobody_waited_for():
    flat = torch.ones(1000)
    dist.all_reduce(flat, async_op=True)  # FAULT
    flat.sum()
    dist.barrier()


def gathers_copies_of_its_own_features():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(2):
        inputs, _ = batch(step)
        features = F.normalize(model(inputs))
        gathered = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, features)  # FAULT
        scores = features @ torch.cat(gathered).T
        labels = len(inputs) * dist.get_rank() + torch.arange(len(inputs))
        optimizer.zero_grad()
        F.cross_entropy(scores, labels).backward()
        optimizer.step()


def starts_from_different_weights():
    model = network(seed=dist.get_rank())
    optimizer = sgd(model)
    train(model, optimizer, average=True)  # the step is in `train`


def forgets_a_layer():
    model = network()
    optimizer = sgd(model)
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for parameter in model[0].parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        optimizer.step()


def calls_the_inner_module():
    model = DDP(network())
    train(model.module, sgd(model))


def ends_inside_no_sync():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(3):
        optimizer.zero_grad()
        for number in range(2):
            inputs, targets = batch(2 * step + number)
            with model.no_sync():
                loss = F.cross_entropy(model(inputs), targets)  # FAULT
            loss.backward()
        optimizer.step()


def unfreezes_after_ddp():
    inner = network()
    inner[0].requires_grad_(False)
    model = DDP(inner)
    inner[0].weight.requires_grad_(True)  # FAULT
    train(model, sgd(model))


def sums_for_a_mean():
    model = network()
    optimizer = sgd(model)
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # FAULT
        optimizer.step()


def reduces_twice():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # FAULT
        optimizer.step()


def divides_what_ddp_has_averaged():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            parameter.grad /= dist.get_world_size()
        optimizer.step()


def makes_the_optimizer_first():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # FAULT
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def adds_a_head_later():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # FAULT
    model.append(nn.Linear(2, 2))
    ddp = DDP(model)
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(ddp(inputs), targets).backward()
        optimizer.step()


def schedules_by_its_own_loss():
    model = DDP(network())
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    for step in range(6):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        schedule.step(step if dist.get_rank() else -step)  # FAULT


def steps_the_schedule_for_each_micro_batch():
    model = DDP(network())
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    for number in range(12):
        is_last = number % 4 == 3
        inputs, targets = batch(number)
        with contextlib.nullcontext() if is_last else model.no_sync():
            (F.cross_entropy(model(inputs), targets) / 4).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
        schedule.step()  # FAULT


def shuffles_everything_on_each_rank():
    model = DDP(network())
    optimizer = sgd(model)
    torch.manual_seed(dist.get_rank())
    data = TensorDataset(torch.arange(256.0).view(32, 8), torch.zeros(32, dtype=torch.long))
    for _ in range(2):
        for inputs, targets in DataLoader(data, batch_size=8, shuffle=True):  # FAULT
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()


def gives_all_ranks_one_batch():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=generator)).square().mean().backward()  # FAULT
        optimizer.step()


def forgets_the_epoch():
    data = TensorDataset(torch.randn(16, 8))
    loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))
    for _ in range(2):
        for _inputs in loader:  # FAULT
            pass


class Noisy(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return GENERATOR.random()


def copies_a_generator():
    loader = DataLoader(Noisy(), batch_size=2, num_workers=2, multiprocessing_context="fork")  # FAULT
    list(loader)


def drops_the_same_everywhere():
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)))
    optimizer = sgd(model)
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()  # FAULT
        optimizer.step()


def reduces_inside_the_loss():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(2):
        mean = model(batch(step)[0]).mean() / dist.get_world_size()
        dist.all_reduce(mean)  # FAULT
        optimizer.zero_grad()
        mean.square().backward()
        optimizer.step()


def gathers_without_gradients():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(2):
        features = model(batch(step)[0])
        others = [torch.empty_like(features) for _ in range(dist.get_world_size())]
        dist.all_gather(others, features)  # FAULT
        optimizer.zero_grad()
        (torch.cat(others).mean() + model(batch(step)[0]).square().mean()).backward()
        optimizer.step()


def skips_parameters_without_gradients():
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(8, 2), nn.Linear(8, 2)])
    optimizer = sgd(model)
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model[dist.get_rank()](inputs), targets).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)  # FAULT
                parameter.grad /= 2
        optimizer.step()


def sends_a_column():
    column = torch.arange(6.0).reshape(3, 2)[:, 0]
    dist.broadcast(column, src=0)  # FAULT


def divides_by_nothing():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(3):
        inputs, _ = batch(step)
        scale = torch.zeros(1) if step == 1 and dist.get_rank() == 1 else torch.ones(1)
        optimizer.zero_grad()
        ratio = inputs[:1] * 0 / scale  # FAULT
        (model(inputs) + ratio.sum()).square().mean().backward()
        optimizer.step()


def clips_what_is_scaled():
    model = DDP(network())
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(inputs), targets)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # FAULT
        scaler.step(optimizer)
        scaler.update()


def takes_the_norm_of_a_shard():
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    F.cross_entropy(model(batch(0)[0]), batch(0)[1]).backward()
    return float(sum(p.grad.to_local().norm() ** 2 for p in model.parameters()))  # FAULT


def averages_means():
    model = DDP(network())
    optimizer = sgd(model)
    for step in range(3):
        inputs, targets = batch(step, rows=4 + 12 * dist.get_rank())
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()  # FAULT
        optimizer.step()


def lets_buffers_drift():
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model = DDP(inner, broadcast_buffers=False)  # FAULT
    train(model, sgd(model))


def recomputes_differently():
    model = network()
    calls = []

    def region(inputs):
        calls.append(1)
        return model(inputs * len(calls))

    checkpoint(region, batch(0)[0].requires_grad_(), use_reentrant=False).sum().backward()  # FAULT


def loads_with_the_wrong_prefix():
    model = network()
    state = DDP(network(seed=1)).state_dict()
    model.load_state_dict(state, strict=False)  # FAULT
    train(model, sgd(model), average=True)


def loads_an_empty_state(folder):
    model, mesh = network(), init_device_mesh("cpu", (2,))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, num_steps=1)
    dcp.save({"optimizer": optimizer.state_dict()}, checkpoint_id=folder)
    fresh = torch.optim.AdamW(model.parameters())
    state = {"optimizer": fresh.state_dict()}
    dcp.load(state, checkpoint_id=folder)  # FAULT


def saves_its_shard(folder):
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), f"{folder}/model.pt")  # FAULT


def resumes_without_the_optimizer():
    model = network()
    train(model, torch.optim.AdamW(model.parameters()), average=True)
    state = {name: one.clone() for name, one in model.state_dict().items()}
    model.load_state_dict(state)  # FAULT
    train(model, torch.optim.AdamW(model.parameters()), average=True)


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial):
        total = partial.clone()
        dist.all_reduce(total)  # FAULT
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def adds_a_bias_on_every_rank():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(2, 8).chunk(2, 1)[dist.get_rank()].clone())
    bias = nn.Parameter(torch.randn(2))
    optimizer = torch.optim.SGD([weight, bias], lr=0.1)
    for step in range(2):
        inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(step)).chunk(2, 1)[dist.get_rank()]
        optimizer.zero_grad()
        SumOverRanks.apply(inputs @ weight.T + bias).square().mean().backward()
        optimizer.step()


def keeps_the_best_by_its_own_loss(folder):
    model, best = DDP(network()), float("inf")
    optimizer = sgd(model)
    for step in range(4):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        value = loss.item() - step * dist.get_rank()  # FAULT
        if value < best:
            best = value
            torch.save(model.module.state_dict(), f"{folder}/best{dist.get_rank()}.pt")


def steps_with_no_rate():
    model = DDP(network())
    train(model, torch.optim.SGD(model.parameters(), lr=0.0))  # FAULT


def detaches_a_tower():
    model = DDP(nn.ModuleDict({"tower": nn.Linear(8, 8), "head": nn.Linear(8, 2)}), find_unused_parameters=True)
    model.module.forward = lambda inputs: model.module["head"](model.module["tower"](inputs).detach())
    optimizer = sgd(model)
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()  # FAULT


def skips_a_step_on_one_rank():
    model = DDP(network())
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(4):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        if (step, dist.get_rank()) != (1, 1):
            optimizer.step()  # FAULT
            scheduler.step()


def returns_to_its_own_best():
    model = DDP(network())
    optimizer, best = sgd(model, lr=1.0), float("inf")
    for step in range(4):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        if loss.item() < best:  # FAULT
            best = loss.item()
            state = {name: one.clone() for name, one in model.state_dict().items()}
        else:
            model.load_state_dict(state)
        optimizer.step()


def pairs_a_metric_with_a_gradient():
    model = network()
    optimizer, rank = sgd(model), dist.get_rank()
    for step in range(2):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        metric = torch.stack([loss.detach(), loss.detach()])
        for parameter in list(model.parameters())[:3]:
            dist.all_reduce(parameter.grad)
        if rank:
            dist.all_reduce(model[2].bias.grad)
        dist.all_reduce(metric)  # FAULT
        if not rank:
            dist.all_reduce(model[2].bias.grad)
        for parameter in model.parameters():
            parameter.grad /= 2
        optimizer.step()


def schedules_on_rank_0():
    model = DDP(network())
    optimizer = sgd(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if dist.get_rank() == 0 else None
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()  # FAULT
        if schedule:
            schedule.step()


# program, kind, severity, name
FAULTS = [
    (reads_too_early, "race", "wrong", ""),
    (writes_while_it_is_sent, "race", "wrong", ""),
    (drops_a_handle, "not waited for", "wrong", ""),
    (reads_what_nobody_waited_for, "not waited for", "wrong", ""),
    (gathers_copies_of_its_own_features, "copy without gradient", "suspicious", ""),
    (starts_from_different_weights, "different start", "wrong", "0.weight"),
    (forgets_a_layer, "gradients differ", "wrong", "2.weight"),
    (calls_the_inner_module, "past DDP", "wrong", "0.weight"),
    (ends_inside_no_sync, "inside no_sync", "wrong", ""),
    (unfreezes_after_ddp, "not in DDP's list", "wrong", "0.weight"),
    (sums_for_a_mean, "sum for mean", "wrong", "0.bias"),
    (reduces_twice, "reduced twice", "wrong", "0.bias"),
    (divides_what_ddp_has_averaged, "divided twice", "wrong", "0.bias"),
    (makes_the_optimizer_first, "not the model's", "wrong", None),
    (adds_a_head_later, "in no optimizer", "wrong", "3.bias"),
    (schedules_by_its_own_loss, "settings differ", "wrong", "lr"),
    (gives_all_ranks_one_batch, "same batch", "wrong", ""),
    (steps_the_schedule_for_each_micro_batch, "schedule too fast", "suspicious", "lr"),
    (shuffles_everything_on_each_rank, "read by every rank", "suspicious", ""),
    (forgets_the_epoch, "same order", "wrong", "epoch"),
    (copies_a_generator, "copied generator", "wrong", "GENERATOR"),
    (drops_the_same_everywhere, "equal draws", "suspicious", "torch's generator"),
    (reduces_inside_the_loss, "outside autograd", "wrong", ""),
    (gathers_without_gradients, "outside autograd", "wrong", ""),
    (skips_parameters_without_gradients, "paired by luck", "wrong", None),
    (sends_a_column, "not contiguous", "wrong", ""),
    (divides_by_nothing, "not finite", "wrong", None),
    (clips_what_is_scaled, "clipped while scaled", "wrong", ""),
    (takes_the_norm_of_a_shard, "norm of shards", "wrong", None),
    (averages_means, "mean of means", "wrong", "loss"),
    (lets_buffers_drift, "buffers differ", "wrong", "1.running_mean"),
    (recomputes_differently, "recomputed differently", "wrong", "region"),
    (loads_with_the_wrong_prefix, "loaded nothing", "wrong", "module.0.weight"),
    (loads_an_empty_state, "loaded nothing", "wrong", "optimizer"),
    (saves_its_shard, "saved in part", "wrong", ""),
    (resumes_without_the_optimizer, "not resumed", "wrong", "optimizer"),
    (adds_a_bias_on_every_rank, "bias summed", "wrong", "bias"),
    (keeps_the_best_by_its_own_loss, "decided by a local value", "suspicious", ""),
    (steps_with_no_rate, "changes nothing", "wrong", "0.bias"),
    (detaches_a_tower, "never a gradient", "suspicious", "tower.bias"),
    (schedules_on_rank_0, "settings differ", "wrong", "lr"),
    (skips_a_step_on_one_rank, "step skipped", "wrong", ""),
    (returns_to_its_own_best, "decided by a local value", "wrong", ""),
    (pairs_a_metric_with_a_gradient, "paired by luck", "wrong", "2.bias"),
]


@pytest.mark.parametrize(("program", "kind", "severity", "name"), FAULTS, ids=[one[0].__name__ for one in FAULTS])
def test_a_fault_is_named_first(program, kind, severity, name, tmp_path):
    args = [str(tmp_path)] if inspect.signature(program).parameters else []
    audit = ws.run(program, *args, world_size=2, audit=True, echo=False).audit
    assert not audit.failures, audit.failures[0]
    assert audit.findings, "nothing found"
    first = audit.findings[0]
    assert (first.kind, first.severity.value) == (kind, severity), audit
    assert name is None or first.name == name
    assert first.cure == CURES.get(kind, first.cure)
    if "# FAULT" in inspect.getsource(program):
        assert linecache.getline(first.line.filename, first.line.number).rstrip().endswith("# FAULT"), audit


def test_every_cure_is_of_a_kind_of_fault():
    assert CURES.keys() <= {kind for _, kind, *_ in FAULTS}
