"""The page of layouts: what its text claims at the positions that it names, and published steps and peaks beside it."""

import csv
import json
import math
import random
import re
import subprocess
import sys

import pytest
from repository import ROOT

sys.path.insert(0, str(ROOT / "website"))

from calculators import calculator, layouts

from worldsize import hardware
from worldsize.course import published_runs
from worldsize.models.shapes import Shape
from worldsize.planning import Plan, bounds, serial
from worldsize.planning.memory_estimate import GREATEST_PEAK, LEAST_PEAK, held
from worldsize.published import BOUND, RATIO_ERROR_FRACTION, nearest_range
from worldsize.units import GB, GIB

START = {control.name: control.value for control in calculator.controls("layouts")}
RUNS = {row["id"]: row for row in csv.DictReader((ROOT / "tests/data/published_runs.csv").open(encoding="utf-8"))}
MODELS = {"GPT-175B": "gpt-3-175b", "GPT-1T": "gpt-1t", "Llama-3-405B": "llama-3-405b"}
# layouts that the controls have, as far as they are published with a micro-batch and without interleaving
IN_RANGE = (
    *("sc21_t1_09", "sc21_t2_z3_175B_384", "sc21_t2_z3_175B_768", "sc21_t2_z3_175B_1536"),
    *("kor22_t5_GPT-1T_full", "meg22_gpt3_1024"),
)
BELOW = ("kor22_t5_GPT-1T_selsp",)


def plan(**chosen):
    return layouts.layout(**START | chosen)


def column(place, **chosen):
    """What a column of the table says, by the name of its row."""
    return {row[0]: row[place] for row in layouts.answer(**chosen).rows}


def mine(**chosen):
    return column(1, **chosen)


def position(row):
    """A published layout as positions of the controls."""
    chosen = {
        "model": MODELS[row["model"]],
        "cluster": "h100-ndr" if row["gpu"].startswith("H100") else "a100-hdr",
        "num_gpus": int(row["n_gpus"]),
        "tp": int(row["tp"]),
        "pp": int(row["pp"]),
        "zero_stage": int(row["zero_stage"][0]),
        "recompute": row["recompute"],
        "micro_batch": int(row["microbatch"]),
        "global_batch": int(row["global_batch_seqs"]),
        "length": int(row["seq"]),
    }
    for control in calculator.controls("layouts"):
        assert chosen[control.name] in [value for _, value in control.options]
    return chosen


def step_s(row):
    return float(row["iter_time_s"] or row["iter_time_s_derived"])


def test_the_question_is_answered_by_states_and_activations():
    parts = held(plan())
    assert layouts.answer().value == pytest.approx(parts.total_bytes / 1e9) == pytest.approx(63.6, abs=0.05)
    model = plan().model
    numbers = (
        f"{model.num_parameters / 1e9:.1f} billion parameters",
        f"{16 * model.num_parameters / 32 / 1e9:.1f} GB, and {parts.states_bytes / 1e9:.1f} on the first stage",
        f"The activations are {parts.activations_bytes / 1e9:.1f} GB",
    )
    assert [text for text in numbers if text not in layouts.QUESTION.why] == []
    assert calculator.judge("layouts", "64 GB").startswith("Close: it is 63.6 GB.")


def test_more_stages_halve_the_states_and_leave_the_activations():
    four, eight = held(plan()), held(plan(pp=8))
    assert [round(one.states_bytes / 1e9, 1) for one in (four, eight)] == [36.3, 19.2]
    assert mine()["activations"] == mine(pp=8)["activations"] == "27.2 GB"


def test_zero_shards_the_optimizer_state_at_no_cost_that_the_bounds_see():
    assert (mine()["optimizer state"], mine(zero_stage=1)["optimizer state"]) == ("27.2 GB", "3.41 GB")
    assert mine(zero_stage=1)["least time of a step"] == mine()["least time of a step"]


def test_without_a_pipeline_the_states_need_zero():
    assert held(plan(pp=1)).states_bytes > 80 * GB
    said = layouts.answer(pp=1).sentence
    assert "does not fit: weights, gradients and optimizer state alone are more than a GPU's memory." in said
    said = layouts.answer(pp=1, zero_stage=1).sentence
    assert "needs 66.6 GB" in said and "It perhaps fits: 83% of a GPU's memory" in said


def test_recomputing_everything_takes_a_quarter_more_time_at_least():
    assert mine(recompute="full")["activations"] == "1.68 GB"
    longer = bounds.least(plan(recompute="full")).seconds / bounds.least(plan()).seconds - 1
    assert longer == pytest.approx(0.24, abs=0.005)


def test_an_illegal_layout_is_named_in_the_librarys_words_beside_legal_ones():
    found = layouts.answer(global_batch=16, pp=1)
    assert found.sentence.startswith("This layout is not legal: dp does not divide a batch of 16 sequences.")
    assert found.columns == ("layout", "1", "2", "3", "4", "5") and math.isnan(found.value)


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        (
            {"num_gpus": 32, "pp": 8, "recompute": "full", "model": "llama-3-8b"},
            "tp 8 times pp 8 does not divide 32 GPUs",
        ),
        ({"num_gpus": 384, "pp": 64, "global_batch": 1536}, "tp 8 times pp 64 does not divide 384 GPUs"),
        (
            {"num_gpus": 384, "pp": 12, "global_batch": 1536},
            "pp does not divide 80 layers, nor 82 with embedding and head",
        ),
        ({"micro_batch": 16, "pp": 1}, None),
        (
            {"micro_batch": 16, "pp": 1, "global_batch": 256},
            "a replica has 8 of the sequences, which 16 does not divide",
        ),
    ],
)
def test_a_layout_is_legal_or_there_is_a_reason(chosen, reason):
    if reason is None:
        assert plan(**chosen).num_micro_batches == 1
        return
    with pytest.raises(ValueError, match=f"^{reason}$"):
        plan(**chosen)
    assert layouts.answer(**chosen).sentence.startswith(f"This layout is not legal: {reason}. ")


def test_where_nothing_is_legal_and_fits_there_is_no_answer():
    said = r"^this layout is not legal, because tp 8 times pp 64 .* and no plan for llama-3-405b .* more GPUs.*[^.]$"
    with pytest.raises(ValueError, match=said):
        layouts.answer(model="llama-3-405b", num_gpus=8, pp=64)


def test_where_nothing_fits_the_readers_layout_is_shown_alone():
    found = layouts.answer(model="llama-3-405b", num_gpus=64)
    assert found.columns == ("layout", "yours")
    assert ". No plan for llama-3-405b" in found.sentence and "take more GPUs" in found.sentence


def test_zero_has_nothing_to_shard_over_in_a_single_replica():
    assert plan(num_gpus=32, zero_stage=3).zero_stage == 0


def test_the_others_are_the_cheapest_of_all_that_fit():
    found = layouts.answer()
    places = range(2, len(found.columns))
    shown = [{row[0]: row[place] for row in found.rows} for place in places]
    assert len(shown) == 5 and len({one["tp, pp, dp"] for one in shown}) == 5
    times_s = [float(one["step without any overlap"].removesuffix(" s")) for one in shown]
    assert times_s == sorted(times_s)
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4, 8, 16):
            for recompute in layouts.RECOMPUTES:
                one = plan(tp=tp, pp=pp, zero_stage=3, recompute=recompute)
                if held(one).total_bytes <= 80 * GB and f"{tp}, {pp}, {one.dp}" not in [s["tp, pp, dp"] for s in shown]:
                    assert serial.step_s(one) >= times_s[-1] - 0.05


def test_no_order_is_below_the_bound_and_a_bubble_lengthens_it():
    one = plan()
    assert serial.step_s(one) > bounds.least(one).seconds
    parts, products = serial.parts_s(one), next(bounds.bounds(one)).seconds
    assert parts["bubble_s"] == pytest.approx(products * 3 / 64) and parts["compute_s"] == products
    assert parts["nics_s"] == bounds.of_nics(one, 2).seconds


def test_layouts_are_equal_within_what_published_ratios_are_off():
    assert f"less than {RATIO_ERROR_FRACTION:.0%} as equal" in " ".join(calculator.text("layouts").split())


def test_a_slow_network_binds():
    assert "for what a node sends over its 1 NIC" in layouts.answer(cluster="a100-10gbe").sentence
    assert mine(cluster="a100-10gbe")["least time of a step"] == "34.3 s"


@pytest.mark.parametrize("name", IN_RANGE)
def test_a_published_step_is_in_the_range_of_its_layout(name):
    chosen = position(RUNS[name])
    low_s, high_s = layouts.published_s(layouts.layout(**chosen))
    assert low_s <= step_s(RUNS[name]) <= high_s
    shown = mine(**chosen)["step of published programs"]
    unit = {"s": 1, "min": 60}[shown.split()[-1]]
    assert [float(part) * unit for part in shown.rpartition(" ")[0].split(" to ")] == pytest.approx(
        [low_s, high_s], rel=0.005
    )


@pytest.mark.parametrize("name", BELOW)
def test_one_step_is_a_little_shorter_than_its_range(name):
    low_s, _ = layouts.published_s(plan(**position(RUNS[name])))
    assert 0.97 * low_s < step_s(RUNS[name]) < low_s


def test_17_of_19_runs_of_the_lessons_have_a_range_and_lie_in_it():
    found = {}
    for run in published_runs.rows():
        one = plan_of(run)
        ends = layouts.published_s(one)
        assert run.step_s > bounds.least(one).seconds
        if ends:
            found[run.name] = ends[0] <= run.step_s <= ends[1]
    assert (sum(found.values()), len(found)) == (17, 19)


def plan_of(run):
    """A run of the lessons on the catalogue's nearest cluster."""
    base = hardware.H100_NDR if run.gpu.startswith("H100") else hardware.A100_HDR
    one_node = hardware.DGX_H100 if run.gpu.startswith("H100") else hardware.DGX_A100
    return Plan(
        model=Shape(
            name=run.model,
            family="gpt",
            num_layers=run.num_layers,
            width=run.width,
            num_heads=run.num_heads,
            num_kv_heads=run.num_heads,
            hidden_width=run.hidden_width,
            vocab_size=run.vocab_size,
            context_length=run.length,
            source="published runs, read in 2026",
        ),
        cluster=one_node if run.num_gpus <= 8 else base.with_nodes(-(-run.num_gpus // 8)),
        global_batch=run.global_batch,
        length=run.length,
        dp=run.dp,
        tp=run.tp,
        pp=run.pp,
        cp=1,
        micro_batch=run.micro_batch,
        num_chunks=run.num_chunks,
        recompute=run.recompute,
        zero_stage=run.zero_stage,
    )


@pytest.mark.parametrize(("num_gpus", "times"), [(8192, 2.3), (16384, 2.5)])
def test_llama_3_took_as_many_times_the_least_as_the_text_says(num_gpus, times):
    row = RUNS[f"llama3_405b_{num_gpus}_cp1"]  # Llama Team 2024, table 4, on which no range rests
    chosen = position(row | {"microbatch": "1"})
    one = layouts.layout(**chosen)
    assert step_s(row) / bounds.least(one).seconds == pytest.approx(times, abs=0.05)
    near = nearest_range(BOUND, one.family, num_gpus)  # of A100s, and of no more than 4,096
    assert near.low < times < near.high and layouts.published_s(one) is None
    assert 84.5 < held(one).total_bytes / GB < 85.5
    assert "nothing of its kind was compared" in layouts.answer(cluster="h100-ndr").sentence


def test_a_measured_peak_exceeds_the_estimate_by_as_much_as_the_page_says():
    chosen = {"cluster": "h100-ndr", "pp": 1, "zero_stage": 3, "recompute": "full", "micro_batch": 16}
    measured = 71.9 * GIB  # torchtitan's Llama 3.1 70B on 256 H100 (2024): tests/data/published_memory.csv
    assert LEAST_PEAK < measured / (GB * layouts.answer(**chosen).value) <= GREATEST_PEAK + 0.005
    near = layouts.answer(tp=4, zero_stage=1)
    assert "It hardly fits: 95%" in near.sentence
    assert f"{LEAST_PEAK} to {GREATEST_PEAK} times" in near.sentence


def test_any_position_is_answered_or_refused_in_a_sentence():
    places = random.Random(2)
    controls = calculator.controls("layouts")
    for _ in range(20):
        chosen = [places.randrange(len(control.options)) for control in controls]
        found = json.loads(calculator.answer("layouts", chosen))
        assert "html" in found or found["problem"].endswith(".")


def test_it_needs_the_standard_library_alone():
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'website')!r}]\n"
        "from calculators import calculator\n"
        "print(calculator.answer('layouts', [control.start for control in calculator.controls('layouts')]))\n"
    )
    said = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True).stdout
    assert "A step takes at least" in said


def test_every_layout_has_one_of_three_words_by_the_rule_of_the_library():
    found = layouts.answer()
    said = next(row for row in found.rows if row[0] == "of the GPU's memory")[1:]
    assert [said[place] for place in (0, 3, 5)] == ["79%, perhaps", "96%, hardly", "50%, yes"]
    assert "It fits. A step" in layouts.answer(zero_stage=1).sentence
    assert layouts.answer(tp=1, pp=1, zero_stage=3).rows[8][1].endswith("%, no")
    shares = (
        f"up to {1 / GREATEST_PEAK:.0%} of a GPU's memory fits, up to {1 / LEAST_PEAK:.0%} perhaps, and more hardly"
    )
    for words in (f"were {LEAST_PEAK} to {GREATEST_PEAK} times", shares):
        assert all(words in " ".join(calculator.text(page).split()) for page in ("layouts", "what_fits"))


def test_no_figure_of_the_table_but_memory_exceeds_100_percent():
    for length in layouts.RANGES["length"]:
        for cluster in ("a100-hdr", "a100-10gbe"):
            rows = layouts.answer(cluster=cluster, length=length, recompute="full").rows
            shares = [cell for what, *cells in rows if what != "of the GPU's memory" for cell in cells]
            percents = [float(part) for cell in shares for part in re.findall(r"([\d.]+)%", cell)]
            assert max(percents) <= 100
    assert mine()["of the least time, the products take"] == "100%"
    assert mine(cluster="a100-10gbe")["of the least time, the products take"] == "72%"


def test_a_control_has_one_name_in_the_text():
    assert "global batch" not in calculator.text("layouts")
    assert f"Set the {layouts.LABELS['global_batch']} to 16" in " ".join(calculator.text("layouts").split())
