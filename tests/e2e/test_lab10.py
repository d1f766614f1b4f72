"""Lab 10's open checks as a student runs them: with the solution, and with the usual mistakes."""

import csv
import importlib.util
import sys

import pytest
from executed import failures, lab_outputs, message
from repository import ROOT

from autograder.authoring.known_answers import read_answer, solution_cells

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab10"
SOLUTION = solution_cells(LAB / "lab10.py")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab10", tmp_path_factory.mktemp("lab10"), SOLUTION)


def shown(outputs):
    return [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]


def printed(outputs):
    return "".join(output.text for output in outputs if output.output_type == "stream")


def test_open_checks_pass_with_the_solution(solved):
    assert failures(solved) == {}
    assert len([name for name in solved if name.startswith("check_")]) == 10
    (picture,) = shown(solved["check_gradients_on_mesh"])
    assert picture.startswith("Timeline (")
    assert "64 bytes along tp, 328 along dp" in printed(solved["check_gradients_on_mesh"])
    (table,) = shown(solved["check_predict"])
    assert len(table.splitlines()) == 2 + 17
    assert "9.7% off on average, the one-constant guess 15.2%" in printed(solved["check_predict"])


def test_the_last_cell_chooses_plans(solved):
    (table,) = shown(solved["all_plans"])
    rows = [line.split() for line in table.splitlines() if line.strip()[:1].isdigit()]
    assert [row[:6] for row in rows] == [
        ["128", "4", "8", "4", "1", "no"],
        ["256", "4", "4", "16", "1", "no"],
        ["512", "8", "2", "32", "1", "no"],
        ["1,024", "8", "2", "64", "1", "no"],
    ]


def test_the_hidden_runs_are_the_judges_rows():
    checks = module_of(LAB / "checks.py")
    with (ROOT / "tests/data/published_runs.csv").open(newline="") as file:
        judges = {row["id"]: row for row in csv.DictReader(file) if row["part"] == "judge"}
    given = {run.name: run for run, _ in checks.hidden_runs()}
    assert given.keys() == judges.keys()
    columns = {
        "num_layers": "layers",
        "width": "hidden",
        "num_heads": "heads",
        "hidden_width": "ffn",
        "vocab_size": "vocab",
        "length": "seq",
        "global_batch": "global_batch_seqs",
        "micro_batch": "microbatch",
        "num_gpus": "n_gpus",
        "tp": "tp",
        "pp": "pp",
        "dp": "dp",
        "num_chunks": "vpp",
        "recompute": "recompute",
        "zero_stage": "zero_stage",
    }
    for name, row in judges.items():
        run = given[name]
        assert {field: str(getattr(run, field)) for field in columns} == {
            field: row[column] for field, column in columns.items()
        }
        assert (run.is_sequence_split, run.has_flash) == (row["seq_parallel"] == "y", row["flash_attn"] == "y")
        assert run.gpu[:4] == row["gpu"][:4]
        assert run.step_s == float(row["iter_time_s"] or row["iter_time_s_derived"])


def test_the_judges_model_has_the_error_that_the_text_says():
    checks = module_of(LAB / "checks.py")
    pairs = checks.hidden_runs()
    for predict, wanted in ((checks.judges_s, 0.090), (checks.one_constant_s, 0.147)):
        errors_of = [checks.error_of(predict(run, anchor), run) for run, anchor in pairs]
        assert sum(errors_of) / len(errors_of) == pytest.approx(wanted, abs=0.0006)


def module_of(path):
    spec = importlib.util.spec_from_file_location("checks_of_lab10", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and namedtuples look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("answer", "check", "cause"),
    [
        ("outermost_changes_first", "check_groups_along", "The innermost axis: neighbours"),
        ("heaviest_axis_innermost", "check_arrange", "The heaviest axis alone fills a node"),
        ("lightest_axis_innermost", "check_arrange", "The heavy axis fits in a node"),
        ("divides_by_all_ranks", "check_gradients_on_mesh", "Divide by the targets of all ranks of dp, once"),
        ("mean_of_the_means", "check_gradients_on_mesh", "Divide by the targets of all ranks of dp, once"),
        ("sums_replicated_over_tp", "check_gradients_on_mesh", "a sum over tp makes it tp times as large"),
        ("no_sum_in_backward", "check_gradients_on_mesh", "if the gradient of `scaled` is summed over tp"),
        ("sums_over_all_ranks", "check_gradients_on_mesh", "sum over dp alone"),
        ("gathers_the_weights", "check_gradients_on_mesh", "in each operation along tp"),
        ("replicas_on_every_rank", "check_clip", "Replicas count once"),
        ("over_the_first_axis_alone", "check_clip", "Sharded on both axes"),
        ("squares_in_bfloat16", "check_clip", "Squares in float32"),
        ("scales_up_as_well", "check_clip", "gradients as they were below max_norm"),
        ("head_is_recomputed", "check_work_s", "the head three times"),
        ("an_all_reduce_is_its_size", "check_communication", "2 (n - 1)/n of the bytes"),
        ("messages_are_whole", "check_communication", "cut by tp"),
        ("all_of_dp_is_hidden", "check_communication", "At least the share of a layer"),
        ("bubble_over_the_work", "check_step_time", "Fill and drain cost pp - 1 micro-batches"),
        ("sixteen_bytes_everywhere", "check_rank_bytes", "shards the optimizer's state"),
        ("activations_whole_on_tp", "check_rank_bytes", "divides weights and activations alike"),
        ("all_micro_batches_in_flight", "check_rank_bytes", "one micro-batch is in flight"),
        ("recomputes_all_layers_at_once", "check_rank_bytes", "and once 34"),
        ("takes_what_does_not_fit", "check_choose", "for 24 layers, 16 heads, 32 GPUs of 80 GB"),
        ("layers_that_do_not_divide", "check_choose", "22 layers are not cut into 8"),
        ("heads_that_do_not_divide", "check_choose", "20 heads are not cut into 3"),
        ("one_sequence_a_micro_batch", "check_choose", "Micro-batches of several sequences"),
        ("choose_powers_of_two", "check_choose", "but 24 layers are"),
        ("bias_in_every_part", "check_gradients_on_mesh", "bias once"),
        ("enters_before_its_scale", "check_gradients_on_mesh", "once, in backward"),
        ("cheat_table", "check_predict", "add what communication takes"),
        ("never_recomputes", "check_choose", "try to recompute"),
        ("without_its_anchor", "check_predict", "Divide two predictions of the same model"),
    ],
)
def test_open_check_names_the_cause(answer, check, cause):
    said = " ".join(message("lab10", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, check).split())
    assert cause in said
