"""Lab 5's reference hooks under DDP: the loss they reach and the bytes they send, beside torch's own hooks."""

from __future__ import annotations

import statistics
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from figures import Figure, scaled
from repository import ROOT
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import worldsize as ws
from autograder.authoring.known_answers import solution_cells
from autograder.authoring.scripts import parse
from worldsize import images
from worldsize.timeline import Timeline

LAB = ROOT / "solutions" / "lab05" / "lab05.py"
_NUM_RANKS, _NUM_STEPS, _SEEDS = 2, 300, (0, 1, 2)
_LOSSES_WITHIN, _SHARE_OF_BYTES = 1.05, 0.1
_METHODS = ("top-k 1%", "PowerSGD, rank 2", "torch's PowerSGD, rank 2", "torch's float16")


def compressing(scale: float) -> Iterator[Figure]:
    """Top-k at 1% with memory against no compression: the same steps, several seeds; and the others beside it.

    The task is digits with one hidden layer of 256 and plain SGD. Every entry must have had its turn, so that a run of
    few steps is behind; the learning rate falls to a tenth, which lets the memory run dry.
    """
    images_of_digits = images.load_digits()
    methods = ("uncompressed", *_METHODS)
    losses: dict[str, list[float]] = {method: [] for method in methods}
    sent: dict[str, float] = {}
    seeds, num_steps = _SEEDS[: scaled(len(_SEEDS), scale)], scaled(_NUM_STEPS, scale, least=10)
    for seed in seeds:
        for method in methods if seed == seeds[0] else methods[:2]:
            run = ws.run(
                _train,
                method,
                seed,
                num_steps,
                images_of_digits,
                world_size=_NUM_RANKS,
                cluster="dgx-h100",
                compute="none",
                echo=False,
                timeout_s=300,
            )
            losses[method].append(run.values[0])
            sent[method] = _bytes_sent(run.timeline)
    plain = statistics.mean(losses["uncompressed"])
    how_many = f"mean of {len(seeds)} seeds, {num_steps} steps on digits"
    yield Figure("loss uncompressed", plain, "", "", None, how_many)
    for method in _METHODS:
        ratio = statistics.mean(x / y for x, y in zip(losses[method], losses["uncompressed"], strict=False))
        share = sent[method] / sent["uncompressed"]
        is_goal = method == _METHODS[0]
        goals = (f"at most {_LOSSES_WITHIN}", f"at most {_SHARE_OF_BYTES}") if is_goal else ("", "")
        held = (ratio <= _LOSSES_WITHIN, share <= _SHARE_OF_BYTES) if is_goal else (None, None)
        how = how_many if is_goal else "one of these seeds"
        yield Figure(f"loss with {method}, over it", ratio, "times", goals[0], held[0], how)
        yield Figure(f"bytes with {method}, over it", share, "times", goals[1], held[1], "sent by rank 0")


def reference() -> Any:
    """The functions and states of lab 5."""
    module = types.ModuleType("reference")
    setup = next(cell.source for cell in parse(LAB).cells if cell.title == "setup")
    given = setup[setup.index("def summed(") : setup.index("\n\n\nws.run(")]
    exec("import torch\nimport torch.distributed as dist", module.__dict__)
    for source in (given, *solution_cells(LAB).values()):
        if source.startswith("def "):  # one answer is in words
            exec("from __future__ import annotations\n" + source, module.__dict__)
    return module


class State:
    """What both hooks of the lab have in hand."""

    def __init__(self, rank: int = 2, fraction: float = 0.01, seed: int = 0) -> None:
        self.rank, self.fraction, self.seed = rank, fraction, seed
        self.memory: dict[Any, torch.Tensor] = {}
        self.q: dict[Any, torch.Tensor] = {}

    def num_sent(self, num_elements: int) -> int:
        """How many of these elements are sent."""
        return max(1, round(self.fraction * num_elements))


def _train(method: str, seed: int, num_steps: int, digits: tuple[torch.Tensor, torch.Tensor]) -> float:
    """The loss over all images after training; the learning rate falls in the last steps, with every method."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    ddp = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)))
    if method != "uncompressed":
        hook, state = _hook(method)
        ddp.register_comm_hook(state, lambda state, bucket: hook(state, bucket))
    dist.barrier()
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=num_steps)
    pixels, labels = digits
    order = torch.Generator().manual_seed(seed)
    for _ in range(num_steps):
        places = torch.randint(len(labels), (_NUM_RANKS, 64), generator=order)[dist.get_rank()]
        optimizer.zero_grad()
        F.cross_entropy(ddp(pixels[places]), labels[places]).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        return F.cross_entropy(ddp.module(pixels), labels).item()


def _hook(method: str) -> tuple[Any, Any]:
    if method == "torch's PowerSGD, rank 2":
        state = powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=1)
        return powerSGD_hook.powerSGD_hook, state
    if method == "torch's float16":
        return default_hooks.fp16_compress_hook, None
    module = reference()
    return (module.top_k_hook if method == "top-k 1%" else module.power_hook), State()


def _bytes_sent(timeline: Timeline) -> float:
    """What rank 0 sent after the barrier, less what DDP itself broadcasts."""
    events = [event for event in timeline.of(0) if event.kind == "communication"]
    start = next(place for place, event in enumerate(events) if event.name == "barrier")
    return sum(event.sent_bytes for event in events[start + 1 :] if event.name != "broadcast")


if __name__ == "__main__":
    for figure in compressing(scale=1):
        print(figure)
