"""Week 8 runs unattended: cuts and their collectives, the milestone corrected, R/beta, drift, clean stderr."""

import itertools
import json
import re

import pytest
from executed import (
    assert_figures_have_words,
    assert_quiet,
    stream,
    week_outputs,
    words,
)
from needs import is_required
from repository import ROOT

from worldsize import hardware, operators, pricing, quiz
from worldsize.models import shape

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week08_tensor_parallelism.py"
TURNS = ("layer_sent_bytes", "lean_plan", "with_cut_norms", "even_ranks", "chunks_of", "spread_of")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week08")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_sent_mib = 48")


def rows(outputs):
    """The rows of a table's text, without title and head, cut into columns."""
    lines = [line.strip() for line in words(outputs).splitlines()]
    return [re.split(r" {2,}", line) for line in lines][2:]


def value(text):
    """The number of a cell such as "5.16 ms", in its own unit."""
    return float(text.split()[0].replace(",", ""))


def milliseconds(text):
    """The milliseconds of a cell such as "648 µs"."""
    return value(text) * {"s": 1000, "ms": 1, "µs": 1e-3}[text.split()[1]]


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 6)


def test_every_turn_is_right_when_solved(outputs):
    assert [name for name in TURNS if not stream(outputs[f"check_{name}"]).startswith("Right")] == []


def test_untouched_turns_say_so_and_the_bug_is_shown_with_its_calls(untouched):
    found = untouched.outputs
    for name in TURNS:
        if name != "lean_plan":
            assert f"{name} is not written yet" in stream(found[f"check_{name}"])
    bug = "".join(str(one.get("data", one)) for one in found["check_lean_plan"])
    assert "2 all_reduce in forward and 2 in backward" in bug and "backward 5 all_reduce" in bug


WITH_CUT_NORMS = """
def with_cut_norms(size_bytes, num_ranks):
    whole, part = size_bytes * (num_ranks - 1) / num_ranks, size_bytes / num_ranks
    gather, scatter = "all_gather", "reduce_scatter"
    forward, sent, backward = {answer}
    listed = {{"forward": forward, "backward": forward if backward is None else backward}}
    return {{way: [(name, sent) for name in names] for way, names in listed.items()}}
"""


def test_what_becomes_of_the_all_reduces_names_each_mistake(untouched):
    mistakes = {
        '["all_reduce"] * 2, 2 * whole, None': "no all_reduce in forward",
        '[gather, scatter] * 2, whole, ["all_reduce"] * 2': "no all_reduce in backward",
        "[scatter, gather] * 2, whole, None": "in forward before each pair all tokens on every rank",
        "[gather, scatter], whole, None": "Two pairs, attention and MLP",
        "[gather, scatter] * 2, whole, [scatter, gather] * 2": "in backward for each pair, from its end",
        "[gather, scatter] * 2, whole, []": "nothing",
        "[gather, scatter] * 2, 2 * whole, None": "the bytes of each all_gather in forward",
        "[gather, scatter] * 2, part, None": "Two all-reduces sent that much four times over",
        "[gather, scatter] * 2, whole, None": "Right: eight collectives in place of four",
    }
    answers = [WITH_CUT_NORMS.format(answer=answer) for answer in mistakes]
    shown = untouched.shown_for(answers, "with_cut_norms")
    assert [said for said, text in zip(mistakes.values(), shown, strict=True) if said not in text] == []


def test_four_naive_cuts_are_right_and_cost_five_to_ten_passes(outputs):
    assert len(re.findall(r"differs from one process by at most (\S+)", stream(outputs["naive_mlp"]))) == 4
    assert [row[-1] for row in rows(outputs["naive_bytes"])] == ["5", "6", "9", "10"]


def test_the_pair_is_right_and_sends_two_passes_each_way(outputs):
    assert stream(outputs["pair_run"]).count("as in one process") == 4
    assert "send 4 passes of S (N-1)/N, two each" in stream(outputs["pair_drawn"])


def test_the_first_plan_has_three_all_reduces_too_many(outputs):
    assert "forward: 2 all_reduce; backward: 5 all_reduce" in stream(outputs["first_plan_run"])


def test_the_loss_of_cut_logits_saves_memory_and_time(outputs):
    alone, gathered, cut = rows(outputs["head_on_paper"])
    assert alone[-2] == gathered[-2] and 5.5 < value(alone[-2]) / value(cut[-2]) < 6.5
    assert 4.5 < milliseconds(alone[-1]) / milliseconds(cut[-1]) < 5.5
    assert cut[2] == "4 all_reduce" and "1 all_gather" in gathered[2]  # the embedding's, and the loss's three
    llama = shape("llama-3-8b")
    both = llama.num_embedding_parameters + llama.num_head_parameters
    assert 4.7 < both / llama.num_layer_parameters < 5 and 4 * llama.context_length == 32 * 1024


def test_sequence_parallelism_sends_the_same_bytes_and_holds_less(outputs):
    alone, tensor, sequence = rows(outputs["sequence_run"])
    assert "2 all_reduce" in tensor and tensor.count("384 KiB") == sequence.count("384 KiB") == 2
    assert sequence.count("2 all_gather, 2 reduce_scatter") == 2
    held = [float(row[place].split()[0]) for row, place in ((tensor, 2), (sequence, 2))]
    assert held[1] < 0.85 * held[0] and alone[-1].endswith("MB")
    text = stream(outputs["held_formula"])
    assert re.findall(r"(\d+) MB", text) == ["1381", "411", "294", "176"]
    assert [abs(float(one)) for one in re.findall(r"off by ([-+.\d]+)%", text)] == [0.0, 0.0]


def test_the_layer_with_cut_norms_is_shorter_although_more_is_exposed(outputs):
    text = words(outputs["both_drawn"])
    assert "shorter than tensor" in text and "more a rank" in text


def test_our_pair_is_torchs_and_that_of_other_packages(outputs):
    differences = re.findall(r"by (\S+)$", stream(outputs["by_dtensor"]), flags=re.MULTILINE)
    assert len(differences) == 2 and all(float(one) < 1e-4 for one in differences)
    shown = r"^(\S+): outputs differ by (\S+), the rows' gradient by (\S+)$"
    text = stream(outputs["beside_their_layers"])
    assert not (is_required("frameworks") and "Recorded with" in text)
    found = re.findall(shown, text, flags=re.MULTILINE)
    assert [package for package, *_ in found] == ["Megatron-core", "FairScale"]
    assert all(max(float(outputs_off), float(off)) < 1e-4 for _, outputs_off, off in found)


def test_the_milestone_is_as_quoted_and_its_fifty_milliseconds_are_not_an_a100(outputs):
    text = stream(outputs["milestone"])
    assert "24 all-reduces of 4 MiB: 96 MiB" in text
    assert "at 32 GB/s 3.15 ms, 6.3% of 50 ms" in text and "7.3 TFLOP/s" in text
    table = {row[0]: row[1:] for row in rows(outputs["milestone_on_paper"])}
    assert all(row[3] == "24" for row in table.values())
    products, one, two, wire = (milliseconds(table["dgx-a100"][place]) for place in (0, 1, 2, 4))
    assert products == pytest.approx(1.4, abs=0.05) and one == pytest.approx(5.2, abs=0.1)
    assert two / one == pytest.approx(1, abs=0.05)
    assert wire / (products / 2) == pytest.approx(2, abs=0.2)
    assert int(table["dgx-a100"][5].rstrip("%")) == pytest.approx(26, abs=3)
    assert int(table["dgx-h100"][5].rstrip("%")) == pytest.approx(26, abs=3)
    assert int(table["pcie-box"][5].rstrip("%")) > 50
    assert milliseconds(table["pcie-box"][2]) > milliseconds(table["pcie-box"][1])
    peak = operators.flops_per_s("matmul", "bfloat16", hardware.cluster("dgx-a100").gpu)
    assert 7.3e12 / peak < 0.04


def test_bytes_grow_linearly_and_flops_quadratically_with_the_width(outputs):
    table = rows(outputs["widths"])
    assert [row[1] for row in table] == ["4 MiB", "8 MiB", "16 MiB", "32 MiB", "64 MiB"]
    flops = [24 * 4096 * int(row[0].replace(",", "")) ** 2 for row in table]
    assert all(later == 4 * earlier for earlier, later in itertools.pairwise(flops))
    ratios = [float(row[-1]) for row in table]
    assert all(later < 0.55 * earlier for earlier, later in itertools.pairwise(ratios))


def test_ranks_that_pay_are_those_of_the_text(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["links"])}
    assert float(table["dgx-h100"][2]) == pytest.approx(8.4, abs=0.1)
    assert int(table["dgx-h100"][1].replace(",", "")) == pytest.approx(1790, abs=5)
    assert all(1.5 < float(one) < 4 for one in table["pcie-box"][2:])
    assert all(float(row[2]) < float(row[3]) < float(row[4]) for row in table.values())
    ratios = [int(table[name][1].replace(",", "")) for name in ("dgx-h100", "h100-ndr-x2")]
    assert ratios[0] / ratios[1] == pytest.approx(7 / 8, abs=0.01)


def test_speed_up_falls_off_as_published(outputs):
    table = rows(outputs["published"])
    assert [(row[1], row[2]) for row in table] == [("1", "100%"), ("1.64", "82%"), ("2.34", "58%"), ("2.98", "37%")]
    assert "too: 4.6" in stream(outputs["strong_scaling"])
    nvlink, pcie = ([float(row[place]) for row in table] for place in (3, 5))
    assert nvlink == sorted(nvlink) and nvlink[-1] < 0.6 * 8
    assert pcie[-1] < pcie[-2]


def test_explorer_finds_where_it_stops_paying(outputs):
    text = "".join(str(one) for one in outputs["explored"])
    assert "Fastest on 16 ranks; at least half of each GPU is used up to 8." in text


def test_ring_attention_is_attention_and_its_threshold_is_published(outputs):
    assert float(stream(outputs["ring_attention_run"]).split()[-1]) < 1e-5
    assert "exposed communication 0%" in words(outputs["ring_attention_run"])
    assert [row[3:] for row in rows(outputs["ring_thresholds"])] == [
        ["1,040", "1.0k", "260"],
        ["24,960", "24.5k", "6,240"],
    ]
    assert "15 times" in stream(outputs["check_chunks_of"])


def test_an_experts_width_decides_and_not_its_tokens(outputs):
    assert float(stream(outputs["experts_run"]).split()[-2].rstrip(",")) < 1e-4
    for row in rows(outputs["experts_run"]):
        hidden, ratio = int(row[2].replace(",", "")), int(row[5].replace(",", ""))
        assert (hidden > ratio) == (milliseconds(row[4]) > milliseconds(row[3]))
    assert sum(milliseconds(row[4]) > milliseconds(row[3]) for row in rows(outputs["experts_run"])) == 1


def test_formulas_agree_with_what_was_emulated(outputs):
    table = rows(outputs["formula_beside_run"])
    assert len(table) == 7 and [row[1] for row in table].count("on paper") == 2
    assert all(abs(float(row[-1].rstrip("%"))) < 0.01 for row in table)


def test_copies_drift_while_all_ranks_report_one_loss(outputs):
    sound, drifted = rows(outputs["drift_shown"])
    assert sound[3] == "0.0e+00" and float(drifted[3]) > 1e-3
    assert sound[2] == sound[4] and "," not in drifted[2]
    assert float(drifted[2]) < 0.7 * float(drifted[1]) and float(drifted[4]) > float(drifted[2]) + 0.1


def test_a_norms_gradient_is_partial_and_its_sum_is_right(outputs):
    text = stream(outputs["norm_gradients"])
    summed, alone = map(float, re.findall(r"their sum ([-.\d]+), one process ([-.\d]+)", text)[0])
    assert "Partial" in text and summed == pytest.approx(alone, abs=0.01)
    own = [float(one) for one in re.findall(r"[-\d]+\.\d+", text.split("on the ranks:")[1].split("\n")[0])]
    assert len(set(own)) == 4 and sum(own) == pytest.approx(summed, abs=0.01)


def test_answers_of_the_problems_are_right():
    sent = 8 * 2048 * 12288 * 7 / 8
    assert (round(sent / 1e6), round(2 * sent / 1e6)) == (176, 352)
    assert round(2 * 2048 * 12288 / 1e6) == 50
    assert round(16 * 70.6 / 8) == 141
    assert pytest.approx(14.7, abs=0.05) == 1 + 3 * 8192 / 1790
    llama = shape("llama-3-70b")
    keys_and_values = 2 * llama.width * llama.kv_width
    assert keys_and_values == pytest.approx(16.8e6, rel=0.01) and round(llama.num_layer_weights / 1e6) == 856
    assert round(100 * keys_and_values / llama.num_layer_weights) == 2
    assert pytest.approx(2.8, abs=0.05) == 16 * 176 / 1e3 and pytest.approx(90, abs=0.2) == 32 * 16 * 0.176
    assert pytest.approx(22.5, abs=0.05) == 32 * 16 * 0.176 / 4


def test_two_all_reduces_cost_what_a_reduce_scatter_and_a_gather_each_do_in_a_ring():
    where = hardware.cluster("dgx-a100")
    halves = sum(
        pricing.price(name, 1 << 26, range(8), where).sent_bytes_per_rank for name in ("reduce_scatter", "all_gather")
    )
    assert pricing.price("all_reduce", 1 << 26, range(8), where).sent_bytes_per_rank == pytest.approx(halves)


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week08"]
    assert entries["sent in forward, 12 layers of 512"]["prediction"] == 48
    assert entries["sent in forward, 12 layers of 512"]["result"] == pytest.approx(96)
    assert entries["bytes with norms cut over without"]["result"] == pytest.approx(1)
    assert len(entries) == 4 and all(entry["result"] is not None for entry in entries.values())


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week08", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
