"""Lab 2's open checks as a student runs them, and its solution's bytes against the lower bound."""

import types

import pytest
from executed import errors, lab_outputs
from repository import ROOT

import worldsize as ws
from autograder.authoring.known_answers import read_answer, solution_cells

pytestmark = pytest.mark.lesson

LAB = ROOT / "solutions" / "lab02"
SOLUTION = solution_cells(LAB / "lab02.py")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab02", tmp_path_factory.mktemp("lab02"), SOLUTION)


def solution():
    """The solution's functions as a module."""
    module = types.ModuleType("solution")
    exec("import torch\nimport torch.distributed as dist", module.__dict__)
    for name in ("exchange", "ring_reduce_scatter", "ring_all_gather", "ring_all_reduce"):
        exec(SOLUTION[name], module.__dict__)
    return module


def test_open_checks_pass_with_the_solution_and_show_a_picture_each(solved):
    assert [name for name, outputs in solved.items() if errors(outputs)] == []
    checks = {name: outputs for name, outputs in solved.items() if name.startswith("check_")}
    assert len(checks) == 5
    for outputs in checks.values():
        (shown,) = [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]
        assert shown.startswith("Messages (") and "emulated" in shown


def test_open_check_tells_who_waits_for_whom_when_all_send_first(tmp_path):
    wrong = read_answer(LAB / "wrong" / "sends_before_it_receives.py")
    (error,) = errors(lab_outputs("lab02", tmp_path, {"exchange": wrong.cells["exchange"]})["check_exchange"])
    assert error.ename == "RunTimeout"
    assert "wait for each other: rank 0 waits for rank 1 in send to rank 1" in "\n".join(error.traceback)


@pytest.mark.parametrize(("num_ranks", "num_elements"), [(2, 10), (3, 12), (5, 100), (4, 10), (5, 3)])
def test_solution_sends_the_lower_bound_and_padding(num_ranks, num_elements):
    import torch

    all_reduce = solution().ring_all_reduce
    ring = list(range(num_ranks))
    run = ws.run(all_reduce, torch.ones(num_elements), ring, world_size=num_ranks, cluster="dgx-h100", echo=False)
    sent = [run.timeline.bytes_sent(rank) for rank in ring]
    chunk_elements = -(-num_elements // num_ranks)
    assert max(sent) <= 2 * (num_ranks - 1) * chunk_elements * 4
    assert sum(sent) == 2 * (num_ranks - 1) * num_elements * 4
