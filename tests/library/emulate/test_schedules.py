"""torch's own pipeline schedules on an emulated cluster, against torch's own tables and the bubble's formula."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.pipelining import _schedule_visualizer as tables
from torch.distributed.pipelining.schedules import _ComputationType

import worldsize as ws
from worldsize import emulate
from worldsize.hardware import H100, Cluster, Link

FREE = Cluster(
    name="free",
    gpu=H100,
    gpus_per_node=8,
    intra=Link("free", 0.0, 1e30, "a link that costs nothing: ours, 2026", kind="nvlink"),
    source="ours, 2026",
)
FORWARD_S, BACKWARD_S = 1.0, 2.0
TOLD = {_ComputationType.FORWARD: ("forward", -1), _ComputationType.FULL_BACKWARD: ("backward", 1)}


class Work(torch.autograd.Function):
    """Takes a stage's time, forward and backward."""

    @staticmethod
    def forward(ctx, x, name):
        ctx.name = name
        with ws.span(name, kind="forward"):
            emulate.spend(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        with ws.span(ctx.name, kind="backward"):
            emulate.spend(BACKWARD_S)
        return grad.clone(), None


class Stage(torch.nn.Module):
    """One of several equal stages; names its work "stage piece"."""

    def __init__(self, number):
        super().__init__()
        self.number, self.num_pieces = number, 0
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        self.num_pieces += 1
        return Work.apply(x * self.scale, f"{self.number} {self.num_pieces - 1}")


def pipeline(kind, num_pieces, per_rank):
    from torch.distributed import pipelining

    rank, size = dist.get_rank(), dist.get_world_size()
    places = [rank + size * number for number in range(per_rank)]
    device = torch.device("cpu")
    stages = [pipelining.PipelineStage(Stage(at), at, size * per_rank, device) for at in places]
    schedule = pipelining.schedules.get_schedule_class(kind)(
        stages if per_rank > 1 else stages[0], num_pieces, loss_fn=lambda output, target: (output - target).sum()
    )
    wanted = {"target": torch.zeros(num_pieces, 2)} if rank == size - 1 else {}
    for _ in range(2):  # in the first, torch also tries out the shapes
        dist.barrier()
        for stage in stages:
            stage.submod.num_pieces = 0
        schedule.step(*([torch.ones(num_pieces, 2)] if rank == 0 else []), **wanted)


def emulated(kind, num_ranks, num_pieces, per_rank=1):
    """What the second of two steps does, from its own start."""
    run = ws.run(pipeline, kind, num_pieces, per_rank, world_size=num_ranks, cluster=FREE, compute="none", echo=False)
    start_s = max(event.end_s for event in run.timeline.events if event.name == "barrier")
    shifted = [replace(one, start_s=one.start_s - start_s, end_s=one.end_s - start_s) for one in run.timeline.events]
    return ws.Timeline.of_events(event for event in shifted if event.is_work and event.start_s >= 0)


def table(kind, num_ranks, num_pieces, per_rank):
    """For each rank, by torch's table, what it does when: (kind, "stage piece", start) in seconds.

    The table has the order. Work starts when its rank is free and what it needs is there: of a forward the stage
    before, of a backward the stage after.
    """
    rows = tables.get_schedule_ops(kind, num_ranks, num_pieces, per_rank)
    todo = [list(numbered(action for action in row if action and action.computation_type in TOLD)) for row in rows]
    last = num_ranks * per_rank - 1
    free_s, ends_s, told = [0.0] * num_ranks, {}, [[] for _ in range(num_ranks)]
    while any(todo):
        for rank, row in enumerate(todo):
            if not row:
                continue
            kind, step, stage, piece = row[0]
            needs = (kind, stage + step, piece) if 0 <= stage + step <= last else ("forward", stage, piece)
            if (kind, stage) != ("forward", 0) and needs not in ends_s:
                continue
            start_s = max(free_s[rank], ends_s.get(needs, 0.0))
            free_s[rank] = ends_s[kind, stage, piece] = start_s + (FORWARD_S if kind == "forward" else BACKWARD_S)
            told[rank].append((kind, f"{stage} {piece}", start_s))
            row.pop(0)
    return told


def numbered(actions):
    """(kind, step to what it needs, stage, piece) of each action.

    Pieces are counted: torch 2.13's table of 1F1B numbers the last stage's forwards from 1.
    """
    counts = Counter()
    for action in actions:
        kind, step = TOLD[action.computation_type]
        yield kind, step, action.stage_index, counts[kind, action.stage_index]
        counts[kind, action.stage_index] += 1


def done(timeline, num_ranks):
    """The same of a run."""
    return [
        [(event.kind, event.name, round(event.start_s, 9)) for event in timeline.of(rank) if event.is_work]
        for rank in range(num_ranks)
    ]


CASES = [
    ("GPipe", 2, 1, 1),
    ("GPipe", 4, 8, 1),
    ("GPipe", 3, 5, 1),
    ("1F1B", 2, 4, 1),
    ("1F1B", 4, 8, 1),
    ("1F1B", 3, 5, 1),
    ("Interleaved1F1B", 2, 4, 2),
    ("Interleaved1F1B", 4, 8, 2),
]


@pytest.mark.parametrize(("kind", "num_ranks", "num_pieces", "per_rank"), CASES)
def test_torchs_schedules_run_as_its_tables_say(kind, num_ranks, num_pieces, per_rank):
    timeline = emulated(kind, num_ranks, num_pieces, per_rank)
    assert done(timeline, num_ranks) == table(kind, num_ranks, num_pieces, per_rank)
    bubble = (num_ranks - 1) / (per_rank * num_pieces + num_ranks - 1)
    assert timeline.bubble_fraction() == pytest.approx(bubble, rel=1e-12)
