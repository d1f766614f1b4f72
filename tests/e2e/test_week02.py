"""Week 2 runs unattended from its script: real messages, exact formulas on emulated clusters, nothing on stderr."""

import json
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, stream, week_outputs, words
from repository import ROOT

from worldsize import quiz

pytestmark = pytest.mark.lesson

SCRIPT = ROOT / "weeks" / "week02_all_reduce_from_scratch.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week02")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_ring_mb = 100")


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 7)


def test_rank_0_carries_everything_and_pairs_send_the_least(outputs):
    assert "rank 0 sends 3.00 MB" in stream(outputs["star_emulated"])
    assert "[1500000, 1500000, 1500000, 1500000], the bound: 1500000" in stream(outputs["halving_emulated"])
    assert "64 ranks, 100 MB: each must send 196.9 MB" in stream(outputs["lower_bound"])


def test_three_collectives_give_what_the_table_says(outputs):
    lines = stream(outputs["six_collectives"]).splitlines()
    rank_3 = next(line for line in lines if line.startswith("rank 3"))
    assert rank_3.split()[2:] == ["40", "41", "42", "43", "112", "10", "21", "32", "43", "13", "23", "33", "43"]


def test_sums_are_those_of_the_oracle(outputs):
    differences = [
        float(line.split()[-1]) for line in stream(outputs["against_the_oracle"]).splitlines() if "e" in line[-4:]
    ]
    assert len(differences) == 3 and max(differences) < 1e-5


def test_formulas_hold_on_links_that_nobody_shares(outputs):
    lines = stream(outputs["side_by_side"]).splitlines()
    rows = [line for line in lines if "emulated" in line]
    off = [line for line in rows if not line.endswith(("+0%", "-0%"))]
    assert len(rows) == 6
    assert [line.split(",")[0] for line in off] == ["pcie-box"] and "halving and doubling" in off[0]


def test_narrow_uplinks_hold_up_the_pairs_and_not_the_ring(outputs):
    rows = stream(outputs["oversubscribed"]).splitlines()
    (full, full_ring), (narrow, narrow_ring) = (tuple(map(int, re.findall(r"(\d+) µs", row))) for row in rows[:2])
    assert narrow > 1.2 * full
    assert narrow > narrow_ring and full_ring == narrow_ring


def test_server_takes_a_hundred_times_as_long_with_512_ranks(outputs):
    text = stream(outputs["ring_or_server"])
    assert re.search(r"512 ranks +105 GB +5\.23 s +51\.1 ms", text)


def test_hang_names_the_circle(outputs):
    report = stream(outputs["everybody_sends_first"])
    assert "wait for each other" in report and "rank 0 waits for rank 1 in send" in report


def test_another_order_adds_the_wrong_layers(outputs):
    text = stream(outputs["another_order"])
    assert "should be: layer A 4, layer B 400" in text
    assert "rank 0:    layer A 301, layer B 103" in text and "rank 1:    layer A 103, layer B 301" in text
    assert "Collectives do not match" in stream(outputs["another_size"])


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week02"]
    assert entries["sent by each of 64 ranks for 100 MB"]["prediction"] == 100
    assert len(entries) == 4 and all(entry["result"] is not None for entry in entries.values())
    assert "13.1 GB" in words(outputs["predictions_beside_results"])


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week02", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
