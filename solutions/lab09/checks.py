"""Hidden checks of lab 9: schedules of pipelines, as data and on emulated ranks.

A schedule is data: the judge reads and plays it. On ranks the points rest on the messages, whose
bodies the judge computes and the conductor saw: each rank has the weights of its own stages alone,
which are drawn, so that no rank can make up what it did not receive. The time that a run may take
has a floor and a ceiling. The shortest schedule is measured by a bound that is attained.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

import worldsize as ws
from autograder.checks import (
    Made,
    Outcome,
    PartlyHeld,
    StudentFailed,
    between,
    call_each,
    entries,
    entry,
    expect_after_arrival,
    expect_body,
    expect_end,
    expect_grown,
    expect_same_again,
    expect_work,
    hinted,
    integer,
    is_same,
    limit_computing,
    points,
    posts_of,
    return_freed_memory,
    shown,
    shuffled,
    take_from_solution,
    tensor_like,
    whole,
)
from worldsize import emulate
from worldsize.check import CheckFailed, expect_close
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.launch import Run

BY_HAND = "torch's own pipelines are not allowed here: this is what you write"
RULES = {"allow": {"send", "recv"}, "forbid": {"torch.distributed.pipelining": BY_HAND}}
SEEN = RULES | {"keeps_exchanges": True}
MB = 2**20
CPU_S = 3  # more than what the text says
LATE = "It may take at most 2 seconds of computing time: soon after that it is ended."
EXACT = 1e-9

NO_WAIT = "Start each send with isend and go on: a send that waits may wait for ever."
BY_WIRE = "What a rank knows of other stages comes over the wire."
STUCK = "Something that comes later in the schedule would have to be done first."

SOLUTION = Path(__file__).with_name("lab09.py")
Act, needs, Working, transfers_of = take_from_solution(
    SOLUTION, "Action", "needed_before", "Timed", "transfers_of"
)
right_gpipe, right_1f1b, right_interleaved = take_from_solution(
    SOLUTION, "gpipe", "one_f_one_b", "interleaved"
)

# All schedules are judged with these two, the solution's own too: a slip in them would hide itself.
NEEDED = {
    ("F", 0, 4): [],
    ("F", 1, 4): [("F", 0, 4)],
    ("F", 2, 4): [("F", 1, 4)],
    ("B", 1, 4): [("B", 2, 4), ("F", 1, 4)],
    ("B", 2, 4): [("F", 2, 4)],
    ("I", 0, 4): [("F", 0, 4), ("I", 1, 4)],
    ("W", 2, 4): [("I", 2, 4)],
}
assert all(sorted(needs(Act(*one), 3)) == before for one, before in NEEDED.items())
THREE_STAGES = [[Act("F", 0, 0), Act("F", 2, 0)], [Act("F", 1, 0), Act("B", 1, 0)]]
assert transfers_of(THREE_STAGES, 3) == [
    [("send", 1), ("recv", 1)],
    [("recv", 0), ("send", 0), ("recv", 0), ("send", 0)],
]


Schedule = list[list[Act]]


# Schedules as data.


def stand_ins(name: str) -> dict[str, Any]:
    """What may be called; nothing that makes the schedules of `name` itself may go to its rank."""
    return {"one_f_one_b": right_1f1b} if name == "interleaved" else {}


def returned(student: Any, name: str, calls: Sequence[Any]) -> list[Any]:
    run = student.emulated(call_each, name, list(calls), stand_ins(name), world_size=1, **RULES)
    return entries(run.values[0], len(calls))


def returned_in_time(student: Any, name: str, args: Sequence[Any]) -> Any:
    """What one call returns in the computing time that the text gives, and what a rank needs."""
    with hinted(LATE, Outcome.CRASHED):
        made = Made(limit_computing, CPU_S)
        job = (call_each, name, [args], stand_ins(name))
        run = student.emulated(*job, world_size=1, made=made, **RULES)
    return entry(run.values[0], 0)


def read(value: Any, num_ranks: int, num_stages: int, num: int, kinds: str, of: str) -> Schedule:
    """The schedule that was returned.

    Raises:
        CheckFailed: it is not one with each action once, on its own rank.
    """
    if not isinstance(value, list) or len(value) != num_ranks:
        raise CheckFailed(f"a list of actions for each rank {of}", shown(value))
    schedule: Schedule = []
    for rank, actions in enumerate(value):
        schedule.append([])
        for given in actions if isinstance(actions, list) else []:
            kind, stage, number = (entry(given, place) for place in range(3))
            is_own = integer(stage) is not None and stage % num_ranks == rank
            is_there = is_own and 0 <= stage < num_stages and integer(number) is not None
            if kind not in list(kinds) or not is_there or not 0 <= number < num:
                expected = f"actions with kinds {', '.join(kinds)} of rank {rank}'s stages {of}"
                raise CheckFailed(expected, shown([stage, number]), "Stage s is on rank s % p.")
            schedule[-1].append(Act(kind, stage, number))
    flat = [one for actions in schedule for one in actions]
    wanted = len(kinds) * num_stages * num
    if len(set(flat)) != len(flat) or len(flat) != wanted:
        actual = f"{len(set(flat))} different ones and {len(flat) - len(set(flat))} again"
        raise CheckFailed(f"{wanted} actions {of}, each once", actual)
    return schedule


class Played(NamedTuple):
    """A schedule on paper: its length, and each rank's most in flight."""

    length: float
    in_flight: list[int]


def play(schedule: Schedule, num_stages: int, times: Mapping[str, float], of: str) -> Played:
    """Play a schedule; `times` has the time of each kind, or of each kind and stage.

    Raises:
        CheckFailed: ranks wait for each other for ever.
    """
    done: dict[Act, float] = {}
    heads, free = [0] * len(schedule), [0.0] * len(schedule)
    held, most = [0] * len(schedule), [0] * len(schedule)
    while True:
        num_done = len(done)
        for rank, actions in enumerate(schedule):
            for action in actions[heads[rank] :]:
                before = needs(action, num_stages)
                if any(one not in done for one in before):
                    break
                start = max([free[rank], *(done[one] for one in before)])
                free[rank] = done[action] = start + times[action.kind]
                held[rank] += action.kind == "F"
                most[rank] = max(most[rank], held[rank])
                held[rank] -= action.kind in "BW"
                heads[rank] += 1
        if len(done) == num_done:
            break
    for rank, actions in enumerate(schedule):
        if heads[rank] < len(actions):
            kind, stage, number = actions[heads[rank]]
            actual = f"rank {rank} waits for ever before {kind} of {number} in stage {stage}"
            raise CheckFailed(f"a schedule {of} that ends", actual, STUCK)
    return Played(max(free), most)


def expect_length(played: Played, wanted: float, of: str, hint: str) -> None:
    if played.length > wanted * (1 + EXACT):
        raise CheckFailed(f"a length of {wanted:g} {of}", f"{played.length:g}", hint)


def expect_in_flight(played: Played, wanted: Sequence[int], of: str, hint: str) -> None:
    for rank, (given, most) in enumerate(zip(played.in_flight, wanted, strict=True)):
        if given > most:
            raise CheckFailed(f"at most {most} in flight on rank {rank} {of}", f"{given}", hint)


def sized(num_ranks: int, num: int, num_chunks: int = 1) -> str:
    chunks = f" and {num_chunks} chunks" if num_chunks > 1 else ""
    return f"with {num_ranks} ranks, {num} micro-batches{chunks}"


def drawn_times(rng: torch.Generator, kinds: str = "FB") -> dict[str, float]:
    return {kind: float(whole(rng, 2, 9)) for kind in kinds}


def schedules_of(student: Any, name: str, sizes: Sequence[Any]) -> list[tuple[Any, Schedule, str]]:
    """The schedules that a generator returns for these numbers of ranks, micro-batches, chunks."""
    made = []
    for size, value in zip(sizes, returned(student, name, sizes), strict=True):
        num_ranks, num, num_chunks = (*size, 1)[:3]
        of = sized(num_ranks, num, num_chunks)
        made.append((size, read(value, num_ranks, num_chunks * num_ranks, num, "FB", of), of))
    return made


ODD = [(3, 5), (5, 7)]
FEW = [(1, 1), (1, 3), (4, 1), (5, 2), (5, 4)]


def drawn_sizes(rng: torch.Generator) -> list[tuple[int, int]]:
    return [*ODD, (4, whole(rng, 8, 11)), (whole(rng, 6, 7), whole(rng, 8, 9))]


# gpipe


def expect_gpipe(student: Any, sizes: Sequence[Any], times: Mapping[str, float]) -> None:
    for (num_ranks, num), schedule, of in schedules_of(student, "gpipe", sizes):
        played = play(schedule, num_ranks, times, of)
        for rank, actions in enumerate(schedule):
            if [one.kind for one in actions] != ["F"] * num + ["B"] * num:
                raise CheckFailed(f"all F of rank {rank} and then all B {of}", "another order")
        wanted = (num + num_ranks - 1) * sum(times.values())
        hint = "All ranks take the micro-batches in one order in F, and in one order in B."
        expect_length(played, wanted, of, hint)


@points(1.5, cell="check_gpipe")
def check_gpipe_is_legal_and_short(student, rng):
    """All F, then all B on each rank, for even and odd numbers; the length is (m + p - 1)(f + b)
    whatever f and b are.
    """
    expect_gpipe(student, drawn_sizes(rng), drawn_times(rng))


@points(0.5, cell="check_gpipe")
def check_gpipe_of_few(student, rng):
    """The same for one rank, for one micro-batch, and for fewer micro-batches than ranks."""
    expect_gpipe(student, FEW, drawn_times(rng))


# one_f_one_b

AHEAD = "Rank r does p - 1 - r F ahead, but not more than there are; then F and B take turns."


def expect_1f1b(student: Any, sizes: Sequence[Any], times: Sequence[Mapping[str, float]]) -> None:
    """Raise CheckFailed unless all are as short and hold as little as promised.

    Part of the points is earned in proportion to what is saved of GPipe's memory, less the share of
    its time that it takes longer.
    """
    wrong, shares = None, []
    for (num_ranks, num), schedule, of in schedules_of(student, "one_f_one_b", sizes):
        most = [min(num_ranks - rank, num) for rank in range(num_ranks)]
        for one in times:
            played = play(schedule, num_ranks, one, of)
            length = (num + num_ranks - 1) * sum(one.values())
            try:
                expect_in_flight(played, most, of, AHEAD)
                expect_length(played, length, of, AHEAD)
            except CheckFailed as error:
                wrong = wrong or error
            held = sum(map(max, played.in_flight, most))
            if sum(most) < num_ranks * num:
                longer = max(0.0, played.length / length - 1)
                shares.append(max(0.0, saved(held, num_ranks * num, sum(most)) - longer))
    if wrong:
        share = rounded_down(sum(shares) / len(shares))
        found = wrong.expected, wrong.actual, wrong.hint
        raise PartlyHeld(share, *found) if 0 < share < 1 else wrong


def saved(given: float, plain: float, best: float) -> float:
    """The share of what can be saved that is saved, from 0 to 1."""
    return min(1.0, max(0.0, (plain - given) / (plain - best)))


def rounded_down(share: float) -> float:
    return int(100 * share + EXACT) / 100


@points(0.5, cell="check_one_f_one_b")
def check_1f1b_is_legal(student, rng):
    """Each action comes once, on its own rank, and no rank waits for ever."""
    for (num_ranks, _), schedule, of in schedules_of(student, "one_f_one_b", drawn_sizes(rng)):
        play(schedule, num_ranks, drawn_times(rng), of)


@points(2.5, cell="check_one_f_one_b")
def check_1f1b_is_short_and_small(student, rng):
    """For even and odd numbers of ranks and micro-batches, the length is (m + p - 1)(f + b), while
    rank r has at most p - r micro-batches in flight.
    """
    expect_1f1b(student, drawn_sizes(rng), [drawn_times(rng), {"F": 1.0, "B": 2.0}])


@points(1, cell="check_one_f_one_b")
def check_1f1b_of_few(student, rng):
    """The same for one rank, for one micro-batch, and for fewer micro-batches than ranks."""
    expect_1f1b(student, FEW, [drawn_times(rng)])


# interleaved


def expect_interleaved(student: Any, sizes: Sequence[Any], times: Mapping[str, float]) -> None:
    for size, schedule, of in schedules_of(student, "interleaved", sizes):
        num_ranks, num, num_chunks = size
        played = play(schedule, num_chunks * num_ranks, times, of)
        first = -(-num // (num // num_ranks))
        most = [
            min((num_chunks - 1) * first + 2 * (num_ranks - 1 - rank) + 1, num_chunks * num)
            if num_chunks > 1
            else num_ranks - rank
            for rank in range(num_ranks)
        ]
        hint = "Rounds of micro-batches; (v - 1) R + 2 (p - 1 - r) F ahead, and F and B in turn."
        expect_in_flight(played, most, of, hint)
        wanted = (num_chunks * num + num_ranks - 1) * sum(times.values())
        expect_length(played, wanted, of, hint)


@points(1, cell="check_interleaved")
def check_interleaved_is_legal(student, rng):
    """Each action comes once, on its own rank, and no rank waits for ever."""
    for size, schedule, of in schedules_of(student, "interleaved", [(4, 4, 2), (3, 6, 3)]):
        play(schedule, size[0] * size[2], drawn_times(rng), of)


@points(2, cell="check_interleaved")
def check_interleaved_is_short_and_small(student, rng):
    """Where m is a multiple of p: the length is (v m + p - 1)(f + b), and no rank has more in
    flight than it may.
    """
    sizes = [(4, 4, 2), (3, 6, 3), (2, 2 * whole(rng, 2, 4), 2), (5, 10, whole(rng, 2, 3))]
    expect_interleaved(student, sizes, drawn_times(rng))


@points(1, cell="check_interleaved")
def check_interleaved_of_any_number(student, rng):
    """The same where m is not a multiple of p, and with one chunk or one rank."""
    sizes = [(3, 5, 2), (3, 7, 2), (4, 9, 3), (5, 7, 2), (3, 5, 1), (1, 3, 2)]
    uneven = [(4, whole(rng, 10, 11), 3), (3, whole(rng, 10, 11), 2)]  # of two and three rounds
    expect_interleaved(student, [*sizes, *uneven], drawn_times(rng))


# find_circle

Programs = list[list[tuple[str, int]]]


def stuck_heads(programs: Programs) -> dict[int, int]:
    """Of each rank that waits for ever, for whom."""
    ended = [0] * len(programs)

    def head(rank: int) -> Any:
        return programs[rank][ended[rank]] if ended[rank] < len(programs[rank]) else None

    moved = True
    while moved:
        moved = False
        for rank in range(len(programs)):
            while (own := head(rank)) and own[0] == "send" and head(own[1]) == ("recv", rank):
                ended[rank] += 1
                ended[own[1]] += 1
                moved = True
    return {rank: head(rank)[1] for rank in range(len(programs)) if head(rank)}


def circle_on_rank(student: Any, cases: Any) -> Any:
    made = [
        [[student.Transfer(op, peer) for op, peer in program] for program in programs]
        for programs in cases
    ]
    return [student.find_circle(programs) for programs in made]


def circles_of(student: Any, cases: Sequence[Programs]) -> list[list[int] | None]:
    """What is found in each case.

    Raises:
        CheckFailed: it is not None exactly where all ends, and otherwise not a circle.
    """
    run = student.emulated(circle_on_rank, list(cases), world_size=1, **RULES)
    found = []
    for programs, value in zip(cases, entries(run.values[0], len(cases)), strict=True):
        waits = stuck_heads(programs)
        if not waits or value is None:
            if waits or value is not None:
                expected = "ranks that wait for each other for ever" if waits else "None: all ends"
                actual = shown(value)
                raise CheckFailed(expected, actual, "Play it until nothing moves any more.")
        else:
            circle = [integer(one) for one in value] if isinstance(value, list) else []
            is_circle = (
                len(set(circle)) == len(circle) > 1
                and all(
                    waits.get(one) == other  # pyright: ignore[reportArgumentType]
                    for one, other in zip(circle, circle[1:] + circle[:1], strict=True)
                )
            )
            if not is_circle:
                hint = "Each waits for the next one in the list, and the last for the first."
                raise CheckFailed("a circle of ranks", shown(value), hint)
            if circle[0] != min(one for one in circle if one is not None):
                raise CheckFailed("the circle from its lowest rank on", shown(value))
        found.append(value)
    return found


def renamed(programs: Programs, names: Sequence[int]) -> Programs:
    """The same programs, on ranks with other numbers."""
    made: Programs = [[] for _ in names]
    for rank, program in enumerate(programs):
        made[names[rank]] = [(op, names[peer]) for op, peer in program]
    return made


def ring(num: int, first: str) -> Programs:
    """Each rank sends to the next and receives from the one before, in one order."""
    programs: Programs = []
    for rank in range(num):
        both = [("send", (rank + 1) % num), ("recv", (rank - 1) % num)]
        programs.append(both if first == "send" else both[::-1])
    return programs


def drawn_names(rng: torch.Generator, num: int) -> list[int]:
    return shuffled(rng, list(range(num)))


@points(1, cell="check_find_circle")
def check_circles_of_two_and_three(student, rng):
    """Ranks that all send first, or all receive first: circles of two, of three and of five; None
    where one of them begins the other way round.
    """
    cases = [renamed(ring(num, op), drawn_names(rng, num)) for num in (2, 3, 5) for op in OPS]
    broken = ring(3, "send")
    broken[whole(rng, 0, 2)].reverse()
    circles_of(student, [*cases, broken, [[], []], [[("send", 1)], [("recv", 0)]]])


OPS = ("send", "recv")


@points(1, cell="check_find_circle")
def check_circles_behind_and_after(student, rng):
    """Circles that close only after other transfers have ended, ranks that wait for a circle
    without being in it, and two circles.
    """
    after = [
        [("send", 1), ("recv", 3), ("send", 3), ("recv", 2)],
        [("recv", 0), ("send", 2), ("send", 3), ("recv", 3)],
        [("recv", 1), ("send", 3), ("send", 0)],
        [("send", 0), ("recv", 0), ("send", 1), ("recv", 1), ("recv", 2)],
    ]
    ends = [
        [("send", 1), ("recv", 1)] * 3,
        [("recv", 0), ("send", 0)] * 3,
        [("recv", 3), ("recv", 3)],
        [("send", 2), ("send", 2)],
    ]
    circle = ring(3, "send")
    behind = [*circle, [("recv", 0)], [("send", 3)]]
    behind[0] = [*behind[0], ("send", 3)]
    behind[3] = [*behind[3], ("recv", 4)]
    chain = [[("recv", 1)], [("send", 2), ("recv", 2), ("send", 0)], [("send", 1), ("recv", 1)]]
    two = [*ring(2, "send"), *([(op, 2 + peer) for op, peer in one] for one in ring(2, "recv"))]
    cases = [renamed(one, drawn_names(rng, len(one))) for one in (after, behind, chain, ends, two)]
    circles_of(student, [*cases, chain, behind])


@points(1, cell="check_find_circle")
def check_circles_of_schedules(student, rng):
    """Schedules whose sends wait: GPipe ends, 1F1B and interleaved 1F1B do not."""
    cases = []
    for num_ranks, num in ((3, 5), (whole(rng, 4, 5), 7)):
        cases += [
            transfers_of(make(num_ranks, num), num_ranks) for make in (right_gpipe, right_1f1b)
        ]
    cases += [transfers_of(right_interleaved(3, 6, 2), 6)]
    circles_of(student, cases)


# run_schedule


class Sizes(NamedTuple):
    """A model of stages, and the shapes of its micro-batches, all of different sizes."""

    seed: int
    num_stages: int
    shapes: Sequence[tuple[int, ...]]
    width: int = 4
    time_s: float = 0.0
    num_held: int = 0


class Stage(nn.Module):
    """Weights that only their rank knows.

    It may work for some virtual time, and hold so many numbers more for each micro-batch.
    """

    def __init__(
        self,
        weights: Sequence[torch.Tensor],
        is_first: bool,
        time_s: float = 0.0,
        num_held: int = 0,
    ) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(one.clone()) for one in weights)
        self.is_first, self.time_s, self.num_held = is_first, time_s, num_held

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.is_first:
            tensor = self.weight[tensor]
        output = torch.tanh(tensor @ self.weight.t()) + self.bias
        if self.num_held:
            output = Holding.apply(output, self.num_held)
        return Working.apply(output, self.time_s) if self.time_s else output


class Holding(torch.autograd.Function):
    """An identity whose output, and whose backward, hold so many numbers."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, num_held: int) -> torch.Tensor:
        held = tensor.new_ones(num_held)
        held[: tensor.numel()] = tensor.flatten()
        ctx.save_for_backward(held)
        return held[: tensor.numel()].view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None


def weights_of(sizes: Sizes) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(sizes.seed)
    shapes = ((sizes.width, sizes.width), (sizes.width,))
    return [
        [torch.randn(shape, generator=generator) for shape in shapes]
        for _ in range(sizes.num_stages)
    ]


def batches_of(sizes: Sizes) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(sizes.seed + 1)
    return [
        (
            torch.randint(0, sizes.width, shape, generator=generator),
            torch.randn((*shape, 2), generator=generator),  # more than there are inputs
        )
        for shape in sizes.shapes
    ]


def squares(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (output.sum(dim=-1, keepdim=True) - targets).square().sum()


def run_on_rank(
    student: Any, schedule: Any, sizes: Sizes, batches: Any, num_calls: int, own: Any
) -> Any:
    """The loss of each call and the gradients after the last, of a rank that knows its own weights.

    With more than one call, gradients of ones are there before the first.
    """
    if sizes.num_held:
        return_freed_memory()
    made = [[student.Action(*one) for one in actions] for actions in schedule]
    stages = {
        stage: Stage(weights, stage == 0, sizes.time_s, sizes.num_held)
        for stage, weights in sorted(own.items())
    }
    parameters = [one for stage in stages.values() for one in stage.parameters()]
    if num_calls > 1:
        for one in parameters:
            one.grad = torch.ones_like(one)
    pipeline = student.Pipeline(stages, sizes.num_stages, sizes.width, squares)
    losses = [student.run_schedule(made, pipeline, batches) for _ in range(num_calls)]
    return [losses, [one.grad for one in parameters]]


class Truth(NamedTuple):
    """One process: the loss, gradients of each stage, what each F and B sends, and mistakes."""

    loss: float
    gradients: list[list[torch.Tensor]]
    bodies: dict[Act, torch.Tensor]
    mistakes: list[tuple[list[list[torch.Tensor]], str]]


def truth_of(sizes: Sizes) -> Truth:
    batches = batches_of(sizes)
    stages = [Stage(one, not place) for place, one in enumerate(weights_of(sizes))]
    num_targets, bodies = sum(targets.numel() for _, targets in batches), {}
    parameters = [one for stage in stages for one in stage.parameters()]
    total, sums, means = 0.0, None, None
    for number, (inputs, targets) in enumerate(batches):
        hidden, tensors = inputs, []
        for place, stage in enumerate(stages):
            hidden = stage(hidden)
            tensors.append(hidden)
            bodies[Act("F", place, number)] = hidden.detach()
        loss = squares(hidden, targets)
        total += loss.item()
        found = torch.autograd.grad(loss, [*tensors[:-1], *parameters])
        for place, gradient in enumerate(found[: len(tensors) - 1]):
            bodies[Act("B", place + 1, number)] = gradient / num_targets
        own = found[len(tensors) - 1 :]
        sums = own if sums is None else [a + b for a, b in zip(sums, own, strict=True)]
        part = [one / targets.numel() for one in own]
        means = part if means is None else [a + b for a, b in zip(means, part, strict=True)]
    assert sums is not None
    assert means is not None

    def by_stage(flat: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
        return [list(flat[2 * place : 2 * place + 2]) for place in range(len(stages))]

    mistakes = [
        (by_stage(sums), "That is the gradient of the sum: divide by the number of all targets."),
        (by_stage(means), "Each micro-batch is divided by its own targets: divide by all."),
        (by_stage([one / len(batches) for one in means]), "That is the mean of the means."),
        (by_stage([one / len(batches) for one in sums]), "Divide by targets, not micro-batches."),
        (by_stage([2 * one / num_targets for one in sums]), "Divide by targets, not by inputs."),
    ]
    right = by_stage([one / num_targets for one in sums])
    return Truth(total / num_targets, right, bodies, mistakes)


def drawn(
    rng: torch.Generator,
    num_stages: int,
    num: int,
    most_rows: int = 1,
    dims: Sequence[int] = (2,),
    **others: Any,
) -> Sizes:
    """Micro-batches of different sizes, in any order, of up to so many sequences each.

    The inputs of one after the other have so many dimensions as `dims` says, in turn.
    """
    sizes = [(1, 1 + one % most_rows, 2 + one) for one in range(num)]
    shapes = shuffled(rng, [one[-dims[place % len(dims)] :] for place, one in enumerate(sizes)])
    return Sizes(whole(rng, 0, 10**6), num_stages, [tuple(one) for one in shapes], **others)


def run_of(
    student: Any, schedule: Schedule, sizes: Sizes, num_calls: int = 1, **options: Any
) -> Run:
    weights, num_ranks = weights_of(sizes), len(schedule)
    plain = [[tuple(one) for one in actions] for actions in schedule]
    own = [
        {stage: weights[stage] for stage in range(rank, sizes.num_stages, num_ranks)}
        for rank in range(num_ranks)
    ]
    each = [(plain, sizes, batches_of(sizes), num_calls, one) for one in own]
    with hinted(NO_WAIT):
        return student.emulated(run_on_rank, each=each, world_size=num_ranks, **(SEEN | options))


def expect_loss(run: Run, sizes: Sizes) -> None:
    """Raise CheckFailed unless the rank with the last stage returned the loss, the others 0.0."""
    for rank, value in enumerate(run.values):
        is_last = rank == (sizes.num_stages - 1) % len(run.values)
        wanted = truth_of(sizes).loss if is_last else 0.0
        hint = "The sum of all losses over the number of all targets, where the last stage is."
        if type(loss := entry(value, 0, 0)) not in (float, int):  # a sum of no losses is 0
            raise CheckFailed(f"a float from rank {rank}", shown(loss), hint)
        expect_close(loss, wanted, f"what rank {rank} returns", hint, rtol=1e-4)


RTOL, ATOL = 1e-3, 1e-5


def expect_gradients(
    run: Run, sizes: Sizes, num_calls: int = 1, is_scale_judged: bool = False
) -> None:
    """Raise CheckFailed unless gradients are the sums over all calls and what was there before.

    Only one check judges how micro-batches are weighted: one slip costs one slip.
    """
    truth, num_ranks = truth_of(sizes), len(run.values)
    before = 1.0 if num_calls > 1 else 0.0
    stages = range(sizes.num_stages)
    places = [
        (stage % num_ranks, 2 * (stage // num_ranks) + one) for stage in stages for one in (0, 1)
    ]
    given = [entry(run.values[rank], 1, place) for rank, place in places]
    hint = "One backward for each B, of a loss over the number of all targets."
    if num_calls > 1:
        hint = "What was in grad before stays in the sum: scale the loss instead."

    def sums(by_stage: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        return [before + num_calls * one for gradients in by_stage for one in gradients]

    for like, why in truth.mistakes:
        pairs = list(zip(given, sums(like), strict=True))
        if all(tensor_like(one, other) is not None for one, other in pairs) and all(
            torch.allclose(one, other, RTOL, ATOL) for one, other in pairs
        ):
            if not is_scale_judged:
                return
            hint = why
    for place, (one, wanted) in enumerate(zip(given, sums(truth.gradients), strict=True)):
        expect_close(one, wanted, f"a gradient of stage {place // 2}", hint, RTOL, ATOL)


def sent_by(rank: int, schedule: Schedule, sizes: Sizes) -> list[tuple[int, Act]]:
    """To whom a rank sends the results of its actions, in order."""
    found = []
    for action in schedule[rank]:
        other = action.stage + (1 if action.kind == "F" else -1)
        if 0 <= other < sizes.num_stages:
            found.append((other % len(schedule), action))
    return found


def scaled_like(sent: Exchange, wanted: torch.Tensor) -> Exchange:
    """The message with the size of the numbers that are wanted, which the loss's scale decides."""
    body = sent.tensor()
    if body.dtype != wanted.dtype or body.numel() != wanted.numel() or not body.any():
        return sent
    factor = (wanted.norm() / body.norm()).item()
    bodies = {rank: (body * factor).numpy().tobytes() for rank in sent.bodies}
    return sent._replace(bodies=bodies)


def expect_sent(run: Run, schedule: Schedule, sizes: Sizes, num_calls: int = 1) -> None:
    """Raise CheckFailed unless each rank sent the results of its actions, in whatever order."""
    truth = truth_of(sizes)
    for rank in range(len(schedule)):
        given = posts_of(run, rank)
        for peer, action in sent_by(rank, schedule, sizes):
            body = truth.bodies[action]
            same = [one for one in given if one.ranks[1] == peer and is_result(one, action, body)]
            if len(same) < num_calls:
                kind, stage, number = action
                expected = f"rank {rank} to send rank {peer} the result of {kind} of micro-batch"
                actual = "no such numbers"
                raise CheckFailed(f"{expected} {number} in stage {stage}", actual, BY_WIRE)


def is_result(sent: Exchange, action: Act, wanted: torch.Tensor) -> bool:
    given = (scaled_like(sent, wanted) if action.kind == "B" else sent).tensor()
    is_alike = given.numel() == wanted.numel() and given.dtype == wanted.dtype
    return is_alike and torch.allclose(given, wanted.flatten(), 1e-3, 1e-6)


def expect_order(run: Run, schedule: Schedule, sizes: Sizes) -> None:
    """Raise CheckFailed unless each rank sent the results of its actions in their order."""
    truth = truth_of(sizes)
    for rank in range(len(schedule)):
        given = posts_of(run, rank)
        wanted = sent_by(rank, schedule, sizes)
        if len(given) != len(wanted):
            raise CheckFailed(f"{len(wanted)} messages from rank {rank}", f"{len(given)}")
        for place, (one, (peer, action)) in enumerate(zip(given, wanted, strict=True)):
            what = (
                f"message {place + 1} of rank {rank}: the result of {action.kind} of micro-batch"
                f" {action.micro_batch} in stage {action.stage}"
            )
            if one.ranks[1] != peer:
                raise CheckFailed(f"{what}, to rank {peer}", f"one to rank {one.ranks[1]}")
            hint = "Run the actions in the order of the schedule, and send each result at once."
            body = truth.bodies[action]
            like = scaled_like(one, body) if action.kind == "B" else one
            expect_body(like, body, what, hint, rtol=1e-3)


def mixed(rng: torch.Generator, num: int) -> Schedule:
    """All forward and then all backward passes on 2 ranks, which take them the other way round."""
    orders = {kind: shuffled(rng, list(range(num))) for kind in "FB"}
    return [
        [Act(kind, rank, one) for kind in "FB" for one in orders[kind][:: 1 - 2 * rank]]
        for rank in range(2)
    ]


def expect_in_turn(run: Run, schedule: Schedule, sizes: Sizes, times: Mapping[str, float]) -> None:
    """Raise CheckFailed if a rank sent a result before what it is made of had come and was done.

    It is known already that ranks sent the results of their actions in order. When a message came
    is the conductor's word, and how long an action takes is the check's.
    """
    sent: dict[Act, Exchange] = {}
    for rank in range(len(schedule)):
        pairs = zip(sent_by(rank, schedule, sizes), posts_of(run, rank), strict=True)
        sent |= {action: one for (_, action), one in pairs}
    for rank, actions in enumerate(schedule):
        free_s = 0.0
        for action in actions:
            what = f"what {action.kind} of micro-batch {action.micro_batch} is made of"
            before = needs(action, sizes.num_stages)
            came = [sent[one] for one in before if one.stage % len(schedule) != rank]
            free_s = max([free_s, *(one.done_s[rank] for one in came)]) + times[action.kind]
            if action not in sent:
                continue
            for one in came:
                expect_after_arrival(sent[action], one, rank, what)
            if sent[action].posted_s[rank] < free_s * (1 - EXACT):
                expected = f"rank {rank} to send a result once its work is done"
                hint = "Wait for what you receive, and leave the emulator's clock alone."
                raise CheckFailed(expected, "one that was sent before", hint)


TAGS = "Give each message a tag of its own: the other rank may take them in another order."


@points(1.5, cell="check_run_schedule")
def check_gradients_are_those_of_one_process(student, rng):
    """With GPipe on 3 ranks, the loss and all gradients are those of one process, and the same bits
    in every run; micro-batches have different sizes, one to three dimensions, and more targets
    than inputs.
    """
    schedule, sizes = right_gpipe(3, 5), drawn(rng, 3, 5, most_rows=3, dims=(1, 2, 3))
    run = run_of(student, schedule, sizes)
    expect_gradients(run, sizes, is_scale_judged=True)
    expect_loss(run, sizes)
    expect_sent(run, schedule, sizes)
    again = run_of(student, schedule, sizes)
    expect_same_again(run.values, again.values)


@points(1, cell="check_run_schedule")
def check_messages_are_in_the_order_of_the_schedule(student, rng):
    """Whatever the legal orders of two ranks, each sends the result of each action, once, to the
    right rank, in the order of its own actions.
    """
    num = whole(rng, 9, 12)  # who limits what is under way does not end
    schedule, sizes = mixed(rng, num), drawn(rng, 2, num)
    with hinted(TAGS, Outcome.CRASHED):
        run = run_of(student, schedule, sizes)
    expect_order(run, schedule, sizes)


@points(1, cell="check_run_schedule")
def check_calls_accumulate(student, rng):
    """Two calls add up in `grad`, to what was there before; each returns the loss of its own."""
    sizes = drawn(rng, 2, whole(rng, 3, 5))
    schedule = right_gpipe(2, len(sizes.shapes))
    run = run_of(student, schedule, sizes, num_calls=2)
    expect_gradients(run, sizes, num_calls=2)
    hint = "Begin each call with a loss of 0."
    for rank, value in enumerate(run.values):
        if not is_same(entry(value, 0, 1), entry(value, 0, 0)):
            expected = f"rank {rank} to return the same from two calls with the same weights"
            raise CheckFailed(expected, "another loss from the second", hint)
    expect_sent(run, schedule, sizes, num_calls=2)


@points(1, cell="check_run_schedule")
def check_1f1b_runs_in_its_time(student, rng):
    """1F1B on 3 ranks, message by message; it takes the time that it takes on paper."""
    time_s = between(rng, 1e-3, 2e-3)
    schedule, sizes = right_1f1b(3, 5), drawn(rng, 3, 5, time_s=time_s)
    run = run_of(student, schedule, sizes)
    expect_order(run, schedule, sizes)
    expect_gradients(run, sizes)
    times = {"F": time_s, "B": 2 * time_s}
    end_s = play(schedule, 3, times, "").length
    expect_work(run, dict.fromkeys(range(3), 5 * 3 * time_s))
    expect_in_turn(run, schedule, sizes, times)
    hint = "Start a send and go on; wait for a message only when it is needed."
    expect_end(run, end_s, end_s, "a step of 1F1B", hint)


@points(1.5, cell="check_run_schedule")
def check_several_stages_on_a_rank(student, rng):
    """Interleaved 1F1B on 2 and on 3 ranks, with two stages on each: messages and gradients."""
    for num_ranks, num in ((2, 4), (3, 3)):
        schedule = right_interleaved(num_ranks, num, 2)
        sizes = drawn(rng, 2 * num_ranks, num)
        run = run_of(student, schedule, sizes)
        expect_order(run, schedule, sizes)
        expect_gradients(run, sizes)


@points(1, cell="check_run_schedule")
def check_activations_are_held_until_backward(student, rng):
    """With one micro-batch in flight, the activations of one are held, by the kernel's word."""
    num = whole(rng, 6, 7)
    schedule = [[Act(kind, rank, one) for one in range(num) for kind in "FB"] for rank in range(2)]
    sizes = drawn(rng, 2, num, num_held=6 * MB)
    run = run_of(student, schedule, sizes, memory=True)
    hint = "Forget the input and the output of a micro-batch in its B."
    expect_grown(run, 80 * MB, f"{num} micro-batches of 24 MiB, one in flight at a time", hint)
    expect_gradients(run, sizes)
    expect_sent(run, schedule, sizes)


# balance


def slowest_of(costs: Sequence[float], num_stages: int) -> float:
    """The cost of the slowest stage in the best way to cut."""
    total = [0.0]
    for cost in costs:
        total.append(total[-1] + cost)
    best = list(total)
    for _ in range(num_stages - 1):
        best = [0.0] + [
            min(max(best[start], total[end] - total[start]) for start in range(end))
            for end in range(1, len(total))
        ]
    return best[-1]


def expect_balanced(student: Any, cases: Sequence[tuple[list[float], int]]) -> None:
    """Raise CheckFailed unless each case is cut as well as possible."""
    ratios = []
    for costs, num_stages in cases:
        given = returned_in_time(student, "balance", (costs, num_stages))
        of = f"{len(costs)} layers on {num_stages} stages"
        lengths = [integer(one) for one in given] if isinstance(given, list) else []
        if len(lengths) != num_stages or any(one is None or one < 1 for one in lengths):
            raise CheckFailed(f"{num_stages} numbers of at least 1, of {of}", shown(given))
        if sum(one or 0 for one in lengths) != len(costs):
            raise CheckFailed(f"numbers that add up to {len(costs)}", shown(given))
        slowest, start = 0.0, 0
        for num in lengths:
            slowest = max(slowest, sum(costs[start : start + (num or 0)]))
            start += num or 0
        ratios.append((slowest / slowest_of(costs, num_stages), slowest, of))
    worst, slowest, of = max(ratios)
    if worst > 1 + EXACT:
        expected, actual = f"a slowest stage of {slowest / worst:g}, of {of}", f"{slowest:g}"
        hint = "To fill up each stage to the mean, or to a limit, is not always best."
        raise CheckFailed(expected, actual, hint)


@points(1.5, cell="check_balance")
def check_balance_is_best(student, rng):
    """The slowest stage costs as little as possible; every stage has a layer."""
    cases: list[tuple[list[float], int]] = []
    for num, num_stages in ((9, 4), (11, 5), (7, 7), (5, 1)):
        cases.append(([float(whole(rng, 1, 9)) for _ in range(num)], num_stages))
    unit = between(rng, 0.5, 2.0)
    for costs, num_stages in (
        ([1, 3, 1, 1, 1, 1, 2], 4),  # equal numbers, and stages filled to the mean, cost 4
        ([2, 1, 5, 1, 1, 1, 1, 3, 1, 5], 4),  # these cost 8 or 9
        ([1, 1, 1, 1, 9, 1], 4),
        ([8, 1, 1, 1, 1], 4),
    ):
        cases.append(([unit * one for one in costs], num_stages))
    expect_balanced(student, cases)


@points(0.5, cell="check_balance")
def check_balance_is_quick(student, rng):
    """200 layers on 16 stages take at most 2 seconds."""
    # three, because filling up each stage happens to be best in one such case of sixteen
    cases = [([2.0 ** whole(rng, 0, 9) for _ in range(200)], 16) for _ in range(3)]
    expect_balanced(student, cases)


# shortest


class Case(NamedTuple):
    num_ranks: int
    num: int
    most: int
    times: dict[str, float]

    @property
    def of(self) -> str:
        return f"{sized(self.num_ranks, self.num)}, {self.most} in flight"

    @property
    def length_of_1f1b(self) -> float:
        """With each W right behind its I."""
        return self.num * sum(self.times.values()) + (self.num_ranks - 1) * (
            self.times["F"] + self.times["I"]
        )

    @property
    def bound(self) -> float:
        """No schedule is shorter: each rank works, and must be idle at the beginning and the end.

        Rank r waits for its first F. Until its first I can come, it can do F of as many as may be
        in flight. And the last I of rank 0, which comes that much later, and its W leave time only
        for the W that are left on rank r.
        """
        p, room = self.num_ranks, min(self.most, self.num)
        f, i, w = (self.times[kind] for kind in "FIW")
        idle = [
            rank * f
            + max(0.0, (p - rank) * f + (p - 1 - rank) * i - room * f)
            + max(0.0, rank * i + w - room * w)
            for rank in range(p)
        ]
        if self.most == 1:
            return self.num * (p * (f + i) + w)
        return self.num * (f + i + w) + max(idle)


def found_by(student: Any, cases: Sequence[Case]) -> list[Played]:
    """The schedules that were found, played.

    Raises:
        CheckFailed: one is not legal, or has too many in flight.
    """
    found = []
    for case in cases:
        value = returned_in_time(student, "shortest", tuple(case))
        schedule = read(value, case.num_ranks, case.num_ranks, case.num, "FIW", case.of)
        played = play(schedule, case.num_ranks, case.times, case.of)
        hint = "A micro-batch is in flight from the beginning of F to the end of W."
        expect_in_flight(played, [case.most] * case.num_ranks, case.of, hint)
        if played.length < case.bound * (1 - EXACT):
            raise CheckFailed(f"at least {case.bound:g}, which no schedule beats", "less")
        found.append(played)
    return found


@points(1, cell="check_shortest")
def check_shortest_is_legal(student, rng):
    """I and W apart, each action once and in a possible order, with at most as many in flight as
    allowed: also with one in flight, one rank, one micro-batch, or fewer micro-batches than ranks.
    """
    times = drawn_times(rng, "FIW")
    sizes = [(3, 5, 2), (4, 4, 1), (1, 3, 2), (3, 1, 3), (5, 3, 4), (5, 9, 7)]
    found_by(student, [Case(*one, times) for one in sizes])


# Ranks, micro-batches, how many in flight, and the times of F, I and W. Each has a schedule that
# attains the bound, whatever the unit of time, and none stands in the notebook.
ATTAINED = (
    (3, 5, 3, (5, 4, 3)), (3, 5, 4, (2, 3, 3)), (3, 6, 3, (9, 8, 8)), (3, 7, 4, (7, 9, 5)),
    (3, 7, 5, (3, 7, 3)), (3, 8, 5, (2, 7, 4)), (3, 9, 4, (4, 7, 4)), (3, 9, 5, (4, 9, 6)),
    (4, 5, 4, (6, 5, 3)), (4, 5, 5, (3, 7, 7)), (4, 6, 4, (9, 5, 7)), (4, 6, 5, (8, 5, 7)),
    (4, 7, 4, (9, 4, 7)), (4, 7, 6, (3, 7, 9)), (4, 7, 7, (5, 8, 4)), (4, 8, 4, (8, 8, 5)),
    (4, 8, 5, (8, 4, 5)), (4, 8, 6, (7, 9, 5)), (5, 5, 5, (5, 8, 4)), (5, 6, 5, (5, 4, 4)),
    (5, 6, 6, (4, 5, 8)), (5, 7, 7, (3, 7, 5)), (5, 8, 6, (8, 5, 6)), (5, 9, 7, (6, 8, 5)),
)  # fmt: skip


@points(4, cell="check_shortest")
def check_shortest_is_short(student, rng):
    """As short as possible: points are in proportion to the way from 1F1B's length, with each W
    right behind its I, to the bound, on average over cases that are drawn.
    """
    unit, shares, worst = float(whole(rng, 1, 4)), [], (2.0, "", "")
    cases = [
        Case(p, num, most, {kind: unit * one for kind, one in zip("FIW", times, strict=True)})
        for p, num, most, times in shuffled(rng, ATTAINED)[:6]
    ]
    for case, played in zip(cases, found_by(student, cases), strict=True):
        shares.append(saved(played.length, case.length_of_1f1b, case.bound))
        line = f"{played.length:g} {case.of}; 1F1B takes {case.length_of_1f1b:g}"
        worst = min(worst, (shares[-1], f"a length of {case.bound:g}, the shortest possible", line))
    mean = sum(shares) / len(shares)
    if mean < 1 - 1e-6:
        actual = f"{worst[2]}. Leaderboard: {mean:.0%} of the way from 1F1B to the best, on average"
        hint = "Let I go first, fill idle time with W, and limit how far F is ahead of I."
        found, share = (worst[1], actual, hint), rounded_down(mean)
        raise PartlyHeld(share, *found) if share else CheckFailed(*found)
