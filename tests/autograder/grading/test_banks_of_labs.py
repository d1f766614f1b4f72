"""Every lab has known answers enough; `make verify` grades them all."""

import re

import pytest
from repository import ROOT

from autograder.authoring.notebooks import find_sources
from autograder.grading.verify import cases


@pytest.mark.parametrize("lab", [path.parent.name for path in find_sources(ROOT).labs])
def test_bank_is_wide_enough(lab: str) -> None:
    names = [case.name for case in cases(ROOT, lab)]
    is_by_hand = lab == "report"  # but for 5 of its points
    assert sum(name.startswith("wrong/") for name in names) >= (3 if is_by_hand else 8)
    assert sum(name.startswith("right/") for name in names) >= (1 if is_by_hand else 3)


# answers that work and miss what the lab is about: nobody passes a lab by them
MISS_THE_OBJECTIVE = {
    "lab01": ("uses_ddp", "gathers_all_gradients", "full_batch_on_every_rank", "first_half_only"),
    "lab02": ("calls_the_library", "whole_tensors_and_a_flat_ring", "through_the_first_rank"),
    "lab03": ("wraps_torch_ddp", "drives_torchs_reducer", "sends_after_backward"),
    "lab04": ("collects_a_round", "gathers_by_collectives", "takes_pushes_in_turn"),
    "lab05": ("nothing_compressed", "masked_dense", "hook_of_torch", "dense_by_gather"),
}
MOST_WITHOUT = 0.72  # of the points of the checks: lab 5's dense gather has 71.9%
LEAST_WITH_A_SLIP = 0.4


@pytest.mark.parametrize("lab", MISS_THE_OBJECTIVE)
def test_points_follow_the_objective(lab: str) -> None:
    source = (ROOT / "solutions" / lab / "checks.py").read_text(encoding="utf-8")
    total = sum(map(float, re.findall(r"^@points\(([\d.]+)", source, re.MULTILINE)))
    wrong = {case.name.removeprefix("wrong/"): case.score for case in cases(ROOT, lab) if case.score is not None}
    shares = {name: score / total for name, score in wrong.items() if name != "untouched"}
    assert {name: shares[name] for name in MISS_THE_OBJECTIVE[lab] if shares[name] > MOST_WITHOUT} == {}
    slips = shares.keys() - set(MISS_THE_OBJECTIVE[lab])
    low = {name: shares[name] for name in slips if shares[name] < LEAST_WITH_A_SLIP and not name.startswith("cheat")}
    assert low == {}
