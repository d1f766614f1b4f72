"""Hidden checks of lab 14: fits of made-up machines, and a prediction of the machine that judges.

Nothing here rests on a clock that student code has seen. Made-up machines have numbers that the
judge draws, so the error of a fit is known. For the last check ranks without the student's code
measure this machine: probes and held-out programs in turn, in CPU seconds, so that other work meets
both alike. What counts is the ratio to the error that the judge's own model has in the same run.
Held-out programs are drawn, which makes tables useless, and so are a factor on all times and
another one on those of programs: who times a program again must also find these.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch

from autograder.checks import (
    Made,
    PartlyHeld,
    between,
    call_each,
    entries,
    entry,
    limit_computing,
    points,
    shown,
    shuffled,
    take_from_solution,
    whole,
)
from worldsize.check import CheckFailed

BY_HAND = "the course's own calibration is not allowed here: this is what you write"
FORBIDDEN = {"worldsize.calibrate": BY_HAND, "worldsize.hardware.timings": BY_HAND}
CPU_S = 3  # as the text says, for each call of `returned`
OFF = 0.05
Points = list[tuple[float, float]]


def ready() -> None:
    """Take the course's own fits out of this process, and limit its computing."""
    from worldsize.calibrate import fits, result
    from worldsize.hardware import timings

    for holder in (fits, result.Calibration, timings.Timings, timings):
        for name in [one for one in vars(holder) if not one.startswith("__")]:
            delattr(holder, name)
    limit_computing(CPU_S)


# The judge's own, which also stand in for the student's other parts, in an order in which none
# needs a later one.


SOLUTION = Path(__file__).with_name("lab14.py")
Machine, Program = take_from_solution(SOLUTION, "Machine", "Program")
reference_best_s, reference_line, reference_alpha_beta = take_from_solution(
    SOLUTION, "best_s", "line", "alpha_beta"
)
reference_product_s, reference_in_program = take_from_solution(SOLUTION, "product_s", "in_program")


def reference_all_reduce_s(
    size_bytes: float, num_ranks: int, latency_s: float, bytes_per_s: float
) -> float:
    return 2 * (num_ranks - 1) * (latency_s + size_bytes / (num_ranks * bytes_per_s))


def reference_pass_s(passes: Sequence[Any], name: str, size_bytes: float) -> float:
    curves: dict[str, Points] = {}
    for one in passes:
        known = (one["size_bytes"], min(one["times_s"]))
        curves.setdefault(one["name"], []).append(known)

    def on(curve: Points) -> float:
        curve = sorted(curve)
        if size_bytes <= curve[0][0]:
            return curve[0][1]
        for (size, time_s), (larger, longer_s) in itertools.pairwise(curve):
            if size_bytes <= larger:
                share = math.log(size_bytes / size) / math.log(larger / size)
                return math.exp((1 - share) * math.log(time_s) + share * math.log(longer_s))
        last_size, last_s = curve[-1]
        return last_s * size_bytes / last_size

    return on(curves[name]) if name in curves else median(on(one) for one in curves.values())


def reference_step_s(program: Any, machine: Any, alone_s: Any) -> float:
    operators, num_ranks, num_parameters, _ = program
    overhead_s, slowdown, latency_s, bytes_per_s, _, _ = machine
    work_s = sum(overhead_s + slowdown * alone_s(*one) for one in operators)
    return work_s + reference_all_reduce_s(4 * num_parameters, num_ranks, latency_s, bytes_per_s)


def reference_save_s(program: Any, machine: Any) -> float:
    size_bytes = 4 * program.num_parameters * (1 + program.num_states)
    return machine.save_floor_s + size_bytes / machine.write_bytes_per_s


REFERENCES: dict[str, Callable[..., Any]] = {
    "best_s": reference_best_s,
    "line": reference_line,
    "all_reduce_s": reference_all_reduce_s,
    "alpha_beta": reference_alpha_beta,
    "product_s": reference_product_s,
    "pass_s": reference_pass_s,
    "in_program": reference_in_program,
    "step_s": reference_step_s,
    "save_s": reference_save_s,
    "predict": lambda *_: None,
}


def stand_ins(name: str) -> dict[str, Callable[..., Any]]:
    """Right functions for the student's other ones; none that leads to `name`."""
    return dict(itertools.takewhile(lambda part: part[0] != name, REFERENCES.items()))


def returned(
    student: Any, name: str, calls: Sequence[Any], parts: Any = None, on_rank: Any = call_each
) -> list[Any]:
    parts = stand_ins(name) if parts is None else parts
    made = Made(ready)
    job = (on_rank, name, list(calls), parts)
    run = student.emulated(*job, world_size=1, forbid=FORBIDDEN, made=made, allow=())
    return entries(run.values[0], len(calls))


def number(value: Any) -> float:
    """The value where it is a finite number; nan otherwise."""
    is_one = type(value) in (int, float) and abs(value) < 1e300
    return float(value) if is_one else math.nan


def pair(value: Any) -> tuple[float, float]:
    first, second = entries(value, 2)
    return number(first), number(second)


def among(num_ranks: int) -> str:
    return "1 rank" if num_ranks == 1 else f"{num_ranks} ranks"


def expect_near(given: Any, wanted: float, what: str, hint: str, off: float = OFF) -> None:
    """Raise CheckFailed unless a number is the wanted one, within a share of it."""
    if not abs(number(given) - wanted) <= off * abs(wanted) + 1e-15:
        actual = f"{number(given):.4g}" if math.isfinite(number(given)) else shown(given)
        raise CheckFailed(f"{what}: {wanted:.4g}", actual, hint)


# Machines that are made up.


def probe(rng: torch.Generator, time_s: float, **what: Any) -> dict[str, Any]:
    """A probe of some times in a drawn order, the shortest of which is right."""
    factors = [1.0, *(between(rng, 1.2, 4) for _ in range(whole(rng, 2, 4)))]
    return {**what, "times_s": [time_s * one for one in shuffled(rng, factors)]}


def drawn_sizes(rng: torch.Generator, num: int) -> tuple[list[float], float]:
    """Sizes over four orders of magnitude, and one in the middle."""
    low = between(rng, 8, 10)
    high = low + between(rng, 12.5, 14)
    sizes = [float(round(2 ** (low + (high - low) * one / (num - 1)))) for one in range(num)]
    return sizes, 2 ** (low + (high - low) * between(rng, 0.45, 0.55))


FAR_OFF = (0.1, 0.3, 4.0, 12.0)


def drawn_factors(rng: torch.Generator, num: int, places: Sequence[int]) -> list[float]:
    """Factors of the times: far off at these places, the others within 0.3% of 1.

    Three are all too short: a fit that leaves out two of them is then never near.
    """
    factors = [between(rng, 0.997, 1.003) for _ in range(num)]
    for place in places:
        factors[place] = shuffled(rng, FAR_OFF if len(places) < 3 else FAR_OFF[:2])[0]
    return factors


def expect_line(given: Any, floor_s: float, rate: float, sizes: Any, what: str, hint: str) -> None:
    """Raise CheckFailed unless a floor and a rate predict sizes between the points' own."""
    found_s, found = pair(given)
    if found_s > found:
        raise CheckFailed(
            "the floor, then the rate", shown(given), "The floor in seconds is first."
        )
    if not (found_s >= 0 and found > 0):
        rounding = "A floor that rounding brings below 0 is 0: max(0.0, floor)."
        raise CheckFailed("a floor of 0 or more and a rate above 0", shown(given), rounding)
    low, high = min(sizes), max(sizes)
    for place in range(9):
        size = low * (high / low) ** (place / 8)
        wanted_s, mine_s = floor_s + size / rate, found_s + size / found
        if not abs(mine_s / wanted_s - 1) <= OFF:
            expected = f"{wanted_s:.3g} s for {size:,.0f} bytes within {OFF:.0%}, {what}"
            raise CheckFailed(expected, f"{mine_s:.3g} s", hint)


@points(0.5, cell="check_which_time")
def check_shortest(student, rng):
    """The shortest of any number of times stands for a probe, wherever it is in the list."""
    calls = [([between(rng, 1e-6, 1) for _ in range(num)],) for num in (1, 2, 3, 5, 8)]
    for (times_s,), given in zip(calls, returned(student, "best_s", calls), strict=True):
        hint = "Other work makes a time longer, never shorter."
        expect_near(
            given, min(times_s), f"the shortest of times, {len(times_s)} in all", hint, 1e-6
        )


@points(0.5, cell="check_which_time")
def check_spread(student, rng):
    """The median of the times above the shortest, as a fraction of the shortest, which of a single
    time is 0.
    """
    calls = [([between(rng, 1e-3, 1) for _ in range(num)],) for num in (1, 2, 3, 5, 8)]
    parts = {"best_s": reference_best_s}
    for (times_s,), given in zip(
        calls, returned(student, "spread_fraction", calls, parts), strict=True
    ):
        wanted = median(times_s) / min(times_s) - 1
        hint = "The median over the shortest, less 1."
        expect_near(given, wanted, f"the spread of times, {len(times_s)} in all", hint, 1e-4)


def expect_lines(
    student: Any, rng: torch.Generator, cases: Sequence[tuple[int, Sequence[int], bool]], hint: str
) -> None:
    """Raise CheckFailed unless lines of so many points are found, some of them wrong."""
    calls, truths = [], []
    for num, places, has_floor in cases:
        sizes, knee = drawn_sizes(rng, num)
        rate = 10 ** between(rng, 8, 10)
        floor_s = knee / rate if has_floor else 0.0
        factors = drawn_factors(rng, num, places)
        points = [(x, (floor_s + x / rate) * one) for x, one in zip(sizes, factors, strict=True)]
        calls.append((shuffled(rng, points),))
        what = f"{len(places)} of {num} points wrong" if places else "all points right"
        truths.append((floor_s, rate, sizes, what if has_floor else f"{what}, no floor"))
    found = returned(student, "line", calls)
    for (floor_s, rate, sizes, what), given in zip(truths, found, strict=True):
        expect_line(given, floor_s, rate, sizes, what, hint)


@points(2, cell="check_fitted_line")
def check_line_of_right_points(student, rng):
    """The floor and the rate of points in any order that are all right, with a floor and without,
    to 5% of the time of every size.
    """
    cases = [
        (num, (), has_floor) for num in (7, 9, 11) for has_floor in (True, False, False, False)
    ]
    expect_lines(student, rng, cases, "Small sizes count as much as large ones: compare ratios.")


@points(3, cell="check_fitted_line")
def check_line_among_wrong_points(student, rng):
    """The same where up to a fifth of the points are wrong, too long or too short, at the ends and
    between them.
    """
    cases = [(7, (place,), True) for place in (0, 1, 3, 5, 6)]
    cases += [(11, (0, 10), True), (11, (9, 10), True), (11, (0, 5), True), (11, (4, 7), True)]
    cases += [(16, (0, 8, 15), True)]
    hint = "Most points are right: take the line that is near to most, in relative distance."
    expect_lines(student, rng, shuffled(rng, cases), hint)  # who counts the calls learns nothing


@points(1, cell="check_ring_link")
def check_ring(student, rng):
    """The seconds of a ring all-reduce on 1 to 16 ranks."""
    calls = []
    for num_ranks in (1, 2, 3, 8, 16):
        link = (1e-6 * whole(rng, 2, 200), 1e8 * whole(rng, 2, 90))
        calls.append((1e6 * whole(rng, 1, 50), num_ranks, *link))
    given = returned(student, "all_reduce_s", calls)
    for args, one in zip(calls, given, strict=True):
        hint = "2 (n - 1) messages, each of S / n bytes and with its own latency."
        expect_near(one, reference_all_reduce_s(*args), f"seconds on {among(args[1])}", hint, 1e-4)


@points(2, cell="check_ring_link")
def check_alpha_beta(student, rng):
    """The latency and the rate of a link from all-reduces among 2 to 8 ranks, of which some were
    disturbed and one is wrong.
    """
    calls, truths = [], []
    for num_ranks in (2, 3, 4, 8):
        sizes, knee = drawn_sizes(rng, 9)
        rate = 1e9 * between(rng, 0.5, 20)
        latency_s = knee / num_ranks / rate
        factors = drawn_factors(rng, 9, [whole(rng, 0, 8)])
        rows = [
            probe(rng, one * reference_all_reduce_s(x, num_ranks, latency_s, rate), size_bytes=x)
            for x, one in zip(sizes, factors, strict=True)
        ]
        calls.append((shuffled(rng, rows), num_ranks))
        truths.append((latency_s, rate, num_ranks))
    for (latency_s, rate, num_ranks), given in zip(
        truths, returned(student, "alpha_beta", calls), strict=True
    ):
        hint = (
            "Of each probe the shortest time counts. The floor has 2 (n - 1) latencies; each"
            " message has 1 / n of the bytes."
        )
        found_s, found = pair(given)
        expect_near(found_s, latency_s, f"seconds of latency among {num_ranks} ranks", hint)
        expect_near(found, rate, f"bytes a second among {num_ranks} ranks", hint)


def drawn_law(rng: torch.Generator, kind: int) -> Callable[[float, float], float]:
    """The seconds of a product by its flops and bytes on some machine."""
    peak, moved = 1e9 * between(rng, 40, 200), 1e9 * between(rng, 3, 20)
    start_s = 1e-6 * between(rng, 1, 6)
    if kind == 0:  # one after the other
        return lambda flops, size: start_s + flops / peak + size / moved
    if kind == 1:  # beside each other
        return lambda flops, size: start_s + max(flops / peak, size / moved)
    half, dense = 1e6 * between(rng, 0.5, 4), between(rng, 3, 12)  # where half of the peak is met
    return lambda flops, size: flops / peak * (1 + half / flops) * (1 + dense * size / flops)


def of_shape(rows: int, width: int, columns: int) -> tuple[float, float]:
    """The operations and the bytes of a product."""
    moved = rows * width + width * columns + rows * columns
    return 2.0 * rows * width * columns, 4.0 * moved


SHAPES = [*itertools.product((16, 64, 256, 1024), (64, 256, 512), (64, 256, 512))]


def drawn_products(rng: torch.Generator, law: Callable[[float, float], float]) -> list[Any]:
    rows = []
    for shape in SHAPES:
        flops, size = of_shape(*shape)
        name = ("mm", "addmm")[whole(rng, 0, 1)]
        rows.append(probe(rng, law(flops, size), name=name, flops=flops, size_bytes=size))
    return shuffled(rng, rows)


def error(found: Any, wanted: float) -> float:
    """The relative error, 1 at most and where there is no number."""
    off = abs(number(found) / wanted - 1)
    return min(1.0, off) if off == off else 1.0


def grade_error(mine: float, full: float, none: float, expected: str, hint: str) -> None:
    """Give points in proportion between an error that gets none and one that gets all.

    Raises:
        CheckFailed: it gets none.
        PartlyHeld: it gets some.
    """
    if mine <= full:
        return
    share = int(100 * (none - mine) / max(none - full, 0.1) + 1e-9) / 100
    found = (expected, f"{mine:.1%}", hint)
    if share > 0:
        raise PartlyHeld(share, *found)
    raise CheckFailed(*found)


MOST_OFF = (0.12, 0.19, 0.11)  # of the judge's own way: more than ever, by law, in 1,500 draws


@points(3, cell="check_alone")
def check_products(student, rng):
    """Products between the measured ones and one of these, on machines with three laws of
    efficiency. All points for a mean error of at most the judge's own and 2 percentage points, none
    for that of one rate for all, a part between them. With each law the judge's own counts as at
    most 12%, 19% and 11%, which the four nearest were never off in 1,500 draws.
    """
    calls, truths = [], []
    for kind in range(len(MOST_OFF)):
        law = drawn_law(rng, kind)
        rows = drawn_products(rng, law)
        for low, high in ((20, 60), (70, 240), (260, 500)):
            for _ in range(3):
                wanted = of_shape(whole(rng, low, high), whole(rng, 80, 480), whole(rng, 80, 480))
                calls.append((rows, *wanted))
                truths.append(law(*wanted))
        one = rows[0]  # measured: it is at no distance from itself
        calls.append((rows, one["flops"], one["size_bytes"]))
        truths.append(min(one["times_s"]))
    given = returned(student, "product_s", calls)
    mine = fmean(error(one, wanted) for one, wanted in zip(given, truths, strict=True))
    num = len(calls) // len(MOST_OFF)
    off = [
        error(reference_product_s(*args), wanted)
        for args, wanted in zip(calls, truths, strict=True)
    ]
    of_laws = [fmean(off[start : start + num]) for start in range(0, len(off), num)]
    own = fmean(map(min, of_laws, MOST_OFF))  # so that a broken solution does not pass itself
    guess = fmean(
        error(flops / max(one["flops"] / min(one["times_s"]) for one in rows), wanted)
        for (rows, flops, _), wanted in zip(calls, truths, strict=True)
    )
    expected = f"at most {own + 0.02:.1%} off on average (one rate for all: {guess:.0%})"
    hint = "Take the rates of the products most like it, in operations and operations a byte."
    grade_error(mine, own + 0.02, guess, expected, hint)


@points(2, cell="check_alone")
def check_passes(student, rng):
    """A pass of a measured size, between two, below and above all, of a name with one probe, and of
    a name not measured, of five that were and of four.
    """
    rows, names = [], shuffled(rng, ["add", "gelu", "tanh", "copy_", "mul"])
    for name in names:
        time_s, size = 1e-6 * between(rng, 1, 9), 1000.0 * whole(rng, 1, 4)
        for _ in range(1 if name == names[3] else whole(rng, 4, 5)):
            rows.append(probe(rng, time_s, name=name, flops=0, size_bytes=size))
            size, time_s = size * between(rng, 6, 12), time_s * between(rng, 1.5, 14)
    known = {name: [one["size_bytes"] for one in rows if one["name"] == name] for name in names}
    calls = []
    for name in names[:3]:
        sizes = sorted(known[name])
        inside = [sizes[0] * 1.7, sizes[1], sizes[1] * 3.3, sizes[-2] * 2.9]
        calls += [(name, one) for one in (*inside, sizes[0] / 9, sizes[-1] * 3.7)]
    calls += [(names[3], known[names[3]][0] * one) for one in (0.2, 1, 3.7)]
    asked = [(shuffled(rng, rows), *one) for one in calls]
    even = [one for one in rows if one["name"] != names[-1]]
    for some, size in ((rows, 1e5), (even, 10.0), (even, 1e5), (even, 1e9)):
        asked.append((shuffled(rng, some), "neg", size))
    given = returned(student, "pass_s", asked)
    for (_, name, size), args, one in zip(asked, asked, given, strict=True):
        what = "a name that was not measured" if name not in known else "a measured name"
        hint = "Straight lines of the logarithms; the floor below, the rate above; by its own name."
        wanted = reference_pass_s(*args)
        expect_near(one, wanted, f"seconds of {size:,.0f} bytes of {what}", hint, 0.01)


def drawn_operators(rng: torch.Generator, scale: float, num: int) -> list[list[Any]]:
    """Operators of a program that is larger by a factor."""
    kinds = [["mm", 1e5 * scale, 1e4 * scale], ["add", 0, 4e3 * scale], ["gelu", 0, 2e3 * scale]]
    return [kinds[whole(rng, 0, 2)] for _ in range(num)]


def simple_s(name: str, flops: float, size_bytes: float) -> float:
    return 2e-7 + flops / 3e10 + size_bytes / (6e9 if name == "add" else 3e9)


SCALES = (0.1, 0.5, 2, 8, 32, 128, 512, 2048, 8192)  # the first four show most of the overhead


def drawn_phases(
    rng: torch.Generator, overhead_s: float, slowdown: float, factors: Sequence[float], alone_s: Any
) -> list[Any]:
    """Programs of a machine, whose times are wrong by these factors."""
    rows = []
    for scale, factor in zip(SCALES, factors, strict=True):
        operators = drawn_operators(rng, scale, whole(rng, 10, 60))
        alone = sum(alone_s(*one) for one in operators)
        time_s = factor * (overhead_s * len(operators) + slowdown * alone)
        row = probe(rng, time_s, operators=operators, name="forward", width=int(scale * 10))
        rows.append(row)
    return shuffled(rng, rows)


def expect_in_program(
    student: Any, rng: torch.Generator, wrong: Sequence[Sequence[int]], hint: str
) -> None:
    calls, truths = [], []
    for places in wrong:
        overhead_s, slowdown = 1e-6 * between(rng, 20, 60), between(rng, 1.1, 3)
        factors = drawn_factors(rng, len(SCALES), places)
        calls.append((drawn_phases(rng, overhead_s, slowdown, factors, simple_s), simple_s))
        truths.append((overhead_s, slowdown))
    for (overhead_s, slowdown), given in zip(
        truths, returned(student, "in_program", calls), strict=True
    ):
        mine_s, slower = pair(given)
        for mean_s in (4e-6, 3e-5, 3e-4, 3e-3):
            wanted = overhead_s + slowdown * mean_s
            what = f"seconds of an operator in a program that takes {mean_s:g} s alone"
            expect_near(mine_s + slower * mean_s, wanted, what, hint)


@points(1.5, cell="check_in_program")
def check_overhead_and_slowdown(student, rng):
    """The overhead and the slowdown of programs with different numbers of operators."""
    hint = "Divide the shortest time by the number of operators: then it is a line."
    expect_in_program(student, rng, [(), (), ()], hint)


@points(1.5, cell="check_in_program")
def check_overhead_beside_a_wrong_program(student, rng):
    """The same where the time of one program of nine is wrong: of the smallest, of the largest, of
    three others.
    """
    hint = "Give `line` all programs as its points: it finds the right line beside a wrong one."
    last = len(SCALES) - 1
    places = [0, last, *shuffled(rng, range(1, last))[:3]]
    expect_in_program(student, rng, [(one,) for one in shuffled(rng, places)], hint)


def drawn_machine(rng: torch.Generator) -> Machine:
    work = (1e-6 * between(rng, 2, 40), between(rng, 1, 3))
    link = (1e-6 * between(rng, 10, 200), 1e9 * between(rng, 0.2, 10))
    return Machine(*work, *link, 1e-3 * between(rng, 0.5, 9), 1e8 * between(rng, 1, 20))


def drawn_program(rng: torch.Generator, num_ranks: int, num_states: int) -> Program:
    operators = drawn_operators(rng, between(rng, 5, 90), whole(rng, 20, 60))
    return Program(operators, num_ranks, 1000 * whole(rng, 100, 9000), num_states)


@points(1.5, cell="check_prediction")
def check_step(student, rng):
    """A step of drawn programs on 1 to 8 ranks of drawn machines."""
    calls = [(drawn_program(rng, num, 1), drawn_machine(rng), simple_s) for num in (1, 2, 3, 8)]
    for (program, machine, alone_s), one in zip(
        calls, returned(student, "step_s", calls), strict=True
    ):
        wanted = reference_step_s(program, machine, alone_s)
        hint = "Overhead and slowdown of each operator, then one all-reduce of 4 bytes a parameter."
        expect_near(one, wanted, f"seconds of a step on {among(program.num_ranks)}", hint, 1e-4)


@points(0.5, cell="check_prediction")
def check_save(student, rng):
    """A checkpoint with no, one and two numbers of the optimizer for each parameter."""
    calls = [(drawn_program(rng, 2, num), drawn_machine(rng)) for num in (0, 1, 2)]
    for (program, machine), one in zip(calls, returned(student, "save_s", calls), strict=True):
        wanted = reference_save_s(program, machine)
        hint = "The floor, and 4 bytes of each parameter and of each of its states."
        expect_near(
            one, wanted, f"seconds of a save, states kept: {program.num_states}", hint, 1e-4
        )


def fit_by_mean(rows: Sequence[Any]) -> Callable[[Any], float]:
    mean_s = fmean(min(one["times_s"]) for one in rows)
    return lambda one: mean_s


def fit_by_heart(rows: Sequence[Any]) -> Callable[[Any], float]:
    known = {one["size_bytes"]: min(one["times_s"]) for one in rows}
    return lambda one: known.get(one["size_bytes"], 3 * max(known.values()))


def fit_by_line(rows: Sequence[Any]) -> Callable[[Any], float]:
    floor_s, rate = reference_line([(one["size_bytes"], min(one["times_s"])) for one in rows])
    return lambda one: floor_s + one["size_bytes"] / rate


def left_out_on_rank(student: Any, _: str, calls: Any, parts: Any, *__: Any) -> list[Any]:
    """Of each call the error, whether the rows stay as they are, and the most rows of a fit."""
    from copy import deepcopy

    student.best_s = parts["best_s"]
    found = []
    for rows, fit in calls:
        before, nums = deepcopy(rows), [0]

        def noted(given: Any, fit: Any = fit, nums: Any = nums) -> Any:
            given = list(given)
            nums.append(len(given))
            return fit(given)

        error = student.left_out_error(rows, noted)
        found.append([error, rows == before, max(nums)])
    return found


@points(2, cell="check_left_out_error")
def check_left_out(student, rng):
    """Each probe is predicted by a fit of the others: of a mean, of a line, and of a fit that
    remembers what it was given. No fit gets all rows, and they stay as they are.
    """
    calls, wanted = [], []
    for fit, num in ((fit_by_mean, 5), (fit_by_heart, 6), (fit_by_line, 8), (fit_by_heart, 9)):
        sizes, knee = drawn_sizes(rng, num)
        rows = [
            probe(rng, between(rng, 0.7, 1.4) * (knee + one) / 1e9, size_bytes=one) for one in sizes
        ]
        rows = shuffled(rng, rows)
        calls.append((rows, fit))
        errors = []
        for place, one in enumerate(rows):
            found = fit(rows[:place] + rows[place + 1 :])(one)
            errors.append(abs(found / min(one["times_s"]) - 1))
        wanted.append(median(errors))
    parts = {"best_s": reference_best_s}
    given = returned(student, "left_out_error", calls, parts, left_out_on_rank)
    for (rows, fit), due, one in zip(calls, wanted, given, strict=True):
        hint = "Leave out one, fit the others, predict the one; the median of the relative errors."
        expect_near(entry(one, 0), due, f"{fit.__name__} of {len(rows)} probes", hint, 1e-4)
        if entry(one, 1) is not True:
            raise CheckFailed("the rows as they were", "other rows", "Make a list of the others.")
        if entry(one, 2) != len(rows) - 1:
            expected = f"fits of {len(rows) - 1} of {len(rows)} rows"
            raise CheckFailed(expected, f"a fit of {shown(entry(one, 2))}", hint)


# All of it together.


def drawn_measured(
    rng: torch.Generator, last_factor: float = 1.0
) -> tuple[dict[str, Any], tuple[Any, ...], Any]:
    """The probes of a machine, its numbers, and the seconds of its operators alone.

    The time of the largest file is wrong by a factor.
    """
    law = drawn_law(rng, 0)
    products = drawn_products(rng, law)
    passes = []
    for name, rate in (("add", between(rng, 2e9, 9e9)), ("gelu", between(rng, 2e9, 4e9))):
        for size in (1e3, 1e4, 1e5, 1e6, 1e7):
            row = probe(rng, 2e-6 + size / rate, name=name, flops=0, size_bytes=size)
            passes.append(row)

    def alone_s(name: str, flops: float, size_bytes: float) -> float:
        if flops:
            return reference_product_s(products, flops, size_bytes)
        return reference_pass_s(passes, name, size_bytes)

    machine = drawn_machine(rng)
    overhead_s, slowdown, latency_s, rate, floor_s, write_rate = machine
    factors = [1.0] * len(SCALES)
    phases = drawn_phases(rng, overhead_s, slowdown, factors, alone_s)
    links = [
        probe(rng, reference_all_reduce_s(x, 2, latency_s, rate), size_bytes=x)
        for x in drawn_sizes(rng, 8)[0]
    ]
    sizes, knee = drawn_sizes(rng, 7)
    sizes = [floor_s * write_rate / knee * one for one in sizes]
    factors = [1.0] * 6 + [last_factor]
    write = [
        probe(rng, one * (floor_s + x / write_rate), size_bytes=x)
        for x, one in zip(sizes, factors, strict=True)
    ]
    measured = {"products": products, "passes": shuffled(rng, passes), "phases": phases}
    return measured | {"links": links, "write": write, "read": []}, machine, alone_s


@points(1.5, cell="check_predict")
def check_predict_made_up(student, rng):
    """Steps and saves of drawn programs, on 1 to 8 ranks, from the probes of a drawn machine, of
    which one of the saves is wrong. One program has products with a name that no probe has.
    """
    calls, truths = [], []
    hint = "Operators alone, in a program, then the link among all ranks: which part is off?"
    named = "An operator with flops is a product, whatever its name."
    linear = Program([["linear", *of_shape(1024, 512, 512)]] * 20, 1, 1_000_000, 1)
    for program, its_hint in (
        *((drawn_program(rng, *one), hint) for one in ((1, 0), (2, 2), (8, 1))),
        (linear, named),
    ):
        measured, machine, alone_s = drawn_measured(rng, between(rng, 4, 12))
        calls.append((measured, program))
        step = reference_step_s(program, machine, alone_s)
        truths.append((step, reference_save_s(program, machine), program.num_ranks, its_hint))
    for (step, save, num_ranks, hint), given in zip(
        truths, returned(student, "predict", calls), strict=True
    ):
        what = f"seconds of a step on {among(num_ranks)} of a made-up machine"
        expect_near(entry(given, 0), step, what, hint)
        hint = (
            "`line` through the shortest times of the probes of kind write, of which one may be"
            " wrong; all states of the optimizer are saved."
        )
        expect_near(entry(given, 1), save, "seconds of a save on a made-up machine", hint)


NUM_ROUNDS, LEAST_ROUNDS, LIMIT_S = 12, 5, 12
# of each layer's input and of the last output, the widths; then batch, norms, AdamW
PROBED = (
    ((16,) * 4, 4, True, True),
    ((64,) * 5, 32, False, False),
    ((128,) * 4, 32, True, True),
    ((160,) * 4, 96, False, True),
    ((256,) * 4, 64, True, False),
    ((320,) * 4, 64, True, True),
    ((512,) * 3, 64, False, False),
)


def drawn_networks(rng: torch.Generator) -> list[Any]:
    """Held-out networks of drawn sizes, so that no table has their times."""
    found = []
    for most, *kind in (
        (128, False, False),
        (192, True, True),
        (288, False, True),
        (384, True, False),
        (512, False, False),
    ):
        widths = [whole(rng, most // 2, most) for _ in range(whole(rng, 3, 5))]
        found.append((widths, whole(rng, 64, 192), *kind))
    return found


def measure(
    _: Any, programs: Sequence[Any], num_rounds: int, least_rounds: int, limit_s: float
) -> dict[str, Any]:
    """CPU seconds of products, passes and programs of this machine, all in turn, round by round.

    The programs are networks of these widths; each has its operators beside its times. On a crowded
    machine there are fewer rounds. Where a process may compute for so many seconds only, the kernel
    counts the time of its threads finely, and that of the whole in ticks.
    """
    import functools
    import time

    import torch
    from torch import nn

    from worldsize.calibrate import probes
    from worldsize.emulate.worker.torch_operators import operator_of

    def network(widths: Sequence[int], batch: int, has_norms: bool, is_adamw: bool) -> Any:
        def layer(width: int, columns: int) -> list[nn.Module]:
            linear = nn.Linear(width, columns)
            return [nn.LayerNorm(width), linear, nn.GELU()] if has_norms else [linear, nn.ReLU()]

        pairs = itertools.pairwise(widths)
        model = nn.Sequential(*itertools.chain.from_iterable(layer(*one) for one in pairs))
        x = torch.randn(batch, widths[0])
        kind: Any = torch.optim.AdamW if is_adamw else torch.optim.SGD
        optimizer = kind(model.parameters(), lr=1e-3)

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        return step

    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows: dict[str, list[Any]] = {"products": [], "passes": [], "programs": []}
    calls, times = [], []

    def add(kind: str, call: Any, **what: Any) -> None:
        rows[kind].append({**what, "times_s": []})
        calls.append(call)
        times.append(rows[kind][-1]["times_s"])

    names = set()
    for sizes in programs:
        step = network(*sizes)
        step()  # the optimizer makes its state
        operators = probes.operators_of(step)
        names |= {name for name, flops, _ in operators if not flops}
        add("programs", step, operators=operators)
    aten = torch.ops.aten
    for num, (width, columns) in itertools.product(
        (16, 64, 256), ((64, 64), (64, 256), (256, 64), (256, 256), (512, 512))
    ):
        x, weight, bias = torch.randn(num, width), torch.randn(columns, width), torch.randn(columns)
        gradient = torch.randn(num, columns)
        for operator, args in (
            (aten.addmm.default, (bias, x, weight.t())),
            (aten.mm.default, (gradient, weight)),
            (aten.mm.default, (gradient.t(), x)),
        ):
            one = operator_of(operator, args, {}, operator(*args))
            what = {"name": operator.overloadpacket.__name__, "flops": one.flops}
            add("products", functools.partial(operator, *args), size_bytes=one.size_bytes, **what)
    for operator, args in probes.passes():
        name = operator.overloadpacket.__name__
        if name in names and args[0] is not None:
            one = operator_of(operator, args, {}, operator(*args))
            if one.size_bytes < 6e6:
                call = functools.partial(operator, *args)
                add("passes", call, name=name, flops=0, size_bytes=one.size_bytes)
    repeats = []
    for call in calls:
        start_s = time.thread_time()
        call()
        repeats.append(max(1, int(100e-6 / max(1e-6, time.thread_time() - start_s))))
    end_s = time.perf_counter() + limit_s
    for place in range(num_rounds):
        if place >= least_rounds and time.perf_counter() > end_s:
            break
        for call, number, of_call in zip(calls, repeats, times, strict=True):
            call()  # warms the caches
            start_s = time.thread_time()
            for _ in range(number):
                call()
            of_call.append((time.thread_time() - start_s) / number)
    return rows


def by_two_rates(measured: Any, operators: Sequence[Any]) -> float:
    """The seconds of a program at the best rate of any product and of any pass."""
    rate = max(one["flops"] / min(one["times_s"]) for one in measured["products"])
    moved = max(one["size_bytes"] / min(one["times_s"]) for one in measured["passes"])
    return sum(flops / rate if flops else size / moved for _, flops, size in operators)


def scaled(rows: Sequence[Any], unit: float) -> list[Any]:
    return [{**one, "times_s": [unit * time_s for time_s in one["times_s"]]} for one in rows]


@points(1.5, cell="check_predict")
def check_predict_this_machine(student, rng):
    """Programs that were not among the probes, on the machine that judges, by the student's
    functions alone. All points for a mean error of at most 1.25 times the judge's own and 10
    percentage points, none for that of two rates for everything, a part between them.
    """
    asked = [*PROBED, *drawn_networks(rng)]
    limits = NUM_ROUNDS, LEAST_ROUNDS, LIMIT_S
    run = student.emulated(measure, asked, *limits, world_size=1, student_ranks=())
    rows, unit, slower = run.values[0], between(rng, 2, 40), between(rng, 2, 4)
    measured = {kind: scaled(rows[kind], unit) for kind in ("products", "passes")}
    programs = scaled(rows["programs"], slower * unit)
    phases, held = programs[: len(PROBED)], programs[len(PROBED) :]
    made_up, _, _ = drawn_measured(rng)
    measured |= {"phases": phases, "links": made_up["links"], "write": made_up["write"]}

    def alone_s(name: str, flops: float, size_bytes: float) -> float:
        if flops:
            return reference_product_s(measured["products"], flops, size_bytes)
        return reference_pass_s(measured["passes"], name, size_bytes)

    calls = [(measured, Program(one["operators"], 1, 10_000, 0)) for one in held]
    given = returned(student, "predict", calls, {})
    overhead_s, slowdown = reference_in_program(measured["phases"], alone_s)
    mine, own, guess = [], [], []
    for row, one in zip(held, given, strict=True):
        operators, wanted = row["operators"], min(row["times_s"])
        alone = sum(alone_s(*each) for each in operators)
        mine.append(error(entry(one, 0), wanted))
        own.append(error(overhead_s * len(operators) + slowdown * alone, wanted))
        guess.append(error(slower * by_two_rates(measured, operators), wanted))
    full = 1.25 * fmean(own) + 0.1
    expected = (
        f"at most {full:.0%} off on average over {len(held)} programs of this machine (the judge's"
        f" own model {fmean(own):.0%}, two rates for everything {fmean(guess):.0%})"
    )
    hint = "Which of overhead, slowdown, small products and small passes is missing?"
    grade_error(fmean(mine), full, max(fmean(guess), full + 0.1), expected, hint)
