"""A timeline's picture: lanes, names where they fit, bubbles and exposed communication, several runs on one axis."""

import re
import warnings

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import PathPatch

from worldsize import draw, palette
from worldsize.draw import _block_styles as block_styles
from worldsize.draw._outlined_text import OutlinedText, outline
from worldsize.draw.picture import SCREEN_DPI
from worldsize.timeline import Event, Timeline


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture
def two_ranks():
    """Rank 0 computes 6 ms of 10, then talks for 4; rank 1 computes 3, is idle for 3, talks for 4."""
    return Timeline.of_events(
        [
            Event(0, "main", "forward", "forward", 1.000, 1.006),
            Event(0, "main", "communication", "all-reduce", 1.006, 1.010),
            Event(1, "main", "forward", "forward", 1.000, 1.003),
            Event(1, "main", "communication", "all-reduce", 1.006, 1.010),
        ]
    )


def overlapped(exposed_s=1.0):
    """Each of two ranks works for 4 s; from 3 s on it talks, this long beyond its work."""
    return Timeline.of_events(
        event
        for rank in (0, 1)
        for event in (
            Event(rank, "compute", "forward", "forward", 0, 4),
            Event(rank, "communication", "communication", "all_reduce", 3, 4 + exposed_s, peers=(0, 1)),
            Event(rank, "wait", "wait", "all_reduce", 4, 4 + exposed_s),
        )
    )


def pipeline(num_ranks, num_pieces):
    """A forward pass, then a backward pass, each piece a second a stage."""
    end_s = num_ranks + num_pieces - 1
    return Timeline.of_events(
        event
        for rank in range(num_ranks)
        for piece in range(num_pieces)
        for event in (
            Event(rank, "compute", "forward", f"forward {piece}", rank + piece, rank + piece + 1),
            Event(
                rank, "compute", "backward", f"backward {piece}", 2 * end_s - rank - piece - 1, 2 * end_s - rank - piece
            ),
        )
    )


def title(picture, panel=0):
    return picture.axes[panel].get_title(loc="left")


def lettering(owner):
    """All texts on the axes, or in the legend of a picture."""
    return [text for artist in owner.get_children() if isinstance(artist, OutlinedText) for text in artist.texts]


def on_blocks(picture):
    """The texts that do not name a row or a lane."""
    return [text for text in lettering(picture.axes[0]) if not text.startswith("rank ")]


def boxes(picture, colour, panel=0):
    """(left, right, top, bottom) of each block of this colour."""
    wanted = tuple(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    found = [a for a in picture.axes[panel].patches if isinstance(a, PathPatch) and a.get_facecolor()[:3] == wanted]
    corners = np.concatenate([artist.get_path().vertices for artist in found]).reshape(-1, 5, 2)
    return [
        (float(box[:, 0].min()), float(box[:, 0].max()), float(box[:, 1].min()), float(box[:, 1].max()))
        for box in corners
    ]


def spans(picture, colour, panel=0):
    """(left, right) of each block of this colour, rounded."""
    return [(round(left, 6), round(right, 6)) for left, right, *_ in boxes(picture, colour, panel)]


def test_a_timeline_tells_bubbles_and_exposed_communication(two_ranks):
    picture = draw.timeline(two_ranks, "Two ranks")
    assert title(picture) == "Two ranks: bubble 55% (exposed communication 40%, idle 15%)"
    assert "2 ranks over 10.0 ms" in picture.alt
    assert "forward 45%, communication 40%; bubble 55% (exposed communication 40%, idle 15%)." in picture.alt
    assert lettering(picture) == ["forward 45%", "communication 40%", "exposed communication", "bubble (no work)"]
    assert picture.axes[0].get_xlabel() == "time (ms)"
    assert {"rank 0", "rank 1"} <= set(lettering(picture.axes[0]))


def test_an_underscore_stays_in_its_block():
    names = ["all_reduce", "reduce"]
    run = Timeline.of_events(Event(0, "comm", "communication", name, n, n + 1.0) for n, name in enumerate(names))
    picture = draw.timeline(run)
    (texts,) = [
        one for one in picture.axes[0].get_children() if isinstance(one, OutlinedText) and "reduce" in one.texts
    ]
    low, plain = (texts.get_paths()[texts.texts.index(name)].get_extents() for name in names)
    assert -low.y0 == pytest.approx(low.y1) and plain.y0 == pytest.approx(-0.365 * 8, abs=0.15)


def test_what_is_asked_for_is_not_described(two_ranks):
    picture = draw.timeline(two_ranks, "Two ranks", shows_shares=False)
    assert title(picture) == "Two ranks" and picture.alt == "Timeline (Two ranks) of 2 ranks over 10.0 ms."
    assert lettering(picture) == ["forward", "communication", "exposed communication", "bubble (no work)"]


def test_the_shares_are_those_of_the_timeline():
    run = overlapped(exposed_s=1.5)
    exposed = run.exposed_communication_s() / run.end_s
    shares = f"bubble {run.bubble_fraction():.0%} (exposed communication {exposed:.0%}, idle 0%)"
    assert title(draw.timeline(run)) == shares


def test_bubbles_and_exposed_communication_are_drawn_where_they_are():
    picture = draw.timeline(overlapped())
    assert spans(picture, palette.IDLE) == [(4, 5)] * 2
    underlines = boxes(picture, palette.INK)
    assert [(left, right) for left, right, *_ in underlines] == [(4, 5)] * 2
    lanes = boxes(picture, block_styles.STYLES["communication"].colour)
    assert all(bottom > lane[3] for (*_, bottom), lane in zip(underlines, lanes, strict=True))  # below the block


def test_idle_time_is_a_bubble_but_not_exposed_communication(two_ranks):
    picture = draw.timeline(two_ranks)
    assert spans(picture, palette.IDLE) == [(6, 10), (3, 10)]
    assert spans(picture, palette.INK) == [(6, 10), (6, 10)]


def test_communication_behind_work_is_not_marked():
    picture = draw.timeline(overlapped(exposed_s=0.0))
    assert title(picture) == "bubble 0% (exposed communication 0%, idle 0%)"
    assert all(colour not in [artist.get_facecolor() for artist in picture.axes[0].patches] for colour in [palette.INK])


def test_without_communication_the_bubble_is_all_there_is_to_tell():
    picture = draw.timeline(pipeline(4, 4))
    assert title(picture) == "bubble 43%"
    assert "exposed" not in picture.alt


def test_streams_are_lanes_and_waiting_has_none_beside_work():
    picture = draw.timeline(overlapped())
    assert lettering(picture.axes[0]).count("compute") == lettering(picture.axes[0]).count("communication") == 2
    assert "wait" not in lettering(picture.axes[0])
    work, talk, wait = (
        boxes(picture, block_styles.STYLES[kind].colour)[0] for kind in ("forward", "communication", "wait")
    )
    assert work[2] <= wait[2] < wait[3] <= work[3] < talk[2] < talk[3]


def test_waiting_alone_has_a_lane():
    calls = [Event(0, "communication", "communication", "barrier", 1, 2), Event(0, "wait", "wait", "b", 1, 2)]
    assert {"communication", "wait"} <= set(lettering(draw.timeline(Timeline(calls)).axes[0]))


def test_the_time_after_a_loss_is_drawn_in_the_ranks_own_lane_and_is_no_bubble():
    work = [
        Event(rank, "compute", "compute", "step", start_s, start_s + 4) for rank, start_s in ((0, 0), (0, 4), (1, 0))
    ]
    lost = Event(1, "lost", "lost", "lost", 4, 8)
    run = Timeline([*work, lost])
    picture = draw.timeline(run)
    assert spans(picture, block_styles.STYLES["lost"].colour) == [(4, 8)]
    assert "lost" in on_blocks(picture) and "compute" not in lettering(picture.axes[0])
    assert title(picture) == "bubble 0%" and "lost 25%" in picture.alt
    assert lost not in run.critical_path() and run.bubble_fraction() == 0.25


def test_blocks_have_their_name_or_their_number_or_nothing():
    assert on_blocks(draw.timeline(pipeline(1, 4)))[:4] == [f"forward {piece}" for piece in range(4)]
    assert on_blocks(draw.timeline(pipeline(4, 16)))[:16] == [str(piece) for piece in range(16)]
    assert on_blocks(draw.timeline(pipeline(4, 200))) == []


def test_what_happens_at_once_is_named_once():
    both = [Event(0, "communication", "communication", name, 0, 1, peers=(1,)) for name in ("send", "recv")]
    assert on_blocks(draw.timeline(Timeline(both))) == ["send + recv"]


def test_names_do_not_lie_on_each_other():
    outer = Event(0, "main", "forward", "a long name for what is outside", 0, 10)
    inner = Event(0, "main", "compute", "and for what is inside", 3, 8)
    assert on_blocks(draw.timeline(Timeline([outer, inner]))) == ["a long name for what is outside"]


def test_a_name_is_written_as_it_is():
    strange = [Event(0, "main", "forward", name, at, at + 1) for at, name in enumerate(["$x_", " ", "a\\b$$"])]
    assert draw.timeline(Timeline(strange)).png()
    assert len(outline("$x_", 8).vertices) > len(outline("x_", 8).vertices)


def test_all_ranks_are_named_until_there_is_no_room():
    few, many = (draw.timeline(pipeline(number, 1)) for number in (32, 128))
    assert sum(text.startswith("rank ") for text in lettering(few.axes[0])) == 32
    assert {"rank 0", "rank 4"} <= set(lettering(many.axes[0])) and "rank 1" not in lettering(many.axes[0])
    assert max(few.get_figheight(), many.get_figheight()) * SCREEN_DPI < 640


def test_nested_spans_count_once():
    outer = Event(0, "main", "communication", "all", 0.0, 1.0)
    inner = Event(0, "main", "communication", "part", 0.2, 0.8)
    assert title(draw.timeline(Timeline([outer, inner]))) == "bubble 100% (exposed communication 100%, idle 0%)"


def test_an_unknown_kind_has_a_style():
    picture = draw.timeline(Timeline([Event(0, "main", "thinking", "a", 0, 1)]))
    assert lettering(picture) == ["thinking 100%", "bubble (no work)"]
    assert spans(picture, block_styles.OTHER.colour) == [(0, 1)]


def test_marked_steps_leave_out_the_recorded_calls_unless_asked():
    mark = Event(0, "main", "communication", "synchronise", 1, 4)
    steps = [Event(0, "main", "forward", "f", 0, 1), mark]
    calls = [Event(0, "communication", "communication", "barrier", -9, -8), Event(0, "wait", "wait", "b", -9, -8)]
    picture = draw.timeline(Timeline([*steps, *calls]))
    assert picture.alt == draw.timeline(Timeline(steps)).alt
    everything = draw.timeline(Timeline([*steps, *calls]), streams=("main", "communication", "wait"))
    assert {"main", "communication"} <= set(lettering(everything.axes[0]))
    assert "over 13.0 s" in everything.alt


def test_a_rank_counts_once_however_many_streams_it_has():
    call = Event(0, "communication", "communication", "all_reduce", 2, 8)
    work = [Event(0, "compute", "compute", "", 0, 4), Event(1, "compute", "compute", "", 0, 10)]
    wait = [Event(0, "wait", "wait", "all_reduce", 4, 8), Event(0, "wait", "wait", "data", 8, 10)]
    picture = draw.timeline(Timeline.of_events([call, *work, *wait]))
    assert title(picture) == "bubble 30% (exposed communication 20%, idle 10%)"
    assert "compute 70%, communication 30%, wait 30%" in picture.alt


def test_kinds_differ_by_more_than_colour():
    # compute is the whole of a step of which forward is a part: they do not share a picture
    styles = [*(style for kind, style in block_styles.STYLES.items() if kind != "compute"), block_styles.OTHER]
    assert len({(style.top, style.bottom, style.stripes) for style in styles}) == len(styles)
    assert len({style.colour for style in styles}) == len(styles)


def test_thousands_of_blocks_are_few_artists():
    assert len(draw.timeline(pipeline(32, 64)).axes[0].get_children()) < 30


def test_the_same_run_gives_the_same_bytes(two_ranks):
    assert draw.timeline(two_ranks).png(SCREEN_DPI) == draw.timeline(two_ranks).png(SCREEN_DPI)


def test_a_run_without_length_is_drawn():
    assert draw.timeline(Timeline([Event(0, "main", "forward", "f", 1, 1)])).png()


def test_several_runs_share_an_axis_and_differ_from_the_first():
    picture = draw.timelines({"predicted": overlapped(), "emulated": overlapped(2.0)}, title="Overlap")
    assert [title(picture, panel) for panel in (0, 1)] == [
        "predicted: 5.00 s",
        "emulated: 6.00 s, 20.0% longer than predicted",
    ]
    assert {axes.get_xlim() for axes in picture.axes} == {(0, 6)}
    subtitle = "bubble 33% (exposed communication 33%, idle 0%): exposed 1.00 s more a rank, 1.00 s more on rank 0"
    assert subtitle in [text.get_text() for text in picture.axes[1].texts]
    assert picture.alt.startswith("Timelines (Overlap) on one axis. predicted: 5.00 s; bubble 20%")
    assert picture.alt.endswith(f"20.0% longer than predicted; {subtitle}.")


def test_where_the_first_run_ends_is_marked_in_each():
    picture = draw.timelines({"a": overlapped(), "b": overlapped(2.0), "c": overlapped(0.0)})
    assert [list(axes.lines[0].get_xdata()) for axes in picture.axes] == [[5, 5]] * 3
    assert [[text.get_text() for text in axes.texts if "%" in text.get_text()[:6]] for axes in picture.axes] == [
        [],
        ["+20.0%"],
        ["−20.0%"],
    ]


def test_a_run_of_another_magnitude_is_described_as_a_multiple():
    long, short = (Timeline([Event(0, "main", "forward", "f", 0, end_s)]) for end_s in (8, 0.5))
    picture = draw.timelines({"a": short, "b": long})
    assert title(picture, 1) == "b: 8.00 s, 16.0 times as long as a"
    assert "× 16.0" in [text.get_text() for text in picture.axes[1].texts]
    assert title(draw.timelines({"a": long, "b": short}), 1) == "b: 500 ms, 0.0625 times as long as a"


def test_runs_that_begin_late_begin_at_nought():
    late = Timeline([Event(0, "main", "forward", "f", 100, 104)])
    picture = draw.timelines({"a": late, "b": late})
    assert title(picture, 1) == "b: 4.00 s, as long as a"
    assert spans(picture, block_styles.STYLES["forward"].colour, 1) == [(0, 4)]


def test_the_rank_that_differs_most_is_named():
    slow = [
        event if event.rank == 0 else Event(1, event.stream, event.kind, event.name, event.start_s, 1 + event.end_s)
        for event in overlapped().events
        if event.kind != "forward"
    ]
    work = [event for event in overlapped().events if event.kind == "forward"]
    picture = draw.timelines({"a": overlapped(), "b": Timeline.of_events([*slow, *work])})
    assert "exposed 500 ms more a rank, 1.00 s more on rank 1" in picture.alt


@pytest.mark.parametrize(
    ("drawing", "sentence"),
    [
        (lambda: draw.timeline(Timeline([])), "The timeline is empty: mark a step's parts"),
        (lambda: draw.timelines({"a": overlapped()}), "A comparison takes two runs"),
        (lambda: draw.timelines({"a": overlapped(), "b": Timeline([])}), "The timeline is empty"),
    ],
)
def test_what_cannot_be_drawn_is_refused(drawing, sentence):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        drawing()


def in_dark_theme(colour):
    """What the CSS of a dark theme makes of a colour: invert(0.93), then hue-rotate(180deg)."""
    weights = np.array([0.213, 0.715, 0.072])  # W3C, Filter Effects Module Level 1, hue-rotate
    turned = 2 * np.tile(weights, (3, 1)) - np.eye(3)
    return np.clip(turned @ (0.93 - 0.86 * np.array(to_rgb(colour))), 0, 1)


def contrast(one, other):
    """The contrast ratio of two colours, 1 to 21, as WCAG 2 defines it."""
    channels = np.array([one, other])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("kind", [*(kind for kind in block_styles.STYLES if kind != "wait"), "another"])
def test_names_on_blocks_can_be_read_in_both_themes(kind):
    style = block_styles.style_of(kind)
    assert contrast(to_rgb(style.ink), to_rgb(style.colour)) >= 3
    assert contrast(in_dark_theme(style.ink), in_dark_theme(style.colour)) >= 2.8


def test_long_titles_are_wrapped_and_stay_within_the_picture():
    words = " ".join(f"{number} microbatches" for number in range(12))
    one, two = draw.timeline(overlapped(), words), draw.timelines({words: overlapped(), "b": overlapped(2.0)}, words)
    for picture, others in ((one, []), (two, two.texts)):
        picture.draw_without_rendering()
        texts = [axes._left_title for axes in picture.axes] + list(others)
        extents = [text.get_window_extent() for text in texts if text.get_text()]
        assert max(extent.x1 for extent in extents) <= picture.bbox.x1
        assert max(extent.y1 for extent in extents) <= picture.bbox.y1
    assert title(one).count("\n") >= 1
    assert title(one).replace("\n", " ").startswith(f"{words}: bubble")
    assert one.alt.startswith(f"Timeline ({words})")
