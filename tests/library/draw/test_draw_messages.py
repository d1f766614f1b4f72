"""Messages fall into steps as they were recorded, and are drawn and described as such."""

import html
import json
import re
from itertools import pairwise

import pytest
from rings import ring_all_reduce

import worldsize as ws
from worldsize import draw, hardware
from worldsize.draw._message_steps import rounds
from worldsize.draw._rank_circle import Circle
from worldsize.timeline import Event, Timeline


def message(source, target, start_s, end_s, size_bytes=8, sent_s=None, asked_s=None):
    """A send and its receive; the sender may be through earlier, and the receiver ask at another time."""
    asked = start_s if asked_s is None else asked_s
    return [
        Event(source, "communication", "communication", "send", start_s, sent_s or end_s, size_bytes, peers=(target,)),
        Event(target, "communication", "communication", "recv", asked, end_s, size_bytes, peers=(source,)),
    ]


def collective(name, ranks, start_s, end_s):
    return [Event(r, "communication", "communication", name, start_s, end_s, 64, peers=tuple(ranks)) for r in ranks]


def ways(events):
    """Who sends to whom in each step."""
    return [[one.ranks for one in step.transfers] for step in rounds(events)]


@pytest.fixture(scope="module")
def ring():
    """A ring all-reduce by hand of 4 ranks and 4 kB, emulated."""
    run = ws.run(ring_all_reduce, 1 << 10, world_size=4, cluster=hardware.DGX_H100, compute="none", echo=False)
    return run.timeline


def test_a_ring_on_an_emulated_cluster_has_the_steps_that_it_took(ring):
    steps = rounds(ring.events)
    assert [[one.ranks for one in step.transfers] for step in steps] == [[(0, 1), (1, 2), (2, 3), (3, 0)]] * 6
    assert {one.size_bytes for step in steps for one in step.transfers} == {1024}
    assert all(before.end_s == pytest.approx(after.start_s) for before, after in pairwise(steps))


def test_what_a_rank_has_under_way_at_once_is_one_step():
    assert ways(message(0, 1, 0, 2) + message(0, 2, 1, 3)) == [[(0, 1), (0, 2)]]


def test_what_a_rank_does_after_the_other_are_two_steps():
    assert ways(message(0, 1, 0, 1) + message(0, 2, 1, 2)) == [[(0, 1)], [(0, 2)]]
    assert ways(message(0, 1, 0, 1) + message(1, 2, 1, 2)) == [[(0, 1)], [(1, 2)]]


def test_ranks_that_share_nothing_do_not_wait_for_each_other():
    assert ways(message(0, 1, 0, 1) + message(2, 3, 5, 6)) == [[(0, 1), (2, 3)]]


def test_a_straggler_delays_a_step_but_does_not_split_it():
    first = message(0, 1, 0, 4, sent_s=1, asked_s=3) + message(1, 2, 3, 4, asked_s=0) + message(2, 0, 0, 1)
    second = message(0, 1, 1, 5, sent_s=2, asked_s=4) + message(1, 2, 4, 5) + message(2, 0, 4, 5, asked_s=1)
    assert ways(first + second) == [[(0, 1), (1, 2), (2, 0)]] * 2


def test_ranks_that_all_send_first_and_receive_then_take_one_step():
    assert ways(message(0, 1, 0, 1, sent_s=0.1, asked_s=0.1) + message(1, 0, 0, 1, sent_s=0.1, asked_s=0.1)) == [
        [(0, 1), (1, 0)]
    ]


def test_a_sender_goes_on_when_its_own_send_is_through():
    assert ways(message(0, 1, 0, 9, sent_s=1) + message(0, 2, 1, 2)) == [[(0, 1)], [(0, 2)]]


def test_a_collective_is_a_step_of_its_ranks():
    events = message(0, 1, 0, 1) + collective("all_reduce", [0, 1, 2], 1, 2) + message(2, 0, 2, 3)
    assert ways(events) == [[(0, 1)], [(0, 1, 2)], [(2, 0)]]
    assert rounds(events)[1].describe() == "ranks 0, 1, 2 call all_reduce on 64 B"


def test_a_receive_whose_send_nobody_recorded_still_says_who_sent():
    lost = Event(1, "communication", "communication", "recv", 0, 1, 8, peers=(0,))
    assert rounds([lost])[0].describe() == "rank 0 sends 8 B to rank 1"


def test_a_step_of_many_messages_is_described_in_short():
    events = [event for rank in range(20) for event in message(rank, (rank + 1) % 20, 0, 1, 1000 + 1000 * (rank % 2))]
    step = rounds(events)[0]
    assert step.describe().endswith("rank 7 sends 2.00 kB to rank 8; and 12 more")
    assert step.amount() == "20 × 1.00 kB to 2.00 kB"


def test_the_picture_says_who_sends_what_to_whom(ring):
    picture = draw.messages(ring, "A ring")
    assert picture.alt == (
        "Messages (A ring) among 4 ranks in 6 steps: 24 messages, 24.6 kB in all. Steps 1 to 6: rank 0 sends 1.02 kB "
        "to rank 1; rank 1 sends 1.02 kB to rank 2; rank 2 sends 1.02 kB to rank 3; rank 3 sends 1.02 kB to rank 0."
    )
    texts = [text for artist in picture.axes[0].get_children() for text in getattr(artist, "texts", [])]
    assert {"step 1", "step 6", "0", "3"} <= set(texts) and texts.count("4 × 1.02 kB") == 6
    assert picture.png()


def test_many_steps_are_cut_and_that_is_said():
    events = [event for step in range(100) for event in message(step % 2, 1 - step % 2, step, step + 1)]
    picture = draw.messages(Timeline(events), num_steps=20)
    assert picture.axes[0].texts[0].get_text() == "Messages: the first 12 of 100 steps"
    data = run_of(picture)
    assert len(data["steps"]) == 20
    assert data["steps"][19]["says"] == "Step 20 of 100, 19.0 s to 20.0 s: rank 1 sends 8 B to rank 0."


@pytest.mark.parametrize("num_ranks", [2, 3, 16, 64, 200])
def test_circles_of_any_size_are_drawn(num_ranks):
    events = [event for rank in range(num_ranks) for event in message(rank, (rank + 1) % num_ranks, 0, 1)]
    assert draw.messages(Timeline(events)).png(dpi=40)


def run_of(picture):
    """The data that the animation gets."""
    return json.loads(html.unescape(re.search('data-run="([^"]*)"', picture._repr_mimebundle_()["text/html"])[1]))


def test_the_animation_is_made_of_the_recorded_times(ring):
    data = run_of(draw.messages(ring))
    first = rounds(ring.events)[0]
    assert [move[1:] for move in data["steps"][0]["moves"]] == [
        [one.start_s, one.end_s, "1.02 kB", True] for one in first.transfers
    ]
    assert len(data["curves"]) == 4 and len(data["nodes"]) == 4
    assert [name for *_, name in data["names"]] == ["0", "1", "2", "3"]


def test_a_collective_is_shown_by_spokes():
    data = run_of(draw.messages(Timeline(collective("all_reduce", range(3), 0, 1))))
    assert data["steps"][0]["calls"] == ["all_reduce", "64 B"]
    assert [move[4] for move in data["steps"][0]["moves"]] == [False] * 3


def test_the_page_has_the_picture_the_script_and_nothing_from_elsewhere(ring):
    bundle = draw.messages(ring, '</script><b class="x">')._repr_mimebundle_()
    assert set(bundle) == {"image/png", "text/html", "text/plain"}
    page = bundle["text/html"]
    assert page.count("<img ") == page.count("</script>") == 1
    assert "<b class" not in page
    assert "://" not in page
    assert not re.search(r"\sid=", page)  # so that two on one page do not clash


def test_two_arrows_between_two_ranks_lie_apart():
    circle = Circle(4, 1.0)
    there, back = circle.arrow(0, 2).at(0.5), circle.arrow(2, 0).at(0.5)
    assert abs(there[0] - back[0]) > 0.2


def test_an_arrow_goes_from_edge_to_edge():
    circle = Circle(4, 1.0)
    arrow = circle.arrow(0, 1)
    assert arrow.at(0) == pytest.approx((arrow.x0, arrow.y0)) and arrow.at(1) == pytest.approx((arrow.x2, arrow.y2))
    (x, y), node = circle.place(1), circle.node
    assert node < ((arrow.x2 - x) ** 2 + (arrow.y2 - y) ** 2) ** 0.5 < 1.3 * node


def test_a_run_without_messages_is_refused():
    with pytest.raises(ValueError, match="The run has no messages to draw: let its ranks send and receive"):
        draw.messages(Timeline([Event(0, "main", "forward", "f", 0, 1)]))
