"""The same training in one process on the whole batch: the reference that every distributed run must match."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from worldsize.bench.batches import DrawnBatches
from worldsize.bench.task import Task, TextTask, mean_loss


@dataclass(frozen=True)
class Trained:
    """Losses before each step, and all weights as one float32 vector, before the first step and after the last."""

    losses: list[float]
    initial: torch.Tensor
    weights: torch.Tensor


def train_alone(task: Task | TextTask, batches: DrawnBatches) -> Trained:
    """Train in this process, on one thread: more threads slow small operations, above all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(task, batches)
    finally:
        torch.set_num_threads(threads)


def _train(task: Task | TextTask, batches: DrawnBatches) -> Trained:
    model = task.model()
    optimizer = task.optimizer(model)
    initial, losses = flat_weights(model), []
    for step in range(task.num_steps):
        inputs, targets = batches.batch(step)
        loss = mean_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(losses, initial, flat_weights(model))


def flat_weights(model: nn.Module) -> torch.Tensor:
    """Copy all parameters into one float32 vector on the CPU, in the model's own order."""
    return torch.cat([parameter.detach().flatten().cpu().float() for parameter in model.parameters()])
