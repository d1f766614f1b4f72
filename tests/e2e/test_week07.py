"""Week 7 runs unattended: bytes held and sent at every stage, FSDP2's cost, Llama 3 8B on paper, clean stderr."""

import json
import math
import re

import pytest
from executed import assert_figures_have_words, assert_quiet, stream, week_outputs, words
from repository import ROOT

from autograder.authoring.scripts import read_week, without_markers
from worldsize import hardware, quiz
from worldsize.models import shape

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week07_zero_and_fsdp.py"
TURNS = ("training_bytes", "zero1_step", "state_bytes", "prefetched_s", "tokens_to_hide")
BUGS = ("lean_forward", "sharded_losses")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week07")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_wire_ratio = 2")


def rows(outputs, start=""):
    """The rows of a table's text that begin so, cut into columns."""
    lines = map(str.strip, words(outputs).splitlines())
    return [re.split(r" {2,}", line) for line in lines if line.startswith(start)]


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 3)


def test_every_turn_is_right_when_solved(outputs):
    assert [name for name in TURNS + BUGS if not stream(outputs[f"check_{name}"]).startswith("Right")] == []


def test_untouched_turns_say_so_and_the_bug_is_shown_with_its_line(untouched):
    found = untouched.outputs
    for name in TURNS:
        assert f"{name} is not written yet" in stream(found[f"check_{name}"])
    bug = "".join(str(one.get("data", one)) for one in found["check_lean_forward"])
    assert "at most 2 whole layers" in bug and "8 layers" in bug and "weight = part.new_empty" in bug


def test_bytes_that_are_not_counted_or_not_there_are_named(untouched):
    mistakes = {
        "one.nbytes for one in model.parameters()": "SGD to be 8",
        "2 * one.nbytes for one in model.parameters()": "Adam to be 16",
        "one.nbytes + one.grad.nbytes + sum(kept.nbytes for kept in optimizer.state[one].values())"
        " for one in model.parameters()": "NoneType",
        "8 * one.numel() + sum(4 * kept.numel() for kept in optimizer.state[one].values())"
        " for one in model.parameters()": "all in bfloat16 to be 8",
        "2 * one.nbytes + sum(optimizer.state[one][kept].nbytes for kept in ('exp_avg', 'exp_avg_sq')"
        " if kept in optimizer.state[one]) for one in model.parameters()": "AMSGrad to be 20",
    }
    answers = [f"def training_bytes(model, optimizer):\n    return sum({answer})\n" for answer in mistakes]
    shown = untouched.shown_for(answers, "training_bytes")
    assert [said for said, text in zip(mistakes.values(), shown, strict=True) if said not in text] == []


def test_a_step_of_zero_1_must_send_ddps_bytes_and_give_ddps_weights(untouched):
    (solved,) = (without_markers(cell.source) for cell in read_week(SCRIPT).cells if cell.title == "zero1_step")
    scatter = "dist.reduce_scatter_tensor(sums[layer], gradients[layer].view(-1))"
    gather = "dist.all_gather_into_tensor(weights[layer].view(-1), updated[layer])"
    mistakes = [
        (scatter, "sums[layer] = part_of(gradients)[layer]", "Two things travel"),
        (gather, "part_of(weights)[layer] = updated[layer]", "Two things travel"),
        (
            scatter,
            "dist.all_reduce(gradients[layer])\n        sums[layer] = part_of(gradients)[layer]",
            "only the sums of its own part",
        ),
        (scatter, "layer or dist.reduce_scatter_tensor(sums.view(-1), gradients.view(-1))", "your part of every layer"),
        (gather, gather.replace("updated", "sums"), "gather what `update` returns"),
        ("master.update(sums)", "master.update(sums / dist.get_world_size())", "without dividing it"),
        ("held = memory.held()", "held = memory.held()", "Right: DDP's weights"),
    ]
    assert [old for old, _, _ in mistakes if solved.count(old) != 1] == []
    shown = untouched.shown_for([solved.replace(old, new) for old, new, _ in mistakes], "zero1_step")
    assert [said for (_, _, said), text in zip(mistakes, shown, strict=True) if said not in text] == []


def test_stages_hold_sixteen_seven_five_and_a_half_and_four_bytes_and_send_two_or_three_passes(outputs):
    printed = "".join(stream(outputs[name]) for name in ("ddp_run", "check_zero1_step", "zero2_run", "zero3_run"))
    assert "DDP holds 2 + 2 + 12 = 16 bytes a parameter, sends 3 a step" in printed
    assert "ZeRO-1 holds 2 + 2 + 3 = 7 bytes a parameter, sends 3 a step" in printed
    assert "ZeRO-2 holds 2 + 0.5 + 3 = 5.5 bytes a parameter, sends 3 a step" in printed
    assert "ZeRO-3 holds 0.5 + 0.5 + 3 = 4 bytes a parameter, sends 4.5 a step" in printed
    table = rows(outputs["side_by_side"], "DDP") + rows(outputs["side_by_side"], "ZeRO")
    assert [(row[-2], row[-1]) for row in table] == [("2", "yes")] * 3 + [("3", "yes")]


def test_stages_2_and_3_are_short_changes(outputs):
    changed = {n: re.findall(r"^[-+].*", stream(outputs[f"zero{n}_run"]), flags=re.MULTILINE) for n in (2, 3)}
    assert all(0 < len(lines) <= 12 for lines in changed.values())
    assert any("reduce_scatter" in line for line in changed[2]) and any("fetched" in line for line in changed[3])


def test_milestones_are_those_of_the_paper(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["milestones"])}
    assert table["100M"] == ["2", "1.6 GB", "1 GB", "900 MB", "800 MB"]
    assert table["10B"] == ["8", "160 GB", "55 GB", "37.5 GB", "20 GB"]
    assert table["7.50B"] == ["64", "120 GB", "31.4 GB", "16.6 GB", "1.88 GB"]
    assert "67.1 GB" in stream(outputs["zero_paper_slip"])
    assert pytest.approx(67.1, abs=0.05) == 2 * 32 * 1024 * 8192 * 125 / 1e9
    assert 16 * 1.5 == 24  # GB of the 1.5 billion parameters whose weights take 3


def test_prefetch_shortens_the_step_and_keeping_saves_a_pass(outputs):
    alone, ahead = re.findall(r"([\d.]+) ms", stream(outputs["prefetched"]))
    assert float(ahead) < 0.85 * float(alone)
    freed, kept = rows(outputs["reshard"], "prefetched"), rows(outputs["reshard"], "kept")
    assert (freed[0][2], kept[0][2]) == ("3", "2")
    assert float(kept[0][-1].split()[0]) > float(freed[0][-1].split()[0])


def test_small_gathers_are_slow(outputs):
    more = {row[0]: row[-1] for row in rows(outputs["call_sizes"])}
    shares = [int(more[f"{n} million"].rstrip("%")) for n in ("1", "3.3", "10", "33", "100")]
    assert shares == sorted(shares, reverse=True) and shares[2] > 50 and shares[3] < 20 and shares[4] < 10
    assert 2.15e8 < shape("llama-3-8b").num_layer_parameters < 2.2e8


def test_fetching_takes_what_the_link_takes_and_six_times_the_bytes(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["offloaded"])}
    assert table["on the GPU"][0] == "48 MB" and table["fetched"][0] == table["on the host"][0] == "0 B"
    assert (table["fetched"][1], table["on the host"][1]) == ("96 MB", "16 MB")
    by_formula, emulated = (float(table["fetched"][place].split()[0]) for place in (2, 3))
    assert emulated == pytest.approx(by_formula, rel=0.02)
    ratios = [row[-1] for row in rows(outputs["needed_bandwidth"])[-2:]]
    assert ratios == ["1.3", "8.1"]
    assert round(hardware.cluster("dgx-1v").host.link.bandwidth_bytes_per_s / 1e9) == 12


def test_our_sharded_training_is_torchs(outputs):
    mean, largest = map(float, re.findall(r"\d\S*e-\d+", stream(outputs["same_weights_here"])))
    assert mean < 1e-6 and largest < 3 * 2e-3  # in three steps of Adam, where a gradient of nearly 0 has another sign
    table = {row[0]: row[1:] for row in rows(outputs["four_ways"])}
    assert all(float(table[how][0]) < 1e-6 for how in ("DDP", "FSDP2", "FSDP2, kept", "HSDP"))
    assert [table[how][1:] for how in ("DDP", "FSDP2", "FSDP2, kept")] == [["0", "1.5"], ["0", "2.25"], ["0", "1.5"]]
    assert table["HSDP"][1:] == ["1.5", "0.5"]


def test_hsdp_sends_across_nodes_what_a_ring_of_nodes_does(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["hsdp_across_nodes"])[2:]}
    assert table["4"][-3:] == ["0.75", "0.5", "0.5"]
    assert table["16"][-2:] == ["0.234", "0.125"] and table["512"][-2:] == ["0.25", "0.246"]


def test_deepspeeds_stages_train_what_ddp_does_here_or_where_it_was_recorded(outputs):
    text = stream(outputs["deepspeed_config"])
    found = [float(number) for number in re.findall(r"weights (\S+)$", text, flags=re.MULTILINE)]
    assert len(found) == 3 and max(found) < 1e-5


def test_tokens_that_hide_sharding_are_those_of_the_text(outputs):
    tokens = {row[0]: int(row[-1].replace(",", "")) for row in rows(outputs["thresholds"])[2:]}
    assert tokens["dgx-a100"] == pytest.approx(1200, rel=0.02)
    assert tokens["dgx-h100"] == pytest.approx(2300, rel=0.02)
    assert tokens["h100-ndr-x8"] == pytest.approx(794e12 / 292e9, rel=0.01)
    assert tokens["h100-ndr-x128"] == pytest.approx(794e12 / 118e9, rel=0.01)


def test_fsdp_costs_five_to_fifteen_percent_where_the_text_says(outputs):
    table = {(row[0], row[1]): row for row in rows(outputs["five_to_fifteen"])[2:]}
    adds = {key: float(row[-1].rstrip("%")) for key, row in table.items()}
    assert len(adds) == 9
    assert all(5 <= adds[key] <= 15 for key in (("dgx-a100", "4,096"), ("dgx-h100", "4,096"), ("pcie-box", "16,384")))
    assert all(adds[place, "16,384"] < 2.5 for place in ("dgx-a100", "dgx-h100"))
    assert (round(adds["dgx-a100", "1,024"]), round(adds["dgx-h100", "1,024"])) == (28, 44)
    assert 40 < adds["pcie-box", "1,024"] < 50 and float(table["pcie-box", "16,384"][2]) < 1
    for place, low_ms, high_ms in (("dgx-a100", 8, 9), ("dgx-h100", 4.7, 5.3)):
        for num_tokens in ("1,024", "4,096", "16,384"):
            added_ms, exposed_ms = (float(text.split()[0]) for text in table[place, num_tokens][5:7])
            assert low_ms <= added_ms <= high_ms and 0.4 < exposed_ms / added_ms < 0.6


def test_published_zero_3_falls_with_the_tokens_a_gpu(outputs):
    table = rows(outputs["fewer_tokens"])[2:]
    assert [row[-1] for row in table] == ["94%", "59%", "31%"]
    assert [row[1] for row in table] == ["8,192", "4,096", "2,048"]
    assert [float(row[2]) for row in table] == sorted((float(row[2]) for row in table), reverse=True)
    for num_gpus, tflops, days in ((384, 144, 90), (768, 88, 74), (1536, 44, 74)):  # the paper's own column
        flops = 8 * 174.6e9 * 300e9 * (1 + 2048 / 6 / 12288 + 51200 / 16 / 96 / 12288)
        assert flops / num_gpus / tflops / 1e12 / 86400 == pytest.approx(days, rel=0.05)


def test_llama_is_sharded_small_and_its_activations_stay(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["llama_on_paper"])[2:]}
    peaks = {num: float(row[2].split()[0]) for num, row in table.items()}
    assert table["8"][0] == "16.1 GB" and table["1,024"][0] == "125 MB"
    assert peaks["8"] == pytest.approx(64.8, abs=0.1)  # as the whole model on paper
    assert 0.8 < peaks["1,024"] / peaks["8"] < 0.85
    assert len({row[1] for row in table.values()}) == 1
    assert float(table["8"][3].split()[0]) == pytest.approx(853, abs=2)
    assert all(50 < float(row[-1].rstrip("%")) < 54 for row in table.values())
    assert 2 * 8192 * shape("llama-3-8b").vocab_size == pytest.approx(2.1e9, rel=0.01)


def test_formulas_agree_with_what_was_measured_emulated_and_on_paper(outputs):
    table = rows(outputs["formula_beside_run"])[2:]
    assert [row[1] for row in table] == ["measured here", *["emulated"] * 2, *["on paper"] * 3]
    assert all(abs(float(row[-1].rstrip("%"))) < 0.1 for row in table)
    assert (table[3][3], table[4][3]) == ("1.6 GB", "800 MB")


def test_explorer_says_what_fits(outputs):
    text = "".join(str(one) for one in outputs["fits"])
    assert "Fits into 80 GB: ZeRO-2, ZeRO-3." in text


def test_answer_to_the_explorers_question_is_right():
    def activations_gb(sizes, num_sequences, recomputes):
        kept = sizes.layer_activation_bytes(num_sequences, sizes.context_length)
        inputs = 2 * num_sequences * sizes.context_length * sizes.width
        return (sizes.num_layers * (inputs if recomputes else kept) + recomputes * kept) / 1e9

    large, small = shape("llama-3-70b"), shape("llama-3-8b")
    assert round(activations_gb(large, 1, False)) == 218 and round(activations_gb(large, 1, True), 1) == 13.5
    assert round(activations_gb(small, 4, False)) == 176 and round(activations_gb(small, 4, True), 1) == 14.1
    gathered_gb = 4 * large.num_layer_parameters / 1e9
    held_gb = [
        16 * large.num_parameters / 1e9 / num_gpus + gathered_gb + activations_gb(large, 1, True)
        for num_gpus in (16, 32)
    ]
    assert [round(size, 1) for size in held_gb] == [87.4, 52.2]
    assert round((4 + 12 / 8) * small.num_parameters / 1e9 + activations_gb(small, 4, True), 1) == 58.3


def test_a_lost_piece_changes_the_gradient_and_not_the_loss(outputs):
    lost, added, alone = rows(outputs["used_twice_shown"])[2:]
    assert lost[1] == added[1] == alone[1]
    assert added[2] == alone[2] and float(lost[2]) < 0.8 * float(alone[2])
    factors = dict(re.findall(r"(\w+) +with gradients of an eighth: moves ([\d.]+)", stream(outputs["divided_twice"])))
    assert factors == {"AdamW": "1.00", "SGD": "0.13"}


def test_answers_of_the_problems_are_right():
    assert pytest.approx(107.8, abs=0.1) == 16 * 6.74
    assert pytest.approx(37.1, abs=0.05) == (4 + 12 / 8) * 6.74 and pytest.approx(25.3, abs=0.05) == (2 + 14 / 8) * 6.74
    assert 4e6 / 64 == 62_500 and round(4e6 / 1024) == 3906
    assert pytest.approx(2720, abs=5) == 794e3 / 292 and pytest.approx(6730, abs=5) == 794e3 / 118
    assert pytest.approx(1.7, abs=0.05) == 6730 / 3906
    update_ms, compute_ms = 28 * 8e9 / 3.35e12 * 1e3, 6 * 8e9 * 8192 / 794e12 * 1e3
    assert (round(update_ms, 1), round(update_ms / 8, 1), round(compute_ms)) == (66.9, 8.4, 495)
    assert round(100 * (update_ms - update_ms / 8) / compute_ms) == 12
    assert round(16 * 70.6) == 1130 and round(16 * 70.6 / 8) == 141 and math.ceil(16 * 70.6 / 40) == 29
    assert pytest.approx(35.3) == 16 * 70.6 / 32 and pytest.approx(4.4, abs=0.05) == 2 * 70.6 / 32
    assert pytest.approx(8.3, abs=0.06) == 2 * 15 / 16 * 4.4
    assert hardware.H100.memory_bandwidth_bytes_per_s == 3.35e12


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week07"]
    assert entries["bytes sent, all sharded over DDP"]["prediction"] == 2
    assert entries["bytes sent, all sharded over DDP"]["result"] == pytest.approx(1.5)
    assert entries["state of 10B parameters, sharded over 8"]["result"] == pytest.approx(20)
    assert len(entries) == 4 and all(entry["result"] is not None for entry in entries.values())
    assert "1.50 times" in words(outputs["predictions_beside_results"])


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week07", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
