import dataclasses

import pytest

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
