"""No draw of lab 15 decides: its solution passes each check of data, in this process and without a sandbox."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import cloudpickle
import pytest
import torch
from repository import ROOT

import worldsize as ws
from autograder.authoring.scripts import parse, without_markers
from autograder.checks import PartlyHeld
from worldsize.check import CheckFailed

LAB = ROOT / "solutions" / "lab15"
SEEDS = range(30)
GIVEN = {"setup", "given_norms", "given_records", "given_fault"}


def checks_of_lab():
    spec = importlib.util.spec_from_file_location("checks_of_lab15_in_draws", LAB / "checks.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # ranks cannot import it
    return module


CHECKS = checks_of_lab()
ON_ONE_RANK = [
    name
    for name, one in vars(CHECKS).items()
    if name.startswith("check_")
    and hasattr(one, "check")
    and one.check.cell in ("check_first_difference", "check_first_deviation")
]


class Solved:
    """The solution as a student, whose calls run here; programs are recorded on emulated ranks."""

    def __init__(self):
        cells = parse(LAB / "lab15.py").cells
        taken = [cell for cell in cells if cell.is_solution or cell.title in GIVEN]
        sources = {cell.title: without_markers(cell.source) for cell in taken}
        sources["setup"] = sources["setup"].partition("ws.run(")[0]
        sources["given_fault"] = sources["given_fault"].partition("FAULTY =")[0]
        self._codes = [compile(source, title, "exec") for title, source in sources.items()]

    def emulated(self, on_rank, *args, each=None, student_ranks=None, **options):
        if student_ranks == ():
            return ws.run(on_rank, None, *args, echo=False, cluster="dgx-h100", **options)
        student = ModuleType("student")
        for code in self._codes:
            exec(code, vars(student))
        return SimpleNamespace(values=[on_rank(student, *given) for given in each or [args]])


def failures(name, seeds):
    torch.set_num_threads(1)
    failed = {}
    for seed in seeds:
        try:
            getattr(CHECKS, name)(Solved(), torch.Generator().manual_seed(seed))
        except (CheckFailed, PartlyHeld) as error:
            failed[seed] = str(error)
    return failed


@pytest.mark.parametrize("name", ON_ONE_RANK)
def test_the_solution_passes_whatever_is_drawn(name):
    assert failures(name, SEEDS) == {}


@pytest.mark.parametrize("name", ["check_faults_are_named", "check_healthy_programs_are_cleared"])
def test_the_solution_names_every_drawn_fault(name):
    assert failures(name, range(2)) == {}


@pytest.mark.parametrize("name", ["check_sketches_add_up", "check_distances_are_estimated"])
def test_the_solutions_sketch_is_right_whatever_is_drawn(name):
    assert failures(name, range(3)) == {}
