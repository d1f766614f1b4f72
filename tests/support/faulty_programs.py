"""What small programs with one silent fault share: a model, its data, a step, and how an audit of them is read."""

import inspect
import linecache

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import worldsize as ws


def network(seed=0, dropout=0.0):
    """Return the same model on every rank, unless their seeds differ."""
    torch.manual_seed(seed)
    drop = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *drop, nn.Linear(16, 2))


def batch(step, rows=8, rank=None):
    """Return inputs and targets of a step, different on every rank."""
    rank = dist.get_rank() if rank is None else rank
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(rows, 8, generator=generator), torch.randint(2, (rows,), generator=generator)


def sgd(parameters, **options):
    """Return an optimizer with a learning rate of 0.1."""
    return torch.optim.SGD(parameters, **{"lr": 0.1, **options})


def learn(model, optimizer, step, loss_of=F.cross_entropy):
    """Take a right step."""
    inputs, targets = batch(step)
    optimizer.zero_grad()
    loss_of(model(inputs), targets).backward()
    optimizer.step()


def audit_of(program, folder):
    """Audit two ranks of a program, which takes a folder or nothing."""
    args = [str(folder)] if inspect.signature(program).parameters else []
    audit = ws.run(program, *args, world_size=2, audit=True, echo=False).audit
    assert not audit.failures, audit.failures[0]
    return audit


def first_finding(program, folder):
    """Return what an audit finds first, which is in the line that ends in `# FAULT`: its kind, severity and step."""
    audit = audit_of(program, folder)
    assert audit.findings, "nothing found"
    first = audit.findings[0]
    source = linecache.getline(first.line.filename, first.line.number).rstrip()
    assert source.endswith("# FAULT"), audit
    return first.kind, first.severity.value, first.step
