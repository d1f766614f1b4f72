"""The same programs on the emulated cluster: the data that Gloo gives, in the time that the cluster takes."""

import dataclasses
import time

import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize import hardware
from worldsize.emulate.conductor import Conductor, Forbidden, Post


def emulated(fn, *args, world_size=4, cluster="dgx-h100", **kwargs):
    return ws.run(fn, *args, world_size=world_size, cluster=cluster, echo=False, timeout_s=120, **kwargs)


def ring_all_reduce(num_items):
    """A ring by hand; True when the sum is right."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.full((num_items,), float(rank))
    chunks, inbox = tensor.chunk(size), torch.empty(num_items // size)
    for step in range(2 * (size - 1)):
        take = (rank - step - 1) % size
        works = dist.isend(chunks[(take + 1) % size], (rank + 1) % size), dist.irecv(inbox, (rank - 1) % size)
        for work in works:
            work.wait()
        chunks[take].copy_(inbox + chunks[take] if step < size - 1 else inbox)
    return bool((tensor == sum(range(size))).all())


@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_a_ring_by_hand_takes_what_the_formula_says(size):
    wide = dataclasses.replace(hardware.DGX_H100, gpus_per_node=16)
    run = emulated(ring_all_reduce, 48 * 1024, world_size=size, cluster=wide, compute="none")
    alpha_s, beta = wide.intra.latency_s, wide.intra.bandwidth_bytes_per_s
    assert run.values == [True] * size
    assert run.timeline.end_s == pytest.approx(2 * (size - 1) * (alpha_s + 48 * 1024 * 4 / (size * beta)), rel=1e-9)


def every_operation():
    """What each operation gives on this rank, by name."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.arange(6, dtype=torch.float32).reshape(2, 3) + rank
    gave = {}

    def tensors():
        return [torch.zeros(2, 3) for _ in range(size)]

    for name in ("SUM", "PRODUCT", "MIN", "MAX"):
        gave[name] = mine.clone()
        dist.all_reduce(gave[name], op=getattr(dist.ReduceOp, name))
    for name in ("BAND", "BOR", "BXOR"):
        gave[name] = torch.tensor([rank + 1, 7])
        dist.all_reduce(gave[name], op=getattr(dist.ReduceOp, name))
    gave["half"] = mine.half()
    dist.all_reduce(gave["half"])
    gave["broadcast"] = mine.clone()
    dist.broadcast(gave["broadcast"], src=1)
    gave["reduce"] = mine.clone()
    dist.reduce(gave["reduce"], dst=2)
    gave["reduce"] = gave["reduce"] if rank == 2 else None  # elsewhere it is undefined
    gave["all_gather"] = tensors()
    dist.all_gather(gave["all_gather"], mine)
    gave["gather"] = tensors() if rank == 1 else None
    dist.gather(mine, gave["gather"], dst=1)
    gave["scatter"] = torch.zeros(2, 3)
    dist.scatter(gave["scatter"], [mine + one for one in range(size)] if rank == 0 else None, src=0)
    gave["reduce_scatter"] = torch.zeros(2, 3)
    dist.reduce_scatter(gave["reduce_scatter"], [mine * one for one in range(size)])
    gave["all_to_all_single"] = torch.zeros(size, 2)
    dist.all_to_all_single(gave["all_to_all_single"], torch.arange(2.0 * size).reshape(size, 2) + 10 * rank)
    everything: list[object] = [None] * size
    dist.all_gather_object(everything, {"rank": rank})
    gave["objects"] = everything
    work = dist.all_reduce(mine, async_op=True)
    work.wait()
    gave["asynchronous"] = mine
    gave["transposed"] = torch.ones(3, 2).t() * rank
    dist.all_reduce(gave["transposed"])
    gave["empty"] = torch.ones(0)
    dist.all_reduce(gave["empty"])
    pair = dist.new_group([0, 2])
    gave["group"] = torch.tensor([rank])
    if rank in (0, 2):
        dist.all_reduce(gave["group"], group=pair)
    gave["message"] = torch.zeros(3)
    if rank == 3:
        dist.send(torch.ones(3), 1, tag=5)
    if rank == 1:
        dist.recv(gave["message"], 3, tag=5)
    dist.barrier()
    return gave


def test_every_operation_gives_what_gloo_gives():
    here, there = (
        emulated(every_operation).values,
        ws.run(every_operation, world_size=4, backend="gloo", echo=False).values,
    )
    for name in there[0]:
        torch.testing.assert_close(
            [one[name] for one in here], [one[name] for one in there], msg=lambda m, n=name: f"{n}: {m}"
        )


def train(no_sync=False):
    """The weights after three steps of DDP with several buckets, a tied and a frozen parameter."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(6)])
    model[2].weight = model[0].weight
    model[4].weight.requires_grad_(False)
    model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.02)
    torch.manual_seed(1 + dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        if no_sync:
            with model.no_sync():
                model(torch.randn(8, 64)).square().mean().backward()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("no_sync", [False, True])
def test_ddp_trains_as_on_gloo_and_the_timeline_is_the_same_byte_for_byte(no_sync):
    first, second = emulated(train, no_sync), emulated(train, no_sync)
    expected = ws.run(train, no_sync, world_size=4, backend="gloo", echo=False).values
    torch.testing.assert_close(first.values, expected)
    assert first.timeline.to_json() == second.timeline.to_json()


def test_ddp_hides_communication_behind_backward():
    timeline = emulated(train).timeline
    reduces = [event for event in timeline.of(0) if event.name == "all_reduce" and event.kind == "communication"]
    work = [event for event in timeline.of(0) if event.kind == "compute"]
    assert any(one.start_s < two.end_s and two.start_s < one.end_s for one in reduces for two in work)
    waits = [event for event in timeline.of(0) if event.name == "all_reduce" and event.kind == "wait"]
    assert waits, "backward ends when the last bucket has come"


def test_a_slower_network_takes_longer():
    ends_s = [emulated(train, cluster=name).timeline.end_s for name in ("dgx-h100", "pcie-box")]
    assert ends_s[0] < ends_s[1]


def receive_from_each_other():
    if dist.get_rank() < 2:
        dist.recv(torch.ones(3), 1 - dist.get_rank())


def one_leaves():
    if dist.get_rank() != 1:
        dist.barrier()


def calls_differ():
    dist.all_reduce(torch.ones(3 if dist.get_rank() == 1 else 4))


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (receive_from_each_other, "Ranks 0 and 1 wait for each other"),
        (one_leaves, "Ranks 0 and 2 wait for rank 1 in collective 1, barrier; rank 1 had returned"),
        (calls_differ, "Collectives do not match: Rank 1 calls collective 1, all_reduce (float32 [3])"),
    ],
)
def test_a_hang_is_found_at_once(fn, words):
    start_s = time.monotonic()
    with pytest.raises(ws.RunTimeout, match=r"^Nothing can move any more") as caught:
        ws.run(fn, world_size=3, cluster="dgx-h100", echo=False, timeout_s=600, stalled_s=None)
    assert words in str(caught.value)
    assert time.monotonic() - start_s < 60


def test_an_operation_that_is_not_allowed_is_refused_where_it_is_called():
    with pytest.raises(
        ws.RankFailed, match="Forbidden: all_reduce is not allowed here: this run is to be built from"
    ) as caught:
        emulated(lambda: dist.all_reduce(torch.ones(3)), allow={"send", "recv"})
    assert "dist.all_reduce(torch.ones(3))" in str(caught.value)
    assert emulated(ring_all_reduce, 12, allow={"send", "recv"}).values == [True] * 4


def test_the_conductor_refuses_it_also_from_a_rank_that_does_not_ask_itself():
    conductor = Conductor(2, allow={"send", "recv"})
    with pytest.raises(Forbidden, match="barrier is not allowed here"):
        conductor.post(Post(0, 1, "barrier", "0", (0, 1), "", 0, b""))


def test_a_rank_that_posts_nonsense_fails_its_run_and_not_the_launcher():
    def on_rank():
        from worldsize.emulate import backend

        backend._wire._send("post", op="juggle")
        dist.barrier()

    with pytest.raises(ws.RankFailed, match="broken message"):
        emulated(on_rank, world_size=2)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"cluster": "dgx-h1000"}, "dgx-h1000"),
        ({"cluster": "dgx-h100", "world_size": 9}, "dgx-h100 has 8 GPUs; 9 ranks do not fit on it"),
        ({"cluster": "dgx-h100", "allow": {"sendd"}}, "there is no operation sendd; known are all_gather"),
        (
            {"cluster": "dgx-h100", "compute": "guessed"},
            "compute 'guessed' is not known; use one of flops, measured, none",
        ),
    ],
)
def test_wrong_arguments_are_refused(kwargs, words):
    with pytest.raises(ValueError, match=words):
        ws.run(print, **{"world_size": 2, **kwargs})


def test_measured_work_takes_time_and_none_takes_none():
    def on_rank():
        for _ in range(20):
            torch.ones(300, 300) @ torch.ones(300, 300)
        dist.barrier()

    assert emulated(on_rank, compute="measured").timeline.time_s(0, "compute") > 1e-4
    assert emulated(on_rank, compute="none").timeline.time_s(0, "compute") == 0
