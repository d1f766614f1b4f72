"""Lab 9's solution as a program on ranks, and the same steps with torch's own pipeline."""

import types
from pathlib import Path

import torch
import torch.distributed as dist
from repository import ROOT
from torch import nn

from autograder.authoring.known_answers import solution_cells
from autograder.authoring.scripts import parse
from worldsize import emulate, models

LAB = ROOT / "solutions" / "lab09"
SMALL = models.shape("small")
GIVEN = ("setup", "actions", "pipeline")
ORDER = ("setup", "actions", "gpipe", "one_f_one_b", "interleaved", "pipeline", "run_schedule", "shortest")


def solution_source(path: Path = LAB / "lab09.py") -> str:
    """The source of the notebook's definitions, with the solution, without the runs that it starts."""
    given = {cell.title: cell.source for cell in parse(path).cells if cell.title in GIVEN}
    given["setup"] = given["setup"].split("\nws.run(")[0]
    cells = given | solution_cells(path)
    return "\n\n".join(cells[title] for title in ORDER)


def solved(source: str) -> types.ModuleType:
    """The solution as a module, in this process."""
    module = types.ModuleType("solved")
    exec(source, module.__dict__)
    return module


def stage_of(rank: int, num_ranks: int) -> nn.Module:
    """The layers of the small transformer on a rank, with one stage per rank."""
    cuts = [SMALL.num_layers * one // num_ranks for one in range(num_ranks + 1)]
    return models.Transformer(SMALL, layers=range(cuts[rank], cuts[rank + 1]))


def cross_entropy(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output.flatten(0, -2), targets.flatten(), reduction="sum")


def tokens_of(num: int, length: int) -> torch.Tensor:
    return torch.randint(0, 256, (num, length + 1), generator=torch.Generator().manual_seed(4))


def stepping(how: str, source: str, num: int, length: int, module: nn.Module, scale_grads: bool = False):
    """A function that runs a step of 1F1B, by hand or by torch, without clearing gradients."""
    rank, num_ranks, tokens = dist.get_rank(), dist.get_world_size(), tokens_of(num, length)
    inputs, targets, num_targets = tokens[:, :-1], tokens[:, 1:].contiguous(), num * length
    if how == "by hand":
        lab = solved(source)
        schedule = lab.one_f_one_b(num_ranks, num)
        pipeline = lab.Pipeline({rank: module}, num_ranks, SMALL.width, cross_entropy)
        micro_batches = list(zip(inputs.split(1), targets.split(1), strict=True))
        return lambda: lab.run_schedule(schedule, pipeline, micro_batches)

    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    def loss_of(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return cross_entropy(output, targets) / (num_targets / num if scale_grads else num_targets)

    stage = PipelineStage(module, rank, num_ranks, torch.device("cpu"))
    runner = Schedule1F1B(stage, n_microbatches=num, loss_fn=loss_of, scale_grads=scale_grads)
    args = (inputs,) if rank == 0 else ()
    kwargs = {"target": targets, "losses": []} if rank == num_ranks - 1 else {}
    return lambda: runner.step(*args, **kwargs)


def gradients_after(how: str, source: str, num_calls: int, num: int = 4, scale_grads: bool = False):
    """The gradient of every parameter of this rank's stage after each call, as one vector."""
    torch.set_num_threads(1)
    module, found = stage_of(dist.get_rank(), dist.get_world_size()), []
    step = stepping(how, source, num, 8, module, scale_grads)
    for _ in range(num_calls):
        step()
        found.append(torch.cat([one.grad.flatten().clone() for one in module.parameters() if one.grad is not None]))
    return found


def virtual_step_s(how: str, source: str, num: int, length: int) -> float:
    """The virtual seconds of a second step; torch's first one exchanges shapes."""
    step = stepping(how, source, num, length, stage_of(dist.get_rank(), dist.get_world_size()))
    for _ in range(2):
        start_s = emulate.elapsed()
        step()
        end_s = emulate.elapsed()
    return end_s - start_s
