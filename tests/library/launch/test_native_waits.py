"""Hangs in communication that torch itself starts: they are noticed as soon as those in the program's own calls."""

import time
from typing import Any

import pytest

import worldsize as ws

STALLED_S = 2  # far longer than the pauses between the ranks' calls
PATIENCE_S = 60  # the limit that a hang which nobody notices would reach


def one_batch_less_under_ddp():
    import torch
    import torch.distributed as dist

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    for _ in range(2 if dist.get_rank() == 0 else 3):
        model(torch.ones(4, 8)).sum().backward()


def one_batch_less_under_fsdp():
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model: Any = fully_shard(torch.nn.Linear(8, 8))
    for _ in range(1 if dist.get_rank() == 0 else 2):
        model(torch.ones(4, 8)).sum().backward()


def full_tensor_on_rank_0_alone():
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    weight = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    if dist.get_rank() == 0:
        weight.full_tensor().sum()


def ddp_against_a_barrier():
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 0:
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    dist.barrier()


def extra_forward_with_batch_norm():
    import torch
    import torch.distributed as dist

    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    )
    model(torch.ones(4, 8)).sum().backward()
    if dist.get_rank() == 1:
        model(torch.ones(4, 8))


HANGS = [
    (one_batch_less_under_ddp, "rank 0 has returned"),
    (one_batch_less_under_fsdp, "rank 0 has returned"),
    (full_tensor_on_rank_0_alone, "rank 1 has returned"),
    (extra_forward_with_batch_norm, "rank 0 has returned"),
    (ddp_against_a_barrier, "rank 0 waits in collective 1, torch's own all_gather (int64 [1])"),
]


@pytest.mark.parametrize(("hangs", "culprit"), HANGS)
def test_a_hang_in_torchs_own_communication_is_noticed(hangs, culprit):
    with pytest.raises(ws.RunTimeout) as raised:
        ws.run(hangs, world_size=2, echo=False, timeout_s=PATIENCE_S, stalled_s=STALLED_S)
    told = str(raised.value)
    assert told.startswith(f"No progress for {STALLED_S} s: every unfinished rank is waiting in a call.")
    assert culprit in told


SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
for _ in range(2 + dist.get_rank()):
    model(torch.ones(4, 8)).sum().backward()
dist.barrier()
"""


def test_a_hang_under_torchrun_is_noticed_as_soon(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with pytest.raises(ws.RunTimeout) as raised:
        ws.torchrun(script, nproc_per_node=2, echo=False, timeout_s=PATIENCE_S, stalled_s=STALLED_S)
    told = str(raised.value)
    assert told.startswith(f"No progress for {STALLED_S} s")
    assert "train.py, line 8" in told and "train.py, line 9" in told


def computes_while_others_wait():
    import torch
    import torch.distributed as dist

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    result = model(torch.ones(4, 8)).sum()
    end_s = time.monotonic() + 1.5 * STALLED_S
    while dist.get_rank() == 0 and time.monotonic() < end_s:
        pass
    result.backward()
    return True


def overlaps_with_computation():
    """Every rank has a collective of torch's own under way while it computes, for longer than a standstill may last."""
    import torch
    import torch.distributed as dist
    from torch.distributed._functional_collectives import all_reduce

    groups = [dist.new_group([0, 1]) for _ in range(2)]
    first, second = groups if dist.get_rank() == 0 else reversed(groups)
    early = all_reduce(torch.ones(1), "sum", first)
    end_s = time.monotonic() + 1.5 * STALLED_S
    while time.monotonic() < end_s:
        pass
    return (early + all_reduce(torch.ones(1), "sum", second)).item() == 4


@pytest.mark.parametrize("works", [computes_while_others_wait, overlaps_with_computation])
def test_a_rank_that_computes_does_not_wait(works):
    run = ws.run(works, world_size=2, echo=False, timeout_s=PATIENCE_S, stalled_s=STALLED_S)
    assert run.values == [True, True]
