"""What the page of pipeline bubbles answers: closed forms, the lesson's rows, published speeds, and its own claims."""

import ast
import json
import re
import sys

import pytest
from repository import ROOT

from worldsize import hardware
from worldsize.draw import _block_styles
from worldsize.models import shapes
from worldsize.planning.layout import Plan
from worldsize.planning.memory_estimate import num_in_flight

sys.path.insert(0, str(ROOT / "website"))

from calculators import bubbles, calculator
from calculators.bubbles import GPIPE, INTERLEAVED, ONE_F_ONE_B

LESSON = (ROOT / "weeks/week09_pipeline_parallelism.py").read_text(encoding="utf-8")
SHAPES = [(2, 1), (2, 64), (3, 7), (4, 8), (5, 3), (8, 8), (8, 24), (16, 3), (16, 32)]


def shown(**chosen):
    """The answer's rows by schedule, without the number of chunks in its name."""
    return {row[0].partition(",")[0]: row[1:] for row in bubbles.answer(**chosen).rows}


def lesson_rows(name):
    """A schedule of week 9, as each rank's list of actions: kind, chunk of the rank, micro-batch."""
    cells = [node for node in ast.parse(LESSON).body if isinstance(node, ast.Assign)]
    rows = next(ast.literal_eval(node.value) for node in cells if ast.unparse(node.targets[0]) == name)
    found = [re.findall(r"(\d*)([FB])(\d+)", row) for row in rows]
    return [[(kind, int(stage or 0) // len(rows), int(number)) for stage, kind, number in row] for row in found]


def played_rows(played):
    """The same of a timeline that the page has played."""
    words = [[re.findall(r"\d+", event.name) for event in played.of(rank)] for rank in range(played.num_ranks)]
    kinds = [[event.kind[0].upper() for event in played.of(rank)] for rank in range(played.num_ranks)]
    return [
        [(kind, int(chunk[0]) if chunk else 0, int(number)) for kind, (number, *chunk) in zip(*one, strict=True)]
        for one in zip(kinds, words, strict=True)
    ]


@pytest.mark.parametrize(
    ("name", "schedule", "batches", "chunks"),
    [
        ("ONE_F_ONE_B_4", ONE_F_ONE_B, 8, 1),
        ("ONE_F_ONE_B_3", ONE_F_ONE_B, 6, 1),
        ("ONE_F_ONE_B_2", ONE_F_ONE_B, 4, 1),
        ("INTERLEAVED", INTERLEAVED, 4, 2),
    ],
)
def test_schedules_are_those_of_week_9_which_are_torchs(name, schedule, batches, chunks):
    wanted = lesson_rows(name)
    assert played_rows(bubbles.play(schedule, len(wanted), batches, chunks)) == wanted


@pytest.mark.parametrize(("stages", "batches"), SHAPES)
@pytest.mark.parametrize("schedule", [GPIPE, ONE_F_ONE_B])
def test_idle_time_is_that_of_gpipes_formula(schedule, stages, batches):
    """Source: Huang et al., GPipe, NeurIPS 2019, section 2.3."""
    played = bubbles.play(schedule, stages, batches, 1)
    assert played.bubble_fraction() == pytest.approx((stages - 1) / (batches + stages - 1))
    assert played.end_s == 3 * (batches + stages - 1)
    assert len(played.events) == 2 * stages * batches


@pytest.mark.parametrize(("stages", "batches"), [(2, 2), (2, 64), (3, 9), (4, 8), (8, 8), (8, 32), (16, 16), (16, 32)])
@pytest.mark.parametrize("chunks", [2, 4, 8])
def test_interleaving_divides_the_idle_time_by_the_chunks(stages, batches, chunks):
    """Source: Narayanan et al. 2021, section 2.2.2: (p - 1)/(vm) of the ideal time."""
    idle = bubbles.play(INTERLEAVED, stages, batches, chunks).bubble_fraction()
    assert idle / (1 - idle) == pytest.approx((stages - 1) / (chunks * batches))


@pytest.mark.parametrize(("stages", "batches", "chunks"), [(4, 8, 1), (16, 3, 1), (8, 32, 4), (4, 4, 2), (2, 64, 8)])
def test_ranks_hold_what_the_planner_counts(stages, batches, chunks):
    schedule = INTERLEAVED if chunks > 1 else ONE_F_ONE_B
    played = bubbles.play(schedule, stages, batches, chunks)
    plan = Plan(
        model=shapes.shape("tiny"), cluster=hardware.cluster("dgx-h100"), global_batch=batches, length=1, dp=1, tp=1,
        pp=stages, cp=1, micro_batch=1, num_chunks=chunks, recompute="none", zero_stage=0,
    )  # fmt: skip
    held = [bubbles.most_held(played, rank, chunks) for rank in range(stages)]
    assert held == [num_in_flight(plan, rank) for rank in range(stages)]


def test_interleaving_holds_what_korthikanti_counts():
    """Source: Korthikanti et al. 2022, section 4.2.3: 1 + (p - 1)/(pv) times as much on the first stage."""
    for stages, chunks in ((2, 2), (8, 4), (16, 8)):
        held = bubbles.most_held(bubbles.play(INTERLEAVED, stages, 2 * stages, chunks), 0, chunks)
        assert held == pytest.approx(stages * (1 + (stages - 1) / (stages * chunks)))


def test_the_question_is_answered_by_the_start():
    assert bubbles.answer().value == pytest.approx(100 * 3 / 11)
    assert calculator.judge("bubbles", "27%").startswith("Close: it is 27.3 %.")


def test_claims_of_the_text():
    same = shown(num_stages=4, num_batches=32)
    assert same[GPIPE][0] == same[ONE_F_ONE_B][0] == "8.6%"
    assert (same[GPIPE][3], same[ONE_F_ONE_B][3]) == ("32", "4")
    many = shown(num_stages=8, num_batches=32, num_chunks=4)
    assert (many[GPIPE][0], many[INTERLEAVED][0]) == ("17.9%", "5.2%")
    assert (many[ONE_F_ONE_B][3], many[INTERLEAVED][3]) == ("8", "9.75")
    sent = [int(many[name][4].replace(",", "")) for name in (INTERLEAVED, ONE_F_ONE_B)]
    assert sent[0] / sent[1] == pytest.approx(4.4, abs=0.05)
    text = calculator.text("bubbles")
    assert all(number in text for number in ("8.6%", "17.9%", "5.2%", "9.75", "4.4 times"))


def test_messages_are_those_of_week_9():
    """Source: week 9, `check_messages_sent`: 48 for 1F1B on four ranks, 24 for two chunks a rank."""
    assert shown(num_stages=4, num_batches=8)[ONE_F_ONE_B][4] == "48"
    assert shown(num_stages=2, num_batches=4, num_chunks=2)[INTERLEAVED][4] == "24"


def test_the_table_has_both_definitions():
    idle, formula, ideal, *_ = shown(num_stages=8, num_batches=32)[GPIPE]
    assert (idle, formula, ideal) == ("17.9%", "17.9%", f"{7 / 32:.1%}")


@pytest.mark.parametrize(("stages", "published"), [(2, 1.8), (4, 3.4), (8, 6.3)])
def test_published_speeds_of_gpipe_are_at_most_8_percent_lower(stages, published):
    """Source: Huang et al., GPipe, table 2, Transformer on TPUs with 32 micro-batches; week 9, `negligible`."""
    found = re.search(r"over one is ([\d.]+\d)", bubbles.answer(num_stages=stages, num_batches=32).sentence)
    assert 0.92 <= published / float(found[1]) <= 1


def test_a_published_bubble_of_1f1b_is_within_two_points():
    """Source: Qi et al. 2023, table 5, 8 stages and 24 micro-batches, profiled, with messages; week 9, problem 1."""
    assert bubbles.answer(ONE_F_ONE_B, 8, 24).value == pytest.approx(24.3, abs=2)


def test_interleaving_says_which_numbers_it_takes():
    with pytest.raises(ValueError, match=r"choose 8 or 12 micro-batches instead of 9$"):
        bubbles.answer(INTERLEAVED, 4, 9)
    with pytest.raises(ValueError, match=r"choose 16 micro-batches instead of 3$"):
        bubbles.answer(INTERLEAVED, 16, 3)
    with pytest.raises(ValueError, match=r"choose 63 micro-batches instead of 64$"):
        bubbles.answer(INTERLEAVED, 7, 64)
    assert shown(num_stages=4, num_batches=9)[INTERLEAVED][0] == "m must be a multiple of 4"
    assert shown(num_stages=4, num_batches=9)[GPIPE][0] == "25.0%"


def test_one_micro_batch_leaves_stages_to_take_turns():
    assert "1 micro-batch, each GPU is idle for 75.0%" in bubbles.answer(num_batches=1).sentence


def test_the_chart_has_the_courses_colours_and_every_block():
    chart = bubbles.answer(ONE_F_ONE_B).chart
    blocks = chart["layer"][1]
    assert len(blocks["data"]["values"]) == 2 * 4 * 8
    styles = {kind: _block_styles.style_of(kind).colour for kind in ("forward", "backward")}
    scale = blocks["encoding"]["color"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == styles
    assert {value["lane"] for value in chart["layer"][0]["data"]["values"]} == {f"GPU {rank}" for rank in range(4)}


def test_a_chart_of_many_blocks_stays_small_and_shows_the_same_idle_time():
    answer = bubbles.answer(INTERLEAVED, 16, 64, 4)
    values = answer.chart["layer"][1]["data"]["values"]
    end = max(value["end"] for value in values)
    busy = sum(value["end"] - value["start"] for value in values)
    assert 100 * (1 - busy / (16 * end)) == pytest.approx(answer.value)
    begins = [min(value["start"] for value in values if value["lane"] == f"GPU {rank}") for rank in range(16)]
    assert begins == [rank / 4 for rank in range(16)]
    assert len(json.dumps(answer.chart)) < 100_000
    assert len(json.dumps(bubbles.answer(INTERLEAVED, 16, 64, 2).chart)) < 600_000
