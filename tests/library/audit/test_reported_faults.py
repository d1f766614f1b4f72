"""Silent faults reported in issue trackers of the last years, each in a small program of our own."""

import contextlib

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from faulty_programs import audit_of, batch, first_finding, learn, network, sgd
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset, TensorDataset, random_split

pytestmark = pytest.mark.slow


def averages_micro_batches_of_unequal_size():  # https://github.com/huggingface/transformers/pull/34191
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(2):
            inputs, targets = batch(10 * step + micro)
            targets[: 6 * micro] = -100
            with model.no_sync() if micro == 0 else contextlib.nullcontext():
                (F.cross_entropy(model(inputs), targets) / 2).backward()  # FAULT
        optimizer.step()


def steps_the_schedule_once_a_rank():  # https://github.com/huggingface/accelerate/issues/2926
    model = DDP(network())
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    for step in range(4):
        learn(model, optimizer, step)
        for _ in range(dist.get_world_size()):
            schedule.step()  # FAULT


def reads_the_same_data_after_a_restart(folder):  # https://github.com/huggingface/accelerate/issues/2016
    data = TensorDataset(*batch(0, rows=32, rank=0))

    def job(first_step, last_step):
        model = DDP(network())
        optimizer = torch.optim.AdamW(model.parameters())
        sampler = DistributedSampler(data, seed=5)
        if first_step:
            state = torch.load(f"{folder}/state.pt")
            model.load_state_dict(state["model"])  # FAULT
            optimizer.load_state_dict(state["optimizer"])
        step = first_step
        for inputs, targets in DataLoader(data, batch_size=4, sampler=sampler):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            step += 1
            if step == last_step:
                break
        if dist.get_rank() == 0 and not first_step:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/state.pt")
        dist.barrier()

    job(0, 2)
    job(2, 4)


def shards_blocks_and_not_the_root():  # https://github.com/Tencent-Hunyuan/UniRL/pull/7
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 2))
    mesh = init_device_mesh("cpu", (2,))
    fully_shard(model[1], mesh=mesh)  # FAULT
    optimizer = sgd(model.parameters())
    for step in range(3):
        learn(model, optimizer, step)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words):
        return self.head(torch.tanh(self.body(self.embed(words))))


def unties_weights_on_the_way_from_meta():  # https://github.com/huggingface/accelerate/pull/3154
    with torch.device("meta"):
        model = Language()
    for module in (model.embed, model.body, model.head):
        module.to_empty(device="cpu")  # FAULT
    torch.manual_seed(0)
    weights = torch.randn(20, 8)
    model.load_state_dict(
        {"embed.weight": weights, "head.weight": weights, "body.weight": torch.eye(8), "body.bias": torch.zeros(8)}
    )
    ddp = DDP(model)
    optimizer = sgd(ddp.parameters())
    for step in range(3):
        words = torch.randint(20, (8, 6), generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))
        optimizer.zero_grad()
        F.cross_entropy(ddp(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()


class Rotated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 2)
        self.register_buffer("frequencies", 10000.0 ** (-torch.arange(8) / 8), persistent=False)

    def forward(self, inputs):
        return self.linear(inputs * torch.cos(self.frequencies))


def leaves_a_buffer_empty():  # https://github.com/huggingface/transformers/issues/45902
    state = Rotated().state_dict()
    torch.manual_seed(0)
    state = {name: torch.randn_like(one) for name, one in state.items()}
    with torch.device("meta"):
        model = Rotated()
    model.to_empty(device="cpu")  # FAULT
    model.load_state_dict(state)
    ddp = DDP(model)
    optimizer = sgd(ddp.parameters())
    for step in range(3):
        learn(ddp, optimizer, step)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 2)

    def forward(self, inputs):
        return self.down(torch.relu(self.up(inputs)))  # FAULT


def gives_tensor_parallel_ranks_different_batches():  # https://github.com/AI-Hypercomputer/maxtext/pull/1533
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    model = parallelize_module(FeedForward(), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = sgd(model.parameters())
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def clips_each_stage_by_its_own_norm():  # https://github.com/pytorch/torchtitan/issues/596
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = nn.Linear(8, 8) if rank == 0 else nn.Linear(8, 2)
    optimizer = sgd(stage.parameters())
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
        nn.utils.clip_grad_norm_(stage.parameters(), 0.1)  # FAULT
        optimizer.step()


def trains_in_bfloat16_without_masters():  # https://github.com/huggingface/accelerate/issues/3979
    model = DDP(network().bfloat16())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)  # FAULT
    for step in range(4):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs.bfloat16()).float(), targets).backward()
        optimizer.step()


class Stream(IterableDataset):
    def __iter__(self):
        inputs, targets = batch(0, rows=32)
        yield from zip(inputs, targets, strict=True)


def streams_everything_in_every_worker():  # https://github.com/huggingface/finetrainers/issues/394
    model = DDP(network())
    optimizer = sgd(model.parameters())
    loader = DataLoader(Stream(), batch_size=4, num_workers=2, multiprocessing_context="fork")  # FAULT
    for inputs, targets in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def averages_and_saves_one_shard(folder):  # https://github.com/NCAR/miles-credit/issues/414
    model = network()
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = sgd(model.parameters())
    shadow = {name: one.to_local().detach().clone() for name, one in model.named_parameters()}
    for step in range(3):
        learn(model, optimizer, step)
        for name, one in model.named_parameters():
            shadow[name].lerp_(one.to_local().detach(), 0.1)
    if dist.get_rank() == 0:
        torch.save(shadow, f"{folder}/ema.pt")  # FAULT
    dist.barrier()


def evaluates_on_rank_0_and_stays_there():  # https://github.com/huggingface/lerobot/issues/3668
    model = DDP(network(dropout=0.5))
    optimizer = sgd(model.parameters())
    torch.manual_seed(dist.get_rank())
    for step in range(5):
        if step == 2 and dist.get_rank() == 0:
            model.eval()  # FAULT
            with torch.no_grad():
                model.module(batch(99)[0])
        learn(model, optimizer, step)


def evaluates_and_stays_there():  # https://github.com/tk-rusch/coRNN/issues/1
    model = DDP(network(dropout=0.5))
    optimizer = sgd(model.parameters())
    torch.manual_seed(dist.get_rank())
    for epoch in range(2):
        for step in range(2):
            learn(model, optimizer, 10 * epoch + step)
        model.eval()  # FAULT
        with torch.no_grad():
            model(batch(99)[0])


def keeps_norm_gradients_apart():  # https://github.com/NVIDIA/Megatron-LM/issues/1446
    torch.manual_seed(0)
    norm, head = nn.LayerNorm(8), nn.Linear(8, 2)
    optimizer = sgd([*norm.parameters(), *head.parameters()])
    for step in range(3):
        inputs, targets = batch(step, rank=0)
        part, own = inputs.chunk(2)[dist.get_rank()], targets.chunk(2)[dist.get_rank()]
        optimizer.zero_grad()
        (F.cross_entropy(head(norm(part)), own, reduction="sum") / len(targets)).backward()
        for parameter in head.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()  # FAULT


def splits_the_data_twice():  # https://github.com/huggingface/accelerate/issues/3520
    model = DDP(network())
    optimizer = sgd(model.parameters())
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = Subset(TensorDataset(*batch(0, rows=64, rank=0)), range(rank, 64, world_size))
    sampler = DistributedSampler(data)
    for inputs, targets in DataLoader(data, batch_size=4, sampler=sampler):  # FAULT
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def splits_validation_off_by_its_own_seed():  # https://github.com/TensorAuto/OpenTau/pull/498
    model = DDP(network())
    optimizer = sgd(model.parameters())
    torch.manual_seed(dist.get_rank())
    training, _ = random_split(TensorDataset(*batch(0, rows=64, rank=0)), [48, 16])
    sampler = DistributedSampler(training)
    for inputs, targets in DataLoader(training, batch_size=4, sampler=sampler):  # FAULT
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def shuffles_by_a_seed_of_its_own():  # https://github.com/NVlabs/LongLive/issues/71
    model = DDP(network())
    optimizer = sgd(model.parameters())
    data = TensorDataset(*batch(0, rows=64, rank=0))
    sampler = DistributedSampler(data, seed=1 + dist.get_rank())
    for inputs, targets in DataLoader(data, batch_size=4, sampler=sampler):  # FAULT
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def skips_steps_by_its_own_shard():  # https://github.com/pytorch/pytorch/pull/115710
    model = network()
    parts = [list(model[0].parameters()), list(model[-1].parameters())]
    optimizer = sgd(parts[dist.get_rank()])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(4):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(inputs), targets)).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        if step == 1:
            model[0].weight.grad[0, 0] = float("inf")
        scaler.step(optimizer)  # FAULT
        scaler.update()
        for owner, part in enumerate(parts):
            for parameter in part:
                dist.broadcast(parameter.data, owner)


def draws_the_same_noise_in_every_step():  # https://github.com/vllm-project/speculators/issues/1027
    model = DDP(network(dropout=0.5))
    optimizer = sgd(model.parameters())
    for step in range(4):
        torch.manual_seed(1234 + dist.get_rank())  # FAULT
        learn(model, optimizer, step)


def clears_each_micro_batch():  # https://github.com/bytetriper/RAE/issues/67
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for step in range(3):
        for micro in range(2):
            inputs, targets = batch(10 * step + micro)
            optimizer.zero_grad()  # FAULT
            (F.cross_entropy(model(inputs), targets) / 2).backward()
        optimizer.step()


def schedules_an_optimizer_that_was_replaced():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        learn(model, optimizer, step)
        schedule.step()  # FAULT


def leaves_gradients_unsharded():  # https://github.com/huggingface/picotron/pull/5
    model = network()
    sharded = fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    optimizer = sgd(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(2):
            inputs, targets = batch(10 * step + micro)
            sharded.set_requires_gradient_sync(micro == 0)  # FAULT
            (F.cross_entropy(model(inputs), targets) / 2).backward()
        optimizer.step()


def restores_no_numbers(folder):  # https://github.com/pytorch/pytorch/issues/140900
    def job(first_step, last_step):
        model = DDP(network())
        optimizer = sgd(model.parameters(), momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
        if first_step:
            own, steps = get_state_dict(model, optimizer)
            dcp.load({"model": own, "steps": steps, "schedule": schedule.state_dict()}, checkpoint_id=folder)  # FAULT
            set_state_dict(model, optimizer, model_state_dict=own, optim_state_dict=steps)
        for step in range(first_step, last_step):
            learn(model, optimizer, step)
            schedule.step()
        if not first_step:
            own, steps = get_state_dict(model, optimizer)
            dcp.save({"model": own, "steps": steps, "schedule": schedule.state_dict()}, checkpoint_id=folder)

    job(0, 3)
    job(3, 6)


def writes_one_file_from_all_ranks(folder):  # https://github.com/karpathy/nanochat/pull/336
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for step in range(2):
        learn(model, optimizer, step)
    torch.save({"model": model.module.state_dict(), "rank": dist.get_rank()}, f"{folder}/model.pt")  # FAULT


class Mixture(nn.Module):
    def __init__(self, router, expert):
        super().__init__()
        self.router, self.expert = router, expert

    def forward(self, inputs):
        halves = inputs.view(4, 2, 8).transpose(0, 1).contiguous()
        received = all_to_all_single(torch.empty_like(halves), halves)
        returned = all_to_all_single(torch.empty_like(halves), self.expert(received))
        return returned.transpose(0, 1).reshape(8, 8) * self.router(inputs).softmax(1).max(1, keepdim=True).values


def averages_experts():
    rank = dist.get_rank()
    torch.manual_seed(0)
    router = nn.Linear(8, 2)
    torch.manual_seed(1 + rank)
    ddp = DDP(Mixture(router, nn.Linear(8, 8)))  # the experts differ, and DDP makes them equal
    optimizer = sgd(ddp.parameters())
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(ddp(inputs), targets).backward()
        optimizer.step()


def carries_gradients_into_the_next_epoch():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for epoch in range(3):
        for micro in range(3):
            inputs, targets = batch(10 * epoch + micro)
            (F.cross_entropy(model(inputs), targets) / 2).backward()
            if micro % 2:
                optimizer.step()
                optimizer.zero_grad()


def never_updates_its_teacher():
    student = DDP(network())
    teacher = network()
    optimizer = sgd(student.parameters())
    for step in range(4):
        inputs, _ = batch(step)
        with torch.no_grad():
            goals = teacher(inputs).softmax(1)
        optimizer.zero_grad()
        F.cross_entropy(student(inputs + 0.1), goals).backward()
        optimizer.step()
        for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
            slow.data = slow.data * 1.0 + 0.0 * fast.data


def sums_in_a_hook():
    model = network()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad))  # FAULT
    optimizer = sgd(model.parameters())
    for step in range(3):
        learn(model, optimizer, step)


def sums_in_a_hook_before_the_sum():
    def reduced(gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)  # FAULT
        return gradient

    model = network()
    for parameter in model.parameters():
        parameter.register_hook(reduced)
    optimizer = sgd(model.parameters())
    for step in range(3):
        learn(model, optimizer, step)


def divides_again_in_a_hook_of_ddp():
    def averaged(_, bucket):
        buffer = bucket.buffer().div_(dist.get_world_size())
        work = dist.all_reduce(buffer, async_op=True)  # FAULT
        return work.get_future().then(lambda future: future.value()[0] / dist.get_world_size())

    model = DDP(network())
    model.register_comm_hook(None, averaged)
    optimizer = sgd(model.parameters())
    for step in range(3):
        learn(model, optimizer, step)


def warms_up_the_defaults():
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # FAULT
    for step in range(4):
        optimizer.defaults["lr"] = 0.02 * (step + 1)
        learn(model, optimizer, step)


def shuffles_by_a_generator_that_is_seeded_anew():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    inputs, targets = batch(0, rows=24)
    for _ in range(3):
        generator = torch.Generator().manual_seed(0)
        for rows in torch.randperm(24, generator=generator).split(8):  # FAULT
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()


def evaluated(model, reduce_size):
    """The accuracy on the same samples on every rank."""
    inputs, targets = batch(50, rows=32, rank=0)
    hits, size = torch.zeros(()), torch.tensor(32.0)
    model.eval()
    with torch.no_grad():
        for rows, goals in DataLoader(TensorDataset(inputs, targets), batch_size=8):  # FAULT
            hits += (model(rows).argmax(1) == goals).sum()
    model.train()
    dist.all_reduce(hits)
    if reduce_size:
        dist.all_reduce(size)
    return hits / size


def sums_the_counts_of_a_whole_evaluation():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for step in range(3):
        learn(model, optimizer, step)
    evaluated(model, reduce_size=False)


def clips_on_one_rank():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        if dist.get_rank() == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)  # FAULT
        optimizer.step()


def scales_on_one_rank():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            parameter.grad.data *= 1.0 + dist.get_rank()  # FAULT
        optimizer.step()


def decays_to_nothing():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=3)  # FAULT
    for step in range(9):
        learn(model, optimizer, step)
        schedule.step()


def keeps_the_schedule_of_its_first_optimizer():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    for step in range(8):
        if step == 2:
            optimizer = sgd(model.parameters(), momentum=0.9)
        learn(model, optimizer, step)
        schedule.step()  # FAULT


def freezes_what_the_state_had_not():
    model = nn.Sequential(network(), nn.Linear(2, 2))
    model.load_state_dict({f"0.{name}": one for name, one in network(7).state_dict().items()}, strict=False)  # FAULT
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("0.2"))
    ddp = DDP(model)
    optimizer = sgd(p for p in ddp.parameters() if p.requires_grad)
    for step in range(3):
        learn(ddp, optimizer, step)


def adds_noise_to_weights():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    torch.manual_seed(dist.get_rank())
    for step in range(4):
        learn(model, optimizer, step)
        for parameter in model.parameters():
            parameter.data += 0.01 * torch.randn_like(parameter)  # FAULT


def seeds_the_model_by_rank():
    torch.manual_seed(dist.get_rank())  # FAULT
    model = nn.Linear(8, 2)
    optimizer = sgd(model.parameters())
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()


def divides_the_loss_that_ddp_averages():
    world_size = dist.get_world_size()
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for step in range(3):
        optimizer.zero_grad()
        for micro in range(2):
            inputs, targets = batch(10 * step + micro)
            with model.no_sync() if micro == 0 else contextlib.nullcontext():
                (F.cross_entropy(model(inputs), targets) / (2 * world_size)).backward()  # FAULT
        optimizer.step()


def clears_one_of_two_optimizers():
    model = DDP(network())
    first, second = sgd(model.module[0].parameters()), sgd(model.module[2].parameters())
    for step in range(4):
        inputs, targets = batch(step)
        first.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        first.step()
        second.step()  # FAULT


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Linear(8, 2, bias=False), nn.Linear(8, 2)
        self.head.weight = self.embed.weight

    def widen(self):
        self.embed = nn.Linear(8, 2, bias=False)  # FAULT
        self.head.weight = nn.Parameter(self.head.weight.detach().clone())

    def forward(self, inputs):
        return self.head(inputs) + self.embed(inputs)


def widens_and_unties():
    torch.manual_seed(0)
    model = Shared()
    model.widen()
    ddp = DDP(model)
    optimizer = sgd(ddp.parameters())
    for step in range(3):
        learn(ddp, optimizer, step)


def cleans_its_gradients():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for step in range(3):
        inputs, _ = batch(step)
        optimizer.zero_grad()
        outputs = model(inputs)
        (outputs - outputs.detach()).square().sum(1).sqrt().mean().backward()  # FAULT
        for parameter in model.parameters():
            torch.nan_to_num_(parameter.grad)
        optimizer.step()


def skips_steps_in_turn():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for step in range(6):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        if step != 1 + dist.get_rank():
            optimizer.step()  # FAULT


def counts_what_it_sums():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for step in range(3):
        learn(model, optimizer, step)
    evaluated(model, reduce_size=True)


def schedules_a_generator_that_steps_every_third_time():
    critic, generator = DDP(network()), DDP(network(1))
    optimizers = [sgd(critic.parameters()), sgd(generator.parameters())]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(one, 0.9) for one in optimizers]
    for step in range(8):
        learn(critic, optimizers[0], step)
        if step % 3 == 0:
            learn(generator, optimizers[1], step)
        for schedule in schedules:
            schedule.step()


def decays_to_nothing_at_the_end():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=7)
    for step in range(8):
        learn(model, optimizer, step)
        schedule.step()


def tunes_a_new_model_from_a_state():
    model = DDP(network())
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        learn(model, optimizer, step)
    tuned = nn.Sequential(network(3), nn.Linear(2, 2))
    state = {f"0.{name}": one for name, one in model.module.state_dict().items()}
    tuned.load_state_dict(state, strict=False)
    tuned[0].requires_grad_(False)
    ddp = DDP(tuned)
    optimizer = torch.optim.AdamW(ddp.module[1].parameters())
    for step in range(3):
        learn(ddp, optimizer, 10 + step)


def scales_a_gradient_in_a_hook():
    model = network()
    next(model.parameters()).register_hook(lambda gradient: gradient / 2)
    ddp = DDP(model)
    optimizer = sgd(ddp.parameters())
    for step in range(3):
        learn(ddp, optimizer, step)


def joins_with_uneven_batches():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for epoch in range(2):
        with model.join():
            for step in range(6 + 2 * dist.get_rank()):
                inputs, targets = batch(10 * epoch + step, rows=4 if step == 7 else 8)
                optimizer.zero_grad()
                F.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
        dist.all_reduce(torch.ones(1))


class ShardedSgd:
    """An optimizer that is given its gradient: no backward pass adds to it."""

    def __init__(self, model):
        self.model, rank = model, dist.get_rank()
        self.flat = nn.utils.parameters_to_vector(model.parameters()).detach()
        size = len(self.flat) // 2
        self.part = slice(rank * size, (rank + 1) * size)
        self.shard = nn.Parameter(self.flat[self.part].clone())
        self.inner = sgd([self.shard])

    def step(self):
        gradient = torch.cat([p.grad.flatten() for p in self.model.parameters()])
        dist.all_reduce(gradient)
        self.shard.grad = gradient[self.part] / dist.get_world_size()
        self.inner.step()
        parts = [torch.empty_like(self.shard.data) for _ in range(2)]
        dist.all_gather(parts, self.shard.data)
        nn.utils.vector_to_parameters(torch.cat(parts), self.model.parameters())


def shards_its_optimizer_by_hand():
    model = network()
    optimizer = ShardedSgd(model)
    for step in range(4):
        inputs, targets = batch(step)
        model.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


def ties_again_after_it_has_widened():
    model = Shared()
    model.widen()
    model.head.weight = model.embed.weight
    ddp = DDP(model)
    optimizer = sgd(ddp.parameters())
    for step in range(3):
        learn(ddp, optimizer, step)


def shuffles_by_one_generator():
    model = DDP(network())
    optimizer = sgd(model.parameters())
    inputs, targets = batch(0, rows=24)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        for rows in torch.randperm(24, generator=generator).split(8):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs[rows]), targets[rows]).backward()
            optimizer.step()


# program, kind, severity, first step that it concerns
SEEN = [
    (averages_micro_batches_of_unequal_size, "mean of means", "wrong", 1),
    (steps_the_schedule_once_a_rank, "schedule too fast", "suspicious", 2),
    (reads_the_same_data_after_a_restart, "not resumed", "suspicious", 3),
    (shards_blocks_and_not_the_root, "gradients differ", "wrong", 1),
    (unties_weights_on_the_way_from_meta, "untied", "wrong", 1),
    (leaves_a_buffer_empty, "never written", "wrong", 1),
    (gives_tensor_parallel_ranks_different_batches, "replicas differ", "wrong", 1),
    (clips_each_stage_by_its_own_norm, "norm of a stage", "suspicious", 1),
    (trains_in_bfloat16_without_masters, "lost in rounding", "suspicious", 2),
    (streams_everything_in_every_worker, "read by every worker", "wrong", 1),
    (averages_and_saves_one_shard, "saved in part", "wrong", 4),
    (evaluates_on_rank_0_and_stays_there, "trained in evaluation mode", "wrong", 3),
    (evaluates_and_stays_there, "trained in evaluation mode", "suspicious", 3),
    (keeps_norm_gradients_apart, "gradients differ", "wrong", 1),
    (splits_the_data_twice, "split apart", "wrong", 3),
    (splits_validation_off_by_its_own_seed, "split apart", "wrong", 4),
    (shuffles_by_a_seed_of_its_own, "split apart", "wrong", 5),
    (skips_steps_by_its_own_shard, "step skipped", "wrong", 2),
    (draws_the_same_noise_in_every_step, "repeated draws", "suspicious", 2),
    (clears_each_micro_batch, "thrown away", "suspicious", 1),
    (schedules_an_optimizer_that_was_replaced, "schedule of no steps", "wrong", 2),
    (leaves_gradients_unsharded, "not reduced by FSDP2", "wrong", 1),
    (restores_no_numbers, "not resumed", "suspicious", 4),
    (writes_one_file_from_all_ranks, "same file", "suspicious", 3),
    (sums_in_a_hook, "sum for mean", "wrong", 1),
    (sums_in_a_hook_before_the_sum, "sum for mean", "wrong", 1),
    (divides_again_in_a_hook_of_ddp, "divided twice", "wrong", 1),
    (warms_up_the_defaults, "changes nothing", "wrong", 1),
    (shuffles_by_a_generator_that_is_seeded_anew, "same order", "suspicious", 1),
    (sums_the_counts_of_a_whole_evaluation, "counted twice", "suspicious", 4),
    (clips_on_one_rank, "changed apart", "wrong", 1),
    (scales_on_one_rank, "changed apart", "wrong", 1),
    (decays_to_nothing, "stops changing", "suspicious", 4),
    (keeps_the_schedule_of_its_first_optimizer, "schedule of no steps", "wrong", 9),
    (freezes_what_the_state_had_not, "neither loaded nor trained", "suspicious", 1),
    (adds_noise_to_weights, "weights differ", "wrong", 1),
    (seeds_the_model_by_rank, "different start", "wrong", 1),
    (divides_the_loss_that_ddp_averages, "divided twice", "suspicious", 1),
    (clears_one_of_two_optimizers, "never cleared", "wrong", 4),
    (widens_and_unties, "untied", "wrong", 1),
    (cleans_its_gradients, "not finite", "suspicious", 1),
    (skips_steps_in_turn, "step skipped", "wrong", 2),
]
UNSEEN = [averages_experts, carries_gradients_into_the_next_epoch, never_updates_its_teacher]
RIGHT = [
    counts_what_it_sums,
    schedules_a_generator_that_steps_every_third_time,
    decays_to_nothing_at_the_end,
    tunes_a_new_model_from_a_state,
    shuffles_by_one_generator,
    shards_its_optimizer_by_hand,
    scales_a_gradient_in_a_hook,
    ties_again_after_it_has_widened,
]


@pytest.mark.parametrize(("program", "kind", "severity", "step"), SEEN, ids=[one[0].__name__ for one in SEEN])
def test_a_reported_fault_is_named_first(program, kind, severity, step, tmp_path):
    assert first_finding(program, tmp_path) == (kind, severity, step)


@pytest.mark.parametrize("program", UNSEEN, ids=[one.__name__ for one in UNSEEN])
def test_what_no_rule_sees_draws_no_word(program, tmp_path):
    assert audit_of(program, tmp_path).findings == []


def test_ranks_that_join_draw_no_more_than_a_note(tmp_path):
    findings = audit_of(joins_with_uneven_batches, tmp_path).findings
    assert {finding.severity.value for finding in findings} <= {"note"}, findings


@pytest.mark.parametrize("program", RIGHT, ids=[one.__name__ for one in RIGHT])
def test_a_right_program_that_looks_like_one_draws_no_word(program, tmp_path):
    assert audit_of(program, tmp_path).findings == []
