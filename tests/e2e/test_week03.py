"""Week 3 runs unattended from its script: milestones by formula and emulated, torch's DDP on the wire, clean stderr."""

import json
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, stream, week_outputs, words
from repository import ROOT

from worldsize import quiz

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week03_ddp_from_first_principles.py"
TURNS = ("full_at", "exposed_s", "reduced", "rows_to_hide", "accumulated_step")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week03")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_rows = 100")


def rows(output):
    """The rows of a table in words, split into cells, without its title and head."""
    return [re.split(r"\s{2,}", line.strip()) for line in words(output).splitlines()[2:]]


def percent(text):
    return float(text.rstrip("%"))


def milliseconds(text):
    number, unit = text.split()
    return float(number) * {"µs": 1e-3, "ms": 1.0, "s": 1e3}[unit]


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 6)


@pytest.mark.parametrize("name", TURNS)
def test_worked_answers_are_right(outputs, name):
    assert "Right" in stream(outputs[f"check_{name}"])


def test_untouched_turns_say_so_and_the_bug_is_found(untouched):
    found = untouched.outputs
    for name in TURNS:
        text = stream(found[f"check_{name}"]) or words(found[f"check_{name}"])
        if name == "accumulated_step":
            assert "the bytes all-reduced in a step to be 66560" in text and "All 4 backward passes send" in text
        else:
            assert "not written yet" in text, text


def test_ten_and_eight_milliseconds_are_ten_eighteenths(outputs):
    assert "formula:  10 / (10 + 8) = 55.6%" in stream(outputs["ten_over_eighteen"])
    assert "emulated: 18.00 ms a step, 55.6% of it compute" in stream(outputs["ten_over_eighteen"])
    assert "it is 82.2%" in stream(outputs["overlapped"])
    assert "eight calls, overlapped: 12.2 ms, 32.4% shorter" in words(outputs["overlapped"])
    assert "2.17 ms of 8 are exposed" in stream(outputs["check_exposed_s"])


def test_overlap_takes_what_its_formula_says(outputs):
    found = rows(outputs["formula"])
    assert [row[0] for row in found] == ["1", "2", "4", "8", "16"]
    assert {row[3] for row in found} <= {"+0.0%", "-0.0%"}


def test_naive_loops_send_eight_tensors_or_one(outputs):
    found = rows(outputs["naive"])
    assert [row[:2] for row in found] == [["a call each", "8"], ["one call", "1"], ["no call", "0"]]
    assert milliseconds(found[0][2]) > milliseconds(found[1][2]) > milliseconds(found[2][2])


def test_hooks_come_in_reverse_and_once_for_a_tied_weight(outputs):
    text = stream(outputs["awkward_arrivals"])
    assert "parameters:     first.weight, second.weight, frozen.weight, unused.weight" in text
    assert "gradients came: second.weight, first.weight" in text


def test_gradients_of_the_transformer_come_from_the_head_to_the_embedding(outputs):
    found = rows(outputs["transformer_arrivals"])
    assert [row[0] for row in found] == ["head", "layers.3", "layers.2", "layers.1", "layers.0", "embedding"]
    shares = [percent(row[3]) for row in found]
    assert shares == sorted(shares) and shares[0] < 20 and shares[-1] == 100


def test_small_buckets_are_best_on_fast_links_and_large_ones_among_many_ranks(outputs):
    best = [row[4] for row in rows(outputs["best_bucket"])]
    of_mlp, of_llama = best[:3], best[3:]
    assert of_mlp == ["4 of 16 layers", "2 of 16 layers", "16 of 16 layers"]
    assert of_llama == ["1 of 24 layers", "4 of 24 layers", "24 of 24 layers"]
    said = "\n".join(output["data"]["text/plain"] for output in outputs["buckets_explored"])
    assert "Llama of 1.1B, 2,048 rows a GPU, 8 ranks, computed" in said


def test_the_transformer_trains_alike_on_one_process_and_by_ddp(outputs):
    said = words(outputs["same_training"])
    assert float(re.search(r"largest difference from one process is (\S+)\.", said)[1]) < 1e-9
    first, last = map(float, re.search(r"torch's DDP from ([\d.]+) to ([\d.]+\d)", said).groups())
    assert last < 0.7 * first


def test_ddp_cuts_buckets_from_its_second_step_on(outputs):
    calls = re.findall(r"(\w+) +([\d,]+) B", stream(outputs["ddp_on_the_wire"]))
    reduced = [size for name, size in calls if name == "all_reduce"]
    assert reduced == ["4,202,496", *["1,050,624"] * 8]
    assert calls[2] == ("broadcast", "4,202,496")
    for name, one_bucket, buckets, _ in rows(outputs["ddp_overlaps"]):
        assert milliseconds(buckets) < milliseconds(one_bucket), name


def test_options_change_what_ddp_sends(outputs):
    found = {row[0]: row[1:] for row in rows(outputs["options_on_the_wire"])}
    assert found["default"][0] == found["broadcast_buffers=False"][0] == "640, 640"
    assert found["first step in no_sync"][0] == "640"
    assert found["find_unused_parameters"][0] == "640, 24, 640, 24"
    assert found["static_graph"][0] == "24, 640, 640"
    broadcasts = {name: int(row[1]) for name, row in found.items()}
    # shapes, state, buffers before each forward and the order of gradients: 1 + 2 + 2 * 2 + 2
    assert broadcasts["default"] == 9 and broadcasts["first step in no_sync"] == 1 + 2 + 2
    assert broadcasts["find_unused_parameters"] == broadcasts["static_graph"] == 1 + 2 + 2 * 2
    assert broadcasts["broadcast_buffers=False"] == 1 + 1 + 2


def test_pcie_adds_20_to_40_percent_and_nvlink_5_to_10_to_a_small_model(outputs):
    added = {(row[0], row[1]): percent(row[4]) for row in rows(outputs["rule_of_thumb"])}
    assert len(added) == 9
    assert 20 <= added["pcie-box", "4.2M"] <= 40 and 5 <= added["dgx-a100", "4.2M"] <= 10
    pcie, nvlink = ([added[name, size] for size in ("1.1M", "4.2M", "16.8M")] for name in ("pcie-box", "dgx-a100"))
    assert max(pcie) < 1.1 * min(pcie)  # bytes decide
    assert nvlink[0] > 1.3 * nvlink[1] > 1.3**2 * nvlink[2]  # latency, which is paid once


def test_a_large_batch_of_bfloat16_is_asked_for_where_the_link_is_slow(outputs):
    found = {row[0]: row[2:] for row in rows(outputs["where_it_holds"])}
    assert found["pcie-box"] == ["10,688", "8,906 to 17,812", "792", "1,319 to 2,639"]
    ends = {name: [row[index].replace(",", "").split(" to ") for index in (1, 3)] for name, row in found.items()}
    for name, (half, whole) in ends.items():
        assert all(6.5 < int(a) / int(b) < 7.6 for a, b in zip(half, whole, strict=True)), name
    samples = {row[0]: row[3:] for row in rows(outputs["rows_of_a_sample"])}
    assert samples["MLP, vectors of 512"] == ["7,125", "713"]
    assert samples["Llama of 1.1B, 2,048 tokens"] == ["4", "1"]
    assert "10,677 rows on pcie-box" in stream(outputs["check_rows_to_hide"])


def test_two_gpus_lose_below_the_break_even_size_and_below_the_batch(outputs):
    found = {tuple(row[:2]): row[2:] for row in rows(outputs["break_even_on_paper"])}
    lost = [("pcie-box", "2,048"), ("2 x 10 Gb/s", "2,048"), ("2 x 10 Gb/s", "8,192")]
    assert all(found[one][1:] == ["never", "never"] for one in lost)
    won = [("dgx-a100", "2,048"), ("dgx-a100", "8,192"), ("pcie-box", "8,192")]
    sizes = [[float(text.rstrip("K").replace(",", "")) for text in found[one][1:]] for one in won]
    ratios = [formula / on_paper for formula, on_paper in sizes]
    assert 1.2 < ratios[0] < 1.5 and 5 < ratios[1] < 8 and 13 < ratios[2] < 19
    assert "256 rows, P* by the formula: " in stream(outputs["break_even_here"])


def test_ddp_of_a_large_model_waits_for_a_slow_network_alone(outputs):
    found = {(row[0], row[1]): (percent(row[4]), percent(row[5])) for row in rows(outputs["llama_on_paper"])}
    assert all(one[0] > 99 for (name, _), one in found.items() if name != "a100-100gbe-x8")
    assert found["a100-100gbe-x8", "2,048"][0] < 25 and 88 < found["a100-100gbe-x8", "16,384"][0] < 93
    assert 24 < found["h100-ndr-x8", "2,048"][1] < 28 and 37 < found["h100-ndr-x8", "16,384"][1] < 41
    for name in {name for name, _ in found}:  # eight times the flops take this many times as long to compute
        share, mfu = (found[name, "16,384"][index] / found[name, "2,048"][index] for index in (0, 1))
        assert 5 < 8 * share / mfu < 6, name
    assert abs(int(re.search(r"error ([-+]\d+)%", stream(outputs["published"]))[1])) <= 6


def test_table_has_formula_and_run_of_four_kinds(outputs):
    found = rows(outputs["side_by_side_table"])
    kinds = [row[1].split(",")[0] for row in found]
    assert [kinds.count(kind) for kind in ("measured here", "emulated", "on paper")] == [2, 6, 4]
    errors = [percent(row[5]) for row, kind in zip(found, kinds, strict=True) if kind != "measured here"]
    assert all(abs(error) <= 9 for error in errors) and sum(abs(error) <= 2 for error in errors) == 8


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
    assert entries["rows up to which two GPUs always lose"]["prediction"] == 100
    assert len(entries) == 4 and all(entry["result"] is not None for entry in entries.values())
    assert "7,120 rows" in words(outputs["predictions_beside_results"])


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week03", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
