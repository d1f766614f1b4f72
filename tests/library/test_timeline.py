import dataclasses
import json
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import worldsize as ws
from worldsize import Event, Timeline

EVENTS = [
    Event(0, "main", "forward", "forward", 0.0, 2.0),
    Event(0, "main", "backward", "backward", 2.0, 5.0),
    Event(0, "main", "forward", "forward", 5.0, 6.0),
    Event(2, "main", "communication", "all-reduce", 1.0, 3.0, size_bytes=1024),
]


def test_an_event_knows_how_long_it_took():
    assert EVENTS[1].duration_s == 3.0


def test_a_timeline_counts_ranks_up_to_the_highest_and_ends_with_the_last_event():
    assert (Timeline(EVENTS).num_ranks, Timeline(EVENTS).end_s) == (3, 6.0)


def test_events_stand_in_order_of_rank_stream_and_time():
    side = Event(0, "copy", "data", "load", 9.0, 9.5)
    assert Timeline.of_events([*reversed(EVENTS), side]).events == [side, *EVENTS]


def test_the_events_of_one_rank_stand_in_order_of_time():
    assert Timeline(EVENTS[::-1]).of(0) == EVENTS[:3]
    assert Timeline(EVENTS).of(1) == []


def test_time_is_summed_by_rank_and_kind():
    timeline = Timeline(EVENTS)
    assert [timeline.time_s(rank, "forward") for rank in range(3)] == [3.0, 0, 0]


def test_a_share_is_of_all_recorded_time():
    assert Timeline(EVENTS).share("communication") == pytest.approx(2 / 8)
    assert Timeline(EVENTS).share("update") == 0


def test_an_empty_timeline_has_no_ranks_no_length_and_no_shares():
    empty = Timeline()
    assert (empty.num_ranks, empty.end_s, empty.share("forward"), empty.time_s(0, "forward")) == (0, 0, 0, 0)


def test_a_timeline_comes_back_from_json():
    assert Timeline.from_json(Timeline(EVENTS).to_json()) == Timeline(EVENTS)
    assert Timeline.from_json("[]") == Timeline()


def test_an_event_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EVENTS[0].end_s = 9.0


# who works, who talks, who waits


def work(rank, start_s, end_s, name="work", stream="compute"):
    return Event(rank, stream, "compute", name, start_s, end_s)


def wait(rank, start_s, end_s, name="all_reduce", peers=(0, 1), sequence=1):
    return Event(rank, "wait", "wait", name, start_s, end_s, 8, 0, peers, "0", sequence)


def reduce(rank, start_s, end_s, peers=(0, 1), sequence=1):
    return Event(rank, "communication", "communication", "all_reduce", start_s, end_s, 8, 12, peers, "0", sequence)


def message(src, dst, start_s, end_s, size_bytes=8):
    send = Event(src, "communication", "communication", "send", start_s, end_s, size_bytes, size_bytes, (dst,))
    return [send, Event(dst, "communication", "communication", "recv", start_s, end_s, size_bytes, 0, (src,))]


def timeline(*events):
    return Timeline.of_events(events)


def gpipe(num_stages, num_pieces):
    """Forward and backward of equal stages, one second a piece, with messages that take no time."""
    events = []
    for stage in range(num_stages):
        for piece in range(num_pieces):
            there_s = stage + piece
            back_s = (num_stages + num_pieces - 1) + (num_stages - 1 - stage) + piece
            for at_s, kind in ((there_s, "forward"), (back_s, "backward")):
                events.append(Event(stage, "compute", kind, f"{kind} {piece}", float(at_s), at_s + 1.0))
    return timeline(*events)


def test_time_and_share_count_a_moment_once_however_many_events_tell_of_it():
    mark = Event(0, "main", "communication", "synchronise", 1.0, 4.0)
    told = timeline(work(0, 0.0, 1.0), mark, reduce(0, 1.5, 3.5), wait(0, 1.5, 3.5))
    assert told.time_s(0, "communication") == 3.0
    assert told.share("communication") == pytest.approx(3 / 4)


def test_bytes_sent_are_those_of_a_rank_s_communication():
    told = timeline(*message(0, 1, 0.0, 1.0, 30), *message(1, 0, 1.0, 2.0, 5), reduce(0, 2.0, 3.0), reduce(1, 2.0, 3.0))
    assert [told.bytes_sent(rank) for rank in range(3)] == [42, 17, 0]


def test_bytes_sent_are_told_apart_by_the_axis_of_their_group():
    def sent(rank, group, size_bytes):
        peers = (0, 1)
        return Event(rank, "communication", "communication", "all_reduce", 0.0, 1.0, 0, size_bytes, peers, group)

    along = {"tp 5": 3, "tp 7": 4, "data parallel 2": 5, "": 6, "0": 7}
    told = timeline(*(sent(0, group, size_bytes) for group, size_bytes in along.items()))
    assert told.bytes_sent_by_axis(0) == {"tp": 7, "data parallel": 5, "": 13}
    assert sum(told.bytes_sent_by_axis(0).values()) == told.bytes_sent(0)
    assert told.bytes_sent_by_axis(1) == {}


class CountedEvents(list):
    passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


@pytest.mark.parametrize("of_all", [Timeline.exposed_communication_s, Timeline.overlap_fraction])
def test_the_events_are_gone_through_as_often_for_many_ranks_as_for_two(of_all):
    passes = []
    for num_ranks in (2, 50):
        events = CountedEvents(reduce(rank, 0.0, 1.0) for rank in range(num_ranks))
        of_all(Timeline(events))
        passes.append(events.passes)
    assert passes[0] == passes[1]


def test_communication_is_exposed_where_its_rank_does_not_work():
    told = timeline(
        *(work(0, 0.0, 2.0), reduce(0, 1.0, 4.0), reduce(0, 3.0, 6.0, sequence=2), work(0, 5.0, 7.0)),
        *(reduce(1, 0.0, 4.0), work(1, 0.0, 4.0)),
    )
    assert [told.exposed_communication_s(rank) for rank in (None, 0, 1, 2)] == [1.5, 3.0, 0.0, 0.0]
    assert [told.overlap_fraction(rank) for rank in (None, 0, 1, 2)] == pytest.approx([6 / 9, 2 / 5, 1.0, 0.0])


def test_a_rank_that_waits_inside_a_span_of_work_does_not_work():
    told = timeline(work(0, 0.0, 10.0, "step", "main"), reduce(0, 2.0, 6.0), wait(0, 3.0, 6.0))
    assert told.exposed_communication_s(0) == 3.0
    assert told.overlap_fraction(0) == pytest.approx(1 / 4)
    assert told.bubble_fraction() == pytest.approx(3 / 10)


@pytest.mark.parametrize(("num_stages", "num_pieces"), [(1, 4), (2, 1), (4, 8), (8, 4)])
def test_the_bubble_of_a_pipeline_is_the_textbook_s(num_stages, num_pieces):
    expected = (num_stages - 1) / (num_pieces + num_stages - 1)
    assert gpipe(num_stages, num_pieces).bubble_fraction() == pytest.approx(expected)


def test_a_bubble_counts_from_the_first_event_and_for_ranks_that_do_nothing():
    told = timeline(work(0, 10.0, 14.0), work(2, 11.0, 13.0), wait(2, 13.0, 14.0))
    assert [told.bubble_fraction(rank) for rank in (None, 0, 1, 2)] == pytest.approx([6 / 12, 0.0, 1.0, 0.5])


def test_an_empty_timeline_has_no_fractions_no_path_and_a_valid_trace():
    empty = Timeline()
    assert (empty.exposed_communication_s(), empty.overlap_fraction(), empty.bubble_fraction()) == (0, 0, 0)
    assert (empty.critical_path(), json.loads(empty.to_chrome_trace())["traceEvents"]) == ([], [])
    assert Timeline([work(0, 1.0, 1.0)]).bubble_fraction() == 0


# the critical path


def test_the_path_goes_to_the_rank_that_came_last():
    told = timeline(
        *(work(0, 0.0, 2.0, "early"), wait(0, 2.0, 6.0), reduce(0, 5.0, 6.0), work(0, 6.0, 8.0, "last")),
        *(work(1, 0.0, 5.0, "late"), wait(1, 5.0, 6.0), reduce(1, 5.0, 6.0), work(1, 6.0, 7.0)),
    )
    assert [(event.rank, event.name) for event in told.critical_path()] == [(1, "late"), (0, "all_reduce"), (0, "last")]


def test_the_path_goes_through_hidden_communication_only_where_it_decides():
    told = timeline(work(0, 0.0, 5.0), reduce(0, 1.0, 4.0), reduce(1, 1.0, 4.0), work(1, 0.0, 1.0), wait(1, 1.0, 4.0))
    assert told.critical_path() == [work(0, 0.0, 5.0)]


def test_the_path_goes_through_communication_that_stands_in_line():
    both = [
        event
        for rank in range(2)
        for event in (
            work(rank, 0.0, 1.0),
            reduce(rank, 1.0, 4.0),
            work(rank, 1.0, 2.0),
            reduce(rank, 4.0, 6.0, sequence=2),
            wait(rank, 2.0, 6.0, sequence=2),
        )
    ]
    path = timeline(*both).critical_path()
    assert path == [work(0, 0.0, 1.0), reduce(0, 1.0, 4.0), reduce(0, 4.0, 6.0, sequence=2)]


def test_the_path_follows_messages_from_rank_to_rank():
    events = [work(0, 0.0, 1.0), *message(0, 1, 1.0, 3.0), wait(1, 0.0, 3.0, "recv", (0,), 0), work(1, 3.0, 4.0)]
    waits = [dataclasses.replace(event, group="") for event in events]
    assert [(event.rank, event.name) for event in timeline(*waits).critical_path()] == [
        (0, "work"),
        (1, "recv"),
        (1, "work"),
    ]


def test_communication_without_time_still_hands_over():
    told = timeline(
        *(wait(0, 0.0, 5.0), reduce(0, 5.0, 5.0), work(0, 5.0, 6.0)),
        *(work(1, 0.0, 5.0, "late"), reduce(1, 5.0, 5.0)),
    )
    assert [(e.rank, e.name) for e in told.critical_path()] == [(1, "late"), (0, "all_reduce"), (0, "work")]


def test_in_a_real_run_the_path_goes_by_the_last_one_s_call():
    # rank 0 called at 1, rank 1 at 5; each saw the end at a time of its own, inside a span round the step
    told = timeline(
        *(work(0, 0.0, 7.0, "step", "main"), reduce(0, 1.0, 6.0), wait(0, 1.0, 6.0)),
        *(work(1, 0.0, 4.9, "slow", "main"), reduce(1, 5.0, 6.2), wait(1, 5.0, 6.2)),
    )
    assert [(e.rank, e.name) for e in told.critical_path()] == [(1, "slow"), (1, "all_reduce"), (0, "step")]


def test_what_others_did_after_they_had_called_is_not_on_the_path():
    told = timeline(
        *(reduce(0, 1.0, 6.0), work(0, 1.0, 4.95, "meanwhile"), wait(0, 4.95, 6.0)),
        *(work(1, 0.0, 4.9, "slow"), reduce(1, 5.0, 6.0), wait(1, 5.0, 6.0)),
    )
    assert [(e.rank, e.name) for e in told.critical_path()] == [(1, "slow"), (1, "all_reduce")]


def test_a_mark_round_recorded_calls_gives_way_to_them_and_one_without_stays():
    mark = Event(0, "main", "communication", "synchronise", 1.0, 4.1)
    before, after = work(0, 0.0, 1.0, stream="main"), work(0, 4.1, 5.0, stream="main")
    assert timeline(before, mark, after).critical_path() == [before, mark, after]
    assert timeline(before, mark, reduce(0, 1.5, 4.0), wait(0, 1.5, 4.0), after).critical_path() == [
        before,
        reduce(0, 1.5, 4.0),
        after,
    ]


def test_a_wait_for_something_unknown_is_on_the_path_itself():
    idle = Event(0, "wait", "wait", "data", 1.0, 3.0)
    assert timeline(work(0, 0.0, 1.0), idle, work(0, 3.0, 4.0)).critical_path()[1] == idle


def test_the_path_of_a_long_hostile_timeline_ends():
    at_once = [event for number in range(5000) for event in (reduce(number % 2, 1.0, 1.0), wait(number % 2, 1.0, 1.0))]
    assert len(timeline(*at_once).critical_path()) <= 10_000


# traces


def records(told, phase):
    return [one for one in json.loads(told.to_chrome_trace())["traceEvents"] if one["ph"] == phase]


def test_a_trace_has_a_named_process_for_each_rank_and_a_thread_for_each_stream():
    told = timeline(work(0, 0.0, 1.5e-6), reduce(0, 0.0, 1e-6), reduce(3, 0.0, 1e-6))
    names = {(one["name"], one["args"].get("name")): one for one in records(told, "M")}
    assert {("process_name", "rank 0"), ("process_name", "rank 3"), ("thread_name", "compute")} <= set(names)
    numbers = [(one["pid"], one["tid"]) for one in records(told, "M") if one["name"] == "thread_name"]
    # readers take these for the system's: 0 is the idle process, and no thread is in two processes
    assert len({tid for _, tid in numbers}) == len(numbers) == 3
    assert not {pid for pid, _ in numbers} & {0, *(tid for _, tid in numbers)}


def test_a_trace_has_every_field_that_the_format_asks_for():
    told = timeline(work(0, 0.0, 1.5e-6, ""), reduce(0, 2e-6, 3e-6), wait(0, 2e-6, 3e-6), *message(0, 1, 1.0, 2.0))
    assert set(json.loads(told.to_chrome_trace())) == {"traceEvents", "displayTimeUnit"}
    for one in records(told, "X"):
        assert {"name", "cat", "pid", "tid", "ts", "dur"} <= set(one)
        assert isinstance(one["name"], str) and one["name"] and isinstance(one["cat"], str)
        assert all(isinstance(one[key], int) for key in ("pid", "tid"))
        assert all(isinstance(one[key], int | float) and one[key] >= 0 for key in ("ts", "dur"))
    slices = {one["cat"]: one for one in records(told, "X")}
    assert (slices["compute"]["ts"], slices["compute"]["dur"], slices["compute"]["name"]) == (0, 1.5, "compute")
    (reduced,) = [one for one in records(told, "X") if one["name"] == "all_reduce" and one["cat"] == "communication"]
    assert reduced["args"] == {"size_bytes": 8, "sent_bytes": 12, "peers": [0, 1], "group": "0", "sequence": 1}


def test_an_arrow_goes_from_each_send_to_its_receive():
    late = [dataclasses.replace(event, start_s=4.0 + event.rank, end_s=7.0) for event in message(0, 1, 0.0, 1.0)]
    told = timeline(*message(0, 1, 1.0, 2.0), *late, *message(1, 0, 1.0, 3.0)[:1])
    starts, ends = records(told, "s"), records(told, "f")
    assert [(one["ts"], one["pid"]) for one in starts] == [(1e6, 1), (4e6, 1)]
    assert [(one["ts"], one["pid"], one["bp"]) for one in ends] == [(1e6, 2, "e"), (5e6, 2, "e")]
    assert [one["id"] for one in starts] == [one["id"] for one in ends] == [1, 2]
    for end in ends:  # it is bound to what is under way on its thread
        around = [one for one in records(told, "X") if (one["pid"], one["tid"]) == (end["pid"], end["tid"])]
        assert any(one["name"] == "recv" and one["ts"] <= end["ts"] < one["ts"] + one["dur"] for one in around)


def test_an_arrow_to_a_receive_is_not_caught_by_another_inside_it():
    long, short = (
        dataclasses.replace(message(0, 1, 0.0, 1.0, size)[1], end_s=end_s) for size, end_s in ((8, 9.0), (9, 5.0))
    )
    told = timeline(message(0, 1, 3.0, 9.0, 8)[0], long, short)
    (end,) = records(told, "f")
    around = [one for one in records(told, "X") if one["tid"] == end["tid"]]
    assert [one["dur"] for one in around] == [9e6]


def as_perfetto_reads(microseconds):
    """Nanoseconds: google/perfetto, src/trace_processor/importers/json, CoerceToTs, cuts off."""
    return int(microseconds * 1000.0)


def assert_nested(told):
    threads = {}
    for one in records(told, "X"):
        start_ns, length_ns = as_perfetto_reads(one["ts"]), as_perfetto_reads(one["dur"])
        threads.setdefault(one["tid"], []).append((start_ns, -(start_ns + length_ns)))
    for slices in threads.values():
        open_ns = []
        for start_ns, minus_end_ns in sorted(slices):
            while open_ns and open_ns[-1] <= start_ns:
                open_ns.pop()
            assert not open_ns or -minus_end_ns <= open_ns[-1]
            open_ns.append(-minus_end_ns)


def test_events_that_overlap_go_to_threads_of_their_own():
    told = timeline(
        *(reduce(0, 0.1 * n, 0.1 * n + 0.25, sequence=n) for n in range(9)), work(0, 0.0, 3.0), work(0, 1.0, 2.0)
    )
    names = [one["args"]["name"] for one in records(told, "M") if one["name"] == "thread_name"]
    assert names == ["communication", "communication 2", "communication 3", "compute"]
    assert_nested(told)


def test_a_reader_that_cuts_off_sees_no_overlap_where_one_event_follows_another():
    told = timeline(work(0, 1e-9, 1001e-9), work(0, 1001e-9, 2e-6))
    assert [as_perfetto_reads(one["ts"]) for one in records(told, "X")] == [1, 1001]
    assert_nested(told)


# what holds for any timeline

times_s = st.floats(0, 10, allow_nan=False) | st.integers(0, 5).map(float)
any_event = st.builds(
    lambda start_s, length_s, **fields: Event(start_s=start_s, end_s=start_s + length_s, **fields),
    start_s=times_s,
    length_s=times_s,
    rank=st.integers(0, 3),
    stream=st.sampled_from(["main", "compute", "communication"]),
    kind=st.sampled_from(["compute", "forward", "communication", "wait"]),
    name=st.sampled_from(["send", "recv", "all_reduce"]),
    size_bytes=st.integers(0, 2),
    sent_bytes=st.floats(0, 9),
    peers=st.lists(st.integers(0, 3), max_size=3).map(tuple),
    group=st.sampled_from(["", "0"]),
    sequence=st.integers(0, 2),
)
any_timeline = st.lists(any_event, max_size=30).map(Timeline.of_events)


@given(any_timeline, st.sampled_from([None, 0, 1, 7]))
def test_fractions_are_fractions_and_exposed_is_part_of_communication(told, rank):
    assert 0 <= told.overlap_fraction(rank) <= 1 and 0 <= told.bubble_fraction(rank) <= 1
    ranks = range(told.num_ranks) if rank is None else [rank]
    whole_s = sum(told.time_s(one, "communication") for one in ranks) / max(1, len(ranks))
    assert 0 <= told.exposed_communication_s(rank) <= whole_s + 1e-9
    exposed_s = whole_s * (1 - told.overlap_fraction(rank))
    assert told.exposed_communication_s(rank) == pytest.approx(exposed_s, abs=1e-9)


@given(any_timeline)
def test_a_path_is_a_chain_of_the_timeline_s_events_in_order(told):
    path = told.critical_path()
    assert path == Timeline(told.events[::-1]).critical_path()
    assert len({id(event) for event in path}) == len(path)
    assert {id(event) for event in path} <= {id(event) for event in told.events}
    assert bool(path) == any(not event.is_work or event.duration_s > 0 for event in told.events)
    for one, two in pairwise(path):
        assert one.start_s <= two.end_s + 1e-6


@given(any_timeline)
def test_any_timeline_comes_back_from_json_and_makes_a_trace_that_nests(told):
    assert Timeline.from_json(told.to_json()) == told
    assert told.to_json() == Timeline.from_json(told.to_json()).to_json()
    assert_nested(told)


# emulated runs


def train_ddp():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(512, 512) for _ in range(6)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 512)).square().mean().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        dist.send(torch.ones(1000), 1)
    else:
        dist.recv(torch.ones(1000), 0)


@pytest.fixture(scope="module")
def ddp():
    """The timeline of two steps of DDP and a message, on an emulated cluster."""
    return ws.run(train_ddp, world_size=2, cluster="dgx-h100", echo=False).timeline


def test_ddp_hides_some_communication_and_exposes_the_rest(ddp):
    for rank in range(2):
        hidden_s = ddp.time_s(rank, "communication") * ddp.overlap_fraction(rank)
        assert 0 < hidden_s < ddp.time_s(rank, "communication")
        assert hidden_s + ddp.exposed_communication_s(rank) == pytest.approx(ddp.time_s(rank, "communication"))
    # nothing else is left to wait for
    assert ddp.exposed_communication_s(0) == pytest.approx(ddp.time_s(0, "wait"))
    assert ddp.bytes_sent(0) == ddp.bytes_sent(1) + 4000


def test_the_path_of_an_emulated_run_has_no_gap_from_start_to_end(ddp):
    path = ddp.critical_path()
    assert (path[0].start_s, path[-1].end_s) == (0.0, ddp.end_s)
    assert [one.end_s for one in path[:-1]] == [two.start_s for two in path[1:]]
    assert {event.kind for event in path} == {"compute", "communication"}


def test_the_trace_of_an_emulated_run_nests_and_has_its_arrow(ddp):
    assert_nested(ddp)
    assert len(records(ddp, "s")) == len(records(ddp, "f")) == 1
