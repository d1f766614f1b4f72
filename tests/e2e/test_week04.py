"""Week 4 runs unattended from its script: stragglers and stale gradients, real, computed and emulated; no stderr."""

import json
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, printed, stream, week_outputs, words
from repository import ROOT

from worldsize import quiz

pytestmark = pytest.mark.lesson

SCRIPT = ROOT / "weeks" / "week04_synchronous_or_asynchronous.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week04")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_async_percent = 85")


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text)]


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 6)


def test_a_synchronous_step_takes_as_long_as_the_slowest_worker(outputs):
    fast, slow = stream(outputs["synchronous_measured"]).splitlines()
    fast_ms, slow_ms = (float(re.search(r"(\d+) ms", line)[1]) for line in (fast, slow))
    assert slow_ms >= 100 and fast_ms >= 20  # asleep for so long, however busy the machine is
    text = printed(outputs["one_slow_of_eight"])
    assert "80 gradients/s, 20.0%" in text and "360 gradients/s, 90.0%" in text


def test_the_slowest_of_many_is_a_harmonic_number(outputs):
    lines = printed(outputs["slowest_of_many"]).splitlines()
    for line in lines[:5]:
        formula, drawn = numbers(line.split("H_N")[1].replace("20,000", ""))
        assert abs(formula / drawn - 1) < 0.03
    assert "64 workers: H_N = 4.74" in lines[3]
    assert abs(numbers(lines[5])[-1] / 2.72 - 1) < 0.1  # 100 emulated steps
    assert re.search(r" 4 backup workers +2\.66 mean steps", stream(outputs["backup_workers"]))


def test_the_server_makes_nobody_wait_and_gradients_are_late(outputs):
    all_reduce, server = numbers(printed(outputs["asynchronous_measured"]))[:2]
    assert server > all_reduce
    mean, expected = numbers(printed(outputs["staleness_measured"]).splitlines()[-1].replace("N - 1", ""))
    assert expected == 2 and 1.2 < mean <= 2


def test_stability_bound_is_found_by_running(outputs):
    rows = [numbers(line) for line in printed(outputs["stability"]).splitlines()]
    assert [row[0] for row in rows] == [0, 1, 3, 7, 31]
    assert all(abs(row[1] - row[2]) <= 0.001 for row in rows)
    assert rows[3][1:] == [0.209, 0.209, 9.6]
    assert "tau   1: rate / tau is stable up to 50%" in stream(outputs["divided_by_staleness"])


def test_a_bound_helps_against_luck_alone(outputs):
    now_and_then, always = (
        numbers(line.split(":", 1)[1]) for line in stream(outputs["always_or_now_and_then"]).splitlines()[1:]
    )
    assert always[1::2] == [160] * 4
    assert now_and_then[1::2] == sorted(now_and_then[1::2]) and now_and_then[5] > 2 * now_and_then[1]


def test_scaled_rate_makes_up_for_fewer_steps_until_it_is_too_large(outputs):
    shares = [int(found) for found in re.findall(r"steps: +(\d+)%", stream(outputs["large_batches_compared"]))]
    small, same, scaled, _, too_large = shares
    assert small > 90 and same < 70 and scaled > same + 15 and too_large < scaled - 30


def test_trust_ratios_by_hand(outputs):
    text = stream(outputs["by_hand"])
    assert "5 / 1 = 0.005" in text and "= 0.0025" in text and "3.536" in text


def test_weights_are_those_of_the_oracles(outputs):
    for name, count in (("against_the_oracle", 2), ("replayed", 2)):
        differences = re.findall(r"largest difference (\S+)", stream(outputs[name]))
        assert len(differences) == count and max(map(float, differences)) < 1e-5
    assert "torch.optim: False" in stream(outputs["replayed"])


def test_formulas_hold_until_the_link_is_full(outputs):
    rows = [line for line in stream(outputs["table"]).splitlines() if "emulated" in line]
    errors = [int(line.split()[-1].rstrip("%")) for line in rows]
    assert len(rows) == 6
    assert all(abs(error) <= 3 for error in errors[:5]) and 10 < errors[5] < 40
    assert len([line for line in stream(outputs["table"]).splitlines() if "measured" in line]) == 2
    assert re.search(r"100 Gb/s, TCP +20\.5 ms for each gradient: +10\.8 workers", stream(outputs["saturation"]))


def test_stale_gradients_diverge_where_fresh_ones_do_not(outputs):
    ends = [float(end) for end in re.findall(r"x ends at +(\S+),", stream(outputs["stale_divergence"]))]
    assert abs(ends[0]) < 0.01 and abs(ends[1]) < 1 < abs(ends[2])


def test_a_fixed_order_is_as_slow_as_the_slowest(outputs):
    in_turn, as_they_come = (numbers(line)[0] for line in stream(outputs["in_turn"]).splitlines())
    assert abs(in_turn - 700) < 10 and as_they_come > 4 * in_turn


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week04"]
    assert entries["kept by 8 that do not wait"]["prediction"] == 85
    assert len(entries) == 6 and all(entry["result"] is not None for entry in entries.values())
    assert "9.57" in words(outputs["predictions_beside_results"])


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week04", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
