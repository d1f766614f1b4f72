"""Real runs tell their calls and what torch.profiler sees; emulated ones keep to their cluster's clock."""

import time
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

import worldsize as ws
from worldsize.launch.protocol import messages
from worldsize.launch.protocol.call_log import DONE, ISSUED, Call
from worldsize.launch.protocol.events import SentEvent, read_events
from worldsize.launch.worker import profiling, spans
from worldsize.message import parse


@pytest.fixture
def kept():
    """The events that are kept, once the test has kept them; nothing stays behind."""
    list(spans.drain_events())
    yield lambda: [event for batch in spans.drain_events() for event in batch]
    list(spans.drain_events())


def real(fn, *args, world_size=2, **kwargs):
    return ws.run(fn, *args, world_size=world_size, backend="gloo", echo=False, **kwargs)


def of_kind(told, rank, kind):
    return [event for event in told.of(rank) if event.kind == kind]


# calls


def every_call():
    rank, mine = dist.get_rank(), torch.ones(6)
    halves, both = list(mine.chunk(2)), [torch.ones(6), torch.ones(6)]
    dist.all_reduce(mine)
    dist.broadcast(mine, src=1)
    dist.reduce(mine, dst=0)
    dist.all_gather(both, mine)
    dist.all_gather_into_tensor(torch.ones(12), mine)
    dist.gather(mine, both if rank == 0 else None, dst=0)
    dist.scatter(mine, both if rank == 0 else None, src=0)
    dist.reduce_scatter(torch.ones(3), halves)
    dist.all_to_all_single(torch.ones(6), mine)
    dist.barrier()
    if rank == 0:
        dist.send(mine, 1)
        dist.isend(mine, 1).wait()
    else:
        dist.recv(mine, 0)
        dist.irecv(mine, 0).wait()


def test_a_real_run_and_an_emulated_one_tell_the_same_calls():
    told = [real(every_call).timeline, ws.run(every_call, world_size=2, cluster="dgx-h100", echo=False).timeline]
    for rank in range(2):
        here, there = (
            [(e.name, e.size_bytes, e.peers, e.group, e.sequence) for e in of_kind(one, rank, "communication")]
            for one in told
        )
        assert here == there and len(here) == 12
    assert [told[0].bytes_sent(rank) for rank in range(2)] == [228, 180]
    assert {event.stream for event in told[0].events} == {"communication", "wait"}


def test_a_call_lasts_to_the_end_of_its_wait_and_waits_only_there():
    def on_rank():
        work = dist.all_reduce(torch.ones(3), async_op=True)
        with ws.span("meanwhile"):
            time.sleep(0.01)
        work.wait()

    told = real(on_rank).timeline
    for rank in range(2):
        (call,), (waited,), (span,) = (of_kind(told, rank, kind) for kind in ("communication", "wait", "compute"))
        assert call.start_s <= span.start_s < span.end_s <= waited.start_s < waited.end_s == call.end_s
        assert (waited.name, waited.sequence) == ("all_reduce", 1)
        assert told.exposed_communication_s(rank) < told.time_s(rank, "communication")


def test_the_path_of_a_real_run_goes_to_the_rank_that_called_last():
    def on_rank():
        store = dist.distributed_c10d._get_default_store()
        if dist.get_rank() == 0:
            call = dist.all_reduce(torch.ones(3), async_op=True)
            store.set("rank 0 has called", "yes")
            call.wait()
        else:
            with ws.span("work"):
                store.wait(["rank 0 has called"])
            dist.all_reduce(torch.ones(3))
        with ws.span("update", "update"):
            time.sleep(0.01)

    path = real(on_rank).timeline.critical_path()
    assert [event.name for event in path] == ["work", "all_reduce", "update"]
    assert path[0].rank == path[1].rank == 1


def test_a_script_under_torchrun_tells_its_spans_and_calls(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import torch, torch.distributed as dist, worldsize as ws\n"
        "dist.init_process_group('gloo')\n"
        "with ws.span('sync', 'communication'):\n"
        "    dist.all_reduce(torch.ones(3))\n"
    )
    told = ws.torchrun(script, nproc_per_node=2, echo=False, timeout_s=90).timeline
    for rank in range(2):
        assert sorted(event.name for event in told.of(rank)) == ["all_reduce", "all_reduce", "sync"]


def test_groups_have_their_members_and_their_own_count():
    def on_rank():
        pair = dist.new_group([1, 2])
        for _ in range(2):
            dist.all_reduce(torch.ones(1), group=pair)

    told = real(on_rank, world_size=3).timeline
    assert of_kind(told, 0, "communication") == []
    for rank in (1, 2):
        calls = of_kind(told, rank, "communication")
        assert [(call.peers, call.sequence) for call in calls] == [((1, 2), 1), ((1, 2), 2)]
        assert calls[0].group == calls[1].group != ""


def test_an_emulated_run_has_no_event_of_a_real_clock():
    def on_rank():
        with ws.profile():
            dist.all_reduce(torch.ones(1000))
            time.sleep(0.05)
        return [len(batch) for batch in spans.drain_events()]

    run = ws.run(on_rank, world_size=2, cluster="dgx-h100", echo=False)
    assert run.values == [[], []]
    assert run.timeline.end_s < 0.01 and {event.name for event in run.timeline.of(0)} <= {"", "all_reduce"}


def test_of_many_calls_the_last_are_kept():
    def on_rank():
        for _ in range(spans._MAX_EVENTS):
            dist.barrier()

    told = real(on_rank, world_size=1, timeout_s=120).timeline
    # each call has two events
    assert len(told.events) == spans._MAX_EVENTS
    assert max(event.sequence for event in told.events) == spans._MAX_EVENTS


def test_calls_that_nobody_waits_for_end_where_they_returned_and_do_not_pile_up(kept):
    calls = spans.Calls()
    for number in range(spans._MAX_OPEN + 5):
        calls.begin(Call(number, "isend", peer=1), torch.ones(2), None)
        calls.during(number, ISSUED, 1.0, 2.0)
    assert len(calls._open) == spans._MAX_OPEN
    calls.close()
    assert kept()[0] == SentEvent("communication", "communication", "send", 1.0, 2.0, 8, (1,), "", 0, 8)


def test_calls_that_are_still_open_are_told_at_the_end(kept):
    spans.calls.begin(Call(0, "isend", peer=1), torch.ones(2), None)
    spans.calls.during(0, ISSUED, 1.0, 2.0)
    assert [(event.name, event.start_s, event.end_s) for event in kept()] == [("send", 1.0, 2.0)]


def test_a_rank_that_is_no_member_has_no_event(kept):
    calls = spans.Calls()
    calls.begin(Call(0, "all_reduce"), torch.ones(2), dist.GroupMember.NON_GROUP_MEMBER)
    calls.during(0, DONE, 1.0, 2.0)
    assert kept() == []


def test_the_rows_of_one_message_are_bounded(kept):
    for number in range(messages.MAX_EVENTS + 1):
        spans.keep("calls", "wait", "wait", "", float(number), float(number))
    assert [len(batch) for batch in spans.drain_events()] == [messages.MAX_EVENTS, 1]
    assert kept() == []


GOOD = ["communication", "communication", "send", 1.0, 2.0, 8, [1], "0", 3, 8.0]


def test_rows_become_events_in_the_time_of_the_run():
    (event,) = read_events(5, parse([GOOD], list[SentEvent]), 0.5)
    assert event == ws.Event(5, "communication", "communication", "send", 0.5, 1.5, 8, 8, (1,), "0", 3)


@pytest.mark.parametrize("payload", [None, 3, ["x"], [torch.ones(2), "x"]])
def test_a_call_that_torch_will_refuse_is_left_to_torch(kept, payload):
    spans.Calls().begin(Call(0, "all_reduce"), payload, None)


@pytest.mark.parametrize(
    ("place", "value"),
    [(3, float("nan")), (3, 3.0), (4, float("inf")), (4, "late"), (5, -1), (6, 7), (6, ["x"]), (8, None), (9, -1.0)],
)
def test_rows_that_are_no_events_are_refused(place, value):
    row = [*GOOD[:place], value, *GOOD[place + 1 :]]
    with pytest.raises(ValueError, match=r"Expected|an event starts at 3.0 s, after its end at 2.0 s"):
        read_events(0, parse([row], list[SentEvent]), 0.0)


def test_a_rank_that_tells_nonsense_fails_its_run():
    def on_rank():
        from worldsize.launch.worker import spans

        spans.keep("calls", "wait", "wait", "", 5.0, float("nan"))

    with pytest.raises(ws.RankFailed, match=r"cannot be read: Expected `float` .* at `\$.events\[0\]\[4\]`"):
        real(on_rank, world_size=1)


# torch.profiler


def train_profiled():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256) for _ in range(4)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.3)
    with ws.profile():
        time.sleep(0.001)
        with ws.span("step"):
            model(torch.randn(64, 256)).square().mean().backward()
        time.sleep(0.001)
    return sum(one.numel() * 4 for one in model.parameters())


@pytest.fixture(scope="module")
def profiled():
    """A step of DDP under the profiler."""
    return real(train_profiled)


def test_the_profiler_shows_ddp_s_own_collectives(profiled):
    for rank in range(2):
        reduces = [event for event in profiled.timeline.of(rank) if event.name == "gloo:all_reduce"]
        assert {(event.stream, event.kind) for event in reduces} == {("communication",) * 2}
        assert sum(event.size_bytes for event in reduces) == profiled.values[rank]
        sent = [event.sent_bytes for event in profiled.timeline.of(rank) if event.name.endswith("all_reduce")]
        assert sum(sent) == profiled.values[rank]  # the profiler's events do not count again


def test_the_profiler_shows_the_outermost_operations_forward_and_backward(profiled):
    for rank in range(2):
        operations = [event for event in profiled.timeline.of(rank) if event.stream == "compute"]
        assert {event.kind for event in operations} == {"compute", "backward"}
        assert all(one.end_s <= two.start_s + 1e-6 for one, two in pairwise(operations))
        kinds = {event.name: event.kind for event in operations}
        assert kinds["aten::linear"] == "compute" and kinds["aten::mm"] == "backward"
        assert "aten::addmm" not in kinds  # inside linear


def test_the_profiler_s_clock_is_that_of_spans(profiled):
    for rank in range(2):
        (span,) = [event for event in profiled.timeline.of(rank) if event.name == "step"]
        operations = [event for event in profiled.timeline.of(rank) if event.stream == "compute"]
        inside = [e for e in operations if span.start_s - 1e-3 < e.start_s and e.end_s < span.end_s + 1e-3]
        assert len(inside) == len(operations) > 10


def test_the_profiler_says_nothing_on_stderr(profiled):
    assert profiled.output == ["", ""]


def test_an_inner_profile_adds_nothing(kept):
    with ws.profile():
        torch.ones(3)
        with ws.profile():
            torch.ones(3)
        torch.ones(3)
    assert [event.name for event in kept()] == ["aten::ones"] * 3


def test_a_profile_of_one_s_own_becomes_events_without_the_launcher():
    before_s = time.monotonic()
    with torch.profiler.profile(acc_events=True) as profiler:
        torch.ones(300, 300) @ torch.ones(300, 300)
    events = profiling.events_of(profiler, rank=3)
    assert "aten::matmul" in {event.name for event in events} and {event.rank for event in events} == {3}
    assert all(before_s - 1e-3 < event.start_s <= event.end_s < time.monotonic() + 1e-3 for event in events)
