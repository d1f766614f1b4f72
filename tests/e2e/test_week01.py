"""Week 1 runs unattended from its script: real ranks, the same curve, one table, nothing on stderr."""

import json
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, stream, week_outputs, words
from repository import ROOT

from worldsize import quiz

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week01_why_one_gpu_is_not_enough.py"
TURNS = ("training_days", "gpus_for_states", "accuracy_of_all", "enough_samples", "colleagues_part")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week01")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_years = 10\npredicted_memory_gb = 60")


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 16)


@pytest.mark.parametrize("name", TURNS)
def test_worked_answers_are_right(outputs, name):
    assert stream(outputs[f"check_{name}"]).startswith("Right")


def test_the_bug_is_found_in_an_untouched_week(untouched):
    said = words(untouched.outputs["check_colleagues_part"])
    assert "All ranks draw the same 64 images" in said
    assert "different images in the batch of four ranks to be 234" in said


def test_what_is_not_measured_here_is_called_so(outputs):
    for name in ("memory_of_one_gpu", "assembly_line", "assembly_line_in_pieces", "two_laws"):
        captions = [
            output["data"]["text/plain"].lower() for output in outputs[name] if "image/png" in output.get("data", {})
        ]
        assert captions and all("computed" in words for words in captions), name
    assert "emulated on dgx-h100" in outputs["emulated_step"][-1]["data"]["text/plain"]
    assert words(outputs["side_by_side"]).count(", emulated") == 3


def test_torchrun_says_which_rank_printed_what(outputs):
    text = stream(outputs["two_and_four"])
    for rank, world_size in [(0, 2), (1, 2), (0, 4), (3, 4)]:
        assert f"[rank {rank}] I am rank {rank} of {world_size}, on cpu, and use gloo" in text


def test_one_process_and_two_and_four_ranks_have_the_same_losses(outputs, folder):
    reports = [json.loads(path.read_text()) for path in sorted((folder / "build" / "week01").glob("*_ranks.json"))]
    assert len(reports) == 2
    first = reports[0]["losses"]
    assert first[0] > 2.2 and first[-1] < 0.5
    assert reports[1]["losses"] == pytest.approx(first, abs=1e-9)
    words = outputs["same_curve"][-1]["data"]["text/plain"]
    assert "one process from 2.32" in words and float(words.split()[-1].rstrip(".")) < 1e-9


def test_ranks_that_never_communicate_drift_apart(outputs):
    ranges = re.findall(r"rank \d from ([\d.]+) to ([\d.]+\d)", words(outputs["train_apart"]))
    assert len(ranges) == 4 and all(0 < float(first) < float(last) for first, last in ranges)


def test_one_process_learns_and_the_sum_does_not(outputs):
    words = outputs["sum_instead_of_mean"][-1]["data"]["text/plain"]
    learnt, broken = (float(part.split(" to ")[1].rstrip(".")) for part in words.split(": ")[-1].split(";"))
    assert learnt < 0.5 < broken


def test_table_holds_the_formula_against_three_clusters_and_this_machine(outputs):
    rows = [re.split(r"  +", line) for line in words(outputs["side_by_side"]).splitlines()[2:]]
    by_name = {row[0]: row for row in rows}
    assert list(by_name) == [
        "dgx-h100, emulated",
        "pcie-box, emulated",
        "8 x 10 Gb/s, emulated",
        "this machine, measured",
    ]
    assert by_name["dgx-h100, emulated"][2:] == ["129 µs", "135 µs", "263 µs", "238 µs", "+11%", "48.8%"]
    assert by_name["pcie-box, emulated"][2:] == ["333 µs", "771 µs", "1.1 ms", "1.65 ms", "-33%", "30.1%"]
    assert by_name["8 x 10 Gb/s, emulated"][2:] == ["333 µs", "13.4 ms", "13.7 ms", "14.2 ms", "-3%", "2.42%"]
    assert by_name["this machine, measured"][1] == "2" and len(by_name["this machine, measured"]) == 8


def test_explorers_describe_what_they_show_without_a_front_end(outputs):
    for name, shown in {
        "memory_of_one_gpu": "a part of 1/8 on each 15.0 GB",
        "two_laws": "64 ranks: 15.4 times as fast (Amdahl), or 60.8 times the work (Gustafson).",
        "link_and_step": "Ethernet 10 Gb/s, TCP  153 ms  39.5%  1.38 s",
    }.items():
        text = "\n".join(output["data"]["text/plain"] for output in outputs[name])
        assert shown in text and "Run this cell in JupyterLab" in text, name


def test_all_five_key_metrics_are_there(outputs):
    text = words(outputs["key_metrics"]) + "\n" + stream(outputs["recovery_time"])
    for name in ("throughput", "scaling efficiency", "communication efficiency", "memory utilisation", "recovery time"):
        assert re.search(rf"^{name} +[\d.,]+", text, flags=re.MULTILINE), name


def test_weights_are_those_of_ddp(outputs):
    difference = float(stream(outputs["against_ddp"]).split()[-1])
    assert difference < 1e-4


def test_hang_names_the_rank_that_waits_and_the_one_that_left(outputs):
    report = stream(outputs["one_batch_short"])
    assert "rank 0 has returned" in report
    assert "Rank 1 waits for rank 0 in collective 4, all_reduce" in report and "in one_batch_short" in report


def test_recovery_does_the_lost_steps_again(outputs):
    text = stream(outputs["recovery_time"])
    assert "GPU fell off the bus" in text
    assert "3 steps were done a second time" in text


def test_computed_numbers(outputs):
    assert "data sheet: 32.0 years" in stream(outputs["time_to_train"])
    assert "33.9 days" in stream(outputs["time_on_a_cluster"])
    assert "45% of the peak; MFU 34%, without the second forward pass" in stream(outputs["time_on_a_cluster"])
    rows = [re.split(r"  +", line) for line in words(outputs["activations_of_large_models"]).splitlines()[2:]]
    assert [row[2:] for row in rows] == [
        ["120 GB", "34.4 GB", "3.5"],
        ["108 GB", "104 GB", "1.0"],
        ["2.8 TB", "275 GB", "10.2"],
    ]
    rows = [re.split(r"  +", line.strip()) for line in words(outputs["compute_optimal"]).splitlines()[2:]]
    assert rows[0][2:] == ["2.92B", "58.5B"] and rows[-1][2:] == ["374B", "7.48T"]


def test_the_peak_lies_in_the_backward_pass(outputs):
    said = words(outputs["one_step_of_adam"])
    assert "peaks at" in said and "loss.backward()" in said
    assert "7.5B 120 GB" in outputs["memory_of_large_models"][-1]["data"]["text/plain"]


def test_ledger_shows_predictions_beside_results(outputs, folder):
    text = outputs["predictions_beside_results"][-1]["data"]["text/plain"]
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "10.0 years" in rows["GPT-3 on one A100"] and "32.0 years" in rows["GPT-3 on one A100"]
    assert len(re.split("  +", rows["between two stops of 16,384 GPUs"].strip())) == 2  # asked for, and not predicted
    entries = json.loads((folder / "ledger.json").read_text())["week01"]
    assert entries["memory of a 7.5B model"]["prediction"] == 60
    assert all(entry["result"] is not None for entry in entries.values())


def test_self_check_asks_five_of_ten_questions_without_answering(outputs):
    bundle = outputs["self_check"][-1]["data"]
    assert set(bundle) == {"text/html", "text/plain"}
    assert "Four ranks start from the same weights" in bundle["text/plain"]
    assert len(quiz.load("week01", ROOT / "quizzes").question) >= 10
    assert re.findall(r"^(\d+)\. ", bundle["text/plain"], flags=re.MULTILINE) == ["1", "2", "3", "4", "5"]
