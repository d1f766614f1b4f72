"""A report is quick, says what each resource buys, and shows it; a sweep is checked, priced and drawn."""

import time
from dataclasses import replace

import pytest

from autograder.capstone.step_times import cost_of
from worldsize import capstone, draw
from worldsize.capstone.report import DesignReport, verdict
from worldsize.capstone.sweep import days_against_dollars, front, sweep
from worldsize.planning import bounds, serial
from worldsize.published import BOUND, find_range

GOOD = capstone.example("ten_thousand_h100")


class Counted:
    """The judge's cost, and how often it was asked."""

    def __init__(self):
        self.cost, self.num_calls = cost_of(GOOD), 0

    def __call__(self, plan):
        self.num_calls += 1
        return self.cost(plan)


@pytest.fixture(scope="module")
def report():
    return DesignReport.of(GOOD, cost_of(GOOD))


def test_ten_thousand_gpus_take_little_work():
    counted = Counted()
    begin_s = time.process_time()
    DesignReport.of(GOOD, counted)
    took_s = time.process_time() - begin_s
    assert counted.num_calls <= 30
    assert took_s < 2 * 3  # 0.9 s where this was written; a busy machine counts more


def test_a_thousand_designs_are_priced_in_a_minute():
    choices = {
        "plan__num_chunks": [2, 3, 4, 6],
        "plan__zero_stage": [1, 2],
        "plan__recompute": ["selective", "full"],
        "software__overlaps": [True, False],
        "software__gradients": ["bfloat16", "float32"],
        "data__global_batch": [1250, 2500, 3750, 5000, 6250],
        "checkpoint__every_s": [600, 900, 1800, 3600],
    }
    begin_s = time.process_time()
    tried = list(sweep(GOOD, cost_of, choices))
    assert time.process_time() - begin_s < 60
    assert len(tried) == 1280 and sum(one.figures is not None for one in tried) == 1120
    assert all("activations take" in problem for one in tried for problem in one.problems)


def test_a_sweep_goes_on_after_what_cannot_be():
    tried = list(sweep(GOOD, cost_of, {"plan__zero_stage": [0, 1, 7]}))
    assert [one.figures is not None for one in tried] == [False, True, False]
    assert "are more than its 80.0 GB" in tried[0].problems[0] and "plan.zero_stage: 7" in tried[2].problems[0]


def test_more_of_what_limits_buys_most(report):
    by_resource = {gain.resource: gain for gain in report.gains}
    assert report.gains[0].resource == "rate of matrix products"  # kernels take two thirds of the time
    saved = by_resource["rate of matrix products"].saved_days
    assert 0 < saved < report.figures.days * (1 - 1 / 1.1)
    assert by_resource["speed of a restart"].saved_days > 0 and by_resource["saves"].saved_days > 0
    assert by_resource["GPUs"].saved_days == pytest.approx(report.figures.days / 126, rel=0.35)
    assert by_resource["spare nodes"].saved_usd < 0


def test_what_nothing_limits_buys_nothing(report):
    by_resource = {gain.resource: gain for gain in report.gains}
    assert abs(by_resource["rate of the store's writes"].saved_days) < 0.01
    assert abs(by_resource["spare nodes"].saved_days) < 0.01


def test_more_memory_buys_what_need_not_be_recomputed_any_more(report):
    assert {gain.resource: gain.saved_days for gain in report.gains}["GPU memory"] == 0  # 115 GB without recomputation
    fewer = capstone.changed(GOOD, model__num_layers=100, plan__num_chunks=1, software__schedule="1f1b")
    kept = capstone.changed(fewer, plan__recompute="none")
    assert 80e9 < capstone.run(kept, cost_of(kept)).held_bytes < 88e9
    base = capstone.run(fewer, cost_of(fewer))
    saved = {gain.resource: gain.saved_days for gain in capstone.gains(base, cost_of(fewer))}["GPU memory"]
    assert saved == pytest.approx(base.days - capstone.run(kept, cost_of(kept)).days) and saved > 0.1


def test_a_report_says_what_the_design_achieves(report):
    text = str(report)
    for part in ("10,000 H100 SXM", "MFU", "goodput", "GWh", "million dollars, owned", "What one more unit"):
        assert part in text
    assert "as published" not in text and "budget" not in text
    assert "The step takes 1.81 times the least that the hardware allows. Nothing of its kind was" in text
    nearest = (
        "programs with tensor or pipeline parallelism on 1 to 4,096 GPUs (ampere) took 1.70 to 3.20 times that least"
    )
    assert nearest in " ".join(text.split())
    late = capstone.changed(GOOD, budget__days=40)
    assert "budget.days: it takes 45.2 days" in str(DesignReport.of(late, cost_of(late)))


def _at_published(report):
    """The row of the first table with what the run takes and costs at published steps."""
    return next(line for line in str(report.tables[0]).splitlines() if "published steps  " in line)


def test_the_first_table_has_the_days_and_dollars_at_published_steps(report):
    design = capstone.example("llama_2_7b")
    of_kind = DesignReport.of(design, lambda plan: serial.parts_s(plan))
    figures, least_s = of_kind.figures, bounds.least(design.layout).seconds
    found = find_range(BOUND, design.layout.family, "ampere", 512)
    low, high = (replace(figures, step_s=times * least_s) for times in (found.low, found.high))
    row = _at_published(of_kind)
    assert row.startswith("at published steps ") and f"{low.days:.1f} to {high.days:.1f} days" in row
    assert "0.329 to 1.29 million dollars" in row and f"MFU {high.mfu_fraction:.0%} to {low.mfu_fraction:.0%}" in row
    assert figures.days < low.days < high.days and low.usd / 1e6 == pytest.approx(0.329, abs=1e-3)
    assert _at_published(report).startswith("at the nearest published steps ")


def test_a_design_that_has_no_family_is_reported_beside_the_nearest():
    split = capstone.changed(GOOD, plan__cp=2, plan__dp=125, plan__pp=5)
    assert split.layout.family == "" and "Nothing of its kind was compared" in str(
        DesignReport.of(split, lambda plan: 100.0).tables[0]
    )


def test_a_page_loads_nothing_and_shows_the_pictures(report):
    page = report.page()
    assert page.count("<img") == 3 and page.count("<table") == 3
    assert "http" not in page and "<script" not in page and "<h1>388B on 10,000 H100</h1>" in page


def test_of_a_published_system_the_published_figures_stand_beside():
    design = capstone.example("bloom_176b")
    report = DesignReport.of(design, cost_of(design))
    assert report.page().count("<table") == 4 and "chronicles, line 45" in report.page()
    assert "published programs of this kind took 1.70 to 3.20 times that least" in " ".join(str(report).split())


def test_a_verdict_counts_what_does_not_add_up():
    assert verdict(GOOD, []) == "388B on 10,000 H100: it adds up."
    assert verdict(GOOD, ["a."]) == "388B on 10,000 H100: one thing does not add up.\n- a."
    assert "2 things do not add up" in verdict(GOOD, ["a.", "b."])


def test_a_front_has_what_nothing_beats():
    points = {"slow": (9, 1), "both": (5, 5), "worse": (6, 6), "quick": (2, 8), "same": (2, 9), "late": (9, 2)}
    points["level"] = (6, 5)  # as cheap as another, and later
    assert front(points) == ["quick", "both", "slow"]


def test_a_class_is_a_picture_of_days_against_dollars(report):
    found = report.figures
    picture = days_against_dollars({"ada": found, "bo": replace(found, step_s=0.9 * found.step_s)})
    assert "ada" in picture.alt and "bo" in picture.alt and "no design is both quicker and cheaper" in picture.alt
    several = {f"student {n:02}": replace(found, step_s=found.step_s * (1 + n / 10)) for n in range(60)}
    many = days_against_dollars(several)
    assert ", 30 points:" in many.alt  # no more names have room
    assert "ada and 2 more at" in days_against_dollars(dict.fromkeys(("ada", "bo", "cy"), found)).alt
    with pytest.raises(ValueError, match="no point"):
        days_against_dollars({})


def test_shares_are_bars_with_their_percentages():
    picture = draw.shares({"kernels": 0.675, "the rest": 0.325}, "Time")
    assert picture.alt == "Bar chart (Time) of shares: kernels 67.5%; the rest 32.5%."
    widths = [bar.get_width() for bar in picture.axes[0].patches]
    assert widths == [0.675, 0.325]
    with pytest.raises(ValueError, match="no share"):
        draw.shares({})
    with pytest.raises(ValueError, match=r"a is 1\.5 of the whole"):
        draw.shares({"a": 1.5})
