"""Lab 2's open checks as a student runs them, and its solution's bytes against the lower bound."""

import types

import pytest
from executed import failures, lab_outputs, message
from repository import ROOT

import worldsize as ws
from autograder.authoring.known_answers import read_answer, solution_cells
from autograder.grading.verify import cases, try_case
from worldsize.audit.cures import CURES

pytestmark = pytest.mark.slow

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
    assert failures(solved) == {}
    checks = {name: outputs for name, outputs in solved.items() if name.startswith("check_")}
    assert len(checks) == 5
    for outputs in checks.values():
        (shown,) = [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]
        assert shown.startswith("Messages (") and "emulated" in shown


def test_open_check_tells_who_waits_for_whom_when_all_send_first():
    wrong = read_answer(LAB, "wrong/sends_before_it_receives")
    said = message("lab02", {"exchange": wrong.cells["exchange"]}, "check_exchange")
    assert said.startswith("CheckFailed")
    assert "wait for each other: rank 0 waits for rank 1 in send to rank 1" in said
    assert said.endswith("Start both with isend and irecv, and only then wait for either.")


@pytest.mark.parametrize(
    ("answer", "cell", "words"),
    [
        ("forgets_to_wait_for_the_receive", "exchange", "irecv from rank 3 (float32 [250000])"),
        ("next_chunk_complete", "ring_reduce_scatter", "The complete sum is on rank 3"),
        ("adds_to_a_new_tensor", "ring_reduce_scatter", "That is this rank's part alone"),
    ],
)
def test_open_checks_name_the_mistake(answer, cell, words):
    said = message("lab02", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, f"check_{cell}")
    assert said.startswith("CheckFailed") and words in said


@pytest.mark.parametrize(
    ("cell", "line", "wrong", "words"),
    [
        ("exchange", "ring[place - 1]", "ring[(place + 1) % len(ring)]", "the one after, receive from the one before"),
        ("ring_reduce_scatter", "mine += inbox", "chunks[place - step - 1] = mine + inbox", "The sum is in the list"),
        (
            "ring_reduce_scatter",
            "exchange(chunks[place - step]",
            "exchange(chunks[place]",
            "Parts of chunk 3 were added",
        ),
        ("ring_reduce_scatter", "range(1, len(ring))", "range(1, len(ring) - 1)", "3 steps: rank 0 has sent 2 chunks"),
        (
            "ring_all_gather",
            "exchange(chunks[place - step + 1]",
            "exchange(chunks[place]",
            "That is the chunk of rank 3",
        ),
    ],
)
def test_open_checks_say_what_was_found(cell, line, wrong, words):
    assert line in SOLUTION[cell]
    source = SOLUTION[cell].replace(line, wrong)
    if cell == "exchange":
        source = source.replace("isend(outgoing, ring[(place + 1) % len(ring)])", "isend(outgoing, ring[place - 1])")
    said = message("lab02", SOLUTION | {cell: source}, f"check_{cell}")
    assert said.startswith("CheckFailed") and words in said


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


def test_feedback_names_the_handle_that_an_audit_finds_and_the_score_is_as_before():
    (case,) = [one for one in cases(ROOT, "lab02") if one.name == "wrong/forgets_to_wait_for_the_send"]
    finding = try_case(ROOT, case, seed=5)
    assert finding.problems == []
    (said,) = [check.message for check in finding.report.checks if "An audit of this run" in check.message]
    sending, cure = said.splitlines()[-2:]
    assert sending.strip() == "dist.isend(outgoing, ring[(place + 1) % len(ring)])"
    assert cure == f"Cure: {CURES['not waited for']}."
