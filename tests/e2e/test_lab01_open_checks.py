"""Lab 1's open checks as a student runs them, and what its hidden checks count on the wire."""

import importlib.util
import types

import pytest
import torch
from executed import failures, lab_outputs, message
from repository import ROOT

import worldsize as ws
from autograder.authoring.known_answers import read_answer, solution_cells

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab01"
SOLUTION = solution_cells(LAB / "lab01.py")


def pictures(outputs):
    return [output.data["text/plain"] for output in outputs if "image/png" in output.get("data", {})]


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab01", tmp_path_factory.mktemp("lab01"), SOLUTION, last="loss_curves")


@pytest.fixture(scope="module")
def checks():
    """The module of the hidden checks."""
    spec = importlib.util.spec_from_file_location("checks_of_lab01", LAB / "checks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_answer(path, name):
    """A function of a known answer, with the solution's around it."""
    module = types.ModuleType("answer")
    exec(
        "import torch\nimport torch.distributed as dist\nimport torch.nn.functional as F\nfrom torch import nn",
        vars(module),
    )
    for source in ({**SOLUTION, **(read_answer(LAB, path).cells if path else {})}).values():
        if source.startswith(("def", "import")):
            exec(source, vars(module))
    return getattr(module, name)


def averaging(average_gradients):
    """A function that averages one gradient of 4,000 bytes."""

    def on_rank():
        model = torch.nn.Linear(100, 10, bias=False)
        model.weight.grad = torch.ones(10, 100)
        average_gradients(model, 3)

    return on_rank


def test_open_checks_pass_with_the_solution_and_show_a_picture_each(solved):
    assert failures(solved) == {}
    shown = {name: pictures(outputs) for name, outputs in solved.items() if name.startswith("check_")}
    assert len(shown) == 5 and all(len(found) == 1 for found in shown.values())
    assert shown.pop("check_rank_batches")[0].startswith("Which rank takes which sample. seed 0, epoch 0: rank")
    for words in shown.values():
        (words,) = words
        assert words.startswith("Timeline (") and "measured here" in words and "communication" in words


def test_three_curves_are_one(solved):
    (words,) = pictures(solved["loss_curves"])
    assert float(words.split()[-1].rstrip(".")) < 1e-4


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("sum_instead_of_mean", "10 is the sum of the ranks' gradients"),
        ("divides_by_its_own_count", "divided by this rank's alone"),
        ("gathers_all_gradients", "all_gather is not allowed here"),
    ],
)
def test_open_check_names_what_is_wrong_with_an_average(answer, words):
    said = message("lab01", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, "check_average_gradients")
    assert said.startswith("RankFailed" if answer == "gathers_all_gradients" else "CheckFailed")
    assert words in said


BUFFERS_AS_FLOATS = """
def synchronise_buffers(model):
    for buffer in model.buffers():
        flat = buffer.float()
        dist.broadcast(flat, src=0)
        buffer.copy_(flat)
"""
NO_INTEGERS = "    for buffer in model.buffers():\n        if not buffer.is_floating_point():\n            continue\n"


@pytest.mark.parametrize(
    ("cell", "line", "wrong", "words"),
    [
        ("synchronise_buffers", "    for buffer in model.buffers():\n", NO_INTEGERS, "integers are synchronised, too"),
        ("synchronise_buffers", "", BUFFERS_AS_FLOATS, "loses its last digits in a float"),
        ("train", "    broadcast_model(model)\n", "", "as far apart as at the start"),
        ("train", "            synchronise_buffers(model)\n", "", "call synchronise_buffers in every step"),
    ],
)
def test_open_checks_name_the_mistake(cell, line, wrong, words):
    assert line in SOLUTION[cell]
    cells = SOLUTION | {cell: SOLUTION[cell].replace(line, wrong) if line else wrong}
    said = message("lab01", cells, f"check_{cell}")
    assert said.startswith("CheckFailed") and words in said


@pytest.mark.parametrize(
    ("answer", "factor"),
    [("", 1), ("right/flat_vector", 1), ("right/reduced_to_rank_0", 1), ("wrong/sends_float64", 2)],
)
def test_bytes_are_counted_alike_for_every_style(checks, answer, factor):
    on_rank = averaging(of_answer(answer, "average_gradients"))
    run = ws.run(on_rank, world_size=3, cluster="dgx-h100", allow=checks.ALLOWED, compute="none", echo=False)
    least = 2 * (3 - 1) * 4_000 * factor
    assert least <= checks.least_bytes(run.timeline, 3) <= least + 3 * checks.BESIDES


@pytest.mark.parametrize("answer", ["wrong/gathers_all_gradients"])
def test_what_gathers_is_refused(checks, answer):
    on_rank = averaging(of_answer(answer, "average_gradients"))
    with pytest.raises(ws.RankFailed, match="all_gather is not allowed here"):
        ws.run(on_rank, world_size=2, cluster="dgx-h100", allow=checks.ALLOWED, compute="none", echo=False)
