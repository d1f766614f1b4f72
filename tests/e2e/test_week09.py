"""Week 9 runs unattended: schedules played, emulated and on paper agree, and every milestone and correction holds."""

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
from repository import ROOT

from worldsize import quiz
from worldsize.models import shape

pytestmark = pytest.mark.slow

SCRIPT = ROOT / "weeks" / "week09_pipeline_parallelism.py"
TURNS = (
    *("layers_of", "idle_fraction", "row_in_rounds", "middle_row", "row_of_two_chunks", "messages_sent"),
    *("uneven_s", "make_schedule"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the week has run."""
    return tmp_path_factory.mktemp("week09")


@pytest.fixture(scope="module")
def outputs(folder):
    """The outputs of every code cell by the cell's id, after one run of the whole week."""
    return week_outputs(SCRIPT, folder, "predicted_speedup = 1.8")


def rows(outputs):
    """The rows of a table's text, cut into columns."""
    lines = map(str.strip, words(outputs).splitlines())
    return [re.split(r" {2,}", line) for line in lines]


def bubble(num_stages, num_batches, num_chunks=1):
    """The idle share."""
    return (num_stages - 1) / (num_chunks * num_batches + num_stages - 1)


def test_nothing_warns_and_every_figure_has_words(outputs):
    assert_quiet(outputs)
    assert_figures_have_words(outputs, 9)


def test_every_turn_is_right_when_solved(outputs):
    assert [name for name in TURNS if not stream(outputs[f"check_{name}"]).startswith("Right")] == []


def test_untouched_turns_say_so_and_the_bug_is_shown_with_its_norms(untouched):
    found = untouched.outputs
    for name in TURNS[:-1]:
        assert f"{name} is not written yet" in stream(found[f"check_{name}"])
    bug = "".join(str(one.get("data", one)) for one in found["check_make_schedule"])
    assert "as in one process" in bug and "shrink" in bug and "image/png" in bug


def test_two_chunks_a_rank_names_each_mistake(untouched):
    mistakes = {
        "1F0 1F1 3F0 3B0 3F1 1B0 1B1": "each of 1B0 1B1 1F0 1F1 3B0 3B1 3F0 3F1 once",
        "F0 F1 B0 B1": "each of 1B0",
        "3F0 3B0 1F0 1B0 3F1 3B1 1F1 1B1": "rank 1 waits at 3F0, for ever",
        "1F0 3F0 3B0 1B0 1F1 3F1 3B1 1B1": "rank 0 waits at 2F1; rank 1 waits at 1B0, for ever",
        "1F0 3F0 1F1 3F1 3B0 3B1 1B0 1B1": "Look where rank 0 waits",
        "1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1": "at most 3 chunks held",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1": "Right: 7.5 ms in place of 9",
    }
    answers = [f'def row_of_two_chunks():\n    return "{row}"' for row in mistakes]
    shown = untouched.shown_for(answers, "row_of_two_chunks")
    assert [said for said, text in zip(mistakes.values(), shown, strict=True) if said not in text] == []
    assert "image/png" in shown[4] and "image/png" not in shown[5]


def test_layers_that_are_lost_or_piled_up_are_named(untouched):
    mistakes = {
        "range(stage * (layers // stages), (stage + 1) * (layers // stages))": "each layer once and in order, for 11",
        "range(stage * -(-layers // stages), (stage + 1) * -(-layers // stages))": "range(9, 12)",
        "range(stage * (layers // stages), (stage + 1) * (layers // stages) if stage + 1 < stages else layers)": (
            "[2, 2, 2, 5]"
        ),
        "range(stage * -(-layers // stages), min(layers, (stage + 1) * -(-layers // stages)))": "8, 8, 6]",
        "list(range(stage * layers // stages, (stage + 1) * layers // stages))": "14 stages of 8 and 2 of 7",
    }
    answers = [f"def layers_of(stage, stages, layers):\n    return {text}" for text in mistakes]
    shown = untouched.shown_for(answers, "layers_of")
    assert [said for said, text in zip(mistakes.values(), shown, strict=True) if said not in text] == []


def test_rounds_that_are_none_are_named(untouched):
    mistakes = {
        "round_of(0, m)": "at most 4 micro-batches held, for m = 8 and k = 4",
        '" ".join(round_of(n, n + 1) for n in range(m))': "a step of 33.0 ms on four stages",
        '" ".join(round_of(n, n + k) for n in range(0, m, k))': "F6 F7 F8",
        '" ".join(round_of(n, n + k) for n in range(0, m - k + 1, k))': "F4 F5 B3 B4 B5",
        '" ".join(round_of(n, n + k, "BF") for n in range(0, m, k))': "each backward after its forward",
        '" ".join(round_of(n, min(m, n + k)) for n in range(0, m, k))': "27%, 43%, 60%",
    }
    helper = (
        'def round_of(first, end, kinds="FB"):\n'
        '    return " ".join(f"{kind}{n}" for kind in kinds for n in range(first, end))\n'
    )
    answers = [f"{helper}\ndef row_in_rounds(m, k):\n    return {text}" for text in mistakes]
    shown = untouched.shown_for(answers, "row_in_rounds")
    assert [said for said, text in zip(mistakes.values(), shown, strict=True) if said not in text] == []
    assert "image/png" in shown[1] and "image/png" not in shown[0]


def test_the_idle_shares_of_rounds_are_those_of_the_formula():
    assert [f"{bubble(4, size):.0%}" for size in (8, 4, 2)] == ["27%", "43%", "60%"]


def test_messages_that_are_none_are_named(untouched):
    mistakes = {
        "True": "2 messages for two stages in turn",
        'a.kind == "F" and a.stage < last': "One in each direction",
        'a.stage < last if a.kind == "F" else a.stage > 0': "4 messages for stages 0 and 3 on rank 0",
        'rank < len(schedule) - 1 if a.kind == "F" else rank > 0': "24 messages for two chunks a rank",
    }
    rest = "for rank, row in enumerate(schedule) for a in actions_of(rank, row)"
    last = f"max(a.stage {rest})"
    answers = [
        f"def messages_sent(schedule):\n    last = {last}\n    return sum(bool({text}) {rest})" for text in mistakes
    ]
    shown = untouched.shown_for(answers, "messages_sent")
    assert [said for said, text in zip(mistakes.values(), shown, strict=True) if said not in text] == []


def test_the_step_with_two_chunks_is_a_fifth_idle_and_by_plain_1f1b_a_third():
    assert (bubble(2, 2, 2), bubble(2, 2)) == (pytest.approx(1 - 6 / 7.5), pytest.approx(1 - 6 / 9))


def test_taking_turns_idles_half_of_the_time_with_right_gradients(outputs):
    assert float(stream(outputs["turns_taken"]).split()[-1]) < 1e-6
    assert "2 ranks" in words(outputs["turns_taken"]) and "bubble 51%" in words(outputs["turns_taken"])


def test_milestones_are_50_80_and_89_percent_and_1_6_times_one_gpu(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["milestones"])[2:]}
    assert table == {
        "1": ["50.0%", "50.0%", "50%", "1"],
        "4": ["20.0%", "20.0%", "80%", "1.6"],
        "8": ["11.1%", "11.1%", "89%", "1.78"],
    }


def test_four_micro_batches_a_stage_are_not_negligible(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["negligible"])[2:]}
    assert table["8"][:3] == ["17.9%", "21.9%", "6.56"]
    for row in table.values():
        formula, transformer, amoeba = map(float, row[2:])
        assert 0.925 < transformer / formula < 0.965 and amoeba < 0.65 * formula


def test_1f1b_takes_as_long_as_gpipe_and_holds_less(outputs):
    assert "as long as GPipe" in words(outputs["one_f_one_b_rows"])
    table = {row[0]: row[1:] for row in rows(outputs["most_held"])[2:]}
    assert table == {"GPipe": ["27.3%", "8", "8", "8", "8"], "1F1B": ["27.3%", "4", "3", "2", "1"]}


def test_the_first_stage_holds_all_layers_whatever_the_number_of_stages(outputs):
    table = {row[0]: row[1:] for row in rows(outputs["first_stage"])[2:]}
    assert {row[3] for row in table.values()} == {"32"} and {row[4] for row in table.values()} == {"44.2 GB"}
    assert table["8"] == ["16.1 GB", "128", "177 GB", "32", "44.2 GB", "5.52 GB"]


def test_a_stuck_schedule_and_its_ranks_are_explained_alike(outputs):
    assert stream(outputs["stuck"]).splitlines() == [
        "rank 0 waits at B0 for B0 on stage 1",
        "rank 1 waits at F1 for F1 on stage 0",
    ]
    report = stream(outputs["stuck_ranks"])
    assert "Deadlock" in report and "dist.recv(piece, src=1)  # before B0" in report
    assert "dist.recv(piece, src=0)  # before F1" in report


def test_interleaving_halves_the_idle_time_and_costs_messages_and_memory(outputs):
    one, two = rows(outputs["interleaved_costs"])[2:]
    assert one[1:] == ["20.0%", "20.0%", "2", "1", "8"] and two[1:] == ["11.1%", "11.1%", "2.5", "1.5", "24"]
    assert 1.25 == 1 + (2 - 1) / (2 * 2)


def test_splitting_backward_leaves_a_third_of_the_idle_time_if_parts_are_equal(outputs):
    assert "bubble 25%" in words(outputs["zero_bubble_rows"]) and "bubble 10%" in words(outputs["zero_bubble_rows"])
    idle_s = (24.0 - 18, 20.0 - 18)  # ms that each of three ranks is idle
    assert idle_s[1] == pytest.approx(idle_s[0] / 3)
    table = rows(outputs["zero_bubble_times"])[2:-1]
    split = [float(row[-1].rstrip("%")) for row in table]
    assert {row[2] for row in table} == {"25.0%"} and split == sorted(split) and (split[0], split[-1]) == (10, 25)
    assert "Held at most: 3, 3, 3" in words(outputs["zero_bubble_times"])


def test_torch_does_what_the_lists_say_with_the_gradients_of_one_process(outputs):
    for row in rows(outputs["oracle"])[2:5]:
        assert row[4] == "yes" and row[5] == row[6] == row[7] and float(row[8]) < 1e-6
    assert "same order as ours" in stream(outputs["real_ranks"])
    assert float(re.search(r"gradient: (\S+);", stream(outputs["real_ranks"]))[1]) < 1e-6


def test_ranks_hold_eight_micro_batches_or_one_less_each(outputs):
    printed = {line.split()[0]: line for line in stream(outputs["held_on_ranks"]).splitlines()}
    held = {
        name: [float(number) * {"MB": 1000, "kB": 1}[unit] for number, unit in re.findall(r"([\d.]+) (MB|kB)", line)]
        for name, line in printed.items()
    }
    one_kb = held["GPipe"][0] / 8
    assert one_kb == pytest.approx(146, abs=1) and len(set(held["GPipe"][:3])) == 1
    steps = [above - below for above, below in zip(held["1F1B"][:2], held["1F1B"][1:3], strict=True)]
    assert all(step == pytest.approx(one_kb, rel=0.15) for step in steps)
    assert held["1F1B"][0] < 0.6 * held["GPipe"][0]


def test_llama_on_paper_takes_as_long_and_holds_half(outputs):
    gpipe, alternating = rows(outputs["llama_on_paper"])[2:4]
    assert gpipe[1] == alternating[1] and gpipe[2] == alternating[2] == "27.3%"
    assert 29 < float(gpipe[3].rstrip("%")) < 32
    gb = [[float(text.split()[0]) for text in row[4:]] for row in (gpipe, alternating)]
    assert gb[1][1] / gb[0][1] == pytest.approx(0.5, rel=0.05) and gb[1][2] / gb[0][2] == pytest.approx(1 / 6, rel=0.05)


def test_a_pipeline_sends_least(outputs):
    times = [row[-1] for row in rows(outputs["bytes_by_way"])[2:]]
    assert times == ["112", "39", "1"]


def test_uneven_stages_cost_what_the_text_says(outputs):
    table = rows(outputs["uneven"])[2:]
    assert [row[-1] for row in table] == ["30.3%", "14.5%", "0.7%"] and table[0][2] == "1.84"
    assert "2.1 times the mean" in stream(outputs["uneven"])
    assert shape("llama-3-405b").num_layers + 2 == 16 * 8
    assert "16.0 billion" in stream(outputs["bloom"]) and "14.8 billion; in all 70 layers" in stream(outputs["bloom"])
    assert pytest.approx(176.5, abs=0.1) == 70 * 2.47 + 3.60


def test_recomputing_takes_a_third_longer_and_idles_as_much(outputs):
    kept, again = rows(outputs["recomputation"])[2:]
    assert kept[1:] == ["44.2 GB", "5.52 GB", "33 ms", "27.3%"] and again[1] == "3.53 GB"
    assert again[3:] == ["44 ms", "27.3%"]


def test_published_layouts(outputs):
    table = {row[0]: row[-2:] for row in rows(outputs["layouts"])[2:-1]}
    assert table["BLOOM, 176B"] == ["7.9%", "7.9%"]
    assert table["Llama 3 405B, 8,192 GPUs"] == ["31.9%", "5.5%"]
    assert table["Llama 3 405B, 16,384 GPUs"] == ["48.4%", "10.5%"]
    assert 2048 * 8192 == 16 * 2**20  # tokens of a step


def test_formulas_agree_with_emulation_and_paper(outputs):
    errors = [float(row[-1].rstrip("%")) for row in rows(outputs["formula_beside_run"])[2:]]
    assert all(abs(error) < 0.1 for error in errors[:3]) and -12 < errors[3] < -8
    assert all(abs(error) < 3 for error in errors[4:])


def test_explorer_draws_the_schedule_and_what_ranks_hold(outputs):
    text = "".join(str(one) for one in outputs["explore"])
    assert "rank 0 76.3 GB" in text and "every rank fits into 80 GB" in text


def test_accumulated_gradients_fade_by_default(outputs):
    assert "1.0000, 1.2500, 1.3125" in stream(outputs["three_calls"])
    assert sum(4.0**-call for call in range(50)) == pytest.approx(4 / 3)
    assert "must be greater than or equal to the number of stages" in stream(outputs["too_few"])


def test_answers_of_the_problems_are_right():
    assert (round(100 * bubble(8, 24), 1), round(100 * bubble(8, 56), 1)) == (22.6, 11.1)
    assert (round(8 * 24 / 31, 2), round(8 * 56 / 63, 2)) == (6.19, 7.11)
    p, F, B, W, both = 16, 1, 2, 1, 3
    assert ((p - 1) * (F + B), (p - 1) * (F + B - 2 * W), (p / 2 - 1) * (both + B - 3 * W)) == (45, 15, 14)
    steps = [sum(loads) + 15 * max(loads) for loads in ((12, 12, 12, 14), (13, 12, 12, 13), (13, 13, 13, 11))]
    assert steps == [260, 245, 245] and 12.5 * 19 == 237.5
    assert [round(100 * (step / 237.5 - 1), 1) for step in steps] == [9.5, 3.2, 3.2]
    assert [round(100 * bubble(16, 32, v), 1) for v in (1, 2, 4, 8)] == [31.9, 19.0, 10.5, 5.5]
    assert round(127 / 15, 1) == 8.5
    assert all(bubble(p, 19 * (p - 1)) == pytest.approx(0.05) for p in range(2, 20))


def test_ledger_holds_all_results(outputs, folder):
    entries = json.loads((folder / "ledger.json").read_text())["week09"]
    assert entries["speed-up, 2 stages, m = 4"]["prediction"] == 1.8
    assert entries["speed-up, 2 stages, m = 4"]["result"] == pytest.approx(1.6)
    assert entries["idle: 8 stages, 32 micro-batches"]["result"] == pytest.approx(17.9, abs=0.05)
    assert entries["first of 8 stages holds"]["result"] == 32
    assert entries["norm after 3 calls over 1"]["result"] == pytest.approx(1.3125)
    assert len(entries) == 4 and "1.31 times" in words(outputs["predictions_beside_results"])


def test_self_check_asks_five_of_ten_questions(outputs):
    assert len(quiz.load("week09", ROOT / "quizzes").question) >= 10
    asked = re.findall(r"^(\d+)\. ", words(outputs["self_check"]), flags=re.MULTILINE)
    assert asked == ["1", "2", "3", "4", "5"]
