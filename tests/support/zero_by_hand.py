"""Lab 7's solution as a program on ranks, and the same training with torch's own sharding and in one process."""

import types
from pathlib import Path

import torch
import torch.distributed as dist
from repository import ROOT
from torch import nn

from autograder.authoring.known_answers import solution_cells
from autograder.authoring.scripts import parse

LAB = ROOT / "solutions" / "lab07"
WIDTH, HIDDEN, ROWS = 6, (5, 9, 4, 7), 3
LEARNING_RATE, DECAY = 1e-2, 0.1


def solution_source(path: Path = LAB / "lab07.py") -> str:
    """What the notebook's cells define, with the solution, and without the runs that it starts."""
    solved = solution_cells(path)
    given = {cell.title: cell.source for cell in parse(path).cells if cell.title in ("setup", "units", "on_demand")}
    given["setup"] = given["setup"].split("\nws.run(")[0]
    order = ("setup", "units", "shard", "gather_and_free", "reduce_gradients", "adam_step", "on_demand")
    order += ("FullyShard", "Prefetching", "clip_gradients")
    return "\n\n".join((given | solved)[title] for title in order)


def solved(source: str) -> types.ModuleType:
    """The solution as a module, in this process."""
    module = types.ModuleType("solved")
    exec(source, module.__dict__)
    return module


class Passes(nn.Module):
    """A block of two layers, of a size of its own."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, hidden), nn.Linear(hidden, WIDTH)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.second(torch.tanh(self.first(inputs))))


class Model(nn.Sequential):
    """Blocks in an order that may skip or repeat some."""

    def forward(self, inputs: torch.Tensor, order=(0, 1, 2, 3)) -> torch.Tensor:
        for place in order:
            inputs = self[place](inputs)
        return inputs


def make_model(case: str) -> Model:
    torch.manual_seed(0)
    model = Model(*[Passes(HIDDEN[0] if case == "tied" else hidden) for hidden in HIDDEN])
    if case == "tied":
        model[3].first.weight = model[0].first.weight
    if case == "frozen":
        for parameter in (*model[1].parameters(), model[2].first.weight):
            parameter.requires_grad_(False)
    return model


def order_of(case: str, step: int) -> list[int]:
    if case == "used twice":
        return [0, 1, 2, 1, 3]
    return [0, 1, 3] if case == "unused in a step" and step % 2 else [0, 1, 2, 3]


def batch_of(rank: int, step: int) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def losses_of(model: nn.Module, case: str, step: int, ranks) -> torch.Tensor:
    """The mean loss over the batches of these ranks."""
    batches = [batch_of(rank, step) for rank in ranks]
    outputs = [model(one, order_of(case, step)) for one in batches]
    return torch.stack([(one - 0.3).square().mean() for one in outputs]).mean()


def in_one_process(case: str, num_steps: int, num_batches: int) -> list[float]:
    """The losses of plain training on all batches, with torch's AdamW."""
    model, losses = make_model(case), []
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=DECAY, foreach=False)
    for step in range(num_steps):
        optimizer.zero_grad()
        loss = losses_of(model, case, step, range(num_batches))
        loss.backward()
        if case == "clipped":
            nn.utils.clip_grad_norm_(trained, 0.05)
        optimizer.step()
        losses.append(loss.item())
    return losses


def own_batches(num_batches: int) -> range:
    num_each = num_batches // dist.get_world_size()
    return range(dist.get_rank() * num_each, (dist.get_rank() + 1) * num_each)


def by_hand(source: str, stage: int, case: str, steps: range, num_batches: int, saved=None):
    """This rank's losses, and what it would write into a checkpoint; `saved` is the whole of one."""
    lab, losses = solved(source), []
    model = make_model(case)
    blocks = lab.make_blocks(list(model))
    units = lab.units_of(blocks)
    if saved:
        for unit, (master, exp_avg, exp_avg_sq, num_steps) in zip(units, saved, strict=True):
            if master is None:
                continue
            pieces = [lab.shard([one], dist.get_rank(), dist.get_world_size()) for one in (master, exp_avg, exp_avg_sq)]
            unit.master, unit.exp_avg, unit.exp_avg_sq = pieces
            unit.num_steps = num_steps
            unit.piece.copy_(unit.master)

    class Kept(lab.OnDemand):
        def drop(self, place):
            pass

    gathers = lab.Prefetching(blocks) if stage == 3 else Kept(blocks)
    sharded = lab.FullyShard(blocks, gathers) if stage > 1 else None
    for place in range(len(blocks) if stage < 3 else 0):
        gathers.use(place, False)
    for step in steps:
        loss = losses_of(model, case, step, own_batches(num_batches))
        loss.backward()
        if sharded:
            sharded.finish()
        else:
            for unit in units:
                if any(one.grad is not None for one in unit.parameters):
                    lab.reduce_gradients(unit)()
        if case == "clipped":
            lab.clip_gradients(units, 0.05)
        for unit in units:
            lab.adam_step(unit, LEARNING_RATE, weight_decay=DECAY)
            if stage < 3:
                lab.gather(unit).wait()
        losses.append(loss.item())
    numbers = [sum(shape.numel() for shape in unit.shapes) for unit in units]
    states = [(unit.master, unit.exp_avg, unit.exp_avg_sq, unit.num_steps) for unit in units]
    return losses, states, numbers


def by_torch(which: str, case: str, num_steps: int, num_batches: int) -> list[float]:
    """This rank's losses with FSDP2, or with DDP and ZeroRedundancyOptimizer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model, losses = make_model(case), []
    settings = {"lr": LEARNING_RATE, "weight_decay": DECAY, "foreach": False}
    if which == "FSDP2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in [*(() if case == "tied" else model), model]:  # tied weights have to be in one unit
            fully_shard(layer, mesh=mesh)
        trained = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(trained, **settings)
    else:
        model = DistributedDataParallel(model, find_unused_parameters=case == "unused in a step")
        trained = [one for one in model.parameters() if one.requires_grad]
        optimizer = ZeroRedundancyOptimizer(trained, torch.optim.AdamW, **settings)
    for step in range(num_steps):
        optimizer.zero_grad()
        loss = losses_of(model, case, step, own_batches(num_batches))
        loss.backward()
        if case == "clipped":
            nn.utils.clip_grad_norm_(trained, 0.05)
        optimizer.step()
        losses.append(loss.item())
    return losses


def joined(states_by_rank, numbers):
    """The whole state of every unit, from the pieces of all ranks: what a checkpoint holds."""
    found = []
    for number, num_elements in enumerate(numbers):
        of_ranks = [states[number] for states in states_by_rank]
        if of_ranks[0][0] is None:
            found.append((None, None, None, 0))
            continue
        whole = [torch.cat([one[part] for one in of_ranks])[:num_elements] for part in range(3)]
        found.append((*whole, of_ranks[0][3]))
    return found
