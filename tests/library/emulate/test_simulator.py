"""Virtual time, on records made by hand."""

from dataclasses import dataclass

import pytest

from worldsize.emulate.launcher.simulator import ClusterPrices, replay
from worldsize.emulate.protocol.record import COMPUTE, POST, WAIT, Operation, Step


@dataclass(frozen=True)
class Way:
    latency_s: float
    hops: tuple[str, ...]


@dataclass(frozen=True)
class Cost:
    time_s: float
    sent_bytes_per_rank: float = 12
    delay_s: float = 0.0


def prices(latency_s=1.0, capacity=10.0, collective_s=5.0, shared=(), delay_s=0.0, is_rendezvous=False):
    """Every rank has a way out and one in, at 10 bytes a second; and what all messages share."""
    return ClusterPrices(
        lambda src, dst: Way(latency_s, (f"{src} out", f"{dst} in", *shared)),
        lambda hop: capacity,
        lambda operation: Cost(collective_s, delay_s=delay_s),
        is_rendezvous,
    )


def message(src, dst, size_bytes, src_number=1, dst_number=1):
    return Operation("send", (src, dst), size_bytes, parts={src: src_number, dst: dst_number})


def collective(ranks, number=1, group="all"):
    return Operation("all_reduce", ranks, 8, group, number, dict.fromkeys(ranks, number))


def compute(duration_s):
    return Step(COMPUTE, duration_s=duration_s)


def post(number=1):
    return Step(POST, number)


def wait(number=1):
    return Step(WAIT, number)


def times(timeline, rank, kind):
    return [(event.start_s, event.end_s) for event in timeline.of(rank) if event.kind == kind]


def test_a_message_takes_its_latency_and_its_bytes():
    timeline = replay([[post(), wait()]] * 2, [message(0, 1, 30)], prices())
    assert times(timeline, 0, "communication") == times(timeline, 1, "wait") == [(0.0, 4.0)]
    sent, received = [event for event in timeline.events if event.kind == "communication"]
    assert (sent.name, sent.size_bytes, sent.sent_bytes, sent.peers) == ("send", 30, 30, (1,))
    assert (received.name, received.size_bytes, received.sent_bytes, received.peers) == ("recv", 30, 0, (0,))


def test_a_message_starts_when_both_ends_are_there():
    timeline = replay([[post(), wait()], [compute(7.0), post(), wait()]], [message(0, 1, 30)], prices())
    assert times(timeline, 0, "wait") == [(0.0, 11.0)]
    assert times(timeline, 0, "communication") == [(7.0, 11.0)]


# both ways between two ranks, of which rank 1 is ready at once; a word takes half of the latency
BOTH_WAYS = [message(0, 1, 30, 1, 1), message(1, 0, 30, 2, 2)]
AT_ONCE = [post(1), post(2), wait(1), wait(2)]


@pytest.mark.parametrize(
    ("of_rank_0", "ends", "otherwise"),
    [
        ([compute(2.0), post(1), post(2)], [5.0, 9.0], [6.0, 6.0]),  # the word goes out at 5.0, behind the last byte
        ([compute(2.0), post(2), post(1)], [5.0, 6.0], [6.0, 6.0]),
        ([post(2), compute(2.0), post(1)], [5.0, 4.0], [6.0, 4.0]),
        ([post(1), compute(3.25), post(2)], [3.5, 7.5], [4.0, 7.25]),
        ([post(1), compute(3.75), post(2)], [3.5, 7.75], [4.0, 7.75]),
        ([post(1), compute(5.0), post(2)], [3.5, 9.0], [4.0, 9.0]),
    ],
)
def test_with_gloo_a_receivers_word_waits_behind_its_own_bytes(of_rank_0, ends, otherwise):
    def ended(**options):
        timeline = replay([[*of_rank_0, wait(1), wait(2)], AT_ONCE], BOTH_WAYS, prices(**options))
        by_name = {one.name: one.end_s for one in timeline.of(0) if one.kind == "communication"}
        return [by_name["send"], by_name["recv"]]

    assert ended(is_rendezvous=True) == ends  # when the bytes have left, and when they have come
    assert ended() == otherwise


def test_words_wait_in_line_behind_all_that_was_sent_before():
    steps = [
        [compute(1.0), post(1), post(2), post(3), post(4), *map(wait, (1, 2, 3, 4))],
        [post(1), post(2), post(3), post(4), *map(wait, (1, 2, 3, 4))],
    ]
    sent = [message(0, 1, 30, 1, 1), message(0, 1, 30, 2, 2), message(1, 0, 10, 3, 3), message(1, 0, 10, 4, 4)]
    timeline = replay(steps, sent, prices(is_rendezvous=True))
    ends = [one.end_s for one in timeline.of(1) if one.kind == "communication"]
    assert sorted(ends) == [4.5, 7.5, 8.5, 9.5]  # the second follows the first at 4.0, both words go out at 7.0


def test_messages_that_share_a_part_of_their_way_share_its_rate():
    steps = [[post(), wait()]] * 4
    both = [message(0, 1, 30), message(2, 3, 10)]
    apart = replay(steps, both, prices(0.0))
    assert (times(apart, 0, "wait"), times(apart, 2, "wait")) == ([(0.0, 3.0)], [(0.0, 1.0)])
    # at 5 each until the short one is through at 2, then 20 are left at 10
    shared = replay(steps, both, prices(0.0, shared=("bridge",)))
    assert (times(shared, 0, "wait"), times(shared, 2, "wait")) == ([(0.0, 4.0)], [(0.0, 2.0)])


def test_rates_are_max_min_fair():
    # three messages leave rank 0 at 10/3 each; the fourth has what they leave of rank 3's way in
    steps = [
        [post(1), post(2), post(3), wait(1), wait(2), wait(3)],
        *[[post(), wait()]] * 2,
        [post(1), post(2)],
        [post()],
    ]
    operations = [
        message(0, 1, 10, 1, 1),
        message(0, 2, 10, 2, 1),
        message(0, 3, 10, 3, 1),
        message(4, 3, 20, 1, 2),
    ]
    timeline = replay(steps, operations, prices(0.0))
    assert [end_s for _, end_s in times(timeline, 4, "communication")] == pytest.approx([3.0])
    assert [end_s for _, end_s in times(timeline, 0, "communication")] == pytest.approx([3.0] * 3)


def test_messages_on_the_same_way_go_one_after_the_other():
    steps = [[post(1), post(2), wait(1), wait(2)]] * 2
    timeline = replay(steps, [message(0, 1, 10, 1, 1), message(0, 1, 10, 2, 2)], prices())
    assert times(timeline, 0, "communication") == [(0.0, 2.0), (2.0, 4.0)]


def test_a_collective_starts_with_its_last_member_and_hides_behind_work():
    steps = [[post(), compute(7.0), wait()], [compute(1.0), post(), wait()]]
    timeline = replay(steps, [collective((0, 1))], prices())
    assert times(timeline, 0, "communication") == [(1.0, 6.0)]
    event = timeline.of(1)[-1]
    assert (event.size_bytes, event.group, event.sequence, event.peers) == (8, "all", 1, (0, 1))
    assert [event.sent_bytes for event in timeline.events if event.kind == "communication"] == [12, 12]
    assert times(timeline, 0, "wait") == [] and times(timeline, 1, "wait") == [(1.0, 6.0)]
    assert timeline.end_s == 7.0


def test_collectives_of_a_group_run_in_order_and_those_of_two_groups_side_by_side():
    steps = [[post(1), post(2), wait(1), wait(2)]] * 2
    one_group = [collective((0, 1), 1), collective((0, 1), 2)]
    assert replay(steps, one_group, prices()).end_s == 10.0
    two_groups = [collective((0, 1), 1), collective((0, 1), 2, group="other")]
    assert replay(steps, two_groups, prices()).end_s == 5.0


def test_collectives_of_a_group_share_their_delays_two_at_a_time():
    numbers = range(1, 5)
    steps = [[*map(post, numbers), *map(wait, numbers)]] * 2
    operations = [collective((0, 1), number) for number in numbers]
    timeline = replay(steps, operations, prices(collective_s=5.0, delay_s=3.0))
    # each sends for 2; the third waits for the first to end
    assert times(timeline, 0, "communication") == [(0.0, 5.0), (2.0, 7.0), (5.0, 10.0), (7.0, 12.0)]


def test_a_record_that_ends_in_the_middle_of_a_wait_is_refused():
    with pytest.raises(ValueError, match=r"ranks \[1\] wait for something that never happened"):
        replay([[], [post(), wait()]], [], prices())


def test_an_empty_message_takes_its_latency():
    assert replay([[post(), wait()]] * 2, [message(0, 1, 0)], prices()).end_s == 1.0


def test_a_collective_is_priced_once_for_all_its_ranks():
    priced = []
    asked = prices()
    counting = ClusterPrices(
        asked.route, asked.capacity_bytes_per_s, lambda one: priced.append(one) or asked.collective(one)
    )
    operations = [collective((0, 1, 2, 3), number) for number in (1, 2)]
    replay([[post(1), post(2), wait(1), wait(2)]] * 4, operations, counting)
    assert priced == operations
