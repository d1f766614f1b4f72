"""No draw of lab 14's inputs decides: its solution passes every hidden check, in this process and without a sandbox."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from repository import ROOT

from autograder.authoring.scripts import parse, without_markers
from autograder.checks import PartlyHeld
from worldsize.check import CheckFailed

LAB = ROOT / "solutions" / "lab14"
SEEDS = range(50)
GIVEN = {"setup", "given_machine"}


def checks_of_lab():
    spec = importlib.util.spec_from_file_location("checks_of_lab14_in_draws", LAB / "checks.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHECKS = checks_of_lab()
NAMES = [name for name, one in vars(CHECKS).items() if name.startswith("check_") and hasattr(one, "check")]


class Solved:
    """The solution as a student, whose calls run here; the judge's own measurement is made up."""

    def __init__(self):
        taken = [cell for cell in parse(LAB / "lab14.py").cells if cell.is_solution or cell.title in GIVEN]
        self._codes = [compile(without_markers(cell.source), cell.title, "exec") for cell in taken]

    def emulated(self, on_rank, *args, **_):
        if on_rank.__name__ == "measure":
            return SimpleNamespace(values=[measured(num_programs=len(args[0]))])
        student = ModuleType("student")
        for code in self._codes:
            exec(code, vars(student))
        return SimpleNamespace(values=[on_rank(student, *args)])


def measured(num_programs):
    rng = torch.Generator().manual_seed(0)
    found, _, _ = CHECKS.drawn_measured(rng)
    programs = [*found["phases"], *found["phases"]][:num_programs]
    assert len(programs) == num_programs
    return {"products": found["products"], "passes": found["passes"], "programs": programs}


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_passes_whatever_is_drawn(name):
    torch.set_num_threads(1)
    solved, failed = Solved(), {}
    for seed in SEEDS:
        try:
            getattr(CHECKS, name)(solved, torch.Generator().manual_seed(seed))
        except (CheckFailed, PartlyHeld) as error:
            failed[seed] = str(error)
    assert failed == {}
