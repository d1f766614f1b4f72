import io
import sys
import time
from types import SimpleNamespace

import pytest

from worldsize.launch.display import live
from worldsize.launch.display.output import KEPT_OUTPUT, LONGEST_LINE, Tail
from worldsize.launch.display.view import Plain, Shielded, View


def ranks(**texts):
    """What a view asks of the ranks: states and tails by rank, from texts such as rank0='...'."""
    tails = {int(name.removeprefix("rank")): Tail() for name in texts}
    for tail, text in zip(tails.values(), texts.values(), strict=True):
        tail.feed(text.encode())
    return SimpleNamespace(tails=tails, states=[(rank, "done") for rank in tails], restarts=0, warnings=[])


def test_of_a_long_output_the_end_is_kept_and_its_last_lines_are_given_whole():
    tail = Tail()
    for number in range(100_000):
        tail.feed(f"{number:030d}\n".encode())
    assert len(tail.text) == KEPT_OUTPUT and tail.text.endswith(f"{99_999:030d}\n")
    assert tail.last(70) == f"{99_998:030d}\n{99_999:030d}\n"
    assert tail.num_bytes == 3_100_000
    assert sum(map(len, tail._pieces)) < 2 * KEPT_OUTPUT, "what is cut off is not held either"


def test_the_end_of_an_output_in_many_pieces_costs_little():
    tail = Tail()
    for _ in range(20_000):
        tail.feed(b".")
    start_s = time.process_time()
    assert tail.last(20_000) == "." * 20_000 and tail.last(19_999) == "." * 19_999
    assert time.process_time() - start_s < 0.5  # 0.01 where each piece is looked at once, 4 where all are for each


def test_the_end_of_a_short_output_is_all_of_it():
    tail = Tail()
    assert tail.last(10) == tail.text == ""
    tail.feed(b"one\ntwo")
    assert tail.last(10) == "one\ntwo" and tail.last(5) == "two"
    assert tail.last(2) == "wo", "a line without an end is cut"


def test_a_letter_that_comes_in_two_halves_is_whole():
    tail = Tail()
    assert (tail.feed("é".encode()[:1]), tail.feed("é".encode()[1:])) == ("", "é")


def test_plain_lines_carry_their_rank_and_the_headline_comes_once(capsys):
    view = Plain()
    for _ in range(2):
        view.begin("2 ranks on Gloo")
    view.output(0, "one\ntw")
    view.output(1, "three\n")
    view.output(0, "o\nfour")
    for _ in range(2):
        view.end(ranks())
    assert capsys.readouterr().out == "2 ranks on Gloo\n[rank 0] one\n[rank 1] three\n[rank 0] two\n[rank 0] four\n"


def test_too_many_lines_are_counted_and_their_end_is_shown(capsys):
    view, lines = Plain(), [f"line {number}\n" for number in range(100_000)]
    view.output(1, "quiet\n")
    for line in lines:
        view.output(0, line)
    view.output(1, "lost\n")
    view.end(ranks(rank0="".join(lines), rank1="quiet\nlost\n"))
    shown = capsys.readouterr().out
    assert len(shown) < 600_000
    assert shown.count("from here on, only the end") == 1
    assert "[rank 0] line 99999\n[rank 1] ... 1 lines, the last of them:\n[rank 1] quiet\n[rank 1] lost\n" in shown


@pytest.mark.parametrize("make", [Plain, live.Live])
def test_a_line_without_end_is_shown_in_pieces_and_not_kept(make, capsys):
    view = make()
    for _ in range(1000):
        view.output(0, "x" * 10_000)
    assert len(view._lines[0]._rest) <= LONGEST_LINE
    assert len(capsys.readouterr().out) < 300_000


class Broken(View):
    """A view that fails at everything, and counts that."""

    def __init__(self):
        self.num_calls = 0

    def _fail(self, *_):
        self.num_calls += 1
        raise BrokenPipeError

    begin = output = glance = end = _fail


@pytest.mark.parametrize("name", ["begin", "output", "glance", "end"])
def test_a_view_that_fails_is_asked_no_more(name):
    broken = Broken()
    view = Shielded(broken)
    arguments = {"begin": ["2 ranks"], "output": [0, "text"], "glance": [ranks()], "end": [ranks()]}
    for _ in range(2):
        getattr(view, name)(*arguments[name])
    assert broken.num_calls == 1 and not view.is_stop_asked
    broken.is_stop_asked = True
    assert view.is_stop_asked, "its button may still be there"


def test_letters_that_a_terminal_lacks_are_replaced(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    Plain().output(0, "aé∑\n")
    assert shown.getvalue() == b"[rank 0] a??\n"


def test_a_run_is_shown_as_it_is_asked_for_and_as_where_it_runs_allows(monkeypatch):
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert type(live.choose_view(echo=False)) is View
    assert type(live.choose_view(echo=True)) is Plain
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert type(live.choose_view(echo=True)) is Plain, "under papermill or nbclient"
    monkeypatch.setenv("JPY_SESSION_NAME", "weeks/week01.ipynb")
    assert type(live.choose_view(echo=True)) is live.Live
    monkeypatch.setenv("WORLDSIZE_VIEW", "plain")
    assert type(live.choose_view(echo=True)) is Plain


@pytest.fixture
def shown(monkeypatch):
    """What a live view has displayed, as bundles."""
    bundles = []
    display = SimpleNamespace(display=lambda bundle, raw: bundles.append(bundle))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return bundles


def test_the_still_of_a_quick_run_is_a_line_and_tabs_in_html_and_plain_text(shown):
    view = live.Live()
    view.begin("2 ranks on Gloo")
    view.output(0, "a < b\n")
    view.output(1, "\x1b[31mred\x1b[0m")
    view.end(ranks(rank0="a < b\n", rank1="\x1b[31mred\x1b[0m"))
    (bundle,) = shown
    head, *lines = bundle["text/plain"].splitlines()
    assert head.startswith("2 ranks on Gloo (0.") and lines == [
        "[rank 0] a &lt; b".replace("&lt;", "<"),
        "[rank 1] red",
    ]
    html = bundle["text/html"]
    assert html.count('type="radio"') == html.count("<pre") == 3 and "a &lt; b" in html and "\x1b" not in html
    assert "http" not in html and "<script" not in html
    assert html.index("<h6>rank 1</h6>") > html.index("<h6>rank 0</h6>"), "titles, where style sheets are taken away"


def test_the_still_of_a_silent_run_is_one_line_and_of_a_failed_one_has_every_rank_s_state(shown):
    view, silent = live.Live(), ranks()
    view.begin("2 ranks on Gloo")
    view.end(silent)
    assert shown[0]["text/plain"].count("\n") == 0 and "<pre" not in shown[0]["text/html"]
    failed = ranks(rank0="", rank1="")
    failed.states[1] = (1, "failed: KeyError: <b>")
    failed.restarts = 2
    view = live.Live()
    view.end(failed)
    assert shown[1]["text/plain"].endswith("s, 2 restarts)\nrank 0: done\nrank 1: failed: KeyError: <b>")
    assert "KeyError: &lt;b&gt;" in shown[1]["text/html"]
