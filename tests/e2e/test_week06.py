"""Week 6 runs unattended from its script, solved: what its prose says stands in its cells' outputs; clean stderr."""

import json
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, stream, week_outputs, words
from repository import ROOT
from torch.amp import GradScaler

from worldsize import models, quiz

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week06_precision_and_activations.py"
TURNS = ("gap", "master_step", "clipped_step", "mlp_bytes", "repeated_flops", "accumulate")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week06")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_sum = 1000")


def numbers(text):
    return [float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*\.?\d*", text)]


def rows(output):
    """The rows of a table in words, by their first cell."""
    lines = words(output).splitlines()
    return {cells[0]: cells[1:] for line in lines[1:] if len(cells := re.split(r"\s{2,}", line.strip())) > 1}


def size_gb(text):
    number, unit = text.split()
    return float(number) * {"MB": 1e-3, "GB": 1.0}[unit]


def percent(text):
    return float(text.rstrip("%"))


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 7)


@pytest.mark.parametrize("name", TURNS)
def test_worked_answers_are_right(outputs, name):
    assert stream(outputs[f"check_{name}"]).startswith("Right")


def test_untouched_turns_say_so_and_the_bug_is_found(untouched):
    found = untouched.outputs
    for name in TURNS:
        text = stream(found[f"check_{name}"]) or words(found[f"check_{name}"])
        if name == "clipped_step":
            assert "expected: the norm of the gradients before clipping to be 0.5" in text
            assert "got:      32768" in text and "The weights moved by 7.6e-07 each" in text
        else:
            assert "not written yet" in text.lower(), text


def test_sums_in_16_bits_stand_still(outputs):
    text = stream(outputs["sums"])
    assert "1,000 ones in torch.bfloat16: 256\n" in text
    assert "5,000 ones in torch.float16: 2,048\n" in text
    assert "5,000 ones in torch.float32: 5,000\n" in text
    assert "torch.sum of 1,000 ones in bfloat16: 1,000" in text
    assert "you predicted 1,000; it is 256" in text


def test_bfloat16_weights_stay_where_they_are_and_masters_move_them(outputs):
    runs = rows(outputs["masters_measured"])
    whole, half, mastered = (
        runs[f"{name}"] for name in ("weights in float32", "weights in bfloat16", "bfloat16, float32 masters")
    )
    assert percent(whole[1]) > 85 and 15 < percent(half[1]) < 25
    assert float(half[0]) > float(whole[0]) + 0.15
    assert abs(float(mastered[0]) - float(whole[0])) < 0.02
    assert percent(mastered[1]) < 40  # "only now and then"


def test_float16_alone_breaks_in_its_first_step(outputs):
    first, second, eps = stream(outputs["all_in_float16"]).splitlines()
    _, _, num_zero, _, num_broken, num_weights = numbers(first)
    assert num_zero < num_broken and num_broken > num_weights / 2
    assert second.startswith("step 2: loss nan") and eps.endswith(" 0.0")


def test_formats_have_the_limits_that_the_text_names(outputs):
    table = rows(outputs["formats_table"])
    assert table["float16"][:6] == ["2 B", "5 + 10 bits", "6.55e+04", "2^-14", "2^-24", "1,024"]
    assert table["bfloat16"][3:6] == ["2^-126", "2^-133", "128"]
    assert table["FP8 E4M3"][2] == "448" and table["FP8 E5M2"][2] == "5.73e+04"


def test_gradients_lie_where_float16_ends(outputs):
    table = rows(outputs["gradients_lost"])
    lost = {place: percent(cells[2]) for place, cells in table.items() if place != "gradient of"}
    assert set(lost) == {"logits", "MLP gates", "residuals"}
    assert 2 < lost["logits"] < 6 and 5 < lost["MLP gates"] < 15 and lost["residuals"] < 1
    assert all(cells[3] == "0%" and percent(cells[4]) > 50 for cells in list(table.values())[1:])
    scales = rows(outputs["scales"])
    assert scales["2^16"][0] == "0%" and scales["2^16"][2] == "no" and scales["2^24"][2] == "yes"


def test_scaler_falls_and_skips_and_is_multiplication_and_division(outputs):
    (line,) = stream(outputs["dynamic_measured"]).splitlines()
    first, last, *skipped = numbers(line)
    assert last < first - 1 and skipped[:8] == [*range(1, 9)]
    assert "same weights, bit for bit: True" in stream(outputs["oracle_scaler"])
    fresh = GradScaler("cpu")
    assert (fresh.get_scale(), fresh.get_growth_factor(), fresh.get_backoff_factor()) == (65536.0, 2.0, 0.5)
    assert fresh.get_growth_interval() == 2000


def test_autocast_runs_products_in_16_bits_and_the_residual_stream_in_32(outputs):
    table = rows(outputs["autocast_measured"])
    assert [cells[0] for cells in list(table.values())[1:]] == ["bfloat16"] * 3 + ["float32"] * 3


def test_e4m3_saturates_and_a_scale_for_each_tensor_saves_nearly_all(outputs):
    text = stream(outputs["eight_bits"])
    assert "float8_e4m3fn: [448.0, 465.0, 1000.0, inf] become [448.0, 448.0, 448.0, 448.0]" in text
    assert "become [448.0, 448.0, 1024.0, inf]" in text
    assert [line for line in text.splitlines() if " in E4M3: " in line and numbers(line)[-1] >= 1] == []


def test_a_gpt_layer_keeps_what_the_formula_says_with_masks_of_two_bytes(outputs):
    lines = words(outputs["kept_measured"]).splitlines()[2:]
    found = [[float(one) for one in re.split(r"\s{2,}", line)[1:]] for line in lines]
    assert [row[0] for row in found] == [44, 74, 54]
    assert all(abs(measured - ours) < 0.05 for _, measured, ours in found)
    assert all(0.09 < measured / printed - 1 < 0.14 for printed, measured, _ in found)


def test_llama_keeps_37_5_and_small_change(outputs):
    table = rows(outputs["three_sizes"])
    assert table["GPT, eq. 1"][-1] == "104"
    assert table["Llama, fused attention"] == ["37.5", "20.1", "38"]
    assert table["Llama, scores written"] == ["69.5", "54.5", "69.8"]
    assert 1.2 < float(table["Llama, fused, under autocast"][0]) / 38 < 1.3  # "a quarter more"
    assert "optimizer state of Llama-2-7B: 108 GB" in stream(outputs["three_sizes"])


def test_recomputing_gives_the_same_gradients_for_less_memory_and_more_time(outputs):
    table = rows(outputs["variants_measured"])
    kept = {name: size_gb(cells[0]) for name, cells in table.items() if name != "recompute"}
    longer = {name: percent(cells[3]) for name, cells in table.items() if name != "recompute"}
    assert all(cells[4] == "yes" for cells in list(table.values())[1:])
    assert [cells[1] for cells in list(table.values())[1:]] == ["16", "32", "32", "32"]
    assert 8.5 < kept["none"] / kept["each layer"] < 9.5
    assert kept["each layer"] < kept["segments of 4"] and longer["each layer"] < longer["segments of 4"]
    assert kept["selective"] < kept["none"] * 0.66 and 2 < longer["selective"] < 4


def test_what_is_computed_again_depends_on_how_a_block_ends(outputs):
    table = rows(outputs["recompute_cost_measured"])
    operations = {name: percent(cells[0]) for name, cells in table.items() if name != "block" and len(cells) > 2}
    assert operations["MLP"] == 50 and operations["MLP with dropout"] == operations["GPT layer"] == 100
    assert 70 < operations["Llama layer"] < 78
    assert 37.5 < percent(table["GPT layer"][2]) < 38.5


def test_the_paper_prints_three_times_too_much(outputs):
    table = rows(outputs["selective"])
    assert table["GPT-3"] == ["2.7%", "0.901%"] and table["MT-NLG"] == ["1.6%", "0.546%"]
    assert table["s 128, h 64"][0] == table["s 128, h 64"][1]
    assert table["s 128, h 64, stopping early"][0] == table["s 128, h 64, stopping early"][1]


def test_llama_3_8b_on_paper(outputs):
    table = rows(outputs["on_paper"])
    kept, again = table["all kept"], table["each layer again"]
    assert kept[2] == again[2] == "no"
    assert size_gb(again[0]) > 128 and size_gb(kept[0]) - size_gb(again[0]) > 35
    assert percent(kept[4]) - percent(again[4]) > 8 and abs(percent(kept[5]) - percent(again[5])) < 1
    assert "adds: it is 23.1%" in stream(outputs["on_paper"])
    assert pytest.approx(12.6, abs=0.05) == 3 * 4 * 8192 * 128_256 / 1e9


def test_accumulation_keeps_the_gradient_and_a_quarter_of_the_activations(outputs):
    sizes, difference, *sums = stream(outputs["accumulated"]).splitlines()
    whole, parts = re.findall(r"([\d.]+ MB)", sizes)
    assert size_gb(whole) / size_gb(parts) == pytest.approx(4, rel=0.02)
    assert float(difference.split()[-1]) < 1e-6
    assert [line.split()[-4] for line in sums] == ["100%", "100%", "25%"]


def test_tables_side_by_side_agree_as_the_text_says(outputs):
    off = [percent(line.split()[-1]) for line in words(outputs["side_by_side_memory"]).splitlines()[2:]]
    assert len(off) == 3 and all(abs(one) < 1.5 for one in off)
    lines = words(outputs["side_by_side_time"]).splitlines()[2:7]
    points = [float(line.split()[-1]) for line in lines]
    assert all(abs(one) < 4 for one in points[:4]) and 5 <= points[4] < 6


def test_a_mean_of_means_is_right_only_for_equal_lengths(outputs):
    first, *lines = stream(outputs["mean_of_means"]).splitlines()
    assert first == "mean of means 1.5000, mean 1.0099"
    assert [percent(line.split()[-1]) > 70 for line in lines] == [False, True, True]
    assert percent(lines[0].split()[-1]) < 0.01


def test_problems_are_worked_out_right():
    llama = models.shape("llama-3-8b")
    assert llama.layer_activation_bytes(1, 8192) / 1e9 == pytest.approx(1.38, abs=0.005)
    assert pytest.approx(44, abs=0.1) == 32 * 41 * 8192 * 4096 / 1e9
    assert 5 * 96 * 2048 / 12288 == 80 and pytest.approx(0.70, abs=0.005) == 80 / 114
    assert pytest.approx(0.000122, abs=1e-6) == 2.0**-13

    def held_gb(num_again):
        return 0.075 * num_again + 1.5 * (24 - num_again) + 1.5

    assert held_gb(12) > 20 > held_gb(13) and held_gb(13) == pytest.approx(19.0, abs=0.05)
    assert pytest.approx(6.8) == 34 / 5 and pytest.approx(870, abs=1) == 6.8 * 128


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week06"]
    assert entries["1,000 ones added in bfloat16"]["prediction"] == 1000
    assert len(entries) == 4 and all(entry["result"] is not None for entry in entries.values())
    assert "104 GB" in words(outputs["predictions_beside_results"])


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week06", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
