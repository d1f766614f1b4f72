"""Hidden checks of lab 15: sketches, records of drawn programs, and two repairs.

Programs run on emulated ranks without the student's code, and the judge makes the records with a
sketch of its own: what names a fault are the numbers in them. The repairs are judged by gradients
that the judge computes on one rank, and by the bodies that the conductor saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from autograder.checks import (
    PartlyHeld,
    as_students,
    between,
    call_each,
    entries,
    entry,
    hinted,
    points,
    posts_of,
    shown,
    shuffled,
    take_from_solution,
    tensor_like,
    whole,
)
from worldsize.check import CheckFailed
from worldsize.launch import Run

SOLUTION = Path(__file__).with_name("lab15.py")
Step, Record, Program, records_of, programs_on_rank, due_of = take_from_solution(
    SOLUTION, "Step", "Record", "Program", "records_of", "programs_on_rank", "due_of"
)
pair_loss, right_relative = take_from_solution(SOLUTION, "pair_loss", "relative")
BY_HAND = "the course's own audit is not allowed here: this is what you write"
FORBIDDEN = {"worldsize.audit": BY_HAND, "worldsize.comparing": BY_HAND}
ALIKE = "All ranks must make the same calls in the same order."
NUM = 16


# linear_sketch


def sketches_on_rank(student: Any, seed: int, *tensors: Any) -> list[Any]:
    torch.set_num_threads(1)
    torch.manual_seed(seed)  # processes are forked from one, and would draw the same
    return [student.linear_sketch(one) for one in tensors]


def numbers(value: Any) -> list[float]:
    """The 16 numbers of a sketch."""
    is_sketch = isinstance(value, list | tuple) and len(value) == NUM
    if not is_sketch or not all(type(one) is float and abs(one) < 1e300 for one in value):
        raise CheckFailed("a list of 16 finite numbers of Python's float", shown(value))
    return list(value)


def size_of(sketch: Sequence[float]) -> float:
    return math.sqrt(sum(one * one for one in sketch) / len(sketch))


def apart(one: Sequence[float], other: Sequence[float]) -> float:
    return size_of([mine - theirs for mine, theirs in zip(one, other, strict=True)])


def sketched(student: Any, tensors: Sequence[torch.Tensor]) -> list[list[float]]:
    """The sketches of up to eight tensors, of each in a process that sees no other."""
    each = [[place, one] for place, one in enumerate(tensors)]
    run = student.emulated(sketches_on_rank, each=each, world_size=len(tensors), forbid=FORBIDDEN)
    return [numbers(entry(value, 0)) for value in run.values]


def sketched_in_turn(student: Any, tensors: Sequence[torch.Tensor]) -> list[list[float]]:
    """The sketches of any number of tensors, all in one process."""
    run = student.emulated(sketches_on_rank, 0, *tensors, world_size=1, forbid=FORBIDDEN)
    return [numbers(one) for one in entries(run.values[0], len(tensors))]


def drawn(rng: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def expect_estimate(given: float, wanted: float, what: str, hint: str) -> None:
    """Raise CheckFailed unless a norm is right to within a factor of 3."""
    if not wanted / 3 <= given <= 3 * wanted:
        raise CheckFailed(
            f"{wanted:.3g} within a factor of 3, the norm of {what}", shown(given), hint
        )


@points(1.5, cell="check_linear_sketch")
def check_sketches_add_up(student, rng):
    """The sketches of two tensors, of shards in the whole, and of local gradients add up."""
    shape = (whole(rng, 200, 300), whole(rng, 60, 90))
    size = 10 ** between(rng, -3, 3)
    one, other = size * drawn(rng, *shape), size * drawn(rng, *shape)
    first, last = torch.zeros_like(one), torch.zeros_like(one)
    row = whole(rng, 50, 150)
    first[:row], last[row:] = one[:row], one[row:]
    given = sketched(student, [one, other, one + other, first, last, (one + other) / 2])
    cases = (
        (given[0], given[1], given[2], 1.0, "the sum of two tensors"),
        (given[3], given[4], given[0], 1.0, "two shards in the whole"),
        (given[0], given[1], given[5], 2.0, "the mean of two gradients"),
    )
    true = (one + other).norm().item()
    expect_estimate(size_of(given[2]), true, "a sum of two", "Products with signs, not rescaled.")
    for mine, theirs, both, times, what in cases:
        total = [(a + b) / times for a, b in zip(mine, theirs, strict=True)]
        if not apart(total, both) <= 1e-9 * true:
            hint = "Only products with fixed numbers add up; work in float64."
            raise CheckFailed(f"sketches that add up to that of {what}", "others", hint)


@points(1.5, cell="check_linear_sketch")
def check_distances_are_estimated(student, rng):
    """The norm of a difference: a random one, 1e-6 in one element of a million, elements exchanged,
    moved, or changed in pairs.
    """
    num = 1_000_000
    one = drawn(rng, num)
    there = whole(rng, 1000, 400_000)
    place = there + (1 << 19)  # at the same place of a block, whatever its size
    near = one.clone()
    near[place] += 1e-6
    exchanged = one.clone()
    exchanged[[place, there]] = one[[there, place]]
    near_end = one.clone()
    near_end[-1 - whole(rng, 0, 9000)] += 1e-6
    paired, paired_apart = one.clone(), one.clone()
    paired[place] += 0.5
    paired[there] -= 0.5
    paired_apart[there + 500_000] += 0.5  # the same for blocks of so many thousand elements
    paired_apart[there] -= 0.5
    size = 10 ** between(rng, -4, 0)
    others = {
        "1e-6 in one element of a million": near,
        "two elements exchanged": exchanged,
        "1e-6 in one of the last elements of a million": near_end,
        "half added to one element and taken from another": paired,
        "half added to one element and taken from one 500,000 before it": paired_apart,
        "all elements moved by one": one.roll(1),
        "a random change": one + size * drawn(rng, num),
    }
    first, *rest = sketched(student, [one, *others.values()])
    for (what, other), given in zip(others.items(), rest, strict=True):
        hint = "Every element needs signs of its own, and sums in float64."
        expect_estimate(apart(first, given), (other - one).norm().item(), what, hint)


def seeded_on_rank(student: Any, tensor: torch.Tensor, seed: int) -> list[Any]:
    """A sketch, the tensor as it is afterwards, and what torch then draws."""
    torch.manual_seed(seed)
    found = student.linear_sketch(tensor)
    return [found, tensor, torch.rand(4)]


@points(1, cell="check_linear_sketch")
def check_sketch_is_the_same_on_all_ranks(student, rng):
    """The same on ranks with other random states, which stay as they were, as does the tensor."""
    tensor, seed = drawn(rng, 33, 41), whole(rng, 0, 10**6)
    each = [[tensor.clone(), seed + rank] for rank in range(3)]
    run = student.emulated(seeded_on_rank, each=each, world_size=3, forbid=FORBIDDEN)
    all_given = [numbers(entry(value, 0)) for value in run.values]
    if any(one != all_given[0] for one in all_given):
        hint = "A generator of your own with a fixed seed; Python's hash differs by process."
        raise CheckFailed("equal sketches of equal tensors on all ranks", "different ones", hint)
    expect_estimate(
        size_of(all_given[0]), tensor.norm().item(), "a tensor", "16 signs, each 1 or -1."
    )
    for rank, value in enumerate(run.values):
        due = torch.rand(4, generator=torch.Generator().manual_seed(seed + rank))
        after, drew = tensor_like(entry(value, 1), tensor), tensor_like(entry(value, 2), due)
        if drew is None or not torch.equal(drew, due):
            hint = "A sketch that seeds torch's own generator changes the training."
            raise CheckFailed("torch's random state as it was", "a different one", hint)
        if after is None or not torch.equal(after, tensor):
            raise CheckFailed("the tensor as it was", "a different one")


@points(1, cell="check_linear_sketch")
def check_sketch_of_any_tensor(student, rng):
    """Other strides, dtypes, a gradient, a single number, and no element."""
    wide = drawn(rng, 24, 31)
    half = drawn(rng, 500).bfloat16()
    number = drawn(rng, 1)
    single = drawn(rng, 300).float()
    asked = [
        wide,
        wide.T.contiguous().T,
        wide.clone().requires_grad_(),
        half,
        half.double(),
        single.clone().requires_grad_(),
        torch.empty(0, 3),
        number.reshape(()),
        number,
        single.double(),
    ]
    many = [drawn(rng, 40) for _ in range(24)]
    given = sketched_in_turn(student, [*asked, *many])
    pairs = (
        (0, 1, wide, "other strides"),
        (0, 2, wide, "a tensor that requires a gradient"),
        (3, 4, half, "bfloat16"),
        (7, 8, number, "a tensor without dimensions"),
        (5, 9, single, "float32"),
    )
    for one, other, tensor, what in pairs:
        size = tensor.double().norm().item()
        hint = "Sketch the elements in row-major order, converted to float64."
        expect_estimate(size_of(given[one]), size, what, hint)
        if not apart(given[one], given[other]) <= 1e-9 * size:
            raise CheckFailed(f"equal sketches for {what}", "different ones", hint)
    if any(given[6]):
        raise CheckFailed("16 zeros for a tensor without elements", shown(given[6]))
    rank = int(torch.linalg.matrix_rank(torch.tensor(given[len(asked) :])))
    if rank < NUM:
        hint = "The 16 numbers come from 16 different rows of signs."
        raise CheckFailed("16 numbers, none of which follows from the others", f"{rank}", hint)


# first_difference


LAYERS = ("stem", "mix", "wide", "thin", "gate", "tail", "skip", "fuse", "lift", "core")


class Change(NamedTuple):
    """What becomes of a parameter on a rank from a moment on."""

    rank: int
    moment: int
    name: str
    relative: float


def made_records(
    rng: torch.Generator,
    changes: Sequence[Change] = (),
    shards: Sequence[tuple[str, Sequence[int]]] = (),
    rounding: float = 1e-6,
    num_ranks: int = 4,
    num_steps: int = 4,
    *,
    names: Sequence[str],
) -> list[Any]:
    """Records of replicas that differ by rounding, of sizes far apart, and these changes."""
    of_shards = dict(shards)
    base: dict[tuple[str, int], list[list[float]]] = {}
    for place, name in enumerate(names):
        size = 10.0 ** (4 - 2 * place)
        for shard in sorted(set(of_shards.get(name, [0]))):
            sketch = drawn(rng, NUM)
            moments = []
            for _ in range(num_steps + 1):
                sketch = sketch + 0.01 * drawn(rng, NUM)
                moments.append((size * sketch).tolist())
            base[name, shard] = moments
    records = []
    for rank in range(num_ranks):
        moments = []
        for moment in range(num_steps + 1):
            weights = {}
            for name in names:
                shard = of_shards.get(name, [0] * num_ranks)[rank]
                sketch = base[name, shard][moment]
                off = rounding * between(rng, 0.1, 1) * (moment > 0)
                for change in changes:
                    if (change.rank, change.name) == (rank, name) and moment >= change.moment:
                        off = change.relative
                noise = drawn(rng, NUM)
                scale = off * size_of(sketch) / size_of(noise.tolist())
                weights[name] = [a + scale * b for a, b in zip(sketch, noise.tolist(), strict=True)]
            moments.append(weights)
        settings = {"lr": 0.1, "weight_decay": 0.0}
        steps = [
            Step([0.0] * NUM, moments[place], {}, {}, moments[place + 1], settings, [])
            for place in range(num_steps)
        ]
        own = {name: places[rank] for name, places in of_shards.items()}
        records.append(Record(rank, own, steps))
    return records


def drawn_names(rng: torch.Generator, num: int) -> list[str]:
    """Names of which some are in the order of the alphabet and some are not."""
    while True:
        names = [f"{one}.weight" for one in shuffled(rng, LAYERS)[:num]]
        if names != sorted(names) and names != sorted(names, reverse=True):
            return names


def returned(student: Any, name: str, calls: Sequence[Any]) -> list[Any]:
    run = student.emulated(call_each, name, list(calls), world_size=1, forbid=FORBIDDEN)
    return entries(run.values[0], len(calls))


def is_place(given: Any, wanted: tuple[int, str] | None) -> bool:
    """Whether a step and a name are those wanted; both None where there are none."""
    if wanted is None:
        return given is None
    step, name = entries(given, 2)
    return type(step) is int and step == wanted[0] and isinstance(name, str) and name == wanted[1]


def worded(given: Any, names: Sequence[str]) -> str:
    """A step and a name, in words that hold nothing but known names."""
    step, name = entries(given, 2)
    is_known = isinstance(name, str) and name in names
    return f"step {shown(step)}, {name}" if is_known else shown(given)


def expect_places(
    student: Any, rng: torch.Generator, name: str, cases: Sequence[tuple[Any, Any, Any, str]]
) -> None:
    """Raise CheckFailed unless a function finds the wanted step and name of each case."""
    order = shuffled(rng, range(len(cases)))  # who counts the calls learns nothing
    answers = returned(student, name, [cases[place][0] for place in order])
    given = dict(zip(order, answers, strict=True))
    for place, (_, names, wanted, hint) in enumerate(cases):
        one = given[place]
        if not is_place(one, wanted):
            expected = "None" if wanted is None else f"step {wanted[0]}, {wanted[1]}"
            raise CheckFailed(expected, worded(one, names), hint)


def difference_case(
    rng: torch.Generator, names: Sequence[str], changes: Any, wanted: Any, hint: str, **options: Any
) -> Any:
    records = made_records(rng, changes, names=names, **options)
    return (records,), names, wanted, hint


@points(1.5, cell="check_first_difference")
def check_first_difference_is_found(student, rng):
    """The first step and parameter, on whichever ranks they differ, also after the last step."""
    names = drawn_names(rng, 5)
    first, last = sorted(shuffled(rng, range(5))[:2])
    early, late = names[first], names[last]
    size, rank = between(rng, 1e-3, 0.1), whole(rng, 1, 3)
    step, of_tie, of_first = (whole(rng, 1, 3) for _ in range(3))
    hint = "Compare all replicas before each step, and after the last one."
    two = "Of two parameters in one step it is the first in the order of the records."
    pairs = list(combinations(names, 2))
    ties = [next(one for one in pairs if (one[0] < one[1]) is is_up) for is_up in (True, False)]
    changes = [
        ([Change(rank, step, late, size), Change(rank, step + 1, early, 0.5)], (step, late), hint),
        ([Change(rank, 0, early, size)], (0, early), hint),
        ([Change(rank, 4, late, size)], (4, late), hint),
        ([Change(0, of_first, late, size)], (of_first, late), hint),
        *(
            ([Change(1, of_tie, then, size), Change(2, of_tie, now, size)], (of_tie, now), two)
            for now, then in ties
        ),
        ((), None, "Nothing differs here by more than rounding."),
    ]
    expect_places(
        student, rng, "first_difference", [difference_case(rng, names, *one) for one in changes]
    )


@points(0.5, cell="check_first_difference")
def check_rounding_is_no_difference(student, rng):
    """Rounding is relative: of large weights it is more than a fault of small ones changes."""
    names = drawn_names(rng, 5)
    hint = "Divide by the norm of the parameter: `relative`."
    options = {"num_ranks": 3, "rounding": 4e-6}
    step, size = whole(rng, 1, 3), between(rng, 3e-5, 3e-4)
    small = Change(whole(rng, 0, 2), step, names[-1], size)
    sooner = Change(whole(rng, 0, 2), whole(rng, 1, 2), names[-2], size)
    cases = [
        difference_case(rng, names, (), None, hint, **options),
        difference_case(rng, names, [small], (step, names[-1]), hint, **options),
        difference_case(rng, names, [sooner], (sooner.moment, names[-2]), hint, **options),
        difference_case(rng, names, (), None, hint, **options),
    ]
    expect_places(student, rng, "first_difference", cases)


@points(1, cell="check_first_difference")
def check_shards_are_compared_with_replicas(student, rng):
    """Different shards may differ; ranks that hold the same shard are replicas of each other."""
    names = drawn_names(rng, 5)
    shards = [(names[0], [0, 1, 0, 1]), (names[3], [0, 0, 1, 1])]
    everything = [(name, [0, 1, 2, 3]) for name in names]
    size, step = between(rng, 1e-3, 0.1), whole(rng, 1, 3)
    hint = "Group the ranks of each parameter by its shard."
    first, third, fourth = names[0], names[2], names[3]
    rank, odd, late = whole(rng, 0, 3), (1, 3)[whole(rng, 0, 1)], whole(rng, 2, 3)
    changes = [
        ((), None, shards),
        ([Change(late, step, fourth, size)], (step, fourth), shards),
        ([Change(odd, step, first, size)], (step, first), shards),
        ([Change(rank, step, third, size)], (step, third), shards),
        ([Change(rank, step, names[1], size)], None, everything),
    ]
    cases = [
        difference_case(rng, names, what, wanted, hint, shards=held)
        for what, wanted, held in changes
    ]
    expect_places(student, rng, "first_difference", cases)


# name_fault


class Sketcher:
    """The judge's own sketch of small tensors: drawn signs, made once for each size."""

    def __init__(self, seed: int) -> None:
        self._seed, self._signs = seed, dict[int, torch.Tensor]()

    def __call__(self, tensor: torch.Tensor) -> list[float]:
        flat = tensor.detach().reshape(-1).double()
        num = flat.numel()
        if num not in self._signs:
            generator = torch.Generator().manual_seed(self._seed + num)
            signs = torch.randint(2, (NUM, num), generator=generator).double()
            self._signs[num] = 2 * signs - 1
        return (self._signs[num] @ flat).tolist()


class Case(NamedTuple):
    """A program's records, and what is wrong with it."""

    due: Any
    records: list[Any]


KINDS = (
    "same_batch",
    "start_differs",
    "setting_differs",
    "mispaired",
    "not_reduced",
    "no_sync",
    "not_averaged",
    "reduced_twice",
    "other_tensors",
    "skipped_step",
)
CASES: WeakKeyDictionary[Any, list[Case]] = WeakKeyDictionary()
NAMED: WeakKeyDictionary[Any, list[list[Any]]] = WeakKeyDictionary()


def drawn_program(rng: torch.Generator, **changes: Any) -> Any:
    """A program of drawn layers, sizes and rates; its fault is in a layer that is trained."""
    layers = shuffled(rng, LAYERS)[: whole(rng, 4, 5)]
    rates = [between(rng, 0.05, 0.15) for _ in range(3)]
    if whole(rng, 0, 1):
        rates = rates[:1] * 3
    return Program(
        layers=tuple(layers),
        width=whole(rng, 5, 9),
        seed=whole(rng, 0, 10**6),
        world_size=whole(rng, 3, 4),
        num_steps=3,
        num_passes=whole(rng, 1, 2),
        num_rows=whole(rng, 4, 6),
        weight_decay=shuffled(rng, [0.0, 0.01])[0],
        rates=tuple(rates),
        frozen=shuffled(rng, [layers[-1], None])[0],
        parameter=f"{layers[whole(rng, 0, 1) * 2]}.{shuffled(rng, ['weight', 'bias'])[0]}",
    )._replace(**changes)


def drawn_programs(rng: torch.Generator) -> list[Any]:
    """Each fault once, and healthy programs, in a drawn order."""
    programs = []
    for kind in KINDS:
        one = drawn_program(rng, fault=kind)
        rank = whole(rng, 0, one.world_size - 1)
        step = 0 if kind in ("same_batch", "start_differs", "other_tensors") else whole(rng, 0, 2)
        one = one._replace(rank=rank, step=step)
        if whole(rng, 0, 1):
            one = one._replace(unused=one.layers[1])
        programs.append(one)
    first = drawn_program(rng)
    programs += [
        drawn_program(rng, frozen=first.layers[2])._replace(
            layers=first.layers, frozen=first.layers[2]
        ),
        unused_of(drawn_program(rng, weight_decay=0.0)),
        drawn_program(rng, num_passes=2, num_rows=6, max_norm=between(rng, 0.05, 0.2)),
        drawn_program(rng, equal_step=whole(rng, 0, 2)),
        drawn_program(rng, rates=tuple(shuffled(rng, [0.0, 0.1, 0.2])), weight_decay=0.0),
        drawn_program(rng, adds_own_first=True),
        drawn_program(rng, in_pieces=True),
        drawn_program(rng, max_norm=between(rng, 0.01, 0.02), num_passes=1),
    ]
    return shuffled(rng, programs)


def unused_of(program: Any) -> Any:
    return program._replace(unused=program.layers[1], frozen=None)


def recorded_on_rank(_: Any, programs: Sequence[Any], seed: int) -> list[Any]:
    return programs_on_rank(programs, Sketcher(seed))


def drawn_cases(student: Any, rng: torch.Generator) -> list[Case]:
    """The cases of a submission, recorded once, on ranks without the student's code."""
    if student not in CASES:
        programs = drawn_programs(rng)
        run = student.emulated(
            recorded_on_rank, programs, whole(rng, 0, 10**6), world_size=4, student_ranks=()
        )
        CASES[student] = [
            Case(due_of(program), records_of(run.values, place))
            for place, program in enumerate(programs)
        ]
    return CASES[student]


def faults_on_rank(student: Any, of_programs: Sequence[Any]) -> list[Any]:
    """What the student says of each; an error counts for its program alone, unless all have one."""
    found: list[Any] = []
    for place, records in enumerate(of_programs):
        try:
            given = student.name_fault(as_students(student, records))
            found.append(list(given) if isinstance(given, list | tuple) else None)
        except Exception:
            if place == len(of_programs) - 1 and not any(found):
                raise
            found.append(None)
    return found


def named_faults(student: Any, cases: Sequence[Case]) -> list[list[Any]]:
    """What the student says of each, asked once: both checks judge the same answers."""
    if student not in NAMED:
        job = (faults_on_rank, [one.records for one in cases])
        run = student.emulated(*job, world_size=1, forbid=FORBIDDEN)
        NAMED[student] = [
            entries(one, 3) if one is not None else ["", None, None]
            for one in entries(run.values[0], len(cases))
        ]
    return NAMED[student]


def is_value(given: Any, wanted: Any) -> bool:
    return type(given) is type(wanted) and given == wanted


def share_of(case: Case, given: Sequence[Any]) -> float:
    """1 for the kind and what is said of it, half for the kind alone, or 0."""
    if not is_value(given[0], case.due.kind):
        return 0.0
    is_all = is_value(given[1], case.due.rank) and is_value(given[2], case.due.parameter)
    return 1.0 if is_all else 0.5


def said_of(given: Sequence[Any], case: Case) -> str:
    """What was said, of which only known words are shown."""
    names = list(case.records[0].steps[0].before)
    kind = (
        given[0]
        if given[0] is None or (isinstance(given[0], str) and given[0] in KINDS)
        else "another word"
    )
    rank = shown(given[1])
    name = given[2] if isinstance(given[2], str) and given[2] in names else shown(given[2])
    return f"{kind}, rank {rank}, parameter {name}"


CAUSES = {
    "same_batch": "Two ranks whose batches are equal in every step.",
    "start_differs": "Replicas that differ before the first step.",
    "setting_differs": "The odd rank's settings differ from those of all others.",
    "mispaired": "The odd rank's calls are in a different order from those of all others.",
    "not_reduced": "One parameter's final gradient differs between ranks.",
    "no_sync": "The final gradients of all parameters differ between ranks.",
    "not_averaged": "All final gradients are the number of ranks times the mean of the local ones.",
    "reduced_twice": "One final gradient is a multiple of the mean of the local ones.",
    "other_tensors": "A parameter's weights never change, although it has a gradient and a rate.",
    "skipped_step": "All weights of one rank stay as they are in one step.",
}
FREE = 3  # of the faults: who names one kind for all


@points(7, cell="check_name_fault")
def check_faults_are_named(student, rng):
    """The faults of ten programs, among healthy ones: in proportion above three of them."""
    cases = drawn_cases(student, rng)
    given = named_faults(student, cases)
    pairs = [(case, one) for case, one in zip(cases, given, strict=True) if case.due.kind]
    shares = [share_of(*pair) for pair in pairs]
    if sum(shares) == len(pairs):
        return
    worst = min(shares)
    case, one = next(pair for pair, share in zip(pairs, shares, strict=True) if share == worst)
    expected = said_of(list(case.due), case)
    actual = f"{said_of(one, case)}; {sum(shares):g} of {len(pairs)} faults are named"
    share = int(100 * (sum(shares) - FREE) / (len(pairs) - FREE)) / 100
    if share > 0:
        raise PartlyHeld(share, expected, actual, CAUSES[case.due.kind])
    raise CheckFailed(expected, actual, CAUSES[case.due.kind])


@points(2, cell="check_name_fault")
def check_healthy_programs_are_cleared(student, rng):
    """No fault is named for programs that only look like it, where at least half of the faults are
    named: in proportion.
    """
    cases = drawn_cases(student, rng)
    pairs = list(zip(cases, named_faults(student, cases), strict=True))
    faults = [pair for pair in pairs if pair[0].due.kind]
    named = sum(share_of(*pair) for pair in faults)
    if named < len(faults) / 2:
        actual = f"{named:g} of {len(faults)} faults are named"
        raise CheckFailed(
            "at least half of the faults named", actual, "Who accuses nobody clears all."
        )
    healthy = [pair for pair in pairs if not pair[0].due.kind]
    wrong = [pair for pair in healthy if share_of(*pair) < 1]
    if wrong:
        case, one = wrong[0]
        hint = "Which of the healthy programs of the text looks like this?"
        actual = f"{said_of(one, case)}; {len(wrong)} of {len(healthy)} are accused"
        share = int(100 * (1 - len(wrong) / len(healthy))) / 100
        if share > 0:
            raise PartlyHeld(share, "None for a healthy program", actual, hint)
        raise CheckFailed("None for a healthy program", actual, hint)


# first_deviation


def made_run(rng: torch.Generator, base: Any, offs: Any) -> list[dict[str, list[float]]]:
    """The run with each tensor of each step off by a relative amount."""
    found = []
    for place, step in enumerate(base):
        its = {}
        for name, sketch in step.items():
            noise = drawn(rng, NUM).tolist()
            scale = offs(place, name) * size_of(sketch) / size_of(noise)
            its[name] = [a + scale * b for a, b in zip(sketch, noise, strict=True)]
        found.append(its)
    return found


class Runs(NamedTuple):
    """A trusted run, and how far its perturbed run is off in each step."""

    base: list[dict[str, list[float]]]
    perturbed: list[dict[str, list[float]]]
    noise: list[float]
    names: list[str]


def made_runs(rng: torch.Generator, num_steps: int = 5) -> Runs:
    """Rounding of very different sizes, in the third tensor; the others have hardly any."""
    names = drawn_names(rng, 4)
    base = [
        {name: (10.0 ** (1 - place) * drawn(rng, NUM)).tolist() for place, name in enumerate(names)}
        for _ in range(num_steps)
    ]
    sizes = [10 ** (one - 6.0) * between(rng, 1, 1.5) for one in (0, 1, 3, 2, 4)[:num_steps]]

    def offs(step: int, name: str) -> float:
        return sizes[step] * (1.0 if name == names[2] else 1e-4)

    perturbed = made_run(rng, base, offs)
    noise = [
        max(right_relative(base[step][name], perturbed[step][name]) for name in names)
        for step in range(num_steps)
    ]
    return Runs(base, perturbed, noise, names)


def off_at(rng: torch.Generator, runs: Runs, places: Any) -> list[dict[str, list[float]]]:
    """The trusted run with these (step, name) off by a multiple of the step's noise."""
    return made_run(
        rng, runs.base, lambda step, name: places.get((step, name), 0.01) * runs.noise[step]
    )


@points(1.5, cell="check_first_deviation")
def check_first_deviation_is_found(student, rng):
    """The first step and tensor that are further off than ten times the step's rounding."""
    runs = made_runs(rng)
    high, low = between(rng, 14, 30), between(rng, 3, 7)
    first, second, third, last = runs.names
    hint = "Ten times the largest difference of any tensor of the same step."
    wanted = [
        ({(2, last): high}, (2, last)),
        ({(2, last): low, (3, second): high}, (3, second)),
        ({(4, third): high, (4, first): high}, (4, first)),
        ({(1, first): low, (2, first): low, (3, last): low, (4, second): low}, None),
        ({(1, second): high, (2, first): 20 * high}, (1, second)),
    ]
    cases = [
        ((runs.base, off_at(rng, runs, places), runs.perturbed), runs.names, due, hint)
        for places, due in wanted
    ]
    expect_places(student, rng, "first_deviation", cases)


@points(0.5, cell="check_first_deviation")
def check_least_tolerance_and_margin(student, rng):
    """4e-6 is rounding even where the perturbed run is equal; `margin` counts."""
    runs = made_runs(rng)
    names, name, step = runs.names, runs.names[1], whole(rng, 1, 3)
    exact = runs._replace(noise=[1.0] * 5)
    near, far = between(rng, 1e-6, 3e-6), between(rng, 8e-6, 2e-5)
    floor = "At least 4e-6, whatever the perturbed run shows."
    places = {(place, one): near for place in range(5) for one in names}
    small = off_at(rng, exact, places)
    large = off_at(rng, exact, places | {(step, name): far})
    many = off_at(rng, runs, {(step, name): 40.0})
    margin = "The margin is an argument."
    cases = [
        ((runs.base, small, runs.base), names, None, floor),
        ((runs.base, large, runs.base), names, (step, name), floor),
        ((runs.base, many, runs.perturbed, 100.0), names, None, margin),
        ((runs.base, many, runs.perturbed, 25.0), names, (step, name), margin),
    ]
    expect_places(student, rng, "first_deviation", cases)


@points(0.5, cell="check_first_deviation")
def check_numbers_that_are_not_finite(student, rng):
    """Not finite in the other run only: it differs. In the trusted runs as well: left out."""
    runs, odd = made_runs(rng), shuffled(rng, [math.nan, math.inf])
    names, step = runs.names, whole(rng, 1, 3)
    name = shuffled(rng, [*names[:2], names[3]])[0]

    def broken(run: Any, number: float, its: str = name) -> Any:
        run = [dict(one) for one in run]
        run[step][its] = [*run[step][its][:-1], number]
        return run

    calm = off_at(rng, runs, {})
    hint = "The test nan > limit is False, and so is one with a tolerance of nan."
    left = [one for one in names[1:] if one != name][-1]
    later = off_at(rng, runs, {(step, left): 1e4})
    far = off_at(rng, runs, {(step, name): 1e4})
    base, perturbed, top = runs.base, runs.perturbed, names[0]
    wanted = [
        (base, broken(calm, odd[0]), perturbed, (step, name)),
        (base, broken(calm, odd[1]), perturbed, (step, name)),
        (broken(base, odd[0]), broken(calm, odd[0]), perturbed, None),
        (base, broken(calm, odd[0]), broken(perturbed, odd[0]), None),
        (base, broken(later, odd[0]), broken(perturbed, odd[0]), (step, left)),
        (base, broken(later, odd[0], top), broken(perturbed, odd[0], top), (step, left)),
        (broken(base, odd[1]), far, perturbed, None),
        (base, far, broken(perturbed, odd[1]), None),
    ]
    cases = [(tuple(three), names, due, hint) for *three, due in wanted]
    expect_places(student, rng, "first_deviation", cases)


@points(0.5, cell="check_first_deviation")
def check_only_what_all_runs_have(student, rng):
    """Tensors and steps that a run lacks are not compared, and lend no tolerance."""
    runs = made_runs(rng)
    names = runs.names
    _, second, third, last = names
    hint = "Compare what all three runs have."

    def without(run: Any, name: str) -> Any:
        return [{one: sketch for one, sketch in its.items() if one != name} for its in run]

    far = off_at(rng, runs, {(3, second): 500.0, (2, last): 500.0})
    off = 5.0 * runs.noise[3]  # less than the rounding of the third allows
    near = made_run(rng, runs.base, lambda *place: off * (place == (3, second)))
    turned = [dict(reversed(its.items())) for its in off_at(rng, runs, {(3, third): 50.0})]
    tied = [dict(its) for its in turned]
    tied[3] |= {last: far[2][last]}
    base, perturbed = runs.base, runs.perturbed
    wanted = [
        (base, without(far, last), perturbed, (3, second)),
        (without(base, last), far, perturbed, (3, second)),
        (base, far, without(perturbed, last), (3, second)),
        (base, far[:2], perturbed, None),
        (base, far, perturbed[:3], (2, last)),
        (base[:2], far, perturbed, None),
        (base, near, perturbed, None),
        (base, without(near, third), perturbed, (3, second)),
        (base, tied, perturbed, (3, third)),
    ]
    cases = [(tuple(three), names, due, hint) for *three, due in wanted]
    expect_places(student, rng, "first_deviation", cases)


# clip_shards


Gradients = list[torch.Tensor | None]


def clipped_on_rank(
    student: Any, shards: Gradients, replicated: Gradients, max_norm: float
) -> list[Any]:
    """The norm, and the gradients afterwards."""

    def held(gradients: Gradients) -> list[nn.Parameter]:
        parameters = []
        for gradient in gradients:
            like = torch.zeros(2) if gradient is None else torch.zeros_like(gradient)
            parameters.append(nn.Parameter(like))
            parameters[-1].grad = gradient
        return parameters

    own, same = held(shards), held(replicated)
    found = student.clip_shards(own, same, max_norm)
    found = float(found) if isinstance(found, int | float | torch.Tensor) else None
    return [found, [one.grad for one in (*own, *same)]]


class Clipping(NamedTuple):
    """What ranks hold, and the run in which it was clipped."""

    of_ranks: list[Gradients]
    own_square: float  # of all shards
    norm: float
    max_norm: float
    run: Run

    @property
    def scales(self) -> tuple[float, float]:
        """What a square may be multiplied by before it is sent."""
        return 1.0, self.max_norm**-2


def clippings(student: Any, rng: torch.Generator) -> list[Clipping]:
    """A norm above the limit, and one below, of shards of unequal sizes; one rank has none."""
    found = []
    for factor in (between(rng, 0.1, 0.5), between(rng, 1.1, 2)):
        replicated = [drawn(rng, 6).float(), None, drawn(rng, 2, 3).float()]
        shards = [
            [(rank + 1) * drawn(rng, whole(rng, 2, 5), 4).float() for _ in range(2)]
            for rank in range(2)
        ]
        of_ranks: list[Gradients] = [[shards[0][0], None, shards[0][1]], [*shards[1]], []]
        own_square = sum(float(one.double().square().sum()) for one in (*shards[0], *shards[1]))
        same = [one for one in replicated if one is not None]
        norm = math.sqrt(own_square + sum(float(one.double().square().sum()) for one in same))
        each = [[one, replicated, factor * norm] for one in of_ranks]
        options = {"world_size": 3, "forbid": FORBIDDEN, "keeps_exchanges": True}
        with hinted(f"{ALIKE} A rank without shards takes part as well."):
            run = student.emulated(clipped_on_rank, each=each, **options)
        held = [[*one, *replicated] for one in of_ranks]
        found.append(Clipping(held, own_square, norm, factor * norm, run))
    return found


def expect_clipped(case: Clipping) -> None:
    """Raise CheckFailed unless each rank has the norm and the gradients that are due."""
    is_clipped = case.norm > case.max_norm
    factor = case.max_norm / case.norm if is_clipped else 1.0
    near = (1e-4, 1e-7) if is_clipped else (0.0, 0.0)
    for rank, before in enumerate(case.of_ranks):
        value = case.run.values[rank]
        said = entry(value, 0)
        if type(said) is not float or not abs(said / case.norm - 1) < 1e-4:
            hint = "Sum the squares of the shards over the ranks; add replicated ones once."
            raise CheckFailed(f"a norm of {case.norm:.4g} on rank {rank}", shown(said), hint)
        for own, after in zip(before, entries(entry(value, 1), len(before)), strict=True):
            if own is None:
                is_right = after is None
            else:
                same = tensor_like(after, own)
                is_right = same is not None and torch.allclose(same, factor * own, *near)
            if not is_right:
                expected = f"gradients times {factor:.4g} on rank {rank}"
                hint = "One factor for all ranks, and none below max_norm."
                raise CheckFailed(expected, "others", hint)


@points(1.5, cell="check_clip_shards")
def check_clipped_by_the_norm_of_all(student, rng):
    """The norm over all shards, with replicated gradients once; smaller ones stay as they are."""
    for case in clippings(student, rng):
        expect_clipped(case)


@points(0.5, cell="check_clip_shards", needs=["check_clipped_by_the_norm_of_all"])
def check_one_number_is_sent(student, rng):
    """Each rank sends one number, of at most 8 bytes, by one all-reduce: its part of the square."""
    hint = "Add up the squares of the rank's shards, and all-reduce the sum."
    for case in clippings(student, rng):
        expect_clipped(case)
        total = 0.0
        for rank in range(3):
            posts = posts_of(case.run, rank)
            sent = sum(len(one.bodies.get(rank, b"")) for one in posts)
            if len(posts) != 1 or posts[0].op != "all_reduce" or not 0 < sent <= 8:
                actual = f"{len(posts)} calls with {sent} bytes from rank {rank}"
                raise CheckFailed("one all-reduce of at most 8 bytes", actual, hint)
            total += float(posts[0].tensor(rank).double().sum())
        # with the replicated gradients or without, and relative to the limit or not
        due = [scale * one for one in (case.own_square, case.norm**2) for scale in case.scales]
        if not any(abs(total / one - 1) < 1e-4 for one in due):
            raise CheckFailed("squares of which the sum is that of all ranks", "others", hint)


# contrastive_backward


HIDDEN, EMBEDDED = 6, 4


def encoder_of(width: int, state: Sequence[torch.Tensor]) -> nn.Module:
    model = nn.Sequential(nn.Linear(width, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, EMBEDDED))
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), state, strict=True):
            parameter.copy_(value)
    return model


def contrast_on_rank(student: Any, state: Any, inputs: Any, partners: Any) -> Any:
    torch.set_num_threads(1)
    model = encoder_of(inputs.shape[1], state)
    student.contrastive_backward(model, inputs, partners)
    return [one.grad for one in model.parameters()]


class Contrast(NamedTuple):
    """A contrastive step, the gradients of one rank that has all rows, and what each rank knows."""

    run: Run
    wanted: list[torch.Tensor]
    num_ranks: int
    num_rows: int
    embedded: list[list[torch.Tensor]]  # by rank: its rows' embeddings, either way to write them
    parts: list[torch.Tensor]  # by rank: the gradient through its own rows


def contrasted(student: Any, rng: torch.Generator) -> Contrast:
    num_ranks, num_rows, width = whole(rng, 3, 4), whole(rng, 20, 28), whole(rng, 56, 72)
    shapes = [(HIDDEN, width), (HIDDEN,), (EMBEDDED, HIDDEN), (EMBEDDED,)]
    state = [drawn(rng, *shape).float() / shape[-1] ** 0.5 for shape in shapes]
    inputs = drawn(rng, num_ranks * num_rows, width).float()
    partners = inputs + 0.4 * drawn(rng, *inputs.shape).float()
    each = [
        [state, one.clone(), other.clone()]
        for one, other in zip(inputs.chunk(num_ranks), partners.chunk(num_ranks), strict=True)
    ]
    model = encoder_of(width, state)
    pair_loss(model(inputs), model(partners), 0).backward()
    wanted = [one.grad for one in model.parameters() if one.grad is not None]
    options = {"world_size": num_ranks, "forbid": FORBIDDEN, "keeps_exchanges": True}
    with hinted(ALIKE):
        run = student.emulated(contrast_on_rank, each=each, **options)
    left, right = model(inputs), model(partners)
    embedded, parts = [], []
    for rank in range(num_ranks):
        own = slice(rank * num_rows, (rank + 1) * num_rows)
        rows = [one[own].detach() for one in (left, right)]
        embedded.append([*rows, *(nn.functional.normalize(one, dim=1) for one in rows)])
        loss = pair_loss(*(alone(one, own) for one in (left, right)), 0)
        found = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        parts.append(torch.cat([one.flatten() for one in found]))
    return Contrast(run, wanted, num_ranks, num_rows, embedded, parts)


def alone(rows: torch.Tensor, own: slice) -> torch.Tensor:
    """These rows, of which only a rank's own have a gradient."""
    return torch.cat([rows[: own.start].detach(), rows[own], rows[own.stop :].detach()])


def holds(sent: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Whether each of the wanted numbers is among those sent, in whatever order."""
    sent, wanted = sent.sort().values, wanted.double().flatten()
    after = torch.searchsorted(sent, wanted).clamp(max=len(sent) - 1)
    off = torch.minimum(
        (sent[after] - wanted).abs(), (sent[(after - 1).clamp(min=0)] - wanted).abs()
    )
    return bool((off <= 1e-4 * wanted.abs().max()).all())


def expect_gradient(case: Contrast) -> None:
    due = torch.cat([one.flatten() for one in case.wanted])
    for rank, value in enumerate(case.run.values):
        given = [
            tensor_like(*pair)
            for pair in zip(entries(value, len(case.wanted)), case.wanted, strict=True)
        ]
        known = [one for one in given if one is not None]
        if len(known) < len(given):
            raise CheckFailed(f"a gradient of each parameter on rank {rank}", "others, or none")
        flat = torch.cat([one.flatten() for one in known])
        off = ((flat - due).norm() / due.norm()).item()
        if not off <= 1e-4:
            along = (flat @ due / (due @ due)).item()
            hint = "What a rank's embeddings do to the losses of other ranks is part of it."
            if abs(along - 1) > 0.01 and (flat - along * due).norm() < 1e-3 * flat.norm():
                hint = f"It is {along:.3g} times the right one: sum or mean?"
            expected = f"the gradient of one rank with all rows, on rank {rank}"
            raise CheckFailed(expected, f"one that is {off:.2g} off", hint)


@points(2, cell="check_contrastive_backward")
def check_gradient_is_of_the_whole_batch(student, rng):
    """On every rank the gradient of the mean loss over the rows of all ranks."""
    expect_gradient(contrasted(student, rng))


@points(1, cell="check_contrastive_backward", needs=["check_gradient_is_of_the_whole_batch"])
def check_embeddings_are_sent(student, rng):
    """Each rank sends embeddings and its own rows' gradients, not inputs, and each once."""
    case = contrasted(student, rng)
    expect_gradient(case)
    gradient_bytes = sum(one.nbytes for one in case.wanted)
    own = 4 * EMBEDDED * case.num_rows
    most = gradient_bytes + own * (1 + case.num_ranks) + 64
    for rank in range(case.num_ranks):
        sent = sum(len(one.bodies.get(rank, b"")) for one in posts_of(case.run, rank))
        if sent > most:
            hint = "Gather embeddings, sum their gradients, and average the parameters' gradients."
            raise CheckFailed(f"at most {most} bytes from rank {rank}", f"{sent}", hint)
        if sent < gradient_bytes + own:
            expected = f"at least {gradient_bytes + own} bytes: gradients and embeddings"
            raise CheckFailed(
                expected, f"{sent} from rank {rank}", "Ranks know others by messages."
            )
        posted = torch.cat(
            [one.tensor(rank).double().flatten() for one in posts_of(case.run, rank)]
        )
        part = case.parts[rank]
        factors = (1.0, case.num_ranks, 1 / case.num_ranks)
        has_rows = any(holds(posted, one) for one in case.embedded[rank])
        if not has_rows or not any(holds(posted, factor * part) for factor in factors):
            expected = f"rank {rank}'s embeddings, and the gradient through its own rows, sent"
            raise CheckFailed(expected, "others", "Ranks know others by messages.")
