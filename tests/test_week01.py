"""Week 1 runs unattended from its script: real ranks, the same curve, nothing on stderr."""

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from autograder.authoring import read_week
from autograder.build import notebook

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "weeks" / "week01_why_one_gpu_is_not_enough.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week01")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    week = notebook(read_week(SCRIPT), graded=False)
    predicted = "predicted_years = 10\npredicted_memory_gb = 60"
    parameters = next(index for index, cell in enumerate(week.cells) if cell.id == "parameters")
    week.cells.insert(parameters + 1, nbformat.v4.new_code_cell(predicted, id="injected"))
    NotebookClient(week, timeout=240, resources={"metadata": {"path": str(folder)}}).execute()
    return {cell.id: cell.outputs for cell in week.cells if cell.cell_type == "code"}


def stream(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream")


def pictures(outputs):
    bundles = (output.get("data", {}) for cell in outputs.values() for output in cell)
    return [bundle for bundle in bundles if "image/png" in bundle]


def test_cells_are_short():
    cells = [cell for cell in read_week(SCRIPT).cells if cell.kind == "code"]
    assert [cell.id for cell in cells if len(cell.source.splitlines()) > 25] == []


def test_week_does_not_solve_its_lab():
    text = SCRIPT.read_text(encoding="utf-8")
    asked = ("rank_batches", "broadcast_model", "average_gradients", "synchronise_buffers", "def train(")
    assert [name for name in asked if name in text] == []


def test_nothing_is_written_to_stderr(outputs):
    noise = {name: output.text for name, cell in outputs.items() for output in cell if output.get("name") == "stderr"}
    assert noise == {}


def test_every_figure_has_a_picture_and_words(outputs):
    shown = pictures(outputs)
    assert len(shown) == 12
    for bundle in shown:
        assert len(bundle["text/plain"]) > 60 and not bundle["text/plain"].startswith(("Figure", "<"))
        assert bundle["text/html"].count("alt=") == 1


def test_torchrun_cell_shows_both_ranks(outputs):
    text = stream(outputs["torchrun_cell"])
    assert "rank 0 of 2" in text and "rank 1 of 2" in text
    assert text.count("1 + 2 = 3") == 2


def test_one_two_and_four_ranks_have_the_same_losses(outputs, folder):
    reports = [json.loads(path.read_text()) for path in sorted((folder / "build" / "week01").glob("*_ranks.json"))]
    assert len(reports) >= 2
    first = reports[0]["losses"]
    assert first[0] > 2.2 and first[-1] < 0.5
    for report in reports[1:]:
        assert report["losses"] == pytest.approx(first, abs=1e-4)


def test_mean_learns_and_sum_does_not(outputs):
    words = outputs["sum_instead_of_mean"][-1]["data"]["text/plain"]
    learnt, broken = (float(part.split(" to ")[1].rstrip(".")) for part in words.split(": ")[-1].split(";"))
    assert learnt < 0.5 < broken


def test_weights_are_those_of_ddp(outputs):
    difference = float(stream(outputs["against_ddp"]).split()[-1])
    assert difference < 1e-4


def test_hang_names_the_rank_that_waits_and_the_one_that_left(outputs):
    report = stream(outputs["one_batch_short"])
    assert "Rank 0 had returned" in report
    assert "Rank 1 waits for rank 0 in collective 4, all_reduce" in report and "in one_batch_short" in report


def test_recovery_does_the_lost_steps_again(outputs):
    text = stream(outputs["recovery_time"])
    assert "GPU fell off the bus" in text
    assert "of which 3 steps were done a second time" in text


def test_computed_numbers(outputs):
    assert "data sheet: 32.0 years" in stream(outputs["time_to_train"])
    assert "33.9 days" in stream(outputs["time_on_a_cluster"])
    assert "275 GB in all" in stream(outputs["activations_of_gpt3"])
    assert "7.5B 120 GB" in outputs["memory_of_large_models"][-1]["data"]["text/plain"]


def test_ledger_shows_predictions_beside_results(outputs, folder):
    text = outputs["predictions_beside_results"][-1]["data"]["text/plain"]
    rows = {line.split("  ")[0]: line for line in text.splitlines()}
    assert "10.0 years" in rows["GPT-3 on one A100"] and "32.0 years" in rows["GPT-3 on one A100"]
    assert "no prediction" in rows["between two stops of 16,384 GPUs"]
    entries = json.loads((folder / "ledger.json").read_text())
    assert entries["memory of a 7.5B model"]["prediction"] == 60
    assert all(entry["result"] is not None for entry in entries.values())


def test_self_check_asks_without_answering(outputs):
    bundle = outputs["self_check"][-1]["data"]
    assert set(bundle) == {"text/html", "text/plain"}
    assert "Four ranks start from the same weights" in bundle["text/plain"]
