"""Week 5 runs unattended from its script: real hooks under DDP, formulas against emulated steps, nothing on stderr."""

import json
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, printed, stream, week_outputs, words
from repository import ROOT

from worldsize import quiz

pytestmark = pytest.mark.lesson

SCRIPT = ROOT / "weeks" / "week05_say_less.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week05")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_ranks = 50")


def losses_of(text):
    """The last number of each line by the line's name."""
    rows = [re.match(r"(.+?)  +.*?(nan|-?[\d.]+)$", line) for line in text.splitlines()]
    return {row[1].strip(): float(row[2]) for row in rows if row}


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 6)


def test_a_part_that_is_forgotten_costs_accuracy(outputs):
    rows = {line[:16].strip(): line.split()[-1] for line in printed(outputs["worse_first"]).splitlines()}
    assert float(rows["largest 1%"]) > 3 * float(rows["everything"])
    assert float(rows["random 1%"]) > 2.2
    assert rows["random 1% x 100"] == "nan"


def test_bias_and_spread_are_those_of_their_formulas(outputs):
    rows = [line.rsplit(maxsplit=2) for line in stream(outputs["bias_and_spread"]).splitlines()[2:]]
    found = {name: (float(bias), float(spread)) for name, bias, spread in rows if "x 100" not in name}
    assert found["float16"] == (0, 0) and found["int8, rounded at random"][0] < 0.005
    assert found["largest 1%"][0] > 0.8 and found["largest 1%"][1] == 0
    *_, bias, spread, formula = stream(outputs["bias_and_spread"]).splitlines()[-1].split()
    assert float(bias) < 0.15 and abs(float(spread) / float(formula) - 1) < 0.05


def test_what_is_gathered_grows_with_the_ranks(outputs):
    text = printed(outputs["gather_or_reduce"])
    ends = {line.split(",")[0]: line.split()[-2:] for line in text.splitlines() if line.endswith("ranks")}
    assert ends == {"int8": ["8", "ranks"], "sign": ["64", "ranks"], "largest 1%": ["100", "ranks"]}
    assert re.search(r"float16, all-reduce +50\.0 +87\.5", text)


def test_memory_turns_a_bias_into_a_delay(outputs):
    assert stream(outputs["error_feedback"]).splitlines()[-1].split() == ["10", "0.0", "0", "0.0", "3", "3.0"]
    found = losses_of(stream(outputs["with_and_without_memory"]))
    assert found["sign, with memory"] < 0.5 * found["sign"]
    assert found["sign, with memory"] < 1.2 * found["everything"]
    assert found["random 1%, with memory"] < found["random 1%"]


def test_urgent_messages_shorten_the_step_and_change_no_byte(outputs):
    rows = stream(outputs["next_forward"]).splitlines()
    (first_s, first_mb), (second_s, second_mb) = (map(float, re.findall(r"([\d.]+) M?m?[sB]", row)) for row in rows)
    assert second_s < 0.85 * first_s and first_mb == second_mb


def test_hooks_are_those_of_the_oracle(outputs):
    rows = stream(outputs["differences"]).splitlines()
    assert len(rows) == 2 and all(float(row.split()[-1]) < 1e-5 for row in rows)


def test_plot_holds_every_method_with_its_bytes(outputs):
    rows = stream(outputs["losses_and_bytes"]).splitlines()
    shares = {row[:26].strip(): float(re.search(r"([\d.]+)%   loss", row)[1]) for row in rows}
    found = losses_of(stream(outputs["losses_and_bytes"]))
    assert len(shares) == 13
    assert shares["float16 (torch)"] == 50 and shares["int8"] == 25 and shares["random 1%"] == 1
    assert shares["PowerSGD rank 1 (torch)"] < 12 and found["PowerSGD rank 1 (torch)"] < 1.3 * found["everything"]
    assert found["float16 (torch)"] < 1.05 * found["everything"] and found["int8"] < 1.1 * found["everything"]
    assert all(name in words(outputs["loss_against_bytes"]) for name in shares)


def test_compression_pays_on_ethernet_and_not_on_nvlink(outputs):
    rows = [line for line in printed(outputs["table"]).splitlines() if "emulated" in line or "measured" in line]
    assert len(rows) == 16
    found = {}
    for row in rows:
        where, method = row[:24].strip(), row[27:39].strip()
        found[where.split(",")[0], method] = tuple(map(float, re.findall(r"([-+][\d.]+)%", row)))
    emulated = {key: value for key, value in found.items() if key[0] != "this machine"}
    assert len(emulated) == 12 and all(abs(error) < 15 for error, _ in emulated.values())
    assert all(abs(found["dgx-h100", method][1]) < 0.6 for method in ("float16", "int8", "random 1%"))
    assert found["dgx-h100", "int8"][1] > 0
    assert found["4 x 10 Gb/s", "float16"][1] < -15


def test_sign_goes_the_wrong_way_and_memory_turns_it(outputs):
    found = {row.split(" ends")[0].strip(): float(row.split()[-1]) for row in stream(outputs["wrong_way"]).splitlines()}
    assert found["gradient"] < -0.9 and found["sign"] > 0.9 and found["sign, with memory"] < -0.9


def test_float16_has_an_end_and_bfloat16_has_not(outputs):
    half, brain = (re.findall(r"(\d+) inf +(\d+) 0", row) for row in stream(outputs["out_of_range"]).splitlines()[1:])
    assert half[0] == ("0", "9930") and half[2] == ("0", "0") and half[-1] == ("9930", "0")
    assert brain == [("0", "0")] * 5


def test_collectives_in_callbacks_are_reported(outputs):
    assert re.search(r"do not match|had the same order|did not finish", stream(outputs["two_orders"]))


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week05"]
    assert entries["ranks at which gathering 1% saves nothing"]["prediction"] == 50
    assert len(entries) == 4 and all(entry["result"] is not None for entry in entries.values())
    assert entries["speed-up by float16 on 10 Gb/s"]["result"] > 1.2
    assert "100" in words(outputs["predictions_beside_results"])


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week05", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
