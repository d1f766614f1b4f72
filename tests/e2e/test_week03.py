"""Week 3 runs unattended from its script: milestones by formula and emulated, torch's DDP on the wire, clean stderr."""

import json
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, printed, stream, week_outputs, words
from repository import ROOT

from worldsize import quiz

pytestmark = pytest.mark.lesson

SCRIPT = ROOT / "weeks" / "week03_ddp_from_first_principles.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week03")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_rows = 100")


def lines(outputs, start):
    return [line for line in stream(outputs).splitlines() if line.startswith(start)]


def percentages(line):
    return [float(number) for number in re.findall(r"([-+]?[\d.]+)%", line)]


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 5)


def test_ten_and_eight_milliseconds_are_ten_eighteenths(outputs):
    assert "formula:  10 / (10 + 8) = 55.6%" in stream(outputs["ten_over_eighteen"])
    assert "emulated: 18.00 ms a step, 55.6% of it compute" in stream(outputs["ten_over_eighteen"])
    assert "eight, overlapped:   12.17 ms, 82.2% of it compute" in stream(outputs["overlapped"])


def test_overlap_takes_what_its_formula_says(outputs):
    rows = [line.split() for line in stream(outputs["formula"]).splitlines()[1:]]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16"]
    assert {row[5] for row in rows} <= {"+0.0%", "-0.0%"}


def test_naive_loops_send_eight_tensors_or_one(outputs):
    assert [line.split(", ")[1] for line in stream(outputs["naive_emulated"]).splitlines()] == [
        "8 all-reduces in it",
        "1 all-reduces in it",
        "0 all-reduces in it",
    ]


def test_hooks_come_in_reverse_and_once_for_a_tied_weight(outputs):
    text = stream(outputs["hooks"])
    assert "parameters:     first.weight, second.weight, frozen.weight, unused.weight" in text
    assert "gradients came: second.weight, first.weight" in text


def test_small_buckets_are_best_on_fast_links_and_large_ones_among_many_ranks(outputs):
    best = re.findall(r"best +([\d.]+ MB)", stream(outputs["best_bucket"]))
    assert best == ["16.0 MB", "48.0 MB", "192 MB"]


def test_gradients_are_those_of_ddp(outputs):
    assert float(stream(outputs["same_gradients"]).split()[-1]) < 1e-6


def test_ddp_cuts_buckets_from_its_second_step_on(outputs):
    calls = re.findall(r"(\w+) +([\d,]+) B", stream(outputs["ddp_on_the_wire"]))
    reduced = [size for name, size in calls if name == "all_reduce"]
    assert reduced == ["4,202,496", *["1,050,624"] * 8]
    assert calls[2] == ("broadcast", "4,202,496")


def test_options_change_what_ddp_sends(outputs):
    text = stream(outputs["options_on_the_wire"])
    found = dict(re.findall(r"^(.+?) +all-reduces of (\[.*?\])", text, flags=re.MULTILINE))
    assert found["default"] == found["broadcast_buffers=False"] == "[640, 640]"
    assert found["first step in no_sync"] == "[640]"
    assert found["find_unused_parameters"] == "[640, 24, 640, 24]"
    num_broadcasts = [int(number) for number in re.findall(r"(\d+) broadcasts", text)]
    assert num_broadcasts[-1] < num_broadcasts[0]


def test_pcie_adds_20_to_40_percent_and_nvlink_5_to_10_to_a_small_model(outputs):
    added = {
        (name, line.split()[1]): percentages(line)
        for name in ("pcie-box", "dgx-a100", "dgx-h100")
        for line in lines(outputs["rule_of_thumb"], name)
    }
    assert len(added) == 9
    assert all(20 <= one <= 40 for one in added["pcie-box", "1.05M"])
    assert all(5 <= one <= 10 for one in added["dgx-a100", "1.05M"])
    assert added["pcie-box", "4.20M"][1] > 25 and added["dgx-a100", "4.20M"][1] < 0.7 * added["dgx-a100", "1.05M"][1]
    assert all(h100 > a100 for h100, a100 in zip(added["dgx-h100", "4.20M"], added["dgx-a100", "4.20M"], strict=True))


def test_two_gpus_lose_below_the_break_even_size_and_below_the_batch(outputs):
    rows = [line.split() for line in printed(outputs["break_even_emulated"]).splitlines()[1:]]
    assert [row[-2:] for row in rows if "never" in row] == [["never", "never"]] * 2
    sizes = [[float(text.removesuffix("K")) for text in row[-2:]] for row in rows if "never" not in row]
    assert len(sizes) == 3
    assert all(1 < formula / emulated < 1.3 for formula, emulated in sizes[:2])
    assert 1.8 < sizes[2][0] / sizes[2][1] < 2.6  # on Ethernet
    assert "this machine, 256 rows: two ranks are faster, formula: " in stream(outputs["break_even_here"])


def test_table_has_formula_and_run_of_four_machines(outputs):
    rows = [line for line in stream(outputs["side_by_side"]).splitlines() if line.endswith("%")]
    emulated = [percentages(line)[-1] for line in rows if "emulated" in line]
    assert len(rows) == 8 and len(emulated) == 6
    assert all(-14 < error <= 0 for error in emulated)
    assert sum("here, measured" in line for line in rows) == 2


def test_unused_parameter_fails_the_second_step_and_is_found_when_asked_for(outputs):
    assert "Expected to have finished reduction in the prior iteration" in stream(outputs["unused_parameter"])
    first, second = re.findall(r"(-?[\d.]+\d)", stream(outputs["unused_parameter_found"]))[-2:]
    assert first == second != "0.00"


def test_skipping_missing_gradients_averages_two_layers(outputs):
    text = stream(outputs["skipping"])
    zero, one = (re.findall(r"-?\d+\.\d\d", line) for line in text.splitlines())
    assert "rank 0: head 0.weight" in text and "rank 1: head 1.weight" in text
    assert zero == one


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week03"]
    assert entries["rows below which two GPUs always lose"]["prediction"] == 100
    assert len(entries) == 4 and all(entry["result"] is not None for entry in entries.values())
    assert "1,060 rows" in words(outputs["predictions_beside_results"])


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week03", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
