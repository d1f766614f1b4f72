"""Week 10 runs unattended: three axes give one process's numbers, and every milestone and correction holds."""

import json
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, stream, week_outputs, words
from repository import ROOT

from worldsize import quiz
from worldsize.models import shape

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week10_combining_them.py"
TURNS = ("nodes_touched", "dp_sent_bytes", "enough_sequences", "shares_of")
BUGS = ("mesh_order", "fixed_step")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week10")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_slow_percent = 87.5")


def rows(outputs):
    """The rows of a table's text, cut into columns."""
    lines = map(str.strip, words(outputs).splitlines())
    return [re.split(r" {2,}", line) for line in lines]


def seconds(text):
    """The seconds in a text such as "39.7 ms"."""
    number, unit = text.split()
    return float(number) * {"s": 1, "ms": 1e-3}[unit]


def bubble(num_stages, num_batches):
    """The idle share."""
    return (num_stages - 1) / (num_batches + num_stages - 1)


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 7)


def test_every_turn_is_right_when_solved(outputs):
    assert [name for name in TURNS + BUGS if not stream(outputs[f"check_{name}"]).startswith("Right")] == []


def test_untouched_turns_say_so_and_the_bugs_are_shown_with_their_figures(untouched):
    found = untouched.outputs
    for name in TURNS:
        assert f"{name} is not written yet" in stream(found[f"check_{name}"])
    order = "".join(str(one.get("data", one)) for one in found["check_mesh_order"])
    assert "in groups on both nodes" in order and "Which axis sends least?" in order and "image/png" in order
    step = "".join(str(one.get("data", one)) for one in found["check_fixed_step"])
    assert "which is 256 times as much" in step and "before backward runs" in step


def test_a_tensor_axis_across_nodes_is_much_slower_on_every_network(outputs):
    inner, outer = rows(outputs["orders"])[2:]
    assert (inner[1], outer[1]) == ("1", "8")
    assert 1.75 < seconds(outer[-1]) / seconds(inner[-1]) < 1.95
    assert seconds(outer[-2]) > 3 * seconds(inner[-2])
    table = rows(outputs["wrong_order_elsewhere"])[2:]
    assert len(table) == 4 and all(float(row[-1]) > 1.3 for row in table)
    assert [row[0][:4] for row in table] == ["h100", "a100", "a100", "a100"]
    assert 6.5 < seconds(table[3][1]) / seconds(table[1][1]) < 7  # of the same GPUs, at 10 Gb/s a node


def test_links_within_a_node_are_several_times_as_fast(outputs):
    table = {row[0]: float(row[-1]) for row in rows(outputs["links"])[2:]}
    assert table["NVLink, 8 H100: NVLink 4"] == 1
    assert 7 < next(value for name, value in table.items() if "NIC for each GPU" in name) < 8


def test_three_axes_give_the_numbers_of_one_process(outputs):
    eight, sixteen, alone = rows(outputs["three_axes"])[2:5]
    assert (eight[1], sixteen[1]) == ("pp2 dp2 tp2", "pp2 dp4 tp2")
    for row in (eight, sixteen):
        assert float(row[2]) < 1e-5 and float(row[3]) < 1e-4 and row[4] == alone[-1]
    for row in rows(outputs["on_this_machine"])[2:]:
        assert row[1] == alone[-1] and float(row[2]) < 1e-5 and float(row[3]) < 1e-4


def test_bytes_by_axis_are_those_of_the_formulas(outputs):
    errors = [row[-1] for row in rows(outputs["formula_beside_run"])[2:]]
    assert len(errors) == 6 and all(abs(float(error.rstrip("%"))) < 0.5 for error in errors)
    assert "tp 262 kB" in words(outputs["bytes_drawn"]) and "pp 65.5 kB" in words(outputs["bytes_drawn"])


def test_four_gpus_over_pcie_are_70_to_85_percent_efficient_or_under_60(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["efficiencies"])[2:-1]}
    pcie = {number: float(row[2].rstrip("%")) for number, row in table.items()}
    assert pcie["1"] < 60 and 70 < pcie["2"] < 85 < pcie["4"]
    assert all(float(row[3].rstrip("%")) > 95 for row in table.values())
    assert "55.6%" in stream(outputs["ten_of_eighteen"])


def test_what_to_look_at_under_60_percent_changes_what_the_text_says(outputs):
    table = rows(outputs["under_sixty"])[2:]
    efficiency = [float(row[-1].rstrip("%")) for row in table]
    speed = [int(row[-2]) for row in table]
    assert efficiency[0] < 60 < min(efficiency[1:4]) and efficiency[4] < 10
    assert efficiency[5] > 80 and speed[5] < speed[0] / 2  # float32: more efficient, and slower


def test_one_slow_gpu_costs_half_and_shares_by_speed_bring_back_seven_eighths(outputs):
    fast, slow, shared, plain = rows(outputs["uneven_runs"])[2:]
    assert fast[-2] == "100%" and slow[-2] in ("50%", "51%") and shared[-2] == plain[-2] == "88%"
    assert all(float(row[-1]) < 1e-5 for row in (fast, slow, shared)) and float(plain[-1]) > 0.1


def test_the_fastest_plan_depends_on_the_network(outputs):
    table = {row[0]: [seconds(text) for text in row[2:6]] for row in rows(outputs["on_networks"])[2:6]}
    fastest = [min(table, key=lambda plan: table[plan][place]) for place in range(4)]
    assert fastest == ["tp1 pp1 dp16", "tp1 pp1 dp16", "tp2 pp1 dp8", "tp2 pp2 dp4"]
    alone, across = table["tp1 pp1 dp16"], table["tp2 pp2 dp4"]
    assert alone[2] > 1.15 * table["tp2 pp1 dp8"][2] and alone[3] > 8 * across[3]
    assert (bubble(2, 2), bubble(2, 4)) == pytest.approx((1 / 3, 1 / 5))
    held = [row[-1] for row in rows(outputs["on_networks"])[2:6]]  # with AdamW's moments, 8 bytes a parameter
    assert held == ["79 GB", "73.3 GB", "69.3 GB", "55.1 GB"]
    planned = words(outputs["planned"])
    assert "4 of 4 legal plans fit" in planned and stream(outputs["planned"]).startswith("tp2 dp8")


def test_one_line_of_memory_finds_half_of_the_published_plans(outputs):
    table = rows(outputs["rule_beside_published"])[2:-1]
    assert len(table) == 10 and [row[4] for row in table].count("yes") == 5
    assert all(1 <= float(row[5]) <= 2 for row in table)


def test_published_plans_with_zero(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["other_published"])[2:5]}
    assert table["BLOOM 176B, 384 A100"][4] == "4" and table["Llama 3 405B, 8,192 H100"][4:] == ["2", "81 GB"]


def test_explorer_shows_the_mesh_and_what_plans_hold(outputs):
    text = "".join(str(one) for one in outputs["explore"])
    assert "The axis that crosses the nodes" in text and "it fits into the GPU" in text and "a100-100gbe-x2" in text


def test_gradients_256_times_too_large_leave_the_loss_as_it_is(outputs):
    table = rows(outputs["losses_beside_norms"])[2:]
    assert [row[-1] for row in table] == ["256"] * 3
    assert all(abs(float(row[1]) / float(row[2]) - 1) < 1e-4 for row in table)


def test_answers_of_the_problems_are_right():
    assert [21 // 16, 21 // 4 % 4, 21 % 4] == [1, 1, 1]
    assert [rank // 8 for rank in (17, 21, 25, 29)] == [2, 2, 3, 3] and [r // 8 for r in (5, 21, 37, 53)] == [
        0,
        2,
        4,
        6,
    ]
    assert (round(100 * bubble(8, 32), 1), round(100 * bubble(8, 16), 1)) == (17.9, 30.4)
    assert round(39 / 23, 2) == 1.70
    flops = 96 * 3072 * 2048 * 128 * 25600**2 * (1 + 2048 / (6 * 25600) + 51200 / (16 * 128 * 25600))
    assert flops == pytest.approx(5.14e19, rel=0.002) and round(flops / 3072 / 163e12, 1) == pytest.approx(
        102.6, abs=0.2
    )
    assert round(100 * 163 / 312) == 52 and round(75 * 163 / 312) == 39
    assert (16 * 1, 12 + 4 * 3, 4 * 3) == (16, 24, 12)
    model = shape("llama-3-70b")
    assert 16 * model.num_parameters / 1e9 == pytest.approx(1129, abs=1) and round(1129 / 32) == 35
    layer = model.layer_activation_bytes(1, 8192)
    assert (round(layer / 1e9, 1), round(80 * layer / 1e9), round(80 * layer / 8e9)) == (2.7, 218, 27)
    assert round(80 * 2 * 8192 * model.width / 1e9) == 11


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week10"]
    assert entries["speed, one GPU of 4 at half speed"]["prediction"] == 87.5
    assert entries["speed, one GPU of 4 at half speed"]["result"] == pytest.approx(50, abs=1)
    assert 1.75 < entries["step, tp across nodes over tp inside"]["result"] < 1.95
    assert 70 < entries["efficiency, 4 A100 on PCIe"]["result"] < 85
    assert entries["loss, gradients 256 times too large"]["result"] < 0.001
    assert len(entries) == 4


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week10", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
