"""Lab 6's open checks as a student runs them, and its solution beside torch's own scaler and checkpoint."""

import re
import types

import pytest
import torch
from executed import failures, lab_outputs, message, stream
from repository import ROOT
from torch import nn
from torch.utils.checkpoint import checkpoint

from autograder.authoring.known_answers import read_answer, solution_cells

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab06"
SOLUTION = solution_cells(LAB / "lab06.py")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab06", tmp_path_factory.mktemp("lab06"), SOLUTION)


def test_open_checks_pass_with_the_solution_and_draw_what_they_measured(solved):
    assert failures(solved) == {}
    checks = {name: outputs for name, outputs in solved.items() if name.startswith("check_")}
    assert len(checks) == 6
    drawn = {name for name, of in checks.items() if any(one.output_type == "display_data" for one in of)}
    assert drawn == {"check_update", "check_scaled_step", "check_checkpointed", "check_choose_checkpoints"}
    assert "MiB instead of" in stream(checks["check_checkpointed"])


def test_training_in_float16_finds_its_scale(solved):
    said = re.findall(
        r"rank \d: loss ([\d.]+), scale ([\d,]+), (\d+) steps skipped", stream(solved["trained_in_float16"])
    )
    assert len(said) == 2
    for loss, scale, num_skipped in said:
        assert float(loss) < 0.5 and int(scale.replace(",", "")) < 2**24 and int(num_skipped) > 0


def of_checks(*names):
    """The answer with the cells of these wrong ones, as what each open check that is asked for says of it."""
    cells = dict(SOLUTION)
    for name in names:
        cells |= read_answer(LAB, f"wrong/{name}").cells
    return lambda check: message("lab06", cells, check)


def test_open_checks_name_five_mistakes_by_what_was_done():
    names = ("mean_of_the_means", "divides_in_half_precision", "row_survives_an_overflow", "each_rank_decides")
    said = of_checks(*names, "keeps_everything")
    assert "the mean of the two means" in said("check_accumulate")
    assert "Divided in float16 they are 0" in said("check_unscale")
    assert "An overflow ends the row of good steps" in said("check_update")
    assert "Each rank decided for itself" in said("check_scaled_step")
    assert "Nothing is recomputed: all activations were kept" in said("check_checkpointed")


def test_open_checks_name_six_more():
    names = ("one_backward_for_all", "looks_for_infinity_only", "doubles_one_step_late", "skips_with_zeros")
    said = of_checks(*names, "draws_new_masks", "forgets_the_recomputed_layer")
    assert "Call backward for each micro-batch" in said("check_accumulate")
    assert "nan in gradient" in said("check_unscale")
    assert "when the third good step is counted" in said("check_update")
    assert "momentum changed in a skipped step" in said("check_scaled_step")
    assert "the same masks" in said("check_checkpointed")
    assert "124" in said("check_choose_checkpoints")


def test_open_checks_name_what_recomputing_forgets():
    names = ("counts_its_own_tokens", "loss_and_gradients_unscaled", "forgets_the_autocast", "largest_first")
    said = of_checks(*names)
    assert "all-reduce their number first" in said("check_accumulate")
    assert "is the loss scaled before backward" in said("check_scaled_step")
    assert "autocast of the first" in said("check_checkpointed")
    assert "layer 1 instead costs 2" in said("check_choose_checkpoints")


def defined(*names):
    """What these cells of the solution define, in a world of one rank."""
    alone = types.SimpleNamespace(all_reduce=lambda tensor: None)
    scope = {"torch": torch, "nn": nn, "dist": alone}
    for name in names:
        exec("from __future__ import annotations\n" + SOLUTION[name], scope)
    return scope


@pytest.mark.parametrize("growth_interval", [1, 3])
def test_scales_are_those_of_torch_step_by_step(growth_interval):
    update = defined("update")["update"]
    overflows = [step in (2, 3, 11, 30) for step in range(40)]
    state = types.SimpleNamespace(scale=2.0**10, growth_interval=growth_interval, min_scale=0.0, max_scale=2.0**99)
    state.num_good_steps = state.num_skipped = 0
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=growth_interval)
    for overflow in overflows:
        optimizer.zero_grad()
        scaler.scale(parameter.sum() * (float("inf") if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        update(state, not overflow)
        assert state.scale == scaler.get_scale()
    assert state.num_skipped == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_have_the_bits_of_those_of_torchs_checkpoint(dtype):
    checkpointed = defined("checkpointed")["checkpointed"]

    def of_torch(segments, tensor):
        for segment in segments:
            tensor = checkpoint(segment, tensor, use_reentrant=False)
        return tensor

    found = []
    for function in (checkpointed, of_torch):
        torch.manual_seed(3)
        segments = [nn.Sequential(nn.Linear(8, 8, dtype=dtype), nn.Dropout(0.4), nn.Tanh()) for _ in range(4)]
        tensor = torch.randn(5, 8, dtype=dtype, requires_grad=True)
        function(segments, tensor).square().sum().backward()
        found.append([tensor.grad, *(one.grad for one in nn.ModuleList(segments).parameters()), torch.rand(3)])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
