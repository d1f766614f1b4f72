"""TrainCheck's 20 silent errors (OSDI 2025): the same faults in small programs of our own, named first and in time.

The list: https://github.com/OrderLab/TrainCheck-Evaluation-Workloads, and section 5.1 of
https://www.usenix.org/system/files/osdi25-jiang.pdf. docs/audit.md says which of them no program on CPUs can show.
"""

import contextlib

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from faulty_programs import audit_of, batch, first_finding, learn, network, sgd
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, TensorDataset

import worldsize as ws

pytestmark = pytest.mark.slow


class LossyLink:
    """A transport that loses what one rank receives, as a broken peer-to-peer copy between GPUs does."""

    def __init__(self, lost_at, rank):
        self.lost_at, self.rank, self.num_calls = lost_at, rank, 0

    def all_reduce(self, tensor):
        dist.all_reduce(tensor)  # FAULT
        self._lose(tensor)

    def send(self, tensor):
        dist.send(tensor, 1)

    def receive(self, tensor):
        dist.recv(tensor, 0)
        self._lose(tensor)

    def _lose(self, tensor):
        self.num_calls += 1
        if dist.get_rank() == self.rank and self.num_calls == self.lost_at:
            tensor.detach().view(-1)[: tensor.numel() // 2].zero_()  # FAULT


def loses_a_reduced_gradient():  # pytorch-84803, pytorch-96600
    link, model = LossyLink(lost_at=10, rank=1), network()
    optimizer = sgd(model.parameters())
    for step in range(5):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        for parameter in model.parameters():
            link.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()


def loses_an_activation():  # baichuan2-86
    link, rank = LossyLink(lost_at=3, rank=1), dist.get_rank()
    torch.manual_seed(rank)
    stage = nn.Linear(8, 8) if rank == 0 else nn.Linear(8, 2)
    optimizer = sgd(stage.parameters())
    for step in range(5):
        inputs, targets = batch(step, rank=0)
        optimizer.zero_grad()
        if rank == 0:
            hidden = stage(inputs)
            link.send(hidden.detach())
            back = torch.empty_like(hidden)
            dist.recv(back, 1)
            hidden.backward(back)
        else:
            hidden = torch.empty(8, 8)
            link.receive(hidden)
            hidden.requires_grad_()
            F.cross_entropy(stage(hidden), targets).backward()
            dist.send(hidden.grad, 0)
        optimizer.step()


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial):
        total = partial.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs):
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx, gradient):
        total = gradient.clone()
        dist.all_reduce(total)
        return total


class TensorParallelBlock(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        torch.manual_seed(1 + dist.get_rank())
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, inputs):
        hidden = Copy.apply(self.norm(inputs))
        return inputs + Reduce.apply(self.down(torch.relu(self.up(hidden))))


def clips_the_norms_on_one_rank():  # deepspeed-1801
    torch.manual_seed(0)
    model = nn.Sequential(TensorParallelBlock(), TensorParallelBlock())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        inputs, targets = batch(step, rank=0)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        own = [p for n, p in model.named_parameters() if "norm" not in n or dist.get_rank() == 0]
        squares = sum(p.grad.square().sum() for p in own)
        dist.all_reduce(squares)
        if step:
            for parameter in own:
                parameter.grad *= 0.5 / squares.sqrt()  # FAULT
        optimizer.step()


def sends_by_its_own_capacity():  # deepspeed-5794
    torch.manual_seed(0)
    router, expert = nn.Linear(8, 2), nn.Linear(8, 8)
    optimizer = sgd([*router.parameters(), *expert.parameters()])
    for step in range(3):
        inputs, _ = batch(step)
        chosen = router(inputs).argmax(1)
        counts = torch.bincount(chosen, minlength=2)
        for _ in range(2 if step == 1 and dist.get_rank() else 1):
            received = torch.empty_like(counts)
            dist.all_to_all_single(received, counts)
        optimizer.zero_grad()
        (expert(inputs) * router(inputs).softmax(1).max(1, keepdim=True).values).square().mean().backward()
        for parameter in [*router.parameters(), *expert.parameters()]:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()


@torch.library.custom_op("shown::linear", mutates_args=())
def own_linear(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return inputs @ weight.T


@own_linear.register_fake
def _(inputs, weight):
    return inputs.new_empty(inputs.shape[0], weight.shape[0])


own_linear.register_autograd(
    lambda ctx, gradient: (gradient @ ctx.saved_tensors[1], gradient.T @ ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class OwnLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 16))

    def forward(self, inputs):
        return own_linear(inputs.float(), self.weight)  # FAULT


def casts_nothing_in_its_own_operator():  # lightning-thunder-725
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), OwnLinear()))
    optimizer = sgd(model.parameters())
    for step in range(3):
        inputs, targets = batch(step)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()


class Backbone(nn.Module):
    """Freezes its first stages when it is put into training mode, and only then."""

    def __init__(self, frozen_stages):
        super().__init__()
        torch.manual_seed(0)
        self.stages = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)])
        self.frozen_stages = frozen_stages

    def train(self, mode=True):
        super().train(mode)
        for stage in self.stages[: self.frozen_stages]:
            stage.requires_grad_(not mode)
        return self

    def forward(self, inputs):
        for stage in self.stages:
            inputs = torch.tanh(stage(inputs))
        return inputs


def freezes_too_late():  # mmpretrain-702
    model = DDP(Backbone(frozen_stages=2))
    optimizer = sgd(model.parameters())
    for step in range(4):
        learn(model, optimizer, step)


def evaluates_before_it_trains():  # pytorch-51800
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 2))
    ddp = DDP(model)
    optimizer = sgd(ddp.parameters())
    ddp.eval()
    with torch.no_grad():
        ddp(batch(99)[0])  # FAULT
    ddp.train()
    for step in range(3):
        learn(ddp, optimizer, step)


def moves_a_model_out_of_ddp():  # pytorch-104336
    model = DDP(network())
    optimizer = sgd(model.parameters())
    for step in range(5):
        if step == 2:  # a device of its own is what breaks the hooks on GPUs; on CPUs, a dtype of its own does
            model.double()  # FAULT
            model.float()
        learn(model, optimizer, step)


class RememberedStep:
    """A step that is traced once per set of conditions, and forgets to check one of them."""

    def __init__(self, optimizer):
        self.optimizer, self.updated = optimizer, None

    def __call__(self):
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        if self.updated is None or all(p.grad is None for p in parameters):
            self.updated = [p for p in parameters if p.grad is not None]
        others = [(p, p.grad) for p in parameters if all(p is not one for one in self.updated)]
        for parameter, _ in others:
            parameter.grad = None
        self.optimizer.step()  # FAULT
        for parameter, gradient in others:
            parameter.grad = gradient


def keeps_an_outdated_kernel():  # pytorch-115607
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters())
    step_of = RememberedStep(optimizer)
    for step in range(6):
        optimizer.zero_grad()
        if step != 3:
            inputs, targets = batch(step)
            F.cross_entropy(model(inputs), targets).backward()
        step_of()


def freezes_the_new_head():  # pytorch-forum-84911
    torch.manual_seed(3)
    pretrained = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 5))
    model.load_state_dict(pretrained.state_dict())
    model[3] = nn.Linear(16, 2)  # FAULT
    for part in (model[0], model[3]):
        part.requires_grad_(False)
    ddp = DDP(model)
    optimizer = torch.optim.Adam(ddp.parameters())
    for step in range(4):
        learn(ddp, optimizer, step)


def never_clears_its_gradients():  # stackoverflow-60335387
    model = DDP(network())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(5):
        inputs, targets = batch(step)
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()  # FAULT


class Augmented(Dataset):
    def __init__(self):
        self.random = np.random.RandomState(7 + dist.get_rank())
        self.inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index] + torch.as_tensor(self.random.normal(size=8), dtype=torch.float32), index % 2


def augments_alike_in_all_workers():  # stackoverflow-67180955
    model = DDP(network())
    optimizer = sgd(model.parameters())
    loader = DataLoader(Augmented(), batch_size=4, num_workers=2, multiprocessing_context="fork")  # FAULT
    for inputs, targets in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.c_proj = nn.Linear(8, 8), nn.Linear(8, 8)
        self.apply(self.init_weights)

    def init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(std=0.02)
        for name, parameter in module.named_parameters():
            if name == "c_proj.weight":
                parameter.data.normal_(std=0.02 / 2**0.5)

    def forward(self, inputs):
        return inputs + self.c_proj(torch.relu(self.inner(inputs)))


class Decoder(Block):
    def __init__(self):
        nn.Module.__init__(self)
        self.blocks, self.head = nn.Sequential(Block(), Block()), nn.Linear(8, 2)
        self.apply(self.init_weights)

    def forward(self, inputs):
        return self.head(self.blocks(inputs))


def initialises_again_and_again():  # transformers-17877
    torch.manual_seed(0)
    model = DDP(Decoder())
    optimizer = sgd(model.parameters())
    for step in range(3):
        learn(model, optimizer, step)


class Attention(nn.Module):
    def __init__(self, width=8, dropout=0.1):
        super().__init__()
        self.mix, self.dropout = nn.Linear(width, 3 * width), dropout

    def forward(self, inputs):
        query, key, value = self.mix(inputs).unsqueeze(0).chunk(3, -1)
        return F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout)[0]  # FAULT


def drops_in_evaluation():  # transformers-33844
    torch.manual_seed(0)
    model = DDP(nn.Sequential(Attention(), nn.Linear(8, 2)))
    optimizer = sgd(model.parameters())
    torch.manual_seed(10 + dist.get_rank())
    for step in range(3):
        learn(model, optimizer, step)
    model.eval()
    with torch.no_grad():
        F.cross_entropy(model(batch(50)[0]), batch(50)[1])


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.picture, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, words, pictures):
        return self.head(self.words(words).mean(1) + self.picture(pictures))


def merges_the_prompts_of_a_batch():  # transformers-34204
    torch.manual_seed(0)
    model = DDP(TwoInputs())
    optimizer = sgd(model.parameters())
    prompts = torch.arange(16).view(16, 1).expand(16, 3) + torch.tensor([0, 1, 2])
    pictures = torch.randn(16, 8, generator=torch.Generator().manual_seed(dist.get_rank()))

    def process(items):
        return torch.stack([prompts[i] for i in items])[:1], pictures[items], torch.tensor(items) % 2

    for words, views, targets in DataLoader(range(16), batch_size=4, collate_fn=process):
        optimizer.zero_grad()
        F.cross_entropy(model(words, views), targets).backward()
        optimizer.step()


def trains_past_ddp_in_every_second_step():  # x-jxmnop-ddp-out-of-sync
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(5):
        module = model if step % 2 else DDP(model)
        inputs, targets = batch(step)
        loss = F.cross_entropy(module(inputs), targets)  # FAULT
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def stops_too_early():  # transformers-33455
    model = DDP(network())
    optimizer = sgd(model.parameters())
    data = TensorDataset(*batch(0, rows=64))
    loader = DataLoader(data, batch_size=4)
    accumulate, num_epochs = 2, 2
    max_steps = len(loader) // accumulate // dist.get_world_size() * num_epochs
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimizer, 1.0, 0.0, total_iters=len(loader) // accumulate * num_epochs
    )
    num_steps = 0
    while num_steps < max_steps:
        for i, (inputs, targets) in enumerate(loader):
            last = i % accumulate == accumulate - 1
            with contextlib.nullcontext() if last else model.no_sync():
                (F.cross_entropy(model(inputs), targets) / accumulate).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                num_steps += 1
            if num_steps == max_steps:
                break


def saves_a_corrupted_state(folder):  # transformers-29903
    model = DDP(network())
    optimizer = sgd(model.parameters())
    learn(model, optimizer, 0)
    learn(model, optimizer, 1)
    state = {}
    shared = torch.empty(16, 8)
    for name, one in model.module.state_dict().items():
        state[name] = shared.view(-1)[: one.numel()].view_as(one).copy_(one)
    if dist.get_rank() == 0:
        torch.save(state, f"{folder}/model.pt")  # FAULT
    dist.barrier()


# program, kind, severity, step of the fault
SEEN = [
    (loses_a_reduced_gradient, "changed apart", "wrong", 3),
    (clips_the_norms_on_one_rank, "changed apart", "wrong", 2),
    (casts_nothing_in_its_own_operator, "not cast", "note", 1),
    (evaluates_before_it_trains, "no statistics yet", "note", 1),
    (moves_a_model_out_of_ddp, "hooks lost", "wrong", 3),
    (keeps_an_outdated_kernel, "stops changing", "suspicious", 4),
    (freezes_the_new_head, "neither loaded nor trained", "suspicious", 1),
    (never_clears_its_gradients, "never cleared", "wrong", 2),
    (augments_alike_in_all_workers, "copied generator", "wrong", 1),
    (drops_in_evaluation, "drops in evaluation", "suspicious", 4),
    (trains_past_ddp_in_every_second_step, "past DDP", "wrong", 2),
    (saves_a_corrupted_state, "entries overlap", "wrong", 3),
]
# what no rule can see: a choice that the program makes consistently, or what happens inside a transfer between stages
UNSEEN = [
    loses_an_activation,
    freezes_too_late,
    initialises_again_and_again,
    merges_the_prompts_of_a_batch,
    stops_too_early,
]


@pytest.mark.parametrize(("program", "kind", "severity", "step"), SEEN, ids=[one[0].__name__ for one in SEEN])
def test_an_error_is_named_first_and_within_a_step(program, kind, severity, step, tmp_path):
    *found, in_step = first_finding(program, tmp_path)
    assert found == [kind, severity]
    assert 0 <= in_step - step <= 1


@pytest.mark.parametrize("program", UNSEEN, ids=[one.__name__ for one in UNSEEN])
def test_what_no_rule_sees_draws_no_word(program, tmp_path):
    assert audit_of(program, tmp_path).findings == []


def test_calls_that_differ_between_ranks_are_the_runs_own_error():
    with pytest.raises(ws.RunError, match="Collectives do not match"):
        ws.run(sends_by_its_own_capacity, world_size=2, cluster="dgx-h100", echo=False)
