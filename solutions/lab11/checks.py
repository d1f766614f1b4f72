"""Hidden checks of lab 11: steps that are measured and named, and changes that make them faster.

Steps are recorded on emulated ranks without the student's code, on a cluster with drawn rates; what
a change gains is known, because the judge runs the changed program too. The changes themselves run
beside work that the checks hand out. Each backward pass of `accumulate` asks a scripted rank for
factors, so that the conductor sees how many passes there are, and which sums left before which.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import worldsize as ws
from autograder.checks import (
    Outcome,
    PartlyHeld,
    StudentFailed,
    as_students,
    between,
    entries,
    entry,
    expect_work,
    hinted,
    points,
    posts_of,
    shown,
    shuffled,
    take_from_solution,
    tensor_like,
    whole,
)
from worldsize import emulate, faults, hardware, models
from worldsize.check import CheckFailed, expect_close
from worldsize.emulate.launcher.exchanges import Exchange
from worldsize.event import Event, operations
from worldsize.hardware import Cluster
from worldsize.launch import Run

EXACT = 1e-6
TERMS = ("compute", "communication", "late", "input", "storage", "idle")
SOLUTION = Path(__file__).with_name("lab11.py")
Program, Step, cut_along_tp, step_on_rank, loss_of = take_from_solution(
    SOLUTION, "Program", "Step", "cut_along_tp", "step_on_rank", "loss_of"
)
slow_passes, right_passes = take_from_solution(SOLUTION, "accumulate_slowly", "accumulate")
IN_STEP = "All ranks must go through the same passes, each with the sums that the text names."


def is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and -1e12 < value < 1e12


# terms


def reference_terms(timeline: Any, rank: int) -> dict[str, float]:
    met_s: dict[int, float] = {}
    for members in operations(timeline.events):
        last_s = max(one.start_s for one in members)
        met_s.update({id(one): last_s for one in members})
    own = timeline.of(rank)
    times_s = {0.0, timeline.end_s}
    for one in own:
        times_s |= {one.start_s, one.end_s, met_s.get(id(one), one.start_s)}
    order = ["compute", "communication", "late", "input", "storage", "idle"]
    found: dict[str, float] = dict.fromkeys(order, 0.0)
    ordered = sorted(one for one in times_s if 0 <= one <= timeline.end_s)
    for start_s, end_s in pairwise(ordered):
        middle_s = (start_s + end_s) / 2
        kinds = set()
        for one in own:
            if one.start_s < middle_s < one.end_s:
                is_late = middle_s < met_s.get(id(one), 0.0)
                is_main = one.stream == "compute" and one.kind not in ("data", "checkpoint")
                by_kind = {"data": "input", "checkpoint": "storage"}
                by_kind["communication"] = "late" if is_late else "communication"
                kinds.add("compute" if is_main else by_kind.get(one.kind, "idle"))
        found[next((one for one in found if one in kinds), "idle")] += end_s - start_s
    return found


def terms_on_rank(student: Any, timelines: Any) -> list[Any]:
    found = []
    for timeline in timelines:
        of_ranks = [student.terms(timeline, rank) for rank in range(timeline.num_ranks)]
        found.append([dict(one) if isinstance(one, dict) else None for one in of_ranks])
    return found


def drawn_timeline(rng: torch.Generator, num_ranks: int, num_sums: int, is_late: bool) -> Any:
    """A step whose sums begin in backward and outlast it, on ranks that may come late to them."""

    def drawn_s(low: int, high: int) -> float:
        return whole(rng, 8 * low, 8 * high) / 8

    events: list[Event] = []
    starts_s: list[list[float]] = [[] for _ in range(num_sums)]
    for rank in range(num_ranks):
        # beyond 3 s no sum hides all waiting for the late member
        delay_s = drawn_s(4, 6) if is_late and rank == num_ranks - 1 else 0.0
        read_s, forward_s = 2.0, 4.0
        backward_s = 7.0 + delay_s
        events.append(Event(rank, "compute", "data", "read", 0.0, read_s))
        events.append(Event(rank, "compute", "forward", "forward", read_s, read_s + forward_s))
        start_s = read_s + forward_s
        events.append(Event(rank, "compute", "backward", "backward", start_s, start_s + backward_s))
        for place in range(num_sums):
            starts_s[place].append(start_s + backward_s - 3.0 + 2.0 * place)
    done_s = 0.0
    for place, of_ranks in enumerate(starts_s):
        done_s = max(done_s, *of_ranks) + drawn_s(2, 4)
        for rank, start_s in enumerate(of_ranks):
            kinds = ("communication", "communication", "all_reduce")
            more = (8, 8.0, tuple(range(num_ranks)), "0", place)
            events.append(Event(rank, *kinds, start_s, done_s, *more))
            if start_s > 13.0:
                events.append(Event(rank, "wait", "wait", "all_reduce", start_s, done_s))
    end_s = max(one.end_s for one in events) + drawn_s(1, 2)
    events.append(Event(0, "compute", "update", "update", end_s, end_s + 1.0))
    events.append(Event(0, "writer", "checkpoint", "save", end_s - 4.0, end_s + drawn_s(3, 5)))
    events.append(Event(0, "loader", "data", "read", 9.0, end_s + drawn_s(5, 7)))
    events.append(Event(0, "loader", "compute", "decode", end_s + 6.0, end_s + drawn_s(8, 9)))
    return ws.Timeline.of_events(events)


def expect_terms(student: Any, timelines: Sequence[Any], names: Sequence[str], hint: str) -> None:
    """Raise CheckFailed unless these terms are right; joined by + they count together."""
    run = student.emulated(terms_on_rank, list(timelines), world_size=1)
    for timeline, value in zip(timelines, entries(run.values[0], len(timelines)), strict=True):
        for rank, given in enumerate(entries(value, timeline.num_ranks)):
            if not isinstance(given, dict) or list(given) != list(TERMS):
                raise CheckFailed(f"the terms {', '.join(TERMS)} in this order", shown(given))
            wanted = reference_terms(timeline, rank)
            for joined in names:
                parts = joined.split("+")
                if not all(is_seconds(given[one]) for one in parts):
                    raise CheckFailed(f"seconds of {joined}", shown([given[one] for one in parts]))
                found_s = float(sum(given[one] for one in parts))
                due_s = sum(wanted[one] for one in parts)
                what = f"the seconds of {' and '.join(parts)} on rank {rank}"
                expect_close(found_s, due_s, what, hint, EXACT, EXACT)


@points(1, cell="check_terms")
def check_terms_of_one_rank(student, rng):
    """Compute, input, storage and idle time of ranks that do not communicate."""
    hint = "Each moment counts once, for the first term of the table that holds then."
    timelines = [drawn_timeline(rng, 2, 0, False) for _ in range(3)]
    expect_terms(student, timelines, ("compute", "input", "storage", "idle"), hint)


@points(1, cell="check_terms")
def check_terms_that_compute_hides(student, rng):
    """Communication counts where no compute hides it, and before reading and writing."""
    hint = "A sum that begins in backward counts from the end of backward on."
    timelines = [drawn_timeline(rng, 3, 3, True) for _ in range(3)]
    names = ("compute", "communication+late", "input", "storage", "idle")
    expect_terms(student, timelines, names, hint)


@points(1, cell="check_terms")
def check_terms_of_late_members(student, rng):
    """Until its last member comes, a collective is late on the others, and not on that one."""
    hint = "The last start of an operation's events is when all take part."
    expect_terms(
        student,
        [drawn_timeline(rng, 3, 3, True) for _ in range(3)],
        ("communication", "late"),
        hint,
    )


# The programs whose steps are diagnosed.


LENGTH = 32


def shape_of(num_layers: int, width: int, vocab_size: int) -> models.Shape:
    return models.Shape(
        name="decoder of the checks",
        num_layers=num_layers,
        width=width,
        num_heads=4,
        num_kv_heads=4,
        hidden_width=2 * width,
        vocab_size=vocab_size,
        context_length=LENGTH,
        source="these checks, 2026",
    )


RECORDED = shape_of(2, 64, 64)
SMALL = shape_of(3, 16, 16)


def slow_cluster(rng: torch.Generator) -> Cluster:
    """Two nodes of two GPUs with drawn rates, for a model 10,000 times smaller than usual."""
    of_gpu, of_links = between(rng, 0.9, 1.1), between(rng, 0.9, 1.1)
    gpu = dataclasses.replace(
        hardware.A100,
        name="a GPU of the checks",
        peak_flops_per_s={"float32": 8e9 * of_gpu, "bfloat16": 32e9 * of_gpu},
        launch_s=3e-6,
    )
    base = hardware.A100_100GBE
    intra = dataclasses.replace(base.intra, bandwidth_bytes_per_s=3e9 * of_links)
    inter = dataclasses.replace(
        hardware.ETHERNET_100G, bandwidth_bytes_per_s=1.5e8 * of_links, latency_s=15e-5
    )
    name = "a cluster of the checks"
    return dataclasses.replace(base, name=name, gpus_per_node=2, gpu=gpu, intra=intra, inter=inter)


class Parallel(nn.Module):
    """A model whose gradients are summed in buckets while backward goes on, as torch's DDP does."""

    def __init__(self, module: nn.Module, group: Any, bucket_bytes: int) -> None:
        super().__init__()
        self.module, self.group, self.is_quiet, self.is_summed = module, group, False, True
        buckets: list[list[nn.Parameter]] = []
        left = 0
        for one in reversed(list(module.parameters())):
            if one.nbytes > left:
                buckets.append([])
                left = bucket_bytes
            buckets[-1].append(one)
            left -= one.nbytes
        self._ready: dict[int, int] = {}
        self._sent: list[Any] = []
        for place, bucket in enumerate(buckets):
            for one in bucket:
                one.register_post_accumulate_grad_hook(partial(self._note, place, bucket))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.is_summed = not self.is_quiet  # DDP, too, decides in forward
        return self.module(tokens)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.is_quiet = self.is_quiet, True
        try:
            yield
        finally:
            self.is_quiet = before

    def _note(self, place: int, bucket: Sequence[nn.Parameter], _: Any) -> None:
        if not self.is_summed:
            return
        if not self._ready:
            engine = torch.autograd.Variable._execution_engine  # pyright: ignore
            engine.queue_callback(self._finish)
        self._ready[place] = self._ready.get(place, 0) + 1
        if self._ready[place] == len(bucket):
            flat = torch.cat([one.grad.flatten() for one in bucket])  # pyright: ignore
            work = dist.all_reduce(flat, group=self.group, async_op=True)
            self._sent.append((bucket, flat, work))

    def _finish(self) -> None:
        num = dist.get_world_size(self.group)
        for bucket, flat, work in self._sent:
            work.wait()
            parts = (flat / num).split([one.numel() for one in bucket])
            for one, part in zip(bucket, parts, strict=True):
                one.grad.copy_(part.view_as(one))
        self._sent, self._ready = [], {}


def spend(name: str, kind: str, time_s: float) -> None:
    with ws.span(name, kind=kind):
        emulate.spend(time_s)


def programs_on_rank(_: Any, programs: Sequence[Any], shape: models.Shape) -> list[list[float]]:
    """By program: when its step begins and ends, and the bytes of its gradients."""
    torch.set_num_threads(1)
    found, meshes = [], {}
    for program in programs:
        sizes = program.sizes
        key = tuple(sizes.items())
        if key not in meshes:
            make = dist.device_mesh.init_device_mesh
            meshes[key] = make("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        mesh, model = meshes[key], models.Transformer(shape)
        if "tp" in sizes:
            cut_along_tp(model, mesh)
        parallel = Parallel(model, mesh.get_group("dp"), program.bucket_bytes)
        generator = torch.Generator().manual_seed(mesh.get_local_rank("dp"))
        shape_of_rows = (program.num_sequences, LENGTH + 1)
        rows = torch.randint(0, shape.vocab_size, shape_of_rows, generator=generator)
        dist.barrier()
        start_s = emulate.elapsed()
        step_on_rank(program, parallel, parallel.group, rows)
        dist.barrier()
        size_bytes = sum(one.nbytes for one in model.parameters())
        found.append([start_s, emulate.elapsed(), size_bytes])
    return found


def part_of(timeline: Any, start_s: float, end_s: float) -> Any:
    moved = [
        dataclasses.replace(
            one, start_s=max(0.0, one.start_s - start_s), end_s=min(one.end_s, end_s) - start_s
        )
        for one in timeline.events
        if one.end_s > start_s and one.start_s < end_s
    ]
    return ws.Timeline.of_events(moved)


def recorded(
    student: Any, programs: Sequence[Any], cluster: Cluster, slow: Sequence[Any] = ()
) -> list[Any]:
    """The steps of programs on ranks without the student's code."""
    run = student.emulated(
        programs_on_rank,
        list(programs),
        RECORDED,
        world_size=4,
        cluster=cluster,
        compute="flops",
        faults=slow,
        student_ranks=(),
    )
    steps = []
    for program, (start_s, end_s, size_bytes) in zip(programs, run.values[0], strict=True):
        sizes = program.sizes
        timeline = part_of(run.timeline, start_s, end_s)
        flops = RECORDED.flops(LENGTH * program.num_sequences, LENGTH)
        facts = (sizes, program.num_passes, program.precision, flops / sizes.get("tp", 1))
        steps.append(Step(timeline, cluster, *facts, int(size_bytes), 100_000))
    return steps


class Case(NamedTuple):
    """A step, its bottleneck, and the seconds of the step after the change."""

    cause: str | None
    rank: int | None
    step: Any
    after_s: float


def drawn_programs(rng: torch.Generator) -> dict[str, Any]:
    """A program for each bottleneck that a program can have, and those that they become.

    No step that a diagnosis gets is what another becomes: its seconds are nowhere to be found.
    """
    less, more = Program(), Program(num_sequences=3 * whole(rng, 6, 7))
    slow_rank, in_passes = whole(rng, 1, 3), more._replace(num_passes=3)
    return {
        "healthy": more,
        "input": less._replace(reads_ahead=False, read_s=between(rng, 5e-3, 7e-3)),
        "storage": less._replace(saves_aside=False, save_s=between(rng, 5e-3, 7e-3)),
        "straggler": less._replace(slow_rank=slow_rank, slow_s=between(rng, 4.5e-3, 6.5e-3)),
        "precision": less._replace(precision="float32"),
        "launch": less._replace(num_passes=3),
        "accumulation": in_passes._replace(is_summed_each_pass=True),
        "no_overlap": less._replace(is_overlapped=False),
        "small_buckets": less._replace(bucket_bytes=1000),
        "mesh": less._replace(sizes={"dp": 2, "tp": 2}),
        "wrong_axis": more._replace(sizes={"tp": 2, "dp": 2}),
        "after": less,
        "after accumulation": in_passes,
        "after wrong_axis": more._replace(sizes={"dp": 2, "tp": 2}),
    }


CASES: WeakKeyDictionary[Any, list[Case]] = WeakKeyDictionary()


def drawn_cases(student: Any, rng: torch.Generator) -> list[Case]:
    """Twelve steps in a drawn order; recorded once for a submission, because that takes seconds."""
    if student not in CASES:
        cluster, programs = slow_cluster(rng), drawn_programs(rng)
        known = {}
        for names in (list(programs)[place : place + 3] for place in range(0, len(programs), 3)):
            # a few at a time, because on a crowded machine a run must be short
            steps = recorded(student, [programs[name] for name in names], cluster)
            known |= dict(zip(names, steps, strict=True))
        slow = [faults.SlowLink("node0 nic0 out", whole(rng, 3, 5))]
        known["slow_link"] = recorded(student, [Program()], cluster, slow)[0]
        cases = []
        for name, step in known.items():
            if name.startswith("after"):
                continue
            cause = None if name in ("healthy", "mesh") else name
            rank = programs[name].slow_rank if name == "straggler" else None
            after = step if cause is None else known.get(f"after {name}", known["after"])
            cases.append(Case(cause, rank, step, after.timeline.end_s))
        CASES[student] = shuffled(rng, cases)
    return CASES[student]


def diagnoses_on_rank(student: Any, steps: Sequence[Any]) -> list[Any]:
    student.terms = reference_terms
    found: list[Any] = []
    for number, step in enumerate(steps):
        try:
            given = student.find_bottleneck(as_students(student, step))
            found.append(list(given) if isinstance(given, list | tuple) else None)
        except Exception:
            if number == len(steps) - 1 and not any(found):
                raise
            found.append(None)
    return found


def diagnoses(student: Any, cases: Sequence[Case]) -> list[list[Any]]:
    """The cause, the rank and the seconds that are said of each case."""
    run = student.emulated(diagnoses_on_rank, [one.step for one in cases], world_size=1)
    return [entries(one, 3) for one in entries(run.values[0], len(cases))]


def names_right(case: Case, given: Sequence[Any]) -> float:
    """1, half for a straggler without its rank, or 0."""
    if given[0] != case.cause or given[2] is None:
        return 0.0
    return 1.0 if case.cause != "straggler" or given[1] == case.rank else 0.5


FREE = 3  # of the causes: who names one cause for all steps, or reads the facts alone


@points(5, cell="check_find_bottleneck")
def check_bottlenecks_are_named(student, rng):
    """The causes of twelve steps, two of them healthy: points in proportion above three of them."""
    cases = drawn_cases(student, rng)
    given = diagnoses(student, cases)
    right = [names_right(case, one) for case, one in zip(cases, given, strict=True)]
    if sum(right) == len(cases):
        return
    case, one = min(zip(cases, given, strict=True), key=lambda pair: names_right(*pair))
    known = {case.cause for case in cases} - {None}
    is_known = one[0] is None or (isinstance(one[0], str) and one[0] in known)
    said = one[0] if is_known else "another word"
    expected = f"{case.cause} for a step of {case.step.timeline.end_s * 1e3:.1f} ms"
    actual = f"{said}; {sum(right):g} of {len(cases)} steps are named"
    hint = "Compute the step after each change, and name the one that gains most."
    if said == case.cause:
        expected, actual = f"rank {case.rank} for the straggler", shown(one[1])
    share = int(100 * (sum(right) - FREE) / (len(cases) - FREE)) / 100
    if share > 0:
        raise PartlyHeld(share, expected, actual, hint)
    raise CheckFailed(expected, actual, hint)


NEAR, FAR = 0.05, 0.25


@points(3, cell="check_find_bottleneck")
def check_gains_are_predicted(student, rng):
    """The seconds of each step after the one change, compared with the changed program: in
    proportion to how near they are, of the steps whose causes are right.
    """
    cases = drawn_cases(student, rng)
    shares, worst = [], (2.0, "", "")
    for case, given in zip(cases, diagnoses(student, cases), strict=True):
        said = given[2] if is_seconds(given[2]) and names_right(case, given) else math.inf
        off = abs(said / case.after_s - 1)
        share = min(1.0, max(0.0, (FAR - off) / (FAR - NEAR)))
        shares.append(share)
        expected = f"{case.after_s * 1e3:.1f} ms without the cause {case.cause}"
        actual = f"{said * 1e3:.1f} ms" if said < math.inf else "another cause, or no seconds"
        worst = min(worst, (share, expected, actual))
    share = sum(shares) / len(shares)
    if share < 1:
        hint = "What does the change make shorter, and what then takes as long as before?"
        share = int(100 * share) / 100
        if share > 0:
            raise PartlyHeld(share, *worst[1:], hint)
        raise CheckFailed(*worst[1:], hint)


# read_ahead


def reading_on_rank(
    student: Any, read_s: Sequence[float], work_s: Sequence[float], fails_at: int
) -> list[Any]:
    """The batches that a loop gets, the numbers that were read, whether it got the error, and how
    many batches at most were read, or being read, ahead of it.
    """
    asked: list[int] = []

    def load(number: int) -> int:
        asked.append(number)
        spend("read", "data", read_s[number])
        if number == fails_at:
            raise OSError("this batch is damaged")
        return 7 * number + 1

    batches: list[Any] = []
    has_raised, most_ahead = False, 0
    try:
        for batch in student.read_ahead(load, len(read_s)):
            batches.append(batch)
            most_ahead = max(most_ahead, len(asked) - len(batches))
            if len(batches) > len(work_s):
                break
            spend("work", "compute", work_s[len(batches) - 1])
    except OSError:
        has_raised = True
    return [batches, asked, has_raised, most_ahead]


def read_ahead_s(read_s: Sequence[float], work_s: Sequence[float]) -> float:
    """The end of a loop that reads one batch ahead."""
    free_s = there_s = 0.0  # when the caller is free, and the batch there
    there_s = read_s[0]
    for number, one_s in enumerate(work_s):
        start_s = max(free_s, there_s)
        free_s = start_s + one_s
        there_s = start_s + read_s[number + 1] if number + 1 < len(read_s) else there_s
    return free_s


@points(1, cell="check_read_ahead")
def check_reading_is_hidden(student, rng):
    """Reads of drawn lengths go on beside the work, one batch ahead, and are all on the record."""
    unit = between(rng, 0.8e-3, 1.2e-3)
    read_s = [unit * one for one in (3, 1, 4, 2, 6, 1)]
    work_s = [unit * one for one in (2, 5, 1, 3, 4, 1)]
    run = student.emulated(reading_on_rank, read_s, work_s, -1, world_size=1)
    expect_work(run, {0: sum(read_s) + sum(work_s)})
    wanted_s, end_s = read_ahead_s(read_s, work_s), run.timeline.end_s
    actual = f"{end_s * 1e3:.2f} ms"
    if end_s > wanted_s * 1.01:
        hint = "Begin the next read before the batch is handed out, in a thread."
        raise CheckFailed(f"{wanted_s * 1e3:.2f} ms with reads beside the work", actual, hint)
    hint = "One read is under way at a time, and no batch is read two ahead."
    if end_s < wanted_s * 0.99:
        raise CheckFailed(f"{wanted_s * 1e3:.2f} ms, one batch ahead", actual, hint)
    if entry(run.values[0], 3) not in (0, 1):
        raise CheckFailed("one batch ahead at most", shown(entry(run.values[0], 3)), hint)


@points(1, cell="check_read_ahead")
def check_batches_and_errors(student, rng):
    """All batches in order, each read once; an error is raised where its batch is due."""
    num, fails_at = whole(rng, 5, 7), whole(rng, 2, 3)  # one is left after it
    for fault, wanted in ((-1, list(range(num))), (fails_at, list(range(fails_at)))):
        run = student.emulated(reading_on_rank, [1e-3] * num, [1e-3] * num, fault, world_size=1)
        batches, asked, has_raised = entries(run.values[0], 3)
        if batches != [7 * one + 1 for one in wanted]:
            what = "before the damaged one" if fault >= 0 else "in their order"
            raise CheckFailed(f"{len(wanted)} batches {what}", shown(batches))
        if has_raised is not (fault >= 0):
            raise CheckFailed("the error of `load` in the loop, where its batch is due", "none")
        if asked != [*wanted, *([fault] if fault >= 0 else [])]:
            raise CheckFailed("each number to be read once, in order", shown(asked))
    run = student.emulated(reading_on_rank, [], [], -1, world_size=1)
    if entries(run.values[0], 2) != [[], []]:
        raise CheckFailed("nothing to be read for 0 batches", shown(entry(run.values[0], 1)))


# save_aside

LET_THROUGH_S = 0.5


def state_of(seed: int, num: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.rand(num, num, generator=generator),
        "narrow": torch.rand(7, generator=generator).bfloat16(),
        "steps": torch.randint(1000, (), generator=generator),
        "view": torch.rand(6, 4, generator=generator)[:, 1:3],
    }


@contextmanager
def writing_late() -> Iterator[Callable[[], None]]:
    """Other threads write only once the caller says so, so that no race decides what is in a file
    of tensors that were not copied. A caller who waits for them first is let through.
    """
    caller, save, may_begin = threading.current_thread(), torch.save, threading.Event()

    def late(*args: Any, **options: Any) -> None:
        if threading.current_thread() is not caller:
            may_begin.wait(LET_THROUGH_S)
        save(*args, **options)

    torch.save = late
    try:
        yield may_begin.set
    finally:
        torch.save = save


def saving_on_rank(student: Any, seed: int, num: int, work_s: float) -> list[Any]:
    """What a file has after the tensors were changed, and whether a bad path raises."""
    with tempfile.TemporaryDirectory() as folder:
        path, state = os.path.join(folder, "checkpoint.pt"), state_of(seed, num)
        with writing_late() as begin:
            written = student.save_aside(state, path)
            for one in state.values():
                one.zero_()
            begin()
            spend("work", "compute", work_s)
            written.result()
        spend("after", "compute", 1e-9)
        found = torch.load(path, weights_only=True)
    return [found[one] for one in state] if list(found) == list(state) else None  # pyright: ignore


def failing_on_rank(student: Any) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = os.path.join(folder, "absent", "checkpoint.pt")
            student.save_aside({"one": torch.ones(3)}, path).result()
        except Exception:
            return True
        return False


NUM_SIDE = 1500  # of a square of 9 MB


@points(1, cell="check_save_aside")
def check_the_file_is_of_one_moment(student, rng):
    """The file has the tensors as they were, in their types; an error of writing is raised."""
    seed = whole(rng, 0, 10**6)
    hint = "Copy each tensor before you return: the caller changes them in place."
    for num in (30, NUM_SIDE):
        run, state = (
            student.emulated(saving_on_rank, seed, num, 1e-3, world_size=1),
            state_of(seed, num),
        )
        for (name, wanted), given in zip(
            state.items(), entries(run.values[0], len(state)), strict=True
        ):
            same = tensor_like(given, wanted)
            if same is None:
                raise CheckFailed(f"`{name}` in the file, in its own shape and type", shown(given))
            if not torch.equal(same, wanted):
                raise CheckFailed(f"`{name}` as it was when you were called", "others", hint)
    if student.emulated(failing_on_rank, world_size=1).values[0] is not True:
        raise CheckFailed("result() to raise where nothing can be written", "no error")


@points(1, cell="check_save_aside")
def check_writing_goes_on_beside_the_work(student, rng):
    """The caller works on as soon as the copies are made, and the future waits for the file."""
    cluster = hardware.DGX_A100
    size_bytes = 4 * NUM_SIDE**2
    stores = [one for one in (cluster.local_storage, cluster.shared_storage) if one]
    least_s = min(size_bytes / one.write_bytes_per_s for one in stores)
    work_s = between(rng, 1.5, 2.0) * least_s
    seed = whole(rng, 0, 10**6)
    run = student.emulated(saving_on_rank, seed, NUM_SIDE, work_s, world_size=1, cluster=cluster)
    events = run.timeline.events
    written_s = sum(one.duration_s for one in events if one.name == "torch.save")
    works = [one for one in events if one.name == "work"]
    if len(works) != 1 or works[0].duration_s < work_s * (1 - EXACT):
        raise CheckFailed("all work that was handed out on the record", "less")
    if written_s < least_s:
        raise CheckFailed("a file of all tensors, written by torch.save", "less than that")
    saved = [one for one in events if one.name == "torch.save" and one.stream != "compute"]
    hint = "Write in a thread, and return its future."
    if not saved:
        raise CheckFailed("a file that is written beside the work", "writing before it", hint)
    if min(one.start_s for one in saved) >= works[0].end_s * (1 - EXACT):
        raise CheckFailed("a file that is written beside the work", "writing after it", hint)
    waited_s, copy_s = works[0].start_s, 3 * size_bytes / cluster.host.link.bandwidth_bytes_per_s  # pyright: ignore
    if waited_s > copy_s + 1e-4:
        hint = "Write in a thread, and return before it is done."
        expected = f"at most {copy_s * 1e3:.2f} ms for copies before the caller works on"
        raise CheckFailed(expected, f"{waited_s * 1e3:.2f} ms", hint)
    soon = student.emulated(
        saving_on_rank, seed, NUM_SIDE, 0.3 * least_s, world_size=1, cluster=cluster
    )
    done_s = [one.end_s for one in soon.timeline.events if one.name == "torch.save"]
    after_s = [one.start_s for one in soon.timeline.events if one.name == "after"]
    if not after_s or not done_s or after_s[0] < max(done_s) * (1 - EXACT):
        raise CheckFailed("result() to wait until the file is whole", "it returns before")


# accumulate


class Asking(torch.autograd.Function):
    """An identity whose backward multiplies the gradient by what `ask` returns for it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ask: Callable[[torch.Tensor], Any]) -> torch.Tensor:
        ctx.ask = ask
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.ask(grad), None


def note_products(model: nn.Module) -> set[torch.dtype]:
    """The types of the products of the model's passes, as they are made, before any hook."""
    found: set[torch.dtype] = set()

    def noted(forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        out = forward(x)
        found.add(out.dtype)
        return out

    for one in model.modules():
        if isinstance(one, nn.Linear):
            one.forward = partial(noted, one.forward)  # pyright: ignore
    return found


class Asked(nn.Module):
    """The model, whose backward cannot go on below a layer without that layer's factor."""

    def __init__(self, seed: int, ask: Callable[[int, torch.Tensor, bool], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.ask = models.Transformer(SMALL, seed=seed), ask
        self.products = note_products(self.inner)
        for place, block in enumerate(self.inner.layers.values()):
            block.register_forward_hook(partial(self._after, place))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.products.clear()
        logits = self.inner(tokens)
        self.is_narrow = self.products == {torch.bfloat16}
        return logits

    def _after(self, place: int, _: Any, __: Any, out: torch.Tensor) -> torch.Tensor:
        return Asking.apply(out, partial(self._of_pass, place))  # pyright: ignore

    def _of_pass(self, place: int, grad: torch.Tensor) -> torch.Tensor:
        return self.ask(place, grad, self.is_narrow)


NUM_TOKENS, MOST_ROWS = LENGTH // 2, 5
ROW_NUMEL = NUM_TOKENS * SMALL.width  # of the gradient of a row where a layer ends
QUESTION_NUMEL = 3 + MOST_ROWS * ROW_NUMEL  # layer, number of rows, are products narrow; gradients


def rows_of(seed: int, rank: int, num_rows: int) -> torch.Tensor:
    chosen = torch.Generator().manual_seed(seed + rank)
    return torch.randint(0, SMALL.vocab_size, (num_rows, NUM_TOKENS + 1), generator=chosen)


def accumulating_on_rank(
    student: Any, seed: int, factors: Sequence[float], num_rows: int, most: int
) -> Any:
    """The loss and the gradients of ranks 0 and 1; ranks 2 and 3 answer one of them each."""
    torch.set_num_threads(1)
    rank, world, pair = dist.get_rank(), dist.group.WORLD, dist.new_group([0, 1])
    if student is None:
        return answer(rank - 2, factors)
    dist.distributed_c10d.GroupMember.WORLD = pair  # pyright: ignore[reportAttributeAccessIssue]

    def ask(place: int, grad: torch.Tensor, is_narrow: bool) -> torch.Tensor:
        factor, asked = torch.empty(1), torch.zeros(QUESTION_NUMEL)
        asked[:3] = torch.tensor([float(place), float(len(grad)), float(is_narrow)])
        asked[3 : 3 + grad.numel()] = grad.flatten()
        dist.send(asked, rank + 2, group=world)
        dist.recv(factor, rank + 2, group=world)
        return factor

    model = Asked(seed, ask)
    student.loss_of = loss_of
    try:
        loss = student.accumulate(Parallel(model, pair, 1), rows_of(seed, rank, num_rows), most)
    finally:
        dist.send(torch.full((QUESTION_NUMEL,), -1.0), rank + 2, group=world)
    return [loss, [one.grad for one in model.parameters()]]


def answer(rank: int, factors: Sequence[float]) -> None:
    """Answer a rank's questions until it has no more."""
    asked = torch.empty(QUESTION_NUMEL)
    while True:
        dist.recv(asked, rank)
        if asked[0] < 0:
            return
        dist.send(torch.tensor([factors[int(asked[0])]]), rank)


class Accumulated(NamedTuple):
    """A run of `accumulate`, and what it must come to."""

    run: Run
    num_rows: int
    most: int
    losses: list[float]
    own: list[torch.Tensor]  # of each rank's rows alone, flat
    narrow: list[torch.Tensor]  # the same with products in bfloat16
    ends: list[list[torch.Tensor]]  # by rank and layer: where it ends, the gradient of each row
    shapes: list[torch.Tensor]


RUNS: WeakKeyDictionary[Any, list[Accumulated]] = WeakKeyDictionary()


def accumulated(student: Any, rng: torch.Generator) -> list[Accumulated]:
    """Runs with equal passes and with unequal ones; made once for a submission."""
    if student not in RUNS:
        found = []
        for num_rows, most in ((4, 2), (5, 4)):
            seed = whole(rng, 0, 10**6)
            factors = [between(rng, 0.7, 1.4) for _ in range(SMALL.num_layers)]
            with hinted(IN_STEP):
                run = student.emulated(
                    accumulating_on_rank,
                    seed,
                    factors,
                    num_rows,
                    most,
                    world_size=4,
                    student_ranks=(0, 1),
                    keeps_exchanges=True,
                )
            losses, own, narrow, ends, shapes = [], [], [], [], []
            for rank in range(2):
                rows = rows_of(seed, rank, num_rows)
                loss, shapes, of_layers = alone(seed, factors, rows, is_narrow=False)
                losses.append(loss)
                own.append(flat(shapes))
                ends.append(of_layers)
                narrow.append(flat(alone(seed, factors, rows, is_narrow=True)[1]))
            found.append(Accumulated(run, num_rows, most, losses, own, narrow, ends, shapes))
        RUNS[student] = found
    return RUNS[student]


def alone(
    seed: int, factors: Sequence[float], rows: torch.Tensor, is_narrow: bool
) -> tuple[float, list[Any], list[torch.Tensor]]:
    """The loss of rows in one pass, its gradients, and those of each row where a layer ends."""
    ends = [torch.empty(0)] * len(factors)

    def ask(place: int, grad: torch.Tensor, _: bool) -> torch.Tensor:
        ends[place] = grad.flatten(1).float()
        return torch.tensor([factors[place]])

    model = Asked(seed, ask)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_narrow):
        loss = loss_of(model, rows)
    loss.backward()
    return loss.item(), [one.grad for one in model.parameters()], ends


def flat(tensors: Sequence[Any]) -> torch.Tensor:
    return torch.cat([one.flatten() for one in tensors])


def questions(case: Accumulated, rank: int) -> list[Exchange]:
    """What a rank asked before each layer's backward, by the conductor's record."""
    sent = [one for one in posts_of(case.run, rank) if one.op == "send"]
    return [one for one in sent if one.tensor()[0] >= 0]


def passes_of(case: Accumulated, rank: int, place: int) -> list[list[int]]:
    """The rows of each backward pass, by the gradients with which it comes to a layer; none where
    these are not all of its rows'.
    """
    found = []
    for body in (one.tensor() for one in questions(case, rank)):
        if body[0] == place:
            num = min(max(int(body[1]), 0), MOST_ROWS)
            given = F.normalize(body[3 : 3 + num * ROW_NUMEL].view(num, ROW_NUMEL))
            alike = given @ F.normalize(case.ends[rank][place]).T
            is_own = bool((alike.amax(dim=1) > 0.9).all())
            found.append(alike.argmax(dim=1).tolist() if num and is_own else [])
    return found


def sums_of(case: Accumulated, rank: int) -> list[Exchange]:
    """The all-reduces of gradients; smaller ones may carry anything."""
    found = [one for one in posts_of(case.run, rank) if one.op != "send"]
    return [one for one in found if len(one.bodies[rank]) > 16]


def off(given: torch.Tensor, wanted: torch.Tensor) -> float:
    """The distance of two vectors, of the length of the second."""
    return float((given - wanted).norm() / wanted.norm())


def sums_travelled(case: Accumulated) -> bool:
    """True where each rank gave its own gradients to sums, whatever their order."""
    for rank in range(2):
        sent = [one.tensor(rank).double() for one in sums_of(case, rank)]
        if not sent or torch.cat(sent).norm() < 0.9 * case.own[rank].double().norm():
            return False
    return True


def is_own_gradient(body: torch.Tensor, case: Accumulated, rank: int) -> bool:
    """True for one of a rank's gradients, however the passes were weighed; noise is like none."""
    own = case.own[rank].split([one.numel() for one in case.shapes])
    alike = [one for one in own if one.numel() == body.numel()]
    return any(F.cosine_similarity(body.flatten(), one, 0) > 0.5 for one in alike)


ROUNDED = 0.05  # what bfloat16 may change


@points(1.5, cell="check_accumulate")
def check_accumulated_gradients(student, rng):
    """The gradients of the mean over all rows of both ranks, in passes of equal and of unequal
    numbers of rows, and the mean loss of the rank's own rows.
    """
    for case in accumulated(student, rng):
        wanted = torch.stack(case.own).mean(dim=0)
        for rank in range(2):
            loss, given = entries(case.run.values[rank], 2)
            what = f"{case.num_rows} rows, at most {case.most} in a pass"
            if type(loss) is not float:
                raise CheckFailed(f"a float as the loss of {what}", shown(loss))
            hint = "Each row counts the same: weigh the loss of a pass by its share of the rows."
            expect_close(loss, case.losses[rank], f"the loss of {what}", hint, ROUNDED, ROUNDED)
            found = [
                tensor_like(one, like)
                for one, like in zip(entries(given, len(case.shapes)), case.shapes, strict=True)
            ]
            if any(one is None for one in found):
                raise CheckFailed("a gradient in float32 for every parameter", "none, or others")
            distance = off(flat(found), wanted)  # pyright: ignore[reportArgumentType]
            if not distance < ROUNDED:
                expected = f"the gradients of the mean over both ranks, for {what}"
                raise CheckFailed(expected, f"{min(distance, 99):.0%} off", hint)
        if not sums_travelled(case):
            raise CheckFailed("each rank to give its gradients to the sums", "others, or none")


@points(1, cell="check_accumulate")
def check_passes_are_few(student, rng):
    """As few passes as have at most so many rows each: the gradients of a pass's rows come to each
    layer together.
    """
    for case in accumulated(student, rng):
        due = -(-case.num_rows // case.most)
        for rank in range(2):
            for place in range(SMALL.num_layers):
                passes = passes_of(case, rank, place)
                sizes = [len(one) for one in passes]
                is_whole = sorted(chain.from_iterable(passes)) == list(range(case.num_rows))
                if not is_whole or len(sizes) != due or max(sizes) > case.most:
                    expected = f"{due} passes for {case.num_rows} rows, at most {case.most} each"
                    actual = f"passes of {shown(sizes)}"
                    raise CheckFailed(expected, actual, "Large passes launch less.")


@points(1, cell="check_accumulate")
def check_each_gradient_is_summed_once(student, rng):
    """Each gradient goes into one sum, whatever the number of passes."""
    for case in accumulated(student, rng):
        due = 4 * len(case.own[0])
        for rank in range(2):
            sent = sum(len(one.bodies[rank]) for one in sums_of(case, rank))
            if sent != due:
                hint = "Forward and backward of all passes but the last inside no_sync()."
                expected = f"{due} bytes: each gradient in one sum"
                raise CheckFailed(expected, f"{sent} bytes, {sent / due:.1f} times", hint)
        if not sums_travelled(case):
            raise CheckFailed("each rank to give its gradients to the sums", "others, or none")


@points(1, cell="check_accumulate", needs=["check_each_gradient_is_summed_once"])
def check_sums_leave_in_backward(student, rng):
    """What the last backward pass has done is sent before it goes on: by the order of a rank's sums
    and of its questions for the factors of lower layers.
    """
    for case in accumulated(student, rng):
        for rank in range(2):
            asked = questions(case, rank)
            if not asked:
                raise CheckFailed("backward passes through the model that was given", "none")
            last = max(one.numbers[rank] for one in asked)
            early = [
                one
                for one in sums_of(case, rank)
                if one.numbers[rank] < last and is_own_gradient(one.tensor(rank), case, rank)
            ]
            share = sum(len(one.bodies[rank]) for one in early) / (4 * len(case.own[0]))
            if share < 0.5:
                hint = "The last pass outside no_sync(): `parallel` then sums while it goes on."
                expected = "half of all gradients to be on their way before the lowest layer"
                raise CheckFailed(expected, f"{share:.0%}", hint)


@points(0.5, cell="check_accumulate")
def check_products_are_in_bfloat16(student, rng):
    """All products in bfloat16 in all passes, and gradients that are off as those of such products
    are, not only as those of rounded results.
    """
    shares = []
    for case in accumulated(student, rng):
        exact, narrow = (torch.stack(one).mean(dim=0) for one in (case.own, case.narrow))
        for rank in range(2):
            asked = questions(case, rank)
            is_narrow = bool(asked) and all(one.tensor()[2] == 1 for one in asked)
            given = entries(entry(case.run.values[rank], 1), len(case.shapes))
            found = [tensor_like(*pair) for pair in zip(given, case.shapes, strict=True)]
            if not is_narrow or not sums_of(case, rank) or any(one is None for one in found):
                raise CheckFailed("products in bfloat16", "in float32", "Use torch.autocast.")
            if off(flat(found), exact) < ROUNDED:  # other gradients cost their own points
                shares.append(share_along(flat(found) - exact, narrow - exact))
    # other passes and scales: 0.85 to 1.01; exact products with rounded results: at most 0.3
    # (0.52 with rounded weights)
    if shares and not sum(shares) / len(shares) > 0.65:
        actual = "gradients that are rounded in another way"
        raise CheckFailed("products in bfloat16", actual, "Use torch.autocast.")


def share_along(given: torch.Tensor, wanted: torch.Tensor) -> float:
    """How much of one vector another has in it: 1 where they are equal, 0 at a right angle."""
    return float(given @ wanted / (wanted @ wanted))


# cut_into_buckets

# sizes, the times at which gradients are ready, and the latency: what is drawn is like these
CUTS: tuple[tuple[Sequence[float], Sequence[float], float], ...] = (
    ([1] * 24, [0.5 * one for one in range(1, 25)], 1.0),
    ([1] * 40, [0.05 * one for one in range(1, 41)], 4.0),
    ([1, 1, 8, 1, 1, 1, 6, 1, 1], [1, 2, 3, 9, 10, 11, 12, 20, 21], 2.0),
    ([6, 1, 1, 1, 1, 1, 1, 4, 1, 1], [1, 2, 3, 4, 5, 6, 7, 16, 16.5, 17], 1.5),
    ([2, 9, 1, 3, 1, 7, 1, 2, 5, 1, 1, 2] * 2, [1.5 * one for one in range(1, 25)], 3.0),
    ([3], [2.0], 1.0),
)


def end_of(
    cut: Sequence[int],
    sizes: Sequence[float],
    ready_s: Sequence[float],
    latency_s: float,
    rate: float,
) -> float:
    end_s, place = 0.0, 0
    for num in cut:
        begin_s = max(end_s, ready_s[place + num - 1])
        end_s = begin_s + latency_s + sum(sizes[place : place + num]) / rate
        place += num
    return end_s


def best_end_s(
    sizes: Sequence[float], ready_s: Sequence[float], latency_s: float, rate: float
) -> float:
    best = [0.0]
    for end in range(1, len(sizes) + 1):
        best.append(
            min(
                max(best[start], ready_s[end - 1]) + latency_s + sum(sizes[start:end]) / rate
                for start in range(end)
            )
        )
    return best[-1]


def cuts_on_rank(student: Any, calls: Sequence[Any]) -> list[Any]:
    return [list(student.cut_into_buckets(*one)) for one in calls]


@points(2, cell="check_cut_into_buckets")
def check_cuts_are_near_the_best(student, rng):
    """The last sum ends as early as with the best cut: points in proportion, none for twice the
    time after the last gradient, and for what is not a cut.
    """
    calls = []
    for sizes, ready_s, latency_s in CUTS:
        unit_s, unit_bytes = between(rng, 1e-3, 2e-3), 1000 * whole(rng, 5, 9)
        gaps_s = [after - before for before, after in pairwise([0.0, *ready_s])]
        drawn, drawn_s = (
            [one * 2 ** between(rng, -1.5, 1.5) for one in shuffled(rng, means)]
            for means in (sizes, gaps_s)
        )
        scaled = [int(one * unit_bytes) for one in drawn], [one * unit_s for one in drawn_s]
        latency_s *= unit_s * between(rng, 0.5, 2)
        calls.append((scaled[0], list(accumulate(scaled[1])), latency_s, unit_bytes / unit_s))
    run = student.emulated(cuts_on_rank, calls, world_size=1)
    shares, worst = [], (2.0, "", "")
    for call, cut in zip(calls, entries(run.values[0], len(calls)), strict=True):
        sizes, ready_s = call[:2]
        best_s = best_end_s(*call)
        is_cut = isinstance(cut, list) and all(type(one) is int and one > 0 for one in cut)
        expected = f"{len(sizes)} gradients summed at {best_s * 1e3:.2f} ms"
        if is_cut and sum(cut) == len(sizes):
            end_s = end_of(cut, *call)
            share = max(0.0, 2 - (end_s - ready_s[-1]) / (best_s - ready_s[-1]))
            share = 1.0 if share > 1 - 1e-9 else share
            actual = f"at {end_s * 1e3:.2f} ms, in {len(cut)} buckets"
        else:
            share, actual = 0.0, f"{shown(cut)}, which is no cut of them"
        shares.append(share)
        worst = min(worst, (share, expected, actual))
    share = sum(shares) / len(shares)
    if share < 1:
        hint = "Of the first k gradients, keep the earliest time at which they can be summed."
        share = int(100 * share + 1e-9) / 100
        if share > 0:
            raise PartlyHeld(share, *worst[1:], hint)
        raise CheckFailed(*worst[1:], hint)


# A whole step

STEPS, ROWS, MOST = 3, 4, 2


def slow_reads(load: Any, num: int) -> Any:
    return map(load, range(num))


def right_reads(load: Any, num: int) -> Any:
    coming: list[Any] = []

    def start(number: int) -> None:
        with emulate.lane("loader") as lane:
            coming.append((load(number), lane))

    start(0)
    for number in range(num):
        batch, lane = coming.pop()
        lane.join()
        if number + 1 < num:
            start(number + 1)
        yield batch


class Timed(nn.Module):
    """The model, of which each pass takes a time, and each row another one in each precision."""

    def __init__(self, seed: int, pass_s: float, row_s: float) -> None:
        super().__init__()
        self.inner, self.pass_s, self.row_s = models.Transformer(SMALL, seed=seed), pass_s, row_s
        self.products = note_products(self.inner)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.products.clear()
        logits = self.inner(tokens)
        factor = 1 if self.products == {torch.bfloat16} else 3
        spend("forward", "forward", self.pass_s + factor * self.row_s * len(tokens))
        return logits


def training_on_rank(
    student: Any, programs: Any, seed: int, read_s: float, pass_s: float, row_s: float
) -> Any:
    """The losses of these programs, one after the other, or those of the student's."""
    torch.set_num_threads(1)
    pair = dist.new_group([0, 1])
    if student is not None:
        student.loss_of = loss_of
        programs = [(student.read_ahead, student.accumulate)]
    found = []
    for reads, passes in programs:
        parallel = Parallel(Timed(seed, pass_s, row_s), pair, 4000)

        def load(number: int) -> torch.Tensor:
            spend("read", "data", read_s)
            return rows_of(seed + 10 * number, dist.get_rank(), ROWS)

        losses = []
        dist.barrier()
        for rows in reads(load, STEPS):
            parallel.zero_grad()
            losses.append(passes(parallel, rows, MOST))
            with torch.no_grad():
                for one in parallel.parameters():
                    one -= 0.1 * one.grad  # pyright: ignore
        dist.barrier()
        found.append(losses)
    return found


def barriers_s(run: Run, num_programs: int) -> list[float]:
    """The seconds of each program, between its barriers."""
    met = sorted(max(one.done_s.values()) for one in run.exchanges if one.op == "barrier")
    if len(met) != 2 * num_programs:
        raise CheckFailed("no barriers in the functions", f"{len(met)} in all")
    return [after - before for before, after in zip(met[::2], met[1::2], strict=True)]


def expect_passes(run: Run, pass_s: float, row_s: float) -> None:
    """Raise CheckFailed unless each rank's own stream has all passes, each as long as it takes."""
    known = [pass_s + one * num * row_s for one in (1, 3) for num in range(1, ROWS + 1)]
    for rank in range(2):
        own = [one for one in run.timeline.of(rank) if one.stream == "compute"]
        times_s = [one.duration_s for one in own if one.name == "forward"]
        is_known = all(min(abs(one - due) for due in known) <= EXACT * one for one in times_s)
        if not is_known or sum(times_s) < STEPS * (2 * pass_s + ROWS * row_s) * (1 - EXACT):
            hint = "Leave the emulator's clock alone."
            raise CheckFailed(
                "all passes, one after the other, as long as they take", "others", hint
            )


@points(2, cell="check_whole_step")
def check_the_program_is_faster(student, rng):
    """Reading ahead and accumulating make a whole program faster, with the same losses: points in
    proportion to what the judge's own functions gain.
    """
    unit = between(rng, 0.8e-3, 1.2e-3)
    read_s, pass_s, row_s = 4 * unit, unit, unit
    job = (whole(rng, 0, 10**6), read_s, pass_s, row_s)
    options = {"world_size": 2, "keeps_exchanges": True}
    theirs = [(slow_reads, slow_passes), (right_reads, right_passes)]
    judges = student.emulated(training_on_rank, theirs, *job, student_ranks=(), **options)
    with hinted(IN_STEP):
        run = student.emulated(training_on_rank, [], *job, **options)
    expect_work(run, dict.fromkeys(range(2), STEPS * (read_s + 2 * pass_s + ROWS * row_s)))
    (own_s,), (before_s, best_s) = barriers_s(run, 1), barriers_s(judges, 2)
    for rank in range(2):
        (mine,), slow = entries(run.values[rank], 1), judges.values[rank][0]
        for number in range(STEPS):
            what = f"the loss of step {number} on rank {rank}"
            given = entry(mine, number)
            if not is_seconds(given):
                raise CheckFailed(what, shown(given))
            expect_close(float(given), slow[number], what, "", ROUNDED, ROUNDED)
    floor_s = read_s + STEPS * (2 * pass_s + ROWS * row_s)
    if own_s < floor_s * 0.99:
        expected = f"at least {floor_s * 1e3:.1f} ms, which the work takes"
        raise CheckFailed(expected, f"{own_s * 1e3:.1f} ms", "Leave the emulator's clock alone.")
    expect_passes(run, pass_s, row_s)
    share = (before_s - own_s) / (before_s - best_s)
    if share < 0.98:
        slower = f"{before_s * 1e3:.1f} ms before"
        expected = f"{best_s * 1e3:.1f} ms for {STEPS} steps; {slower}"
        hint = "Which term of the step is still larger than it need be?"
        share = int(100 * share + 1e-9) / 100
        if share > 0:
            raise PartlyHeld(share, expected, f"{own_s * 1e3:.1f} ms", hint)
        raise CheckFailed(expected, f"{own_s * 1e3:.1f} ms", hint)
