"""What the page of checkpoints answers: published failures, Daly's model beside the simulation, and its own claims."""

import math
import sys
from dataclasses import replace

import pytest
from repository import ROOT

from worldsize import outages
from worldsize.outages import TrainingJob
from worldsize.units import DAY, HOUR, MINUTE

sys.path.insert(0, str(ROOT / "website"))

from calculators import calculator, checkpoints

SOURCES = list(checkpoints.SOURCES.values())


def curve(**chosen):
    """The goodput in percent at each of the chart's intervals, in seconds."""
    values = checkpoints.answer(**chosen).chart["layer"][0]["data"]["values"]
    return {value["x"] * MINUTE: value["y"] for value in values}


def test_daly_has_the_interval_and_the_goodput_of_week_12():
    """Source: week 12, section 6, explored at these values: a save after 18.6 min, a goodput of 85.3%."""
    table = shares()
    assert (table["training between saves"][2], table["goodput, Daly's model"][2]) == ("18.6 min", "85.3%")
    assert table["training between saves"][1] == "19.3 min" and "by Young's formula" in checkpoints.answer().sentence
    for stall_s, mean_s, minutes in ((300, 24 * HOUR, 117), (300, 6 * HOUR, 57), (300, 15 * MINUTE, 9.1)):
        assert checkpoints.by_daly_s(stall_s, mean_s) / MINUTE == pytest.approx(minutes, rel=0.01)  # Daly's figures


def by_daly(after_s, num_nodes=2048, source="Llama 3", stall_s=60, start_s=600):
    """Goodput in percent by Daly's complete model."""
    mean_s = checkpoints.mean_between_s(num_nodes, source)
    return 100 * checkpoints.model_goodput(after_s, stall_s, start_s, mean_s)


def shares(**chosen):
    """The table by row: what the chosen interval gives, and what the formula's gives."""
    return {what: pair for what, *pair in checkpoints.answer(**chosen).rows}


def test_the_question_is_answered_by_what_llama_3_published():
    """Source: Llama team 2024, arXiv 2407.21783, section 3.3.4: 419 unexpected interruptions in 54 days."""
    assert checkpoints.answer().value == pytest.approx(54 * 24 / 419)
    assert calculator.judge("checkpoints", "3 hours").startswith("Close: it is 3.09 hours.")


def test_the_other_published_rates():
    """Sources: BLOOM's chronicles, lines 223 to 225: a GPU a week on 384; OPT's final update: 2 of 124 nodes a day."""
    assert checkpoints.mean_between_s(48, "BLOOM") == pytest.approx(7 * DAY)
    assert checkpoints.mean_between_s(124, "OPT") == pytest.approx(DAY / 2)


def test_youngs_interval_for_bloom_is_66_of_its_steps():
    """Source: week 12, problem 1: saves of 40 s, steps of 105 s."""
    answer = checkpoints.answer(num_nodes=48, source="BLOOM", stall_s=40)
    (young_s,) = [value["x"] * MINUTE for value in answer.chart["layer"][2]["data"]["values"]]
    assert round(young_s / 105) == 66


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"stall_s": 10, "start_s": 300},
        {"num_nodes": 512},
        {"num_nodes": 128, "interval_s": 14_400},
        {"num_nodes": 4096, "source": "OPT", "start_s": 300},
        {"num_nodes": 1024, "source": "BLOOM"},
        {"num_nodes": 16, "source": "BLOOM", "stall_s": 1},
    ],
    ids=str,
)
def test_the_simulation_is_near_dalys_model(chosen):
    """The seed was chosen for this: it shows that the page is right, not that the simulator is."""
    given = {name: value for name, value in chosen.items() if name != "interval_s"}
    off = {after_s: percent - by_daly(after_s, **given) for after_s, percent in curve(**chosen).items()}
    mean_s = checkpoints.mean_between_s(given.get("num_nodes", 2048), given.get("source", "Llama 3"))
    assert max(abs(one) for one in off.values()) < 4
    assert max(abs(one) for after_s, one in off.items() if after_s < mean_s / 4) < 1.5


@pytest.mark.parametrize("num_nodes", [16, 512, 4096])
@pytest.mark.parametrize("source", SOURCES)
def test_around_the_best_interval_the_error_is_about_a_point_at_most(num_nodes, source):
    young_s = math.sqrt(2 * 60 * checkpoints.mean_between_s(num_nodes, source))
    found = shares(num_nodes=num_nodes, source=source, start_s=300)["goodput, simulated"][1]
    assert float(found.rstrip("%")) == pytest.approx(by_daly(young_s, num_nodes, source, start_s=300), abs=1.2)


def test_one_node_that_fails_as_often_as_all_is_the_same_job():
    whole = outages.draw(outages.published(), 2048, 30 * DAY, seed=1)
    as_one = [replace(failure, node=0) for failure in whole]
    jobs = [TrainingJob(num_nodes=num_nodes, stall_s=60, start_s=600) for num_nodes in (2048, 1)]
    first, second = (
        outages.endure(HOUR, job, failures, 30 * DAY) for job, failures in zip(jobs, (whole, as_one), strict=True)
    )
    assert (first.goodput, first.seconds) == (second.goodput, second.seconds)
    rate = sum(cause.per_node_hour for cause in outages.published())
    failures = checkpoints.drawn(2048, "Llama 3")
    assert len(failures) / failures[-1].time_s * HOUR == pytest.approx(2048 * rate, rel=0.05)


def test_the_shares_of_the_table_add_up():
    table = shares()
    parts = ("goodput, simulated", "stalls of saves", "lost training", "restarts")
    for column in range(3):
        assert sum(float(table[part][column].rstrip("%")) for part in parts) == pytest.approx(100, abs=0.25)


def test_claims_about_the_interval():
    found = curve()
    young_s = math.sqrt(2 * 60 * checkpoints.mean_between_s(2048, "Llama 3"))
    assert shares()["training between saves"][1] == "19.3 min"
    assert all(0 < found[young_s] - found[minutes * MINUTE] < 1.5 for minutes in (15, 30))
    assert found[4 * HOUR] < 50
    few, many = (shares(num_nodes=nodes)["training between saves"][1] for nodes in (512, 2048))
    assert (few, many) == ("38.5 min", "19.3 min")
    assert checkpoints.answer(num_nodes=512).value == pytest.approx(4 * checkpoints.answer().value)


def test_ninety_percent_takes_a_short_restart_and_a_short_stall():
    """Source: Llama team 2024, section 3.3.4: an effective training time of more than 90%."""
    assert min(checkpoints.RANGES["stall_s"]) == 1
    assert max(curve(stall_s=1, start_s=1200).values()) < 90
    assert shares(stall_s=10, start_s=300)["goodput, simulated"][1].startswith("93.")


def test_what_metas_study_measured_is_shorter_than_the_rate_predicts():
    """Source: Kokolis et al. 2025, arXiv 2410.21680: 7.9 hours for jobs of 1,024 GPUs; week 12, section 3."""
    assert checkpoints.answer(num_nodes=128).value == pytest.approx(49.5, abs=0.05)


def test_a_restart_longer_than_the_time_between_failures_is_refused():
    with pytest.raises(ValueError, match=r"21\.8 min on average.* 30 min: choose fewer nodes or a shorter restart$"):
        checkpoints.answer(num_nodes=4096, source="OPT", start_s=1800)
    assert checkpoints.answer(num_nodes=4096, source="OPT", start_s=1200).value < 0.4


def test_the_chart_marks_both_intervals():
    lines, points, rule, name = checkpoints.answer(interval_s=7200).chart["layer"]
    assert [value["x"] for value in points["data"]["values"]] == [120]
    assert points["data"]["values"][0] in [{"x": one["x"], "y": one["y"]} for one in lines["data"]["values"]]
    assert rule["data"] == name["data"]
    assert rule["data"]["values"][0]["x"] == pytest.approx(19.27, abs=0.01)


def test_every_position_of_the_interval_is_on_the_curve():
    control = {one.name: one for one in calculator.controls("checkpoints")}["interval_s"]
    assert {value for _, value in control.options} <= set(curve())
    assert control.value == HOUR


@pytest.mark.parametrize(
    "chosen",
    [
        {"num_nodes": 16, "source": "BLOOM", "stall_s": 1, "interval_s": 225},
        {"num_nodes": 4096, "source": "OPT", "stall_s": 1, "start_s": 60, "interval_s": 225},
        {},
    ],
    ids=str,
)
def test_the_longest_simulations_stay_short(chosen, monkeypatch):
    run = []
    simulated = checkpoints.simulated
    monkeypatch.setattr(checkpoints, "simulated", lambda *given: run.append(simulated(*given)) or run[-1])
    checkpoints.answer(**chosen)
    assert 12 <= len(run) <= 15
    assert sum(len(one.timeline.events) for one in run) < 45_000  # about 10 µs each
