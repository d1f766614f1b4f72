"""Lab 4's open checks as a student runs them, and its server's promises on the wire."""

from typing import Any

import pytest
import torch
from executed import errors, failures, lab_outputs, stream
from repository import ROOT

import worldsize as ws
from autograder.authoring.known_answers import read_answer, solution_cells
from autograder.authoring.scripts import parse
from worldsize import emulate

pytestmark = pytest.mark.slow

LAB = ROOT / "solutions" / "lab04"
SOLUTION = solution_cells(LAB / "lab04.py")
TITLES = [cell.title for cell in parse(LAB / "lab04.py").cells]


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """The outputs with the solution filled in."""
    return lab_outputs("lab04", tmp_path_factory.mktemp("lab04"), SOLUTION)


@pytest.fixture(scope="module")
def mistaken(tmp_path_factory):
    """The outputs with a wrong answer in each of five cells, and a right worker for the server's check."""
    wrong = {"may_start": "bound_off_by_one", "run_server": "takes_pushes_in_turn"}
    wrong |= {"run_unbounded_server": "takes_pushes_in_turn"}
    wrong |= {"lars_step": "rate_outside_the_velocity", "lamb_step": "keeps_the_corrected_moments"}
    cells = {name: read_answer(LAB, f"wrong/{file}").cells[name] for name, file in wrong.items()}
    return lab_outputs("lab04", tmp_path_factory.mktemp("lab04"), SOLUTION | cells)


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
    ],
)
def test_open_check_names_the_mistake(tmp_path, answer, check, cause):
    cells = SOLUTION | read_answer(LAB, f"wrong/{answer}").cells
    others = {title for title in TITLES if title.startswith("check_") and title != check} | {"on_real_ranks"}
    (error,) = errors(lab_outputs("lab04", tmp_path, cells, without=others)[check])
    assert error.ename == "CheckFailed" and cause in "\n".join(error.traceback)


def test_open_check_of_a_server_without_first_copies_says_so(tmp_path):
    cells = SOLUTION | read_answer(LAB, "wrong/forgets_the_first_copies").cells
    outputs = lab_outputs("lab04", tmp_path, cells, last="check_run_unbounded_server")["check_run_unbounded_server"]
    assert "a copy that the server owes it: the first one" in stream(outputs)


@pytest.mark.parametrize(
    ("check", "cause"),
    [
        ("check_may_start", "[False, False, False]"),
        ("check_run_unbounded_server", "Receive from any worker (no `src`)"),
        ("check_run_server", "Receive from any worker (no `src`)"),
        ("check_lars_step", "v = 0.9 * (1, 0)"),
        ("check_lamb_step", "what is kept is not corrected"),
    ],
)
def test_open_checks_name_the_cause_of_a_mistake(mistaken, check, cause):
    (error,) = errors(mistaken[check])
    assert cause in "\n".join(error.traceback)


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
