"""Week 15 runs unattended: faults that no curve shows are measured, named, repaired, and told from rounding."""

import json
import math
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, stream, week_outputs, words
from repository import ROOT

from worldsize import quiz

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week15_trains_but_wrong.py"
TURNS = ("fingerprint", "first_drift", "estimated_distance", "update_ratio", "seen_mean", "loss_over_all", "is_off")
BUGS = ("accumulate", "seed_for", "overlapped")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week15")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_noise_ratio = 4")


def rows(outputs):
    """The rows of a table's text, cut into columns, without its title and heads."""
    lines = map(str.strip, words(outputs).splitlines())
    return [re.split(r" {2,}", line) for line in lines][2:]


def number(text):
    return float(text.replace(",", "").rstrip("%"))


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 2)


def test_every_turn_is_right_when_solved(outputs):
    assert [name for name in (*TURNS, *BUGS) if not stream(outputs[f"check_{name}"]).startswith("Right")] == []


def test_untouched_turns_say_so_and_bugs_are_shown_by_what_they_do(untouched):
    found = untouched.outputs
    shown = {name: "".join(str(one.get("data", one)) for one in found[f"check_{name}"]) for name in BUGS}
    assert "inside no_sync, so DDP reduced nothing" in shown["accumulate"]
    assert "24 different seeds" in shown["seed_for"] and "share one" in shown["seed_for"]
    assert "the mean of gradient 1" in shown["overlapped"]


def test_a_digest_of_a_sum_and_one_of_the_object_are_named(untouched):
    of_sum = "def fingerprint(tensor):\n    return f'{tensor.sum().item():016.9f}'[:16]\n"
    of_object = "def fingerprint(tensor):\n    return f'{id(tensor):016x}'\n"
    first, second = untouched.shown_for([of_sum, of_object], "fingerprint")
    assert "take the bytes" in first and "the same digest of a tensor and its copy" in second


def test_a_hash_of_this_process_is_not_a_digest(untouched):
    by_hash = (
        "def fingerprint(tensor):\n    content = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()\n"
        "    return f'{hash(content) % 2**64:016x}'\n"
    )
    (shown,) = untouched.shown_for([by_hash], "fingerprint")
    assert "a different one in each process" in shown


def test_a_drift_between_the_ends_or_the_last_of_a_step_are_named(untouched):
    loop = "def first_drift(of_ranks):\n    for step, named in enumerate(of_ranks[0]):\n"
    ends = loop + (
        "        for name in named:\n            if named[name] != of_ranks[-1][step][name]:\n"
        "                return step, name\n"
    )
    last = loop + (
        "        off = [name for name in named if len({one[step][name] for one in of_ranks}) > 1]\n"
        "        if off:\n            return step, off[-1]\n"
    )
    first, second = untouched.shown_for([ends, last], "first_drift")
    assert "only the middle rank's a" in first and "rank 2's a and b" in second


def test_accumulation_without_a_division_is_named(untouched):
    summed = (
        "def accumulate(model, batches):\n    for number, (rows, classes) in enumerate(batches):\n"
        "        with nullcontext() if number == len(batches) - 1 else model.no_sync():\n"
        "            F.cross_entropy(model(rows), classes).backward()\n"
    )
    (shown,) = untouched.shown_for([summed], "accumulate")
    assert "divide by their number, once" in shown


def test_digits_that_are_too_few_share_seeds(untouched):
    digits = "def seed_for(epoch, rank, worker, num_ranks, num_workers):\n    return 100 * epoch + 10 * rank + worker\n"
    (shown,) = untouched.shown_for([digits], "seed_for")
    assert "384 different seeds" in shown and "share one" in shown


def test_a_tolerance_without_a_least_value_or_that_excuses_nan_is_named(untouched):
    no_least = "def is_off(off, rounding, least=4e-6):\n    return not off <= 10 * rounding\n"
    no_nan = "def is_off(off, rounding, least=4e-6):\n    return off > max(10 * rounding, least)\n"
    first, second = untouched.shown_for([no_least, no_nan], "is_off")
    assert "False for a distance of 3e-06" in first and "True for a distance of nan" in second


def test_weights_of_tokens_without_the_number_of_ranks_are_named(untouched):
    local = "def loss_over_all(total, count):\n    return total / count\n"
    undivided = (
        "def loss_over_all(total, count):\n    all_of_them = torch.tensor(float(count))\n"
        "    dist.all_reduce(all_of_them)\n    return total / all_of_them\n"
    )
    shown = untouched.shown_for([local, undivided], "loss_over_all")
    assert all("undo DDP" in one and "Not yet" in one for one in shown)


def test_the_curves_of_the_right_and_the_wrong_run_are_closer_than_one_step(outputs):
    text = stream(outputs["two_runs_apart"])
    (change,) = re.findall(r"changes by ([\d.]+)%", text)
    (apart,) = re.findall(r"it is ([\d.]+)%", text)
    assert 0 < float(apart) < float(change) / 10
    assert "all others, rank 3 from 0 to 0" in words(outputs["drift"])


def test_projections_tell_rounding_from_the_fault_and_digests_do_not(outputs):
    table = rows(outputs["both_measures"])
    assert [row[1] for row in table] == ["equal", "differ", "differ", "differ"]
    distances = [float(row[2]) for row in table]
    assert distances[0] == 0 and distances[1] > 1000 * max(distances[2:]) > 0


def test_each_fault_of_section_5_is_found_and_its_repair_is_not(outputs):
    found = [row[-1] for row in rows(outputs["unreduced_table"])]
    assert "called directly" in found[0] and "2.bias" in found[1] and "no_sync" in found[2]
    assert found[3] == "nothing found"
    assert [row[-1] for row in rows(outputs["data_faults_too"])] == ["nothing found"] * 3
    tensors = rows(outputs["other_tensors_table"])
    assert "ever gets a gradient" in tensors[0][-1] and "this rank's shard" in tensors[1][-1]
    loaded = rows(outputs["loaded_table"])
    assert "strict=False hides it" in loaded[0][-1] and float(loaded[0][2]) > 2 * float(loaded[0][1])
    assert tensors[2][-1] == loaded[1][-1] == "nothing found" and loaded[1][1] == loaded[1][2]
    for cell in ("summed_audited", "too_early_audited"):
        assert "WRONG" in stream(outputs[cell]) and "repaired: nothing found" in stream(outputs[cell])


def test_adamw_hides_a_factor_that_sgd_shows(outputs):
    apart = {row[0]: number(row[1]) for row in rows(outputs["summed_table"])}
    hidden = {"AdamW", "AdamW, weight decay 0.1", "SGD, clipped to 0.1"}
    assert max(apart[name] for name in hidden) < 0.01
    assert min(one for name, one in apart.items() if name not in hidden) > 0.1 and apart["SGD"] > 50


def test_sizes_of_faults_are_those_of_the_formulas(outputs):
    errors = [number(row[3]) for row in rows(outputs["formula_beside_run"])]
    assert len(errors) == 4 and max(map(abs, errors)) < 10
    assert re.findall(r"too small by ([\d.]+)", stream(outputs["blind_spot_measured"])) == ["4.000", "4.000"]
    parts = re.findall(r"= ([\d.]+) of ([\d.]+)", stream(outputs["norms_add_up"]))[0]
    assert parts[0] == parts[1]


def test_a_race_is_right_only_after_waiting(outputs):
    table = rows(outputs["too_early"])
    assert [row[2] for row in table] == ["20 of 20 and 20 of 20"] * 2 and table[1][1] == "0 of 20 and 0 of 20"


def test_means_of_means_are_one_fault_on_ranks_and_in_micro_batches(outputs):
    off = [number(row[1]) for row in rows(outputs["uneven_measured"])]
    assert off[0] == off[1] > 5
    assert "different numbers of elements" in stream(outputs["uneven_audited"])
    assert "total / count: nothing found" in stream(outputs["uneven_audited"])
    assert "10 to 1" in stream(outputs["published_weights"])


def test_only_the_measured_tolerance_is_right_in_every_row(outputs):
    assert "right: Equal to within rounding" in stream(outputs["compared"])
    assert "gradient of 0.weight, 0.25 times" in stream(outputs["compared"])
    growth = rows(outputs["growth_measured"])
    assert growth[0][-1] == "yes" and growth[-1][-1] == "no"
    table = rows(outputs["judged"])
    assert [row[-1] for row in table] == ["right"] * 3 + ["wrong"] * 3
    assert table[2][-2] == "wrong" and table[0][-2] == "right"


def test_what_all_ranks_share_is_found_by_a_right_program_alone(outputs):
    table = rows(outputs["unseen"])
    assert [row[1] for row in table] == ["nothing found"] * 2
    assert "on one rank: Equal to within rounding" in stream(outputs["unseen"])
    assert "weight of" in table[0][2] and "gradient of" in table[1][2]


def test_an_audit_costs_more_than_none(outputs):
    times = [float(row[2]) for row in rows(outputs["audit_costs"])]
    assert times[0] == 1 and times[1] > 1


def test_answers_of_the_problems_are_right():
    ratio = [(g + e) / g * (512 * g / (512 * g + e)) for g, e in ((1e-6, 1e-8), (1e-2, 1e-4))]
    assert ratio == pytest.approx([1.01, 1.01], abs=1e-4)
    assert math.sqrt(16 / 4) == 2 and 1000 / 500 == 2 and round(1000 / 1500, 2) == 0.67
    assert math.hypot(3, 4) == 5 and math.hypot(1, 1) == pytest.approx(math.sqrt(2))


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week15"]
    first = entries["noise, the same batch on four ranks"]
    assert first["prediction"] == 4 and first["result"] == pytest.approx(2, abs=0.2)
    assert entries["four times the gradient, AdamW"]["result"] < 0.01
    assert entries["growth of a last bit in 40 steps"]["result"] > 20
    assert len(entries) == 4


def test_self_check_asks_five_of_twelve_questions(outputs):
    assert len(quiz.load("week15", ROOT / "quizzes").question) == 12
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
