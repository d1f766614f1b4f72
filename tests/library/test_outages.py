"""Months of failures in a second: what counts, what is lost, and that it agrees with the closed form."""

import math
from dataclasses import replace
from statistics import mean, stdev

import numpy as np
import pytest

from worldsize import outages
from worldsize.outages import Cause, NodeFailure, SavePlan, TrainingJob

HOUR_S, YEAR_S = 3600, 365 * 86400
JOB = TrainingJob(num_nodes=4, stall_s=1, start_s=5)


def names(endured):
    return [(event.name, event.start_s, event.end_s) for event in endured.timeline.events]


def test_without_failures_only_saving_costs():
    endured = outages.endure(9, JOB, [], 100)
    assert endured.goodput == pytest.approx(0.9)
    assert endured.seconds == {"training": 90, "saving": 10, "starting": 0, "waiting": 0, "lost": 0}
    assert (endured.num_saves, endured.num_failures) == (10, 0)


def test_a_policy_may_answer_with_numbers_of_numpy():
    answers = [lambda status: np.float32(9), lambda status: SavePlan(np.float64(9), np.int64(4)), 9]
    assert len({outages.endure(answer, JOB, [], 100).goodput for answer in answers}) == 1


def test_a_policy_may_never_save():
    endured = outages.endure(math.inf, JOB, [NodeFailure(50, 0, "gpu")], 100)
    assert names(endured) == [("lost", 0, 50), ("starting", 50, 55), ("training", 55, 100)]
    assert (endured.num_saves, endured.goodput) == (0, pytest.approx(0.45))


def test_a_job_hears_of_a_node_at_its_next_save():
    asked = []

    def goes_on(status):
        asked.append((status.event, status.num_healthy))
        return SavePlan(30, min(status.num_healthy, 4))

    outages.endure(goes_on, JOB, [NodeFailure(12, 3, "gpu", away_s=20)], 100)  # back at 32
    assert asked[:3] == [("start", 4), ("failed", 3), ("saved", 4)]


def test_a_failure_loses_the_training_since_the_last_save():
    endured = outages.endure(9, JOB, [NodeFailure(14, 2, "gpu")], 30)
    assert names(endured) == [
        *[("training", 0, 9), ("saving", 9, 10), ("lost", 10, 14)],
        *[("starting", 14, 19), ("training", 19, 28), ("saving", 28, 29), ("training", 29, 30)],
    ]
    assert endured.goodput == pytest.approx(19 / 30)
    assert endured.timeline.time_s(0, "lost") == 4


def test_a_save_that_a_failure_cuts_short_does_not_count():
    endured = outages.endure(9, JOB, [NodeFailure(9.5, 0, "gpu")], 20)
    assert names(endured)[:3] == [("lost", 0, 9), ("saving", 9, 9.5), ("starting", 9.5, 14.5)]
    assert (endured.num_saves, endured.goodput) == (0, pytest.approx(5.5 / 20))


def test_a_start_can_fail_too():
    endured = outages.endure(9, JOB, [NodeFailure(12, 0, "gpu"), NodeFailure(15, 1, "gpu")], 30)
    assert names(endured)[3:5] == [("starting", 12, 15), ("starting", 15, 20)]
    assert endured.num_failures == 2


def test_a_save_written_in_the_background_counts_once_it_is_whole():
    job = replace(JOB, stall_s=1, write_s=6)  # begun at 9 and at 19, whole at 15 and at 25
    assert outages.endure(9, job, [NodeFailure(14.9, 0, "gpu")], 15).goodput == 0
    assert outages.endure(9, job, [NodeFailure(15, 0, "gpu")], 15.1).goodput == pytest.approx(9 / 15.1)
    assert outages.endure(9, job, [NodeFailure(24, 0, "gpu")], 24.1).goodput == pytest.approx(9 / 24.1)
    assert outages.endure(9, job, [NodeFailure(14, 0, "gpu"), NodeFailure(21, 0, "gpu")], 22).goodput == 0


def test_a_job_waits_for_the_node_that_is_away_unless_there_is_a_spare():
    failure = NodeFailure(12, 3, "gpu", away_s=20)
    waits = outages.endure(9, JOB, [failure], 60)
    assert names(waits)[3:5] == [("waiting", 12, 32), ("starting", 32, 37)]
    spared = outages.endure(9, replace(JOB, num_spares=1), [failure], 60)
    assert spared.seconds["waiting"] == 0
    assert spared.goodput > waits.goodput


def test_a_failure_of_a_spare_costs_nothing_until_it_is_needed():
    job = replace(JOB, num_spares=1)
    idle = outages.endure(9, job, [NodeFailure(3, 4, "gpu", away_s=20)], 30)
    assert (idle.num_failures, idle.goodput) == (0, outages.endure(9, job, [], 30).goodput)
    needed = outages.endure(9, job, [NodeFailure(3, 4, "gpu", away_s=20), NodeFailure(12, 0, "gpu", away_s=20)], 40)
    assert needed.seconds["waiting"] == 11  # until the spare is back


def test_a_node_that_is_away_cannot_fail():
    endured = outages.endure(9, JOB, [NodeFailure(12, 3, "gpu", away_s=20), NodeFailure(13, 3, "nic", away_s=90)], 60)
    assert (endured.num_failures, endured.seconds["waiting"]) == (1, 20)


def test_a_policy_can_go_on_with_fewer_nodes_and_grow_again():
    asked = []

    def goes_on(status):
        asked.append(status)
        return SavePlan(save_after_s=9, num_nodes=min(status.num_healthy, 4))

    failure = NodeFailure(12, 3, "gpu", away_s=20)
    endured = outages.endure(goes_on, JOB, [failure], 60)
    assert [status.event for status in asked[:3]] == ["start", "saved", "failed"]
    assert [event for event in names(endured) if event[0] == "starting"] == [("starting", 12, 17), ("starting", 37, 42)]
    # three of four nodes from 17 to 36, less two saves; then all
    assert endured.goodput == pytest.approx((9 + 2 * 9 * 3 / 4 + 9 + (60 - 52)) / 60)
    assert endured.goodput > outages.endure(9, JOB, [failure], 60).goodput


def test_a_job_that_changes_its_nodes_first_lets_its_save_be_whole():
    job = replace(JOB, write_s=4)
    endured = outages.endure(lambda status: SavePlan(9, 4 if status.event == "start" else 2), job, [], 40)
    assert names(endured)[:4] == [("training", 0, 9), ("saving", 9, 10), ("saving", 10, 13), ("starting", 13, 18)]


def test_a_save_that_comes_sooner_than_a_job_takes_is_refused_at_once():
    asked = []

    def hasty(status):
        asked.append(status)
        return 5

    with pytest.raises(ValueError, match="saves after 5 s; this job needs at least 60 s"):
        outages.endure(hasty, JOB, [], YEAR_S, least_s=60)
    assert len(asked) == 1 and outages.endure(60, JOB, [], 600, least_s=60).num_saves == 9


def test_all_time_is_accounted_for():
    failures = outages.draw(outages.published(), 64, YEAR_S / 4, seed=3)
    away = [replace(failure, away_s=HOUR_S) for failure in failures]
    endured = outages.endure(HOUR_S, TrainingJob(62, 30, 300, num_spares=2, write_s=90), away, YEAR_S / 4)
    assert sum(endured.seconds.values()) == pytest.approx(YEAR_S / 4)
    assert endured.goodput == pytest.approx(endured.seconds["training"] / (YEAR_S / 4))
    ends = [0.0, *(event.end_s for event in endured.timeline.events)]
    assert [event.start_s for event in endured.timeline.events] == ends[:-1]  # no gap, nothing twice


@pytest.mark.parametrize("save_after_s", [1440, 4 * HOUR_S])
def test_years_agree_with_dalys_complete_model(save_after_s):
    causes = outages.published()
    job = TrainingJob(1250, stall_s=60, start_s=600)
    mean_s = HOUR_S / (1250 * sum(cause.per_node_hour for cause in causes))
    expected = save_after_s / (mean_s * math.exp(600 / mean_s) * math.expm1((save_after_s + 60) / mean_s))
    drawn = [outages.draw(causes, 1250, YEAR_S / 2, seed) for seed in range(10)]
    goodputs = [outages.endure(save_after_s, job, failures, YEAR_S / 2).goodput for failures in drawn]
    assert abs(mean(goodputs) - expected) < 3 * stdev(goodputs) / math.sqrt(10)


def test_the_published_interruptions_are_those_of_the_table():
    causes = outages.published()
    assert causes[0].name == "Faulty GPU"
    assert sum(cause.per_node_hour for cause in causes) * 2048 * 54 * 24 == pytest.approx(419)
    with pytest.raises(ValueError, match="choose one of BLOOM, Llama 3, OPT"):
        outages.published("Gemini")


def test_draws_follow_the_rates_and_the_seed():
    causes = [Cause("often", 3e-3), Cause("rarely", 1e-3)]
    failures = outages.draw(causes, 100, 1000 * HOUR_S, seed=5)
    assert failures == outages.draw(causes, 100, 1000 * HOUR_S, seed=5) != outages.draw(causes, 100, 1000 * HOUR_S, 6)
    assert len(failures) == pytest.approx(400, abs=3 * 20)
    assert sum(failure.cause == "often" for failure in failures) == pytest.approx(0.75 * len(failures), rel=0.1)
    assert {failure.node for failure in failures} <= set(range(100))
    assert outages.draw([], 100, YEAR_S) == []


@pytest.mark.parametrize(
    ("makes", "message"),
    [
        (lambda: TrainingJob(0, 1, 1), "1 node or more"),
        (lambda: TrainingJob(4, 1, math.nan), "start_s is nan"),
        (lambda: TrainingJob(4, 5, 1, write_s=2), "write_s is 2; it must be at least stall_s, which is 5"),
        (lambda: TrainingJob(math.nan, 1, 1), "1 node or more"),
        (lambda: TrainingJob(2.5, 1, 1), "1 node or more"),
        (lambda: Cause("gpu", 0), "per_node_hour is 0"),
        (lambda: NodeFailure(-5, 0, "gpu"), "time_s and away_s must be seconds, 0 or more"),
        (lambda: NodeFailure(math.nan, 0, "gpu"), "time_s and away_s must be seconds, 0 or more"),
        (lambda: NodeFailure(1, 0, "gpu", away_s=math.nan), "time_s and away_s must be seconds, 0 or more"),
        (lambda: NodeFailure(1, 1.5, "gpu"), "node must be a whole number"),
        (lambda: outages.draw(outages.published(), 4, math.inf), "span_s is inf"),
        (lambda: outages.draw(outages.published(), 4, math.nan), "span_s is nan"),
        (lambda: outages.draw(outages.published(), 4, -1), "span_s is -1"),
        (lambda: outages.draw(outages.published(), 2.5, 1), "num_nodes is .*; it must be a whole number, 1 or more"),
        (lambda: outages.endure(1e-12, TrainingJob(4, 0, 1), [], 1e6), "more than 10,000,000 checkpoints in 1e.06 s"),
        (lambda: outages.endure("9", JOB, [], 10), "saves after '9' s"),
        (lambda: Cause("gpu", 1, away_s=-1), "away_s is -1"),
        (lambda: outages.draw(outages.published(), 0, 1), "num_nodes is .*; it must be a whole number, 1 or more"),
        (lambda: outages.endure(0, JOB, [], 10), "saves after 0 s"),
        (lambda: outages.endure(lambda status: None, JOB, [], 10), "saves after None s"),
        (lambda: outages.endure(lambda status: SavePlan(9, 2.5), JOB, [], 10), "wants 2.5 nodes; give 1 to 4"),
        (lambda: outages.endure(9, JOB, [], 0), "span_s is 0"),
        (lambda: outages.endure(lambda status: SavePlan(9, 5), JOB, [], 10), "wants 5 nodes; give 1 to 4"),
        (lambda: outages.endure(9, JOB, [NodeFailure(1, 4, "gpu")], 10), "a node that the job does not have"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(makes, message):
    with pytest.raises(ValueError, match=message):
        makes()
