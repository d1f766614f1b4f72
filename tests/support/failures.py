"""Programs that fail or hang, each with the rank that causes it and the words that the report must contain."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

NUM_RANKS = 3
TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Case:
    """A function for three ranks; `culprits` are the ranks that may stand first, `words` stand in the report."""

    fn: Callable[[], object]
    culprits: tuple[int, ...]
    words: tuple[str, ...]
    hangs: bool = False
    with_cause: str = ""  # a line of this function that the report must quote


CASES: dict[str, Case] = {}


def case(culprits: int | tuple[int, ...], *words: str, hangs: bool = False, line: str = "") -> Callable[..., object]:
    """Register the decorated function under its name."""

    def register(fn: Callable[[], object]) -> Callable[[], object]:
        known = culprits if isinstance(culprits, tuple) else (culprits,)
        CASES[fn.__name__] = Case(fn, known, words, hangs, line)
        return fn

    return register


def on(rank: int) -> bool:
    """Whether this process is that rank."""
    return dist.get_rank() == rank


def step() -> None:
    """Run one all-reduce over all ranks."""
    dist.all_reduce(torch.ones(4))


# it ends by itself


@case(1, "KeyError: 'weights'", "lost the connection because of it", line="raise KeyError")
def exception_with_clean_up():
    step()
    try:
        if on(1):
            raise KeyError("weights")
        step()
    finally:
        dist.destroy_process_group()


@case(
    2,
    "SIGKILL: something killed it; out of memory is the usual reason",
    "Its last call was at",
    "Rank 2, last call: collective 1, all_reduce",
    line="dist.all_reduce(torch.ones(4))",
)
def killed():
    step()
    if on(2):
        os.kill(os.getpid(), signal.SIGKILL)
    step()


@case(0, "SIGSEGV: native code accessed invalid memory", line="ctypes.string_at(0)")
def segmentation_fault():
    import ctypes

    step()
    if on(0):
        ctypes.string_at(0)
    step()


@case(1, "sys.exit(3)", line="sys.exit(3)")
def exits():
    step()
    if on(1):
        sys.exit(3)
    step()


@case(2, "exit code 7", "Its last call was at", line="dist.all_reduce(torch.ones(4))")
def leaves_without_a_word():
    step()
    if on(2):
        os._exit(7)
    step()


@case(1, "RuntimeError", "can't allocate memory", line="torch.empty(1 << 50)")
def out_of_memory():
    step()
    if on(1):
        torch.empty(1 << 50)
    step()


@case(0, "ModuleNotFoundError: No module named 'no_such_module'", line="import no_such_module")
def import_error():
    if on(0):
        import no_such_module  # noqa: F401  # pyright: ignore[reportMissingImports]
    step()


@case(1, "SyntaxError", "x = = 1")
def syntax_error():
    if on(1):
        exec(compile("y = 0\nx = = 1\n", "<cell model>", "exec"))
    step()


@case(2, "ZeroDivisionError", line="bucket.index() / 0")
def exception_inside_a_hook():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))

    def hook(_state, bucket):
        if on(2):
            bucket.index() / 0
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0])

    model.register_comm_hook(None, hook)
    model(torch.ones(1, 2)).sum().backward()


# calls that do not match: Gloo may end a rank, or leave all of them waiting


@case(
    1, "Collectives do not match", "Rank 1 calls collective 2, broadcast", "ranks 0 and 2 call collective 2, all_reduce"
)
def mismatched_collective():
    step()
    if on(1):
        dist.broadcast(torch.ones(4), src=0)
    else:
        dist.all_reduce(torch.ones(4))


@case(2, "Collectives do not match", "collective 2, all_reduce (float32 [5])", "collective 2, all_reduce (float32 [4])")
def mismatched_shape():
    step()
    dist.all_reduce(torch.ones(5 if on(2) else 4))
    step()


@case(0, "Collectives do not match", "float64 [4]", "float32 [4]")
def mismatched_dtype():
    step()
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if on(0) else torch.float32))
    step()


@case(
    1,
    "Collectives do not match",
    "Rank 1 calls collective 2, all_reduce",
    "ranks 0 and 2 call collective 2, all_gather",
)
def mismatched_order():
    step()
    calls = [lambda: dist.all_gather([torch.empty(4) for _ in range(3)], torch.ones(4)), step]
    for call in reversed(calls) if on(1) else calls:
        call()


@case(0, "Collectives do not match", "root 1", "root 0")
def mismatched_root():
    step()
    dist.broadcast(torch.ones(4), src=1 if on(0) else 0)
    step()


@case(0, "Collectives do not match", "MAX")
def mismatched_reduction():
    step()
    dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if on(0) else dist.ReduceOp.SUM)
    if not on(0):
        dist.all_reduce(torch.ones(4))
    dist.barrier()


# it hangs


@case(0, "Ranks 1 and 2 wait for rank 0 in collective 2, all_reduce (float32 [4]); rank 0 has returned.", hangs=True)
def one_rank_returns_early():
    step()
    if not on(0):
        step()


@case((0, 1), "Ranks 0 and 1 wait for each other", "send to rank 1 (float32 [9])", hangs=True, line="dist.send(")
def send_against_send():
    step()
    if not on(2):
        dist.send(torch.ones(9), 1 - dist.get_rank())
        dist.recv(torch.ones(9), 1 - dist.get_rank())


@case(
    2, "Rank 1 waits for rank 2 in recv from rank 2 (float32 [3]); rank 2 has returned", hangs=True, line="dist.recv("
)
def recv_with_no_sender():
    step()
    if on(1):
        dist.recv(torch.ones(3), 2)


@case((0, 1, 2), "Ranks 0, 1 and 2 wait for each other", "irecv from rank", hangs=True, line="wait()")
def a_ring_that_only_receives():
    step()
    dist.irecv(torch.ones(3), (dist.get_rank() - 1) % NUM_RANKS).wait()


@case(
    1,
    "Ranks 0 and 2 wait for rank 1 in collective 2, barrier",
    "rank 1 has returned",
    hangs=True,
    line="dist.barrier()",
)
def rank_dependent_branch():
    step()
    if dist.get_rank() % 2 == 0:
        dist.barrier()


@case(1, "wait for rank 1 in collective 2, all_reduce", "rank 1 is at", hangs=True, line="time.sleep(600)")
def slow_data_loader():
    step()
    batches = (time.sleep(600) if on(1) else torch.ones(4) for _ in range(2))
    next(batches)
    step()


@case(2, "wait for rank 2 in collective 4, torch's own all_reduce", hangs=True, line="time.sleep(600)")
def slow_before_backward():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    loss = model(torch.ones(1, 2)).sum()
    if on(2):
        time.sleep(600)
    loss.backward()


@case((0, 1), "Ranks 0 and 1 wait for each other", "tag 7", hangs=True)
def tags_that_do_not_match():
    if on(0):
        dist.send(torch.ones(2), 1, tag=7)
    if on(1):
        dist.recv(torch.ones(2), 0)


@case((0, 1), "Ranks 0 and 1 wait for each other", "collective 2, barrier", "recv from rank 0", hangs=True)
def a_collective_against_a_receive():
    step()
    if on(1):
        dist.recv(torch.ones(2), 0)
    dist.barrier()


@case(1, "waits for rank 1 in collective 1, all_reduce", "group [0, 1]", hangs=True)
def a_group_of_which_one_does_not_come():
    group = dist.new_group([0, 1])
    if on(0):
        dist.all_reduce(torch.ones(2), group=group)
