"""The published runs are of lessons, of the judge or of the bench, and only those of lessons ship."""

import csv

import published_steps
from repository import ROOT

from worldsize.course import published_runs

PARTS = {"lessons", "judge", "bench"}


def configuration(row):
    return published_steps.source_of(row), row["model"], row["n_gpus"]


def test_a_run_stands_in_one_part():
    rows = published_steps.rows()
    assert len({row["id"] for row in rows}) == len(rows) and {row["part"] for row in rows} == PARTS
    without_steps = {row["part"] for row in rows if published_steps.why_left_out(row)}
    assert without_steps == {"bench"}  # nobody is asked for what the source does not say


def test_runs_of_one_model_on_as_many_gpus_stand_together():
    parts = {}
    for row in published_steps.rows():
        if published_steps.why_left_out(row) is None:
            parts.setdefault(configuration(row), set()).add(row["part"])
    assert all(len(of_one) == 1 for of_one in parts.values())


def test_only_the_lessons_runs_ship():
    of_lessons = [row for row in published_steps.rows() if row.pop("part") == "lessons"]
    with (ROOT / "worldsize/data/published_runs.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == of_lessons
    kept = {row["id"] for row in published_steps.rows() if row["part"] != "lessons"}
    shipped = [path for path in (ROOT / "worldsize").rglob("*") if path.suffix in (".py", ".csv")]
    assert not any(name in path.read_text(encoding="utf-8") for path in shipped for name in kept)


def test_a_student_loads_the_lessons_runs():
    found = published_runs.rows()
    assert len({one.name for one in found}) == len(found) == 19
    assert all(one.step_s > 0 and one.num_gpus == one.tp * one.pp * one.dp for one in found)
    (one,) = [one for one in found if one.name == "kor22_t5_MT-NLG-530B_selsp"]
    assert (one.step_s, one.num_chunks, one.is_sequence_split, one.is_step_derived) == (37.83, 3, True, False)


def test_the_bench_has_rows_of_every_source():
    sources = {published_steps.source_of(row) for row in published_steps.rows()}
    assert {published_steps.source_of(row) for row in published_steps.rows() if row["part"] == "bench"} == sources
