"""Lab 4's open checks as a student runs them, and its server's promises on the wire."""

from typing import Any

import pytest
import torch
from executed import failures, lab_outputs, message
from repository import ROOT

import worldsize as ws
from autograder.authoring.known_answers import read_answer, solution_cells
from worldsize import emulate

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab04"
SOLUTION = solution_cells(LAB / "lab04.py")


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab04", tmp_path_factory.mktemp("lab04"), SOLUTION)


def test_open_checks_pass_with_the_solution_and_show_a_picture_each(solved):
    assert failures(solved) == {}
    checks = {name: outputs for name, outputs in solved.items() if name.startswith("check_")}
    assert len(checks) == 6
    for outputs in checks.values():
        (shown,) = [output.data["text/plain"] for output in outputs if output.output_type == "display_data"]
        assert shown.startswith(("Messages (", "Timeline (", "Line chart ("))


@pytest.mark.parametrize(
    ("answer", "check", "cause"),
    [
        ("sends_without_waiting", "check_run_unbounded_server", "every message of the server to be waited for"),
        ("leaves_itself_out", "check_may_start", "its own count belongs among the others"),
        ("assigns_new_tensors", "check_lars_step", "makes a new tensor"),
        ("epsilon_inside_the_root", "check_lamb_step", "eps is added to the root"),
        ("without_bias_correction", "check_lamb_step", "corrects their start at 0"),
        ("bound_off_by_one", "check_may_start", "[False, False, False]"),
        ("takes_pushes_in_turn", "check_run_unbounded_server", "Receive from any worker (no `src`)"),
        ("takes_pushes_in_turn", "check_run_server", "Receive from any worker (no `src`)"),
        ("rate_outside_the_velocity", "check_lars_step", "v = 0.9 * (1, 0)"),
        ("keeps_the_corrected_moments", "check_lamb_step", "what is kept is not corrected"),
    ],
)
def test_open_check_names_the_mistake(answer, check, cause):
    said = message("lab04", SOLUTION | read_answer(LAB, f"wrong/{answer}").cells, check)
    assert said.startswith("CheckFailed") and cause in said


def test_open_check_of_a_server_without_first_copies_says_so(capsys):
    cells = SOLUTION | read_answer(LAB, "wrong/forgets_the_first_copies").cells
    message("lab04", cells, "check_run_unbounded_server")
    assert "a copy that the server owes it: the first one" in capsys.readouterr().out


def one_slow_worker(functions, bound):
    """The parameters at the server; the steps at which worker 2, four times slower, had pushed are in the timeline."""
    import torch.distributed as dist

    names: dict[str, Any] = {"torch": torch, "dist": dist}
    for source in functions:
        exec(source, names)
    if dist.get_rank() == 0:
        parameters = torch.zeros(1)
        names["run_server"](parameters, lambda weights, gradient: weights.add_(gradient), 6, bound)
        return parameters

    def gradient_of(parameters):
        emulate.spend(0.04 if dist.get_rank() == 2 else 0.01)
        return torch.ones_like(parameters)

    names["run_worker"](torch.zeros(1), gradient_of, 6)
    return None


@pytest.mark.parametrize(("bound", "done_s"), [(0, 0.21), (1, 0.17), (5, 0.06)])
def test_solution_holds_the_fast_worker_as_the_bound_asks(bound, done_s):
    functions = [SOLUTION[name] for name in ("run_worker", "may_start", "run_server")]
    run = ws.run(
        one_slow_worker,
        functions,
        bound,
        world_size=3,
        cluster="dgx-h100",
        allow={"send", "recv"},
        compute="none",
        echo=False,
    )
    assert run.values[0].tolist() == [12.0]
    last_push_s = max(event.end_s for event in run.timeline.of(1) if event.name == "send")
    assert last_push_s == pytest.approx(done_s, rel=0.01)
    assert [run.timeline.bytes_sent(rank) for rank in range(3)] == [48, 24, 24]
