"""Language model in two pipeline stages. The embedding of stage 0 and the output matrix of stage 1 are
tied: both stages hold a copy that starts with the same values.

KIND: 20
RANKS: 2
NAME: embed.weight
SOURCE: https://github.com/NVIDIA/Megatron-LM/issues/299
RIGHT: The gradients of the two copies are never summed over the stages, so the tied weights train apart.
"""

import torch
import torch.distributed as dist
from torch import nn

VOCAB, WIDTH, BATCH = 20, 12, 16


class FirstStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.encode = nn.Linear(WIDTH, WIDTH)


class LastStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.decode = nn.Linear(WIDTH, WIDTH)


def step_first(stage, tokens):
    hidden = torch.tanh(stage.encode(stage.embed(tokens)))
    dist.send(hidden.detach(), dst=1)
    grad = torch.empty(BATCH, WIDTH)
    dist.recv(grad, src=1)
    hidden.backward(grad)


def step_last(stage, target):
    hidden = torch.empty(BATCH, WIDTH)
    dist.recv(hidden, src=0)
    hidden.requires_grad_()
    logits = torch.tanh(stage.decode(hidden)) @ stage.embed.weight.t()
    loss = nn.functional.cross_entropy(logits, target)
    loss.backward()
    dist.send(hidden.grad, dst=0)
    return loss.item()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
stage = FirstStage() if rank == 0 else LastStage()
opt = torch.optim.SGD(stage.parameters(), lr=0.5)
gen = torch.Generator().manual_seed(3)
for step in range(5):
    tokens = torch.randint(0, VOCAB, (BATCH,), generator=gen)
    opt.zero_grad()
    if rank == 0:
        step_first(stage, tokens)
    else:
        print(f"step {step} loss {step_last(stage, (tokens * 3 + 1) % VOCAB):.4f}")
    opt.step()  # FAULT
dist.destroy_process_group()
