"""Project 3's contract, and known answers of its design and programs, judged; `make project` judges all of them."""

import csv
import importlib.util
import re
import sys
import tomllib
from typing import Any

import nbformat
import pytest
from repository import ROOT

from autograder.authoring import programs
from autograder.capstone.step_times import cost_of
from autograder.grading import verify
from worldsize import capstone
from worldsize.capstone.figures import SPAN_S
from worldsize.check import CheckFailed
from worldsize.course import published_runs

FOLDER = ROOT / "solutions" / "project3"
CELLS = {cell.id: cell for cell in nbformat.read(FOLDER / "report.ipynb", as_version=4).cells}
CASES = {case.name: case for case in verify.cases(ROOT, "project3")}


@pytest.fixture(scope="module")
def checks() -> Any:
    spec = importlib.util.spec_from_file_location("checks_of_project3", FOLDER / "checks.py")
    assert spec and spec.loader
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # dataclasses look for their module there
    spec.loader.exec_module(found)
    return found


def design_of(case: str) -> capstone.Design:
    return capstone.loads(text_of(case))


def text_of(case: str) -> str:
    given: dict[str, Any] = {"capstone": capstone}
    exec(CELLS["brief"].source, given)
    exec(CASES[case].cells["design"], given)
    return given["design"]


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("years = 4", "years = 4\nusd_per_kwh = 0.01", "usd_per_kwh as well"),
        ("[prices]\nstorage_usd = 5e6\nyears = 4\noperation_fraction = 0.1\n", "", "storage_usd, or none"),
        ('shape = "llama-3-70b"', 'shape = "llama-3-8b"', "another shape"),
        ("num_spares = 3", "num_spares = 3\nnics_per_node = 8", "nics_per_node"),
        ('"h100-ndr"', '"h100-ndr-x240"', "h100-ndr-x240"),
        ("global_batch = 1920", "global_batch = 3840", "3,840"),
        ("bisection_bytes_per_s = 30e12", "bisection_bytes_per_s = 1", "20e12 or more"),
    ],
)
def test_the_open_check_and_the_judge_refuse_the_same_designs(old, new, named, checks):
    given: dict[str, Any] = {"CheckFailed": CheckFailed, "tomllib": tomllib}
    exec(CELLS["brief"].source, given)
    exec(CELLS["design"].source, given)
    exec(CELLS["check_design"].source.removesuffix("check_the_design()"), given)
    assert given["design"].count(old) == 1
    own, other = capstone.loads(given["design"]), capstone.loads(given["design"].replace(old, new))
    for judge in (given["expect_asked"], checks.expect_asked):
        judge(own)
        with pytest.raises(CheckFailed):
            judge(other)
        with pytest.raises(CheckFailed):
            judge(own.model_copy(update={"network": None}))
    with pytest.raises(CheckFailed, match=named):
        given["expect_asked"](other)


def test_it_has_100_points():
    points = {name: cell.metadata.nbgrader.points for name, cell in CELLS.items() if cell.metadata.nbgrader.grade}
    assert sum(points.values()) == 100 and points["words"] == 14
    table = next(cell.source for cell in CELLS.values() if "What is asked" in cell.source)
    named = {name: int(n) for name, n in re.findall(r"`(check_\w+)`[^|]*\| (\d+) \|", table)}
    assert named == {name: n for name, n in points.items() if name != "words"}


def test_the_brief_of_the_report_is_that_of_the_judge(checks):
    given: dict[str, Any] = {}
    exec(CELLS["brief"].source, given)
    assert given["BRIEF"] == checks.BRIEF
    shipped = [tomllib.loads(path.read_text())["model"]["shape"] for path in capstone.EXAMPLES.glob("*.toml")]
    assert tomllib.loads(checks.BRIEF)["model"]["shape"] not in shipped


def test_the_published_runs_of_the_judge_are_true_and_not_those_that_students_have(checks):
    with (ROOT / "tests/data/published_runs.csv").open(newline="") as file:
        known = {row["id"]: row for row in csv.DictReader(file)}
    shown = {run.name for run in published_runs.rows()}
    names = ["layers", "hidden", "heads", "vocab", "seq", "global_batch_seqs", "microbatch"]
    names += ["tp", "pp", "dp", "vpp", "recompute"]
    for line in checks.ROWS.strip().splitlines():
        name, *values, step_s = line.split()
        row = known[name]
        assert values == [row[key] for key in names] and step_s == (row["iter_time_s"] or row["iter_time_s_derived"])
        assert name not in shown and row["gpu"] == "A100-SXM4-80GB"


def test_the_judge_s_own_cost_would_get_all_points_for_published_steps(checks):
    errors = sorted(abs(checks.judges_s(plan) / step_s - 1) for plan, step_s in checks.published())
    assert len(errors) == 17 and errors[len(errors) // 2] < checks.PUBLISHED[1]


def test_the_reference_design_costs_what_the_judge_compares_with(checks):
    design = design_of("solution")
    assert capstone.check(design, cost_of(design)) == []
    usd = capstone.run(design, cost_of(design)).usd
    assert 0.99 < usd / checks.REFERENCE_USD < 1.01


def test_a_network_with_few_cables_between_its_halves_is_refused(checks):
    checks.expect_asked(design_of("solution"))
    with pytest.raises(CheckFailed, match="bisection_bytes_per_s of 20e12"):
        checks.expect_asked(capstone.loads(re.sub(r"(bisection_bytes_per_s =) \S+", r"\1 6e11", text_of("solution"))))


def test_the_judge_plays_two_spans_at_most(checks, monkeypatch):
    design = design_of("wrong/design_that_is_late")
    late = capstone.changed(design, data__num_tokens=1e14, data__dataset_tokens=1e14)
    monkeypatch.setattr(checks, "expect_asked", lambda found: None)
    monkeypatch.setattr(checks, "loads", lambda text: late)
    monkeypatch.setattr(checks, "seen", {"design": ""})
    found = checks.achieved(None)
    assert found.days > 200 and sum(found.spent_s.values()) == pytest.approx(2 * SPAN_S)


def test_the_released_programs_can_be_read_and_fail_only_where_they_are_to_be_written():
    module: dict[str, Any] = {"__name__": "released"}
    exec(compile(programs.released(FOLDER / "programs.py"), "programs.py", "exec"), module)
    for name in ("step_s", "policy", "train"):
        with pytest.raises(NotImplementedError, match="your own code"):
            module[name](None)


def test_the_bank_has_four_right_answers_and_twenty_four_that_are_wrong_or_cheat():
    wrong = [name for name in CASES if name.startswith("wrong/")]
    assert len([name for name in CASES if name.startswith("right/")]) == 3  # beside the solution
    assert len(wrong) == 24 and sum("cheat" in name for name in wrong) == 10


# the checks of the train step take most of a judging: here, those of the design, the cost and the policy
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("solution", ["check_design", "check_cost", "check_policy"]),
        ("wrong/cost_of_one_constant", ["check_cost"]),
        pytest.param("wrong/cheat_policy_remembers", ["check_policy"], marks=pytest.mark.nightly("over a minute")),
        ("wrong/policy_every_five_seconds", ["check_policy"]),
        ("wrong/design_that_is_late", ["check_design"]),
    ],
)
def test_a_known_answer_gets_its_score_without_the_train_step(name, cells, checks):
    case, points = CASES[name], {}
    for one, value in vars(checks).items():
        if one.startswith("check_"):
            points[one] = value.check.points
    judged = {one for one in points if vars(checks)[one].check.cell in cells}
    report = verify._judge(ROOT, case, 0, judged)
    lost = sum(points[one] for one in judged) - sum(check.earned for check in report.checks)
    full = sum(points.values())
    assert lost == pytest.approx(full - (full if case.score is None else case.score), abs=0.2), report
    feedback = "\n".join(check.message for check in report.checks).lower()
    assert all(hint.lower() in feedback for hint in case.hints)
