"""What ranks return may be anything: no value breaks a check, and none gets past it."""

import ast
import importlib.util
import inspect
import itertools
import sys
from types import SimpleNamespace
from typing import NamedTuple

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from repository import ROOT

import worldsize as ws
from autograder.authoring.notebooks import find_sources
from autograder.checks import (
    Outcome,
    StudentFailed,
    call_each,
    entries,
    entry,
    expect_like,
    is_same,
    shown,
    tensor_like,
)
from autograder.course import is_project
from worldsize.check import CheckFailed
from worldsize.event import COMMUNICATION, Event
from worldsize.launch import Run
from worldsize.memory import MemoryUse
from worldsize.timeline import Timeline

LABS = [path.parent.name for path in find_sources(ROOT).labs if not is_project(path.parent.name)]
LEAVES = [None, {}, [], "hidden", 10**400, float("nan"), True, torch.zeros(0), torch.full((3,), torch.nan)]
LEAVES += [torch.tensor(1), torch.ones(2, 3, dtype=torch.bool), torch.ones(4, dtype=torch.complex64)]
OPERATIONS = ("broadcast", "barrier", "all_gather", "all_reduce", "send", "recv")


class Odd:
    """A student whose ranks return this value, whatever they are asked, and sent something of everything."""

    def __init__(self, value):
        self.value = value

    def run(self, *_, world_size, **__):
        return [self.value] * world_size

    torchrun = run

    def restarted(self, *_):
        return Dying()

    def on_paper(self, *_, **__):
        raise CheckFailed("a program that runs on paper", "one that does not")

    def emulated(self, *asked, world_size, each=None, student_ranks=None, **others):
        if student_ranks == () and each is None:  # lab 11 records programs of its own
            return recorded(*asked, world_size=world_size, **others)
        if student_ranks == ():  # lab 5 asks its own code for DDP's buckets
            return Run([[[[*range(len(step))]] for step in each[0][0]]], [""], 1.0)
        if student_ranks == [0]:  # lab 6 asks its own code, on the other rank, for what a plain loop gives
            return Run([self.value, without_student(*asked)], ["", ""], 1.0)
        events = [
            Event(rank, "comm", COMMUNICATION, name, place, place + 1, 8, peers=((rank + 1) % world_size,))
            for rank in range(world_size)
            for place, name in enumerate(OPERATIONS)
        ]
        memory = [MemoryUse([1], {"weights": [8]})] * world_size
        return Run([self.value] * world_size, [""] * world_size, 1.0, timeline=Timeline(events), memory=memory)


class Dying:
    """A training program whose ranks die at once."""

    socket_folder = "/tmp"

    def torchrun(self, *_):
        raise StudentFailed(Outcome.CRASHED, "a rank died")


RECORDED = {}


def recorded(on_rank, *args, keeps_exchanges=False, **options):  # an odd value is wrong before bodies are looked at
    """A run of the judge's own ranks, which no student reaches; the same one for all odd values."""
    key = (on_rank.__name__, len(args[0]))
    if key not in RECORDED:
        RECORDED[key] = ws.run(on_rank, None, *args, echo=False, **options)
    return RECORDED[key]


def without_student(on_rank, *args):
    """What the judge's own rank returns, which no student reaches."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return on_rank(None, *args, None)
    finally:
        dist.destroy_process_group()


def checks_of(lab):
    """The lab's checks by name, and all strings in their source, among them every key that they look up."""
    path = ROOT / "solutions" / lab / "checks.py"
    spec = importlib.util.spec_from_file_location(f"checks_of_{lab}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # ranks cannot import it
    found = {name: one for name, one in vars(module).items() if name.startswith("check_") and hasattr(one, "check")}
    constants = (one.value for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Constant))
    return found, {one for one in constants if isinstance(one, str) and one.isidentifier()}


def odd_values(keys):
    """Each leaf by itself, in lists, under every key that a check may look up, and deeper."""
    for leaf in LEAVES:
        yield from (leaf, [leaf] * 9)
    for leaf in ("hidden", 10**400, torch.zeros(0)):
        below = dict.fromkeys(keys, leaf)
        yield from ([[leaf] * 9] * 9, below, dict.fromkeys(keys, [leaf] * 9), [below] * 9)
        yield dict.fromkeys(keys, [below] * 9)


@pytest.mark.parametrize("lab", LABS)
def test_no_odd_value_breaks_a_check(lab, request):
    every = 1 if request.config.getoption("--nightly") else 3  # by day each check gets another third of the values
    torch.set_num_threads(1)
    checks, keys = checks_of(lab)
    assert len(checks) > (2 if lab == "report" else 5)  # nearly all of the report is graded by hand
    said = set()
    pairs = itertools.product(enumerate(checks.items()), enumerate(odd_values(keys)))
    for (place, (name, check)), (number, value) in pairs:
        if (place + number) % every:
            continue
        try:
            check(Odd(value), torch.Generator().manual_seed(number))
        except (CheckFailed, StudentFailed) as error:
            said.add(str(error))
        except Exception as error:
            pytest.fail(f"{name} broke on {shown(value)}, the {number}th value: {type(error).__name__}: {error}")
    assert not [text for text in said if "hidden" in text]


def test_an_entry_is_found_or_there_is_none():
    value = {"steps": [(1, {"a": 2}), []]}
    assert entry(value, "steps", 0, 1, "a") == 2 and entry(value) is value
    for places in (("x",), ("steps", 9), ("steps", -1), ("steps", "a"), ("steps", 0, 0, 0), (0,), ("steps", True)):
        assert entry(value, *places) is None
    assert entries([1], 3) == [1, None, None] and entries("abc", 2) == [None, None]


def test_a_tensor_is_taken_where_its_shape_and_type_are_right():
    wanted = torch.zeros(2)
    assert tensor_like(torch.ones(2), wanted) is not None
    for value in (torch.ones(3), torch.ones(2, dtype=torch.float64), [0.0, 0.0], None):
        assert tensor_like(value, wanted) is None


def test_same_is_to_the_last_bit():
    value = {"a": [torch.ones(2), (1, 2.0)]}
    assert is_same(value, {"a": [torch.ones(2), (1, 2.0)]})
    others = [{"a": [torch.ones(2), (1, 3.0)]}, {"a": [torch.ones(2) + 1e-7, (1, 2.0)]}, {"b": 1}, None]
    others += [{"a": [torch.ones(2, dtype=torch.float64), (1, 2.0)]}, {"a": [torch.ones(2), [1, 2.0]]}]
    assert not any(is_same(value, other) for other in others)
    assert not is_same(torch.tensor(torch.nan), torch.tensor(torch.nan))


def test_no_text_of_a_rank_is_shown():
    assert shown([1, [2.5, None], (True,)]) == "[1, [2.5, None], [True]]"
    assert shown(["secret", {"secret": 1}, 10**5000]) == "[a str, a dict, a huge number]"
    assert shown(torch.ones(2, 3)) == "a tensor of shape (2, 3) and type torch.float32"
    assert len(shown([[123456789] * 99] * 99)) < 200
    assert "secret" not in inspect.getsource(shown)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (2 * torch.ones(2), "That is the sum."),
        (3 * torch.ones(2), "Look."),
        (2 * torch.ones(2).double(), "Look."),
        ("hidden", "Look."),
    ],
)
def test_a_known_mistake_has_a_hint_of_its_own(value, said):
    mistakes = [(2 * torch.ones(2), "That is the sum."), (2 * torch.ones(2), "Too late.")]
    expect_like(torch.ones(2), torch.ones(2), "the mean", "Look.", mistakes)
    with pytest.raises(CheckFailed) as caught:
        expect_like(value, torch.ones(2), "the mean", "Look.", mistakes)
    assert caught.value.hint == said and "hidden" not in str(caught.value)


class Plan(NamedTuple):
    dp: int


def test_a_function_is_called_with_the_students_own_classes_and_right_other_functions():
    seen = []
    own = type("Plan", (), {"__init__": lambda self, dp: seen.append(dp)})
    student = SimpleNamespace(Plan=own, right=None, cost=lambda plan, num: (type(plan) is own, [student.right(num)]))
    assert call_each(student, "cost", [(Plan(4), 2), (Plan(5), 3)], {"right": lambda num: (num,)}) == [
        [True, [[2]]],
        [True, [[3]]],
    ]
    assert seen == [4, 5]


def test_what_a_right_other_function_returns_is_of_the_students_own_classes():
    class Own(NamedTuple):
        dp: int

    def cost(num):
        plans = student.plans(num)
        return [type(plans), [type(plan) is Own for plan in plans], plans]

    student = SimpleNamespace(Plan=Own, plans=None, cost=cost)
    parts = {"plans": lambda num: [Plan(dp) for dp in range(num)]}
    assert call_each(student, "cost", [(2,)], parts) == [[list, [True, True], [[0], [1]]]]
