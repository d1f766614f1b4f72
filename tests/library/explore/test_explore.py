"""Explorers: ranges become controls, results pictures and words, failures sentences; pages need nobody."""

import collections
import re

import nbformat
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from nbconvert.exporters import HTMLExporter
from nbformat import v4 as notebooks
from papermill import execute_notebook

from worldsize import draw
from worldsize.explore import explore, frames, frontend, result_parts
from worldsize.explore.widgets import Panel
from worldsize.timeline import Event, Timeline

WIDGET = "application/vnd.jupyter.widget-view+json"
ONE_EVENT = Timeline([Event(0, "main", "forward", "f", 0.0, 1.0)])


def texts(function, **ranges):
    """The positions of the first control, as text, and the one at the start."""
    control = explore(function, **ranges).controls[0]
    return [text for text, _ in control.options], control.text(control.value)


def spoken(panel):
    """What a screen reader says."""
    return re.sub("<[^>]*>", "", panel.status.value)


@pytest.fixture
def panel():
    """A panel for a function and its ranges."""
    return lambda function, **ranges: Panel(explore(function, **ranges))


@pytest.mark.parametrize(
    ("given", "positions"),
    [
        ((1, 4), ["1", "2", "3", "4"]),
        ((2, 9, 3), ["2", "5", "8", "9"]),
        ((1, 16, "x2"), ["1", "2", "4", "8", "16"]),
        ((3, 16, "x2"), ["3", "6", "12", "16"]),
        ((0.1, 0.3, 0.1), ["0.1", "0.2", "0.3"]),
        ((1, 1024), ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512", "1,024"]),
        (range(0, 10, 4), ["0", "4", "8"]),
        ((1.0, 1.5, "x1.1"), ["1", "1.1", "1.21", "1.33", "1.46", "1.5"]),
    ],
)
def test_a_range_becomes_the_positions_of_a_slider(given, positions):
    assert texts(lambda n: n, n=given)[0] == positions


def test_a_range_without_a_step_has_about_a_hundred_positions():
    assert len(texts(lambda n: n, n=(0.0, 1.0))[0]) == 101
    assert len(texts(lambda n: n, n=(0, 950))[0]) == 96


def test_positions_have_the_unit_that_the_argument_s_name_ends_in():
    assert texts(lambda size_bytes: 0, size_bytes=(1024, 4096, "x2"))[0] == ["1 KiB", "2 KiB", "4 KiB"]
    assert texts(lambda size_bytes: 0, size_bytes=(1000, 64_000, "x64"))[0] == ["1 kB", "64 kB"]
    assert texts(lambda step_s: 0, step_s=(0.0032, 3.2, "x1000"))[0] == ["3.2 ms", "3.2 s"]
    assert texts(lambda lost_fraction: 0, lost_fraction=(0.0, 1.0, 0.5))[0] == ["0%", "50%", "100%"]


def test_a_control_starts_at_the_function_s_default_which_becomes_a_position():
    def function(n=5, size=3.5, kind="b", far=100, plain=0): ...

    assert texts(function, n=(1, 9))[1] == "5"
    assert texts(function, n=(1, 64, "x2")) == (["1", "2", "4", "5", "8", "16", "32", "64"], "5")
    assert texts(function, kind=["a", "b"]) == (["a", "b"], "b")
    assert texts(function, far=(1, 3))[1] == "3"
    assert texts(lambda n: n, n=(1, 9))[1] == "5"


def test_a_list_a_dict_and_a_truth_value_become_choices_and_anything_else_is_handed_over():
    explorer = explore(lambda *, a, b, c, d, e: (a, b, c, d), a=[max, 2_000_000], b={"two": 2}, c=True, d="d", e=(1, 2))
    assert [(one.name, one.kind) for one in explorer.controls] == [
        ("a", "list"),
        ("b", "list"),
        ("c", "box"),
        ("e", "slider"),
    ]
    assert [text for text, _ in explorer.controls[0].options] == ["max", "2M"]
    assert explorer.controls[2].value is True
    assert explorer.fixed == {"d": "d"}
    assert explorer.call({"a": 1, "b": 2, "c": 3, "e": 4}).value == (1, 2, 3, "d")


@pytest.mark.parametrize(
    ("ranges", "sentence"),
    [
        ({}, "step needs n: give it a range, such as n=\\(1, 64\\), or a value"),
        ({"n": (1, 2), "m": (1, 2)}, "step has no argument 'm': it has n, kind"),
        ({"n": (2, 1)}, r"n=\(2, 1\) is not a range: give \(low, high\)"),
        ({"n": (1,)}, "is not a range"),
        ({"n": ("a", "b")}, "is not a range"),
        ({"n": range(0)}, r"n=range\(0, 0\) is empty: give at least one value"),
        ({"n": (float("nan"), 1)}, "is not a range"),
        ({"n": (1, 2, 0)}, "the step 0 is neither a number above 0"),
        ({"n": (1, 2, "x1")}, "a factor above 1"),
        ({"n": (0, 2, "x2")}, "start above 0"),
        ({"n": (1, 2, "double")}, "a factor above 1"),
        ({"n": (1, 10**12, 1)}, "has 1,000,000,000,000 positions"),
        ({"n": (1.0, 2.0, "x1.0000001")}, "positions; at most 2,000 are allowed"),
        ({"n": (0, 1, 1e-6)}, "n: this range has 1,000,001 positions; at most 2,000 are allowed"),
    ],
)
def test_a_range_that_is_none_is_refused_with_what_would_be_right(ranges, sentence):
    def step(n, kind="a"): ...

    with pytest.raises(ValueError, match=sentence):
        explore(step, **ranges)


def test_what_is_no_function_is_refused():
    with pytest.raises(ValueError, match=r"explore needs a function, such as explore\(step_time_s"):
        explore(3)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (0.0032, "step_time_s = 3.2 ms"),
        (np.float32(0.5), "step_time_s = 500 ms"),
        (torch.tensor(2.0), "step_time_s = 2 s"),
        ({"ring": 0.001, "sent_bytes": 64_000}, "ring 1 ms, sent 64 kB"),
        ([{"ranks": 1, "time": 2.0}, {"ranks": 2, "time": 1.0}], "ranks  time\n1 s  2 s\n2 s  1 s"),
        ([[1.0, 2.0], [3.0, 4.0]], "1 s  2 s\n3 s  4 s"),
        (np.array([1.0, 0.5]), "step_time_s = 1 s, 500 ms"),
        ("as <fast> as it gets", "as <fast> as it gets"),
        (True, "step_time_s = yes"),
        (collections.namedtuple("Pair", "a_s b_s")(1, 2), "a 1 s, b 2 s"),
    ],
)
def test_numbers_tables_and_text_are_reported_with_their_units(value, seen):
    (one,) = result_parts.parts_of(value, "step_time_s")
    assert one.text == seen
    assert "<fast>" not in one.html


def test_a_timeline_and_a_figure_become_images_with_their_words():
    plain = Figure()
    plain.subplots().set_title("Bytes by rank")
    seen = result_parts.parts_of((ONE_EVENT, draw.curves({"a": [1.0]}), plain, {"a": plain, "n": 3}), "f")
    assert [one.text[:11] for one in seen] == ["Timeline of", "Line chart ", "Bytes by ra", "n 3", "Bytes by ra"]
    image = seen[0].bundle()
    assert image["text/html"].count("<img") == 1 and 'alt="Timeline of 1 rank ' in image["text/html"]
    assert image["image/png"] in image["text/html"]


def test_an_object_with_html_of_its_own_is_shown_by_it_and_any_other_by_its_text():
    class Known:
        def _repr_html_(self):
            return "<b>known</b>"

    assert result_parts.parts_of(Known(), "f")[0].html == "<b>known</b>"
    assert result_parts.parts_of({1, 2} - {2}, "f")[0].html == "<pre>{1}</pre>"


def test_a_move_shows_the_new_result_and_tells_it_with_what_is_set(panel):
    one = panel(lambda n=1, size_bytes=1000: {"n": n, "sent_bytes": n * size_bytes}, n=(1, 3), size_bytes=(1000, 2000))
    assert spoken(one) == "n = 1, size_bytes = 1 kB: n 1, sent 1 kB."
    one.controls["n"].value = 3
    assert "3 kB" in one.shown.value
    assert spoken(one) == "n = 3, size_bytes = 1 kB: n 3, sent 3 kB."


def test_every_kind_of_control_calls_the_function_again(panel):
    one = panel(lambda n, kind, is_on: f"{n} {kind} {is_on}", n=(1, 3), kind=["a", "b"], is_on=False)
    one.controls["kind"].value = "b"
    assert "2 b False" in one.shown.value
    one.controls["is_on"].value = True
    assert "2 b True" in one.shown.value


def fails(n=1):
    if n == 2:
        raise ValueError("Two is impossible <here>.")
    return {"inverse": 1 / (3 - n)}


def test_a_function_that_raises_says_so_in_place_above_what_was_good_and_recovers(panel):
    one = panel(fails, n=(1, 4))
    one.controls["n"].value = 2
    assert "Two is impossible &lt;here&gt;." in one.shown.value and "ValueError" not in one.shown.value
    assert 'class="last" aria-hidden="true"><table>' in one.shown.value and "0.5" in one.shown.value
    assert spoken(one) == "n = 2: Two is impossible &lt;here&gt;."
    one.controls["n"].value = 3
    assert "ZeroDivisionError: division by zero" in one.shown.value
    assert "line" in one.shown.value and "in fails: return {&quot;inverse&quot;" in one.shown.value
    assert "calls.py" not in one.shown.value and "Traceback" not in one.shown.value
    one.controls["n"].value = 4
    assert "inverse" in one.shown.value and "error" not in one.shown.value and "last" not in one.shown.value


def test_a_function_that_fails_at_once_has_its_sentence_and_no_last_picture(panel):
    one = panel(fails, n=(2, 3))
    assert "Two is impossible" in one.shown.value and "last" not in one.shown.value


def test_an_interrupt_ends_one_call_and_not_the_explorer(panel):
    def slow(n=1):
        if n == 2:
            raise KeyboardInterrupt
        return n

    one = panel(slow, n=(1, 2))
    one.controls["n"].value = 2
    assert "Interrupted. Move a slider to try again." in one.shown.value


def test_what_cannot_be_drawn_is_reported_in_place(panel):
    one = panel(lambda n=1: ONE_EVENT if n else Timeline([]), n=(0, 1))
    one.controls["n"].value = 0
    assert "The timeline is empty" in one.shown.value and "<img" in one.shown.value


def test_prints_stay_with_their_call_and_reach_nobody_else(panel, capsys):
    def chatty(n=1):
        print("<n> is", n)

    one = panel(chatty, n=(1, 2))
    one.controls["n"].value = 2
    assert one.shown.value == "<pre>&lt;n&gt; is 2\n</pre>"
    assert capsys.readouterr().out == ""


def test_what_pyplot_draws_is_shown_and_closed(panel):
    from matplotlib import pyplot

    def draws(n=1):
        pyplot.subplots()[1].plot([1, n])
        pyplot.title("By pyplot")

    mine = pyplot.figure()
    one = panel(draws, n=(1, 2))
    assert 'alt="By pyplot"' in one.shown.value
    assert pyplot.get_fignums() == [mine.number]
    pyplot.close(mine)


def test_a_function_that_gives_nothing_says_so(panel):
    assert "quiet gave nothing." in panel(named("quiet", lambda n: None), n=(1, 2)).shown.value


def named(name, function):
    function.__name__ = name
    return function


def test_a_picture_that_places_its_own_panels_keeps_them(panel):
    def placed(n=1):
        figure = Figure(figsize=(4, 3), layout="none")
        figure.add_axes((0.1, 0.1 * n, 0.5, 0.5))
        return figure

    one = panel(placed, n=(1, 3))
    one.controls["n"].value = 3
    assert one.parts[0].figure.axes[0].get_position().y0 == pytest.approx(0.3)


def test_while_it_moves_a_picture_keeps_its_place_and_its_words_change(panel):
    one = panel(lambda n=1: draw.curves({"loss": [1.0] * n}, title=f"n={n}"), n=(1, 3))
    before = re.sub(r"src=.*|alt=\"[^\"]*\"", "", one.shown.value)
    one.controls["n"].value = 2
    assert re.sub(r"src=.*|alt=\"[^\"]*\"", "", one.shown.value) == before
    assert "Line chart (n=2)" in one.shown.value


def test_without_anyone_to_move_it_an_explorer_is_a_picture_and_a_sentence():
    def step(n=2, kind="a"):
        return ONE_EVENT

    picture, sentence = explore(step, n=(1, 4), kind=["a", "b"]).stills()
    assert set(picture) == {"image/png", "text/html", "text/plain"}
    assert picture["text/plain"].startswith("Timeline of 1 rank ")
    assert sentence["text/plain"] == (
        "step with n = 2 (1 to 4), kind = a (a or b). Run this cell in JupyterLab to change them."
    )
    assert "http" not in re.sub('base64,[^"]*', "", picture["text/html"] + sentence["text/html"])


def test_without_anyone_to_read_it_a_function_that_fails_fails_the_cell():
    with pytest.raises(RuntimeError, match=r"fails with n = 2 \(2 to 3\)\. Two is impossible <here>\."):
        explore(fails, n=(2, 3)).stills()


def test_with_a_live_kernel_the_panel_comes_first_and_the_stills_after_it(monkeypatch):
    shown = []
    monkeypatch.setattr(frontend, "is_interactive", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    explore(fails, n=(1, 2))._ipython_display_()
    live, numbers, sentence = shown
    assert set(live) == {WIDGET, "text/html", "text/plain"} and not live["text/html"] + live["text/plain"]
    assert WIDGET not in numbers.keys() | sentence.keys()
    assert numbers["text/plain"] == "inverse 0.5"


SOURCE = """
from worldsize.explore import explore
from worldsize.timeline import Event, Timeline

def step(num_ranks=2):
    print("drawn")
    return Timeline([Event(rank, "main", "forward", "f", 0.0, 1.0) for rank in range(num_ranks)])

explore(step, num_ranks=(1, 4))
"""


def test_papermill_and_nbconvert_give_a_page_that_loads_nothing_more(tmp_path):
    bare = notebooks.new_notebook(cells=[notebooks.new_markdown_cell("# Explorer")])
    written = notebooks.new_notebook(cells=[*bare.cells, notebooks.new_code_cell(SOURCE)])
    written.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(written, tmp_path / "in.ipynb")
    done = execute_notebook(str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb"), progress_bar=False)
    assert "widgets" not in done.metadata
    outputs = done.cells[-1].outputs
    assert [sorted(one.data) for one in outputs] == [
        ["image/png", "text/html", "text/plain"],
        ["text/html", "text/plain"],
        ["text/html", "text/plain"],
    ]
    page, _ = HTMLExporter().from_notebook_node(done)
    empty, _ = HTMLExporter().from_notebook_node(bare)
    assert re.findall("https?://[^\"' ]*", page) == re.findall("https?://[^\"' ]*", empty)
    assert 'alt="Timeline of 2 ranks' in page and "Run this cell in JupyterLab" in page


def kept(most, **ranges):
    """How many positions of each control have frames."""
    return [len(places) for places in frames.positions(explore(lambda **_: 0, **ranges).controls, most)]


def test_frames_are_as_many_as_wanted_and_the_largest_slider_gives_way_first():
    assert kept(60, ranks=(1, 4), share=(0.0, 1.0, 0.01)) == [4, 15]
    assert kept(1000, ranks=(1, 4), share=(0.0, 1.0, 0.01)) == [4, 101]
    assert kept(10, ranks=(1, 4), link=["a", "b", "c"], on=False) == [3, 3, 2]  # ends and start, and every choice
    for most in (3, 7, 20):
        (places,) = frames.positions(explore(lambda n=40: n, n=(1, 100)).controls, most)
        assert {0, 39, 99} <= {*places} and len(places) == most


def test_an_unattended_run_shows_frames_where_they_are_wanted(monkeypatch):
    def share(part=2, is_half=False):
        if part == 3:
            raise ValueError("No third part.")
        return f"part {part}" + (" of a half" if is_half else "")

    shown = []
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    monkeypatch.setenv(frames.VARIABLE, "9")
    explore(share, part=(1, 3), is_half=False)._ipython_display_()
    (bundle,) = shown
    html = bundle["text/html"]
    assert html.count('class="frame"') == 6 and html.count('class="frame" data-at') - html.count(" hidden>") == 1
    assert '<div class="frame" data-at="1,0"><p>part 2</p>' in html and "part 1 of a half" in html
    assert html.count("No third part.") == 2 and "share with part = 2" in bundle["text/plain"]


def test_a_number_of_frames_that_cannot_be_read_is_refused(monkeypatch):
    monkeypatch.setenv(frames.VARIABLE, "many")
    with pytest.raises(ValueError, match="WORLDSIZE_FRAMES is 'many', not a number of frames"):
        frames.most_frames()
