"""A real run's timeline has the collectives that torch itself starts, with the sizes that they have when emulated."""

import gc
import math
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import worldsize as ws
from worldsize.bench.clusters import CLASSROOM
from worldsize.launch.reports.text import describe_unseen
from worldsize.launch.worker import native_calls, spans


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))


def train(parallel):
    for _ in range(2):
        parallel(torch.ones(3, 8)).sum().backward()
    dist.all_reduce(torch.ones(5))


def ddp():
    train(nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=1e-4))


def fsdp():
    from torch.distributed.fsdp import fully_shard

    parallel: Any = model()
    for layer in (parallel[0], parallel[3], parallel):
        fully_shard(layer)
    train(parallel)
    nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)


def tensor_parallel():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    train(parallelize_module(layers, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}))


def in_both_dimensions():
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    layers: Any = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    parallelize_module(layers, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    for layer in layers[::2]:
        fully_shard(layer, mesh=mesh["dp"])
    train(layers)


def coalesced():
    with dist._coalescing_manager(async_ops=True) as together:
        for _ in range(3):
            dist.all_reduce(torch.ones(4))
    together.wait()
    with dist._coalescing_manager(async_ops=True) as one_by_one:
        for _ in range(3):
            dist.all_gather_into_tensor(torch.empty(8), torch.ones(4))
    one_by_one.wait()


def real(fn, world_size=2):
    return ws.run(fn, world_size=world_size, backend="gloo", echo=False)


def collectives(run, rank):
    return sorted(
        (event.group, event.sequence, event.name, event.size_bytes, event.sent_bytes, event.peers)
        for event in run.timeline.of(rank)
        if event.kind == "communication"
    )


@pytest.mark.parametrize(
    ("fn", "world_size", "num_calls"),
    [(ddp, 2, 15), (fsdp, 2, 18), (tensor_parallel, 2, 7), (coalesced, 2, 4), (in_both_dimensions, 4, 15)],
)
def test_a_real_run_and_one_on_an_emulated_gloo_cluster_have_the_same_communication(fn, world_size, num_calls):
    here = real(fn, world_size)
    there = ws.run(fn, world_size=world_size, cluster=CLASSROOM, echo=False)
    for rank in range(world_size):
        assert collectives(here, rank) == collectives(there, rank)
        assert len(collectives(here, rank)) == num_calls
        assert here.timeline.bytes_sent_by_axis(rank) == there.timeline.bytes_sent_by_axis(rank) != {}
    assert here.warnings == []


def test_ddp_sends_what_it_would_send_on_gpus():
    here, there = real(ddp), ws.run(ddp, world_size=2, cluster="dgx-h100", echo=False)
    assert [here.timeline.bytes_sent(rank) for rank in range(2)] == [
        there.timeline.bytes_sent(rank) for rank in range(2)
    ]


def test_a_group_that_allows_some_operations_is_recorded_alike():
    allow = ("all_gather", "all_reduce", "broadcast")
    limited = ws.run(ddp, world_size=2, backend="gloo", allow=allow, echo=False)
    assert collectives(limited, 0) == collectives(real(ddp), 0)


def backward_in_backward():
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(nn.Linear):
        def forward(self, values):
            return checkpoint(super().forward, values, use_reentrant=True)

    parallel = nn.parallel.DistributedDataParallel(nn.Sequential(Checkpointed(8, 8), Checkpointed(8, 8)))
    parallel(torch.ones(3, 8, requires_grad=True)).sum().backward()


def test_the_end_of_an_inner_backward_pass_is_no_wait_for_ddp():
    events = real(backward_in_backward).timeline.events
    assert {event.name for event in events if event.kind == "communication"} >= {"all_reduce"}
    assert "all_reduce" not in {event.name for event in events if event.kind == "wait"}


def waits_for_ddp():
    store = dist.distributed_c10d._get_default_store()
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    parallel = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=1e-4)
    result = parallel(torch.ones(3, 8)).sum()

    def tell(_gradient):
        # called before DDP's own callback, which waits
        queue = torch.autograd.Variable._execution_engine.queue_callback
        queue(lambda: store.set("rank 0 waits", "yes"))

    if dist.get_rank() == 0:
        next(layers.parameters()).register_hook(tell)
    else:
        store.wait(["rank 0 waits"])
    with ws.span("backward", "backward"):
        result.backward()


def waits_for_a_functional_collective():
    from torch.distributed._functional_collectives import all_reduce, wait_tensor

    store = dist.distributed_c10d._get_default_store()

    def tell():
        while not spans.calls._awaited_s:
            time.sleep(0.001)
        store.set("rank 0 waits", "yes")

    if dist.get_rank() == 0:
        threading.Thread(target=tell).start()
    else:
        store.wait(["rank 0 waits"])
    with ws.span("work"):
        wait_tensor(all_reduce(torch.ones(1), "sum", dist.group.WORLD))


@pytest.mark.parametrize("fn", [waits_for_ddp, waits_for_a_functional_collective])
def test_a_rank_that_waits_for_torchs_own_collective_does_not_work(fn):
    told = real(fn).timeline
    span = next(event for event in told.of(0) if event.stream == "main")
    waits = [event for event in told.of(0) if event.kind == "wait" and event.name == "all_reduce"]
    assert waits and all(span.start_s < wait.start_s < wait.end_s for wait in waits)
    assert told.exposed_communication_s(0) > 0


def with_an_observer_that_fails():
    def fail(*_):
        raise ValueError("a bug")

    native_calls._begin = fail
    ddp()


def with_a_torch_without_the_hook():
    native_calls._libraries.clear()
    gc.collect()
    ddp()


@pytest.mark.parametrize("fn", [with_an_observer_that_fails, with_a_torch_without_the_hook])
def test_what_cannot_be_recorded_is_nan_and_said(fn):
    run = real(fn)
    told = run.timeline
    assert told.num_unseen == {0: 14, 1: 14}
    figures = [
        told.bytes_sent(0),
        told.bytes_sent_by_axis(1)[""],
        told.exposed_communication_s(),
        told.share("communication"),
    ]
    figures += [told.exposed_communication_s(1), told.overlap_fraction(0), told.time_s(1, "communication")]
    assert all(map(math.isnan, figures))
    (warning,) = run.warnings
    assert warning.startswith(
        "Ranks 0 and 1: collectives that torch itself started and that could not be recorded: 14;"
    )
    assert warning in repr(run)
    assert [event.name for event in told.of(0) if event.kind == "communication"] == ["all_reduce"]


def test_ranks_that_miss_as_many_share_a_warning():
    assert [text.partition(":")[0] for text in describe_unseen({0: 2, 1: 3, 2: 2})] == ["Ranks 0 and 2", "Rank 1"]
