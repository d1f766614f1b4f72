"""The same programs on the emulated cluster: the data that Gloo gives, in the time that the cluster takes."""

import dataclasses
import json
import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from rings import ring_all_reduce

import worldsize as ws
from worldsize import emulate, hardware, pricing
from worldsize.emulate.launcher import conductor
from worldsize.emulate.launcher import server as emulated_side
from worldsize.emulate.launcher.conductor import Conductor, Post
from worldsize.emulate.protocol.operations import COLLECTIVES, REDUCTIONS, Forbidden
from worldsize.emulate.worker.compute import FlopsMeter, MeasuredMeter
from worldsize.launch import magic
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.protocol.quota import Quota
from worldsize.launch.runner import launch


def emulated(fn, *args, world_size=4, cluster="dgx-h100", **kwargs):
    return ws.run(fn, *args, world_size=world_size, cluster=cluster, echo=False, timeout_s=120, **kwargs)


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
    gave["in_channels_last"] = torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last) * rank
    dist.all_reduce(gave["in_channels_last"])
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


def gathers_differ():
    mine = torch.ones(3 if dist.get_rank() == 1 else 4)
    dist.gather(mine, [torch.ones(4) for _ in range(3)] if dist.get_rank() == 0 else None)


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (receive_from_each_other, "Ranks 0 and 1 wait for each other"),
        (one_leaves, "Ranks 0 and 2 wait for rank 1 in collective 1, barrier; rank 1 has returned"),
        (calls_differ, "Collectives do not match: Rank 1 calls collective 1, all_reduce (float32 [3])"),
        (gathers_differ, "Collectives do not match: Rank 1 calls collective 1, gather (float32 [3], root 0)"),
    ],
)
def test_a_hang_is_found_at_once(fn, words):
    start_s = time.monotonic()
    with pytest.raises(ws.RunTimeout, match=r"^Deadlock: ") as caught:
        ws.run(fn, world_size=3, cluster="dgx-h100", echo=False, timeout_s=600, stalled_s=None)
    assert words in str(caught.value)
    assert time.monotonic() - start_s < 60


def sends_much_that_nobody_receives():
    if dist.get_rank() == 0:
        for work in [dist.isend(torch.ones(1 << 16), 1) for _ in range(20)]:
            work.wait()
    else:
        dist.recv(torch.ones(1), 0, tag=1)


def test_data_in_transit_is_limited():
    options = {"world_size": 2, "cluster": "dgx-h100", "echo": False, "quota": Quota(value_bytes=1 << 19)}
    with pytest.raises(ws.RunError, match="the ranks sent more than 4194304 bytes that no rank has received"):
        launch(Spec(fn=sends_much_that_nobody_receives, **options))


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


def test_bodies_of_different_lengths_never_match_whatever_is_said_of_them():
    conductor = Conductor(2)
    for rank, body in enumerate((bytes(4), bytes(8))):
        post = Post(rank, 1, "all_reduce", "0", (0, 1), "float32", 1, body, reduction="SUM")
        assert conductor.post(post) == []


def test_a_rank_that_posts_nonsense_fails_its_run_and_not_the_launcher():
    def on_rank():
        from worldsize import framing
        from worldsize.emulate.worker import backend

        backend._client._sock.sendall(framing.pack_header(b"juggle"))
        dist.barrier()

    with pytest.raises(ws.RankFailed, match="broken message"):
        emulated(on_rank, world_size=2)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"cluster": "dgx-h1000"}, "dgx-h1000"),
        (
            {"cluster": hardware.H100},
            "a cluster of worldsize.hardware, or the name of one such as .dgx-h100.; got a Gpu",
        ),
        ({"cluster": "dgx-h100", "world_size": 9}, "dgx-h100 has 8 GPUs; 9 ranks do not fit on it"),
        ({"cluster": "dgx-h100", "allow": {"sendd"}}, "there is no operation sendd; known are all_gather"),
        (
            {"cluster": "dgx-h100", "compute": "guessed"},
            "compute must be one of flops, measured, none, or a number, 0 or more; got 'guessed'",
        ),
        ({"cluster": "dgx-h100", "compute": -1}, "or a number, 0 or more; got -1"),
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

    assert 1e-4 < emulated(on_rank, compute="measured").timeline.time_s(0, "compute") < 100
    assert emulated(on_rank, compute=1e6).timeline.time_s(0, "compute") > 100
    assert emulated(on_rank, compute="none").timeline.time_s(0, "compute") == 0


def test_what_was_measured_before_the_start_does_not_count():
    meter, before_s = MeasuredMeter(1.0), time.process_time()
    while time.process_time() < before_s + 0.1:
        pass
    meter.start()
    assert meter.take_s() < 0.1


def test_room_for_a_tensor_costs_no_time():
    meter = FlopsMeter(hardware.H100)
    with meter:
        torch.empty(1_000_000)
        assert meter.take_s() == 0
        torch.zeros(1_000_000)
        assert meter.take_s() == pytest.approx(4e6 / 2.90e12)


def reduce_and_ask():
    for _ in range(3):
        dist.all_reduce(torch.ones(100))
        emulate.elapsed()


def test_equal_collectives_are_priced_once_however_often_the_time_is_asked_for(monkeypatch):
    asked, price = [], pricing.price
    monkeypatch.setattr(pricing, "price", lambda *args: asked.append(args) or price(*args))
    emulated(reduce_and_ask, world_size=2)
    assert len(asked) == 1


def tell_the_time():
    """The rank's time before and after two seconds of its own, a barrier, and a lone rank's half second."""
    times_s = [emulate.elapsed()]
    emulate.spend(2.0 + dist.get_rank())
    times_s.append(emulate.elapsed())
    dist.barrier()
    if dist.get_rank() == 0:
        emulate.spend(0.5)
        times_s.append(emulate.elapsed())
    return times_s


def test_a_rank_can_ask_what_time_it_is():
    run = emulated(tell_the_time, world_size=3, compute="none")
    assert [times_s[:2] for times_s in run.values] == [[0.0, 2.0], [0.0, 3.0], [0.0, 4.0]]
    assert run.values[0][2] == pytest.approx(4.5, abs=1e-3) and run.values[0][2] > 4.5
    assert run.timeline.end_s == run.values[0][2]


def test_in_a_real_run_the_time_is_the_clocks():
    def on_rank():
        start_s = emulate.elapsed()
        emulate.spend(0.02)
        return emulate.elapsed() - start_s

    (took_s,) = ws.run(on_rank, world_size=1, echo=False).values
    assert took_s >= 0.02
    with pytest.raises(ValueError, match="duration_s is -1"):
        emulate.spend(-1)


def serve_whoever_comes(num_each):
    """Rank 0 takes what comes, from any rank, and answers; the others work at paces of their own."""
    rank, size = dist.get_rank(), dist.get_world_size()
    box, order = torch.zeros(1), []
    for _ in range(num_each * (size - 1) if rank == 0 else 0):
        src = dist.recv(box)
        assert box.item() == src
        order.append(src)
        dist.send(box, src)
    for _ in range(num_each if rank else 0):
        emulate.spend(0.1 + [0, 0.0, 0.31, 1.0][rank])
        dist.send(torch.full((1,), float(rank)), 0)
        dist.recv(box, 0)
    return order


def test_a_receive_from_any_rank_takes_what_was_sent_first_in_virtual_time():
    first, second = (emulated(serve_whoever_comes, 3, compute="none") for _ in range(2))
    # sent at 0.1, 0.2, 0.3 by rank 1; 0.41, 0.82, 1.23 by rank 2; 1.1, 2.2, 3.3 by rank 3
    assert first.values[0] == second.values[0] == [1, 1, 1, 2, 2, 3, 2, 3, 3]
    assert first.timeline.to_json() == second.timeline.to_json()


def receive_from_nobody():
    if dist.get_rank() == 0:
        dist.recv(torch.zeros(1))


def test_a_receive_from_any_rank_that_nobody_sends_is_found():
    with pytest.raises(ws.RunTimeout, match=r"^Deadlock: "):
        emulated(receive_from_nobody, world_size=2)


def poll(spend_s):
    """The sum, how often it was not there when asked, and the time at the end, with so much work in between."""
    work = dist.all_reduce(tensor := torch.ones(1_000_000), async_op=True)
    num_times = 0
    while not work.is_completed():
        emulate.spend(spend_s)
        num_times += 1
    assert work.is_completed() and work.is_success()
    return tensor[0].item(), num_times, emulate.elapsed()


@pytest.mark.parametrize(("num_asked", "num_times"), [(2.5, 3), (10.5, 11)])
def test_a_call_is_completed_once_it_is_so_in_virtual_time(num_asked, num_times):
    spend_s = pricing.price("all_reduce", 4e6, range(2), hardware.DGX_H100).time_s / num_asked
    values = emulated(poll, spend_s, world_size=2, compute="none").values
    assert values == [(2.0, num_times, pytest.approx(num_times * spend_s))] * 2


def test_to_ask_again_at_the_same_time_is_refused():
    with pytest.raises(ws.RankFailed, match=r"no virtual time has passed since: .* Call wait\(\) instead") as caught:
        emulated(poll, 0.0, world_size=2, compute="none")
    assert "while not work.is_completed():" in str(caught.value)


def forget_to_wait():
    tensor = torch.ones(1)
    work = dist.all_reduce(tensor, async_op=True)
    dist.barrier()  # answered after the sum, on the same line: the sum is here
    before = tensor.item()
    work.wait()
    return before, tensor.item()


def test_a_tensor_stays_as_it_is_until_its_call_is_waited_for():
    assert emulated(forget_to_wait, world_size=2).values == [(1.0, 2.0)] * 2


def gather_two_coalesced():
    mine = [torch.full((1,), 10.0 * dist.get_rank() + i) for i in range(2)]
    wholes = [torch.zeros(2) for _ in mine]
    with dist._coalescing_manager(async_ops=True) as works:
        for whole, part in zip(wholes, mine, strict=True):
            dist.all_gather_into_tensor(whole, part)
    works.wait()
    return [whole.tolist() for whole in wholes]


def test_who_waits_for_coalesced_calls_has_them_all():
    assert emulated(gather_two_coalesced, world_size=2).values == [[[0.0, 10.0], [1.0, 11.0]]] * 2


def gather_sizes_that_differ():
    num = 3 if dist.get_rank() == 0 else 2
    with dist._coalescing_manager(async_ops=True) as works:
        dist.all_gather_into_tensor(torch.zeros(2 * num), torch.ones(num))
        dist.all_gather_into_tensor(torch.zeros(2), torch.ones(1))
    works.wait()


def test_a_coalesced_call_that_is_never_answered_is_a_hang():
    with pytest.raises(ws.RunTimeout, match=r"^Deadlock: "):
        emulated(gather_sizes_that_differ, world_size=2)


def wait_for_a_future(how):
    emulate.elapsed()  # what depends on virtual time needs to know who waits
    tensor = torch.ones(1_000_000)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    if how == "collect_all":
        torch.futures.collect_all([future]).wait()
    if how == "wait_all":
        torch.futures.wait_all([future])
    waited = future.then(lambda done: done.wait()[0] * 10) if how == "then" else future
    took_s = emulate.elapsed()
    total = waited.wait()
    took_s = took_s if how.endswith("_all") else emulate.elapsed()
    return (total if how == "then" else total[0])[0].item(), took_s


@pytest.mark.parametrize(("how", "total"), [("wait", 2.0), ("then", 20.0), ("collect_all", 2.0), ("wait_all", 2.0)])
def test_a_future_is_waited_for_in_virtual_time(how, total):
    run = emulated(wait_for_a_future, how, world_size=2, compute="none")
    taken_s = pricing.price("all_reduce", 4e6, range(2), hardware.DGX_H100).time_s
    assert run.values == [(total, pytest.approx(taken_s))] * 2


def fail_in_a_callback():
    def fail(done):
        raise KeyError("no such thing")

    dist.all_reduce(torch.ones(1), async_op=True).get_future().then(fail).wait()


def test_what_goes_wrong_in_a_callback_is_its_waiters():
    with pytest.raises(ws.RankFailed, match="no such thing"):
        emulated(fail_in_a_callback, world_size=2)


def test_a_scatter_is_sent_by_its_root_and_a_gather_by_the_others():
    def on_rank(root):
        parts = [torch.ones(1000) for _ in range(4)] if dist.get_rank() == root else None
        dist.scatter(mine := torch.zeros(1000), parts, src=root)
        dist.gather(mine, parts, dst=root)

    timeline = emulated(on_rank, 3).timeline
    sent = {op: [sum(e.sent_bytes for e in timeline.of(r) if e.name == op) for r in range(4)] for op in OF_A_ROOT}
    assert sent == {"scatter": [0, 0, 0, 12_000], "gather": [4000, 4000, 4000, 0]}


OF_A_ROOT = ("scatter", "gather")


WRONG_TENSORS = {
    "an output too large": (
        lambda: dist.all_gather_into_tensor(torch.zeros(5), torch.ones(2)),
        "16 bytes came for tensors of 20 bytes",
    ),
    "an output too small": (
        lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.ones(2)),
        "16 bytes came for tensors of 12 bytes",
    ),
    "an input too large": (
        lambda: dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(5)),
        "reduce_scatter got an input of 5 items; it must have 2 times as many as the output, 4",
    ),
    "a mean of integers": (
        lambda: dist.all_reduce(torch.ones(2, dtype=torch.int64), op=dist.ReduceOp.AVG),
        "AVG needs a floating-point or complex type, not torch.int64",
    ),
    "bits of floats": (lambda: dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BOR), "BOR is for integers"),
    "two types": (
        lambda: dist.all_gather_into_tensor(torch.ones(2), torch.ones(1, dtype=torch.int32)),
        "one call has tensors of torch.int32 and torch.float32",
    ),
    "a message too long": (
        lambda: dist.send(torch.ones(8), 1) if dist.get_rank() == 0 else dist.recv(torch.zeros(4), 0),
        "32 bytes came for tensors of 16 bytes",
    ),
}


@pytest.mark.parametrize("what", WRONG_TENSORS)
def test_tensors_that_do_not_fit_are_refused_where_they_are_given(what):
    call, words = WRONG_TENSORS[what]
    with pytest.raises(ws.RankFailed, match=words) as failed:
        emulated(call, world_size=2)
    assert failed.value.failures[0].kind == "ValueError" and "test_emulate.py" in str(failed.value)


def gather_into_shapes():
    """The numbers of both ranks' rows, gathered into tensors of the shapes that NCCL takes."""
    outputs = [torch.zeros(shape) for shape in ((4, 3), (2, 2, 3), (12,))]
    for whole in outputs:
        dist.all_gather_into_tensor(whole, torch.ones(2, 3) + dist.get_rank())
    return [whole.flatten().tolist() for whole in outputs]


def test_gathering_into_a_tensor_takes_rows_a_stack_and_flat_numbers_as_nccl_does():
    assert emulated(gather_into_shapes, world_size=2).values == [[[1.0] * 6 + [2.0] * 6] * 3] * 2


def collectives_inside_torch_func():
    """The sums and gathered tensors of calls inside a function that `torch.func` differentiates, and its gradient."""
    mine, found = torch.arange(4.0) + dist.get_rank(), []

    def function(tensor):
        dist.all_reduce(total := tensor.detach().clone())
        dist.all_gather_into_tensor(whole := torch.zeros(8), tensor.detach())
        found.extend([total.tolist(), whole.tolist()])
        return (tensor * total).sum()

    _, pull = torch.func.vjp(function, mine)
    return found, pull(torch.ones(()))[0].tolist()


def test_collectives_work_inside_torch_func_as_on_gloo():
    expected = ws.run(collectives_inside_torch_func, world_size=2, backend="gloo", echo=False).values
    assert emulated(collectives_inside_torch_func, world_size=2).values == expected
    assert expected[1] == ([[1.0, 3.0, 5.0, 7.0], [0.0, 1, 2, 3, 1, 2, 3, 4]], [1.0, 3.0, 5.0, 7.0])


def receive_less():
    if dist.get_rank() == 0:
        return dist.send(torch.ones(2), 1)
    dist.recv(box := torch.zeros(4), 0)
    return box.tolist()


def test_a_message_may_be_shorter_than_what_it_is_received_in_as_on_gloo():
    assert emulated(receive_less, world_size=2).values[1] == [1, 1, 0, 0]


def reduce_parts_that_differ():
    sizes = [1, 2] if dist.get_rank() == 0 else [2, 1]
    dist.reduce_scatter(torch.zeros(sizes[dist.get_rank()]), [torch.ones(size) for size in sizes])


def test_a_reduce_scatter_of_parts_that_differ_is_a_hang():
    with pytest.raises(ws.RunTimeout, match=r"^Deadlock: "):
        emulated(reduce_parts_that_differ, world_size=2)


def be_killed_while_others_wait():
    if dist.get_rank() == 1:
        emulate.elapsed()  # answered when all others wait
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def test_a_rank_that_is_killed_is_told_and_not_that_others_wait_for_it():
    with pytest.raises(ws.RankFailed, match="Rank 1 of 4 failed with SIGKILL"):
        emulated(be_killed_while_others_wait)


def ask_often(num_rounds):
    for _ in range(num_rounds):
        dist.barrier()
        emulate.elapsed()


def test_ranks_that_ask_at_the_same_moment_cost_one_replay(monkeypatch):
    replays = []
    times = emulated_side.times
    monkeypatch.setattr(emulated_side, "times", lambda *args: replays.append(1) or times(*args))
    emulated(ask_often, 5, compute="none")
    assert len(replays) == 5


def hang_in_backward():
    """Rank 1 leaves its second layer out, so that rank 0 waits for a bucket that never comes."""
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(2)])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            x = self.layers[0](x)
            return self.layers[1](x) if dist.get_rank() == 0 else x

    model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=0.001)
    model(torch.ones(1, 64)).sum().backward()


def test_a_hang_in_ddps_own_backward_is_found_at_once_and_told():
    with pytest.raises(ws.RunTimeout, match=r"^Deadlock: ") as caught:
        ws.run(hang_in_backward, world_size=2, cluster="dgx-h100", echo=False, timeout_s=600, stalled_s=None)
    assert "Rank 0 waits for rank 1 in collective" in str(caught.value)
    assert "all_reduce (float32" in str(caught.value)


SCRIPT = """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1 << 18)
dist.all_reduce(total)
print(sys.argv[1:], os.environ["LOCAL_RANK"], int(total[0]), __name__)
dist.destroy_process_group()
sys.exit(int(sys.argv[1]))
"""


VARIABLES = """
import json, os

names = ("MASTER_", "RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_", "TORCHELASTIC_R", "TORCHELASTIC_MAX")
print(json.dumps({name: value for name, value in os.environ.items() if name.startswith(names)}))
"""


def test_a_script_on_an_emulated_cluster_has_the_variables_that_torchrun_sets(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(VARIABLES)
    runs = [ws.torchrun(path, cluster=cluster, nproc_per_node=2, echo=False) for cluster in (None, "dgx-h100")]
    real, emulated = (json.loads(run.output[1]) for run in runs)
    assert set(real) == set(emulated)
    own = {"MASTER_PORT", "TORCHELASTIC_RUN_ID"}
    assert {name: emulated[name] for name in set(real) - own} == {name: real[name] for name in set(real) - own}
    last = json.loads(ws.torchrun(path, cluster="a100-hdr", echo=False).output[9])
    assert (last["GROUP_RANK"], last["LOCAL_RANK"], last["GROUP_WORLD_SIZE"]) == ("1", "1", "2")


def test_a_script_joins_the_emulated_cluster_instead(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    run = ws.torchrun(path, "0", cluster="dgx-h100", nproc_per_node=4, echo=False)
    assert run.output == [f"['0'] {rank} 4 __main__\n" for rank in range(4)]
    assert run.timeline.bytes_sent(0) > 0
    sixteen = ws.torchrun(path, "0", cluster="a100-hdr", echo=False)
    assert sixteen.output[9] == "['0'] 1 16 __main__\n"
    assert sixteen.timeline.end_s > run.timeline.end_s
    with pytest.raises(ws.RankFailed, match=r"sys\.exit\(3\)"):
        ws.torchrun(path, "3", cluster="dgx-h100", nproc_per_node=2, echo=False)


def test_a_script_that_joins_twice_gets_a_sentence(tmp_path):
    path = tmp_path / "train.py"
    again = "dist.init_process_group()\ndist.destroy_process_group()\n"
    path.write_text("import torch.distributed as dist\n" + again + again)
    with pytest.raises(ws.RankFailed, match="destroyed its process group and joins again, which ranks of an emulated"):
        ws.torchrun(path, cluster="dgx-h100", nproc_per_node=2, echo=False)


def test_a_cell_names_its_cluster(tmp_path, capsys):
    run = magic.torchrun("--cluster dgx-h100 --nproc-per-node=2 -- 0", SCRIPT)
    assert "['0'] 1 2 __main__" in run.output[1]
    assert "2 ranks on the emulated dgx-h100" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--cluster", "--cluster needs a name, one of dgx-a100, dgx-h100"),
        ("--cluster --nproc-per-node=2", "--cluster needs a name"),
        ("--cluster=dgx-h1000", "no cluster is called 'dgx-h1000'; did you mean 'dgx-h100'"),
        ("--cluster=h100-ndr --nnodes=2 --nproc-per-node=4", "h100-ndr has 8 GPUs a node"),
        ("--cluster=dgx-h100 --rdzv-backend=c10d", "and --nproc-per-node may be given; remove --rdzv-backend"),
        ("--cluster=dgx-h100 --nnodes=2 --nproc-per-node=8", "dgx-h100 has 8 GPUs; 16 ranks do not fit on it"),
        ("--cluster=dgx-h100 --nnodes=none", "--nnodes must be a whole number, 1 or more; got none"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(line, words):
    with pytest.raises(ValueError, match=words):
        magic.torchrun(line, SCRIPT)


def step_in_spans():
    with ws.span("step", kind="compute"):
        with ws.span("0", kind="forward"):
            emulate.spend(1.0)
        emulate.spend(0.25)
        with ws.span("0", kind="backward"):
            emulate.spend(2.0)
            dist.barrier()
            torch.ones(500, 500) @ torch.ones(500, 500)
    emulate.spend(0.5)


def test_spans_name_the_work_in_virtual_time():
    timeline = emulated(step_in_spans, world_size=2).timeline
    work = [(event.kind, event.name, event.start_s) for event in timeline.of(0) if event.is_work]
    assert work[:3] == [("forward", "0", 0.0), ("compute", "step", 1.0), ("backward", "0", 1.25)]
    assert [(kind, name) for kind, name, _ in work[3:]] == [("backward", "0"), ("compute", "")]
    assert timeline.end_s == pytest.approx(3.75, abs=1e-2) and timeline.end_s > 3.75


def test_the_conductor_carries_out_every_operation_by_name():
    assert conductor.OUTPUTS.keys() == set(COLLECTIVES)
    assert conductor._COMBINE.keys() == set(REDUCTIONS)
