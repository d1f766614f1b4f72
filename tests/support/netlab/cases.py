"""What the ranks do, the same for real and emulated: messages, collectives, a ring by hand, a pipeline, a DDP step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

NUM_MICROBATCHES = 6

_FLOAT_BYTES = 4
_WIDTH = 512  # of a square layer: 1 MB of gradients
_NICENESS = -10  # so that other work on this machine is not mistaken for the network's


def send(size_bytes: int) -> Callable[[], None]:
    """A step that sends from rank 0 to rank 1."""
    tensor = torch.ones(size_bytes // _FLOAT_BYTES)

    def step() -> None:
        if dist.get_rank() == 0:
            dist.send(tensor, 1)
        elif dist.get_rank() == 1:
            dist.recv(tensor, 0)

    return step


def all_reduce(size_bytes: int) -> Callable[[], None]:
    """A step that all-reduces one tensor by the library."""
    tensor = torch.zeros(size_bytes // _FLOAT_BYTES)

    def step() -> None:
        dist.all_reduce(tensor)

    return step


def ring(size_bytes: int) -> Callable[[], None]:
    """A step that passes every rank's block on to the next rank until all have seen it, by isend and irecv."""
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = [torch.ones(size_bytes // _FLOAT_BYTES), torch.empty(size_bytes // _FLOAT_BYTES)]

    def step() -> None:
        for _ in range(size - 1):
            # the receive first: with Gloo, our message that we are ready would otherwise wait behind our own data
            works = dist.irecv(blocks[1], (rank - 1) % size), dist.isend(blocks[0], (rank + 1) % size)
            for work in works:
                assert work is not None
                work.wait()
            blocks.reverse()

    return step


def ddp_step(size_bytes: int) -> Callable[[], None]:
    """A step of forward, backward and update of a model with so many bytes of gradients, data-parallel."""
    depth = max(1, round(size_bytes / _FLOAT_BYTES / _WIDTH**2))
    layers = [torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(depth)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(4, _WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()

    for _ in range(2):  # DDP rebuilds its buckets, and sends them to all ranks, at the start of the second step
        step()
    return step


def all_gather(size_bytes: int) -> Callable[[], None]:
    """A step after which every rank has the parts of all, which are so long together."""
    whole = torch.empty(size_bytes // _FLOAT_BYTES // dist.get_world_size() * dist.get_world_size())
    part = torch.ones(len(whole) // dist.get_world_size())

    def step() -> None:
        dist.all_gather_into_tensor(whole, part)

    return step


def all_to_all(size_bytes: int) -> Callable[[], None]:
    """A step in which every rank sends a part of its tensor to each."""
    sent = torch.ones(size_bytes // _FLOAT_BYTES // dist.get_world_size() * dist.get_world_size())
    received = torch.empty_like(sent)

    def step() -> None:
        dist.all_to_all_single(received, sent)

    return step


class _Scale(torch.nn.Module):
    """A stage that takes next to no time."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def one_forward_one_backward(size_bytes: int) -> Callable[[], None]:
    """A step of torch's 1F1B schedule with a stage a rank and micro-batches of so many bytes."""
    rank, size = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(_Scale(), rank, size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, NUM_MICROBATCHES, loss_fn=lambda output, _: output.sum())
    batch = torch.ones(NUM_MICROBATCHES, size_bytes // _FLOAT_BYTES)

    def step() -> None:
        schedule.step(*([batch] if rank == 0 else []), target=batch if rank == size - 1 else None)

    step()  # in the first, stages exchange the shapes of what they will send
    return step


KINDS: dict[str, Callable[[int], Callable[[], None]]] = {
    "send": send,
    "all-reduce": all_reduce,
    "ring by hand": ring,
    "DDP step": ddp_step,
    "all-gather": all_gather,
    "all-to-all": all_to_all,
    "1F1B": one_forward_one_backward,
}


def measure(cases: Sequence[tuple[str, int]], num_repeats: int, lead_s: float) -> list[list[float]]:
    """For each case, the seconds from a start common to all ranks to this rank's end, on a rank of real hosts.

    Ranks leave a barrier up to a delay apart. So rank 0 names an instant `lead_s` from now on the clock that all hosts
    of one machine share, and all ranks start then. One run, which warms up the connections, is left out.
    """
    os.nice(_NICENESS)
    times_s = []
    for kind, size_bytes in cases:
        step = KINDS[kind](size_bytes)
        times_s.append([_from_common_start_s(step, lead_s) for _ in range(1 + num_repeats)][1:])
    return times_s


def _from_common_start_s(step: Callable[[], None], lead_s: float) -> float:
    dist.barrier()
    start_s = torch.tensor([time.monotonic() + lead_s], dtype=torch.float64)
    dist.broadcast(start_s, 0)
    time.sleep(max(0.0, start_s.item() - time.monotonic()))
    step()
    return time.monotonic() - start_s.item()


def once(kind: str, size_bytes: int) -> None:
    """Run one case on an emulated rank, after a barrier that ends for all ranks at the same virtual time."""
    step = KINDS[kind](size_bytes)
    dist.barrier()
    step()
