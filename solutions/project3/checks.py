"""Hidden checks of project 3: a design by the judge's cost, and three programs, which run in the sandbox alone."""

from __future__ import annotations

import math
import statistics
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from autograder.capstone.step_times import StepTimes, cost_of
from autograder.checks import PartlyHeld, entry, hinted, points, shuffled, take_from_solution, whole
from worldsize import capstone, hardware, models, outages
from worldsize.capstone.design import Design, loads
from worldsize.capstone.figures import SPAN_S
from worldsize.check import CheckFailed
from worldsize.models import Shape
from worldsize.outages import NodeFailure, TrainingJob
from worldsize.paper import PaperRun
from worldsize.planning import Plan
from worldsize.planning.search import plan as plans_of
from worldsize.units import format_ranks

NAME = "programs.py"
FORBIDDEN = {"worldsize.planning.serial": "ws.plan without a cost is not allowed here: the cost is what you write"}
DAY_S = 86400

seen: dict[Any, Any] = {}  # what more than one check looks at; every submission has a judge of its own


def loaded(source: str) -> Any:
    """The program as a module."""
    import sys
    import types

    module = types.ModuleType("programs")
    sys.modules["programs"] = module
    exec(compile(source, "programs.py", "exec"), module.__dict__)
    return module


def grade(share: float, expected: str, actual: str, hint: str = "") -> None:
    """Raise unless the share of a check's points is 1; shares go in steps of a tenth."""
    share = round(10 * min(share, 1.0) + 1e-9) / 10
    if 0 < share < 1:
        raise PartlyHeld(share, expected, actual, hint)
    if share <= 0:
        raise CheckFailed(expected, actual, hint)


def between(value: float, none: float, full: float) -> float:
    """How far a value is on the way from what gets no points to what gets all."""
    return (value - none) / (full - none)


# the design

(BRIEF,) = take_from_solution(Path(__file__).with_name("report.py"), "BRIEF")
MAY_BUY = ("a100-hdr", "h100-ndr")
MOST_BATCH = 2048  # sequences of a step
LEAST_BISECTION = 20e12  # bytes a second
MOST_TEXT = 64_000
REFERENCE_USD = 2.264e6  # of the solution's design by the judge's cost; a test compares them
DOLLARS = (0.7, 0.93)  # REFERENCE_USD over those of a design, without points and with full points


def design_on_rank(student):
    return student.design


def design_of(student) -> Design:
    """The student's design, once it is one of the system that is asked for.

    Raises:
        CheckFailed: it is no design, or one of another system.
    """
    if "design" not in seen:
        seen["design"] = student.run(design_on_rank, world_size=1, forbid=FORBIDDEN)[0]
    text = seen["design"]
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise CheckFailed("`design` is the text of a design file", f"a {type(text).__name__}")
    try:
        found = loads(text)
    except (ValueError, ArithmeticError, RecursionError) as error:
        hint = "`python -m worldsize.capstone check` says the same of a file."
        raise CheckFailed("a design that can be read", f"{error}"[:400], hint) from None
    expect_asked(found)
    return found.model_copy(update={"programs": None, "published": None})


def expect_asked(found: Design) -> None:
    """Raise CheckFailed unless all that the brief says stands in the design as well."""
    own = found.model_dump(exclude_unset=True)
    for section, values in tomllib.loads(BRIEF).items():
        for key, value in values.items():
            if own.get(section, {}).get(key) != value:
                raise CheckFailed(
                    f"{section}.{key} = {value!r}, as the brief says", f"{own.get(section, {}).get(key)!r:.60}"
                )
        if section != "data" and (more := sorted(own[section].keys() - values.keys())):
            raise CheckFailed(
                f"[{section}] as the brief has it", f"{more[0]} beside it", "That is not yours to choose."
            )
    if found.nodes.cluster not in MAY_BUY:
        raise CheckFailed(f"nodes.cluster is one of {', '.join(MAY_BUY)}", f"{found.nodes.cluster!r:.40}")
    if found.nodes.nics_per_node is not None or found.nodes.nic_bytes_per_s is not None:
        raise CheckFailed("nodes with the NICs of the catalogue", "[nodes] with others")
    if found.network is None:
        raise CheckFailed("a [network] with its switches counted", "none")
    if found.network.bisection_bytes_per_s < LEAST_BISECTION:
        expected = f"network.bisection_bytes_per_s of {LEAST_BISECTION / 1e12:g}e12 or more"
        raise CheckFailed(expected, f"{found.network.bisection_bytes_per_s:.3g}")
    if found.data.global_batch > MOST_BATCH:
        raise CheckFailed(f"data.global_batch of at most {MOST_BATCH:,} sequences", f"{found.data.global_batch:,}")


def achieved(student) -> capstone.Figures:
    """What the design achieves by the judge's cost, once it adds up.

    Raises:
        CheckFailed: it does not.
    """
    design = design_of(student)
    if "figures" not in seen:
        unlimited = capstone.changed(design, budget__days=1e6, budget__usd=1e15)
        try:
            problems = capstone.check(unlimited)
        except (ArithmeticError, ValueError):
            problems = ["its numbers are beyond all that can be computed."]
        if problems:
            more = f" And {len(problems) - 1} more." if problems[1:] else ""
            raise CheckFailed("a design that adds up", f"{problems[0]}{more}"[:400])
        # two spans are more than the days of the brief; of more, a late design would make the judge play years
        seen["figures"] = capstone.run(design, cost_of(design), span_s=2 * SPAN_S)
    return seen["figures"]


@points(8, cell="check_design")
def check_adds_up(student, rng):
    """The design is one of the system that the brief asks for, and everything in it adds up."""
    achieved(student)


@points(8, cell="check_design", needs=["check_adds_up"])
def check_budget(student, rng):
    """By the judge's cost of a step, with saves and failures, it keeps the days and the dollars: half for each."""
    of, budget = achieved(student), design_of(student).budget
    said = f"{of.days:.1f} days and {of.usd / 1e6:.2f} million dollars"
    missed = [of.days > budget.days, of.usd > budget.usd]
    if any(missed):
        hint = f"The judge's step takes {of.step_s:.2f} s: {of.bottleneck} Leave room for what your cost does not know."
        grade(0.0 if all(missed) else 0.5, f"{budget.days:g} days and {budget.usd / 1e6:g} million dollars", said, hint)


@points(8, cell="check_design", needs=["check_budget"])
def check_dollars(student, rng):
    """In the days of the budget it costs about as little as the solution's design."""
    of = achieved(student)
    if of.days > design_of(student).budget.days:
        raise CheckFailed("a design that is done in time", f"{of.days:.1f} days")
    least = REFERENCE_USD / DOLLARS[1]
    hint = f"Which parts of the bill are large? {of.power_w / 1e6:.2f} MW, MFU {of.mfu_fraction:.0%}: {of.bottleneck}"
    share = between(REFERENCE_USD / of.usd, *DOLLARS)
    grade(share, f"at most {least / 1e6:.2f} million dollars", f"{of.usd / 1e6:.2f}", hint)


# the cost of a step

# Rows of tests/data/published_runs.csv that the course does not show: id, layers, width, heads, vocabulary, length,
# batch, micro-batch, tp, pp, dp, chunks, recomputation, seconds. All on A100 with HDR InfiniBand.
# Sources: Narayanan et al. 2021, arXiv 2104.04473, table 1; Korthikanti et al. 2022, arXiv 2205.05198, table 5;
# Bang et al. 2024, vTrain, the multi-node runs of its repository
ROWS = """
sc21_t1_00 24 2304 24 51200 2048 512 16 1 1 32 1 full 3.515
sc21_t1_01 30 3072 32 51200 2048 512 16 2 1 32 1 full 3.711
sc21_t1_02 36 4096 32 51200 2048 512 16 4 1 32 1 full 3.691
sc21_t1_03 40 6144 48 51200 2048 1024 8 8 1 32 1 full 9.388
sc21_t1_05 60 10240 80 51200 2048 1792 2 8 4 32 3 full 16.009
sc21_t1_06 80 12288 96 51200 2048 2304 2 8 8 24 2 full 24.842
kor22_t5_GPT-22B_full 48 6144 64 51200 2048 4 4 8 1 1 1 full 1.42
kor22_t5_GPT-22B_selsp 48 6144 64 51200 2048 4 4 8 1 1 1 selective 1.1
kor22_t5_GPT-175B_full 96 12288 96 51200 2048 64 1 8 8 1 3 full 18.13
kor22_t5_GPT-175B_selsp 96 12288 96 51200 2048 64 1 8 8 1 3 selective 13.75
kor22_t5_GPT-1T_full 128 25600 160 51200 2048 512 1 8 64 1 1 full 94.42
kor22_t5_GPT-1T_selsp 128 25600 160 51200 2048 512 1 8 64 1 1 selective 71.49
vtrain_multi_000 30 3072 32 50257 2048 512 8 1 1 64 1 full 3.5665
vtrain_multi_011 30 3072 32 50257 2048 512 4 1 2 32 1 full 4.3821
vtrain_multi_033 40 6144 48 50257 2048 1024 4 2 4 32 1 full 10.825
vtrain_multi_088 96 12288 96 50257 2048 1536 2 4 16 8 1 full 54.2559
vtrain_multi_099 96 12288 96 50257 2048 1536 4 8 8 8 1 full 58.2403
"""
WORST = 1.0  # the error of a step that does not follow from the plan
PUBLISHED = (0.4, 0.2)  # median error, without points and with full points
ORDER = (0.65, 0.9)  # pairs of plans in the right order
APART = 1.1  # seconds of a pair's slower plan over those of its faster one, at the least
ALIKE = 1.2  # how far a change may be off, as a factor
SCALING = (0.65, 0.9)  # changes that are not
NUM_PLANS = 30  # of a scene


def gpt(num_layers: int, width: int, num_heads: int, vocab_size: int, length: int) -> Shape:
    sizes = {"num_layers": num_layers, "width": width, "num_heads": num_heads, "num_kv_heads": num_heads}
    sizes |= {"hidden_width": 4 * width, "vocab_size": vocab_size, "context_length": length}
    return replace(models.shape("gpt-1t"), name="a model", **sizes)


def published() -> list[tuple[Plan, float]]:
    """The published plans that the course does not show, with their seconds."""
    found = []
    for line in ROWS.strip().splitlines():
        _, *sizes, recompute, step_s = line.split()
        layers, width, heads, vocab, length, batch, micro, tp, pp, dp, chunks = map(int, sizes)
        cluster = replace(hardware.cluster("a100-hdr"), num_nodes=tp * pp * dp // 8)
        layout = {"tp": tp, "pp": pp, "dp": dp, "cp": 1, "micro_batch": micro, "num_chunks": chunks}
        shape = gpt(layers, width, heads, vocab, length)
        sizes_of_step = {"global_batch": batch, "length": length, "recompute": recompute, "zero_stage": 0}
        found.append((Plan(model=shape, cluster=cluster, **sizes_of_step, **layout), float(step_s)))
    return found


def judges_s(plan: Plan) -> float:
    return sum(StepTimes(plan.model, plan.cluster, gradient_bytes=4)(plan).values())


def priced_on_rank(student, source, plans):
    """What the student's cost says of each plan; None where that is no number."""
    step_s, found = loaded(source).step_s, []
    for plan in plans:
        said = step_s(plan)
        try:
            found.append(float(sum(said.values()) if hasattr(said, "values") else said))
        except (TypeError, ValueError):
            found.append(None)
    return found


def priced(student, rng, plans: list[Plan]) -> list[float]:
    """The student's seconds of these plans, which are asked in an order that says nothing.

    Raises:
        CheckFailed: one of them is no number above 0.
    """
    order = shuffled(rng, list(range(len(plans))))
    asked = [plans[place] for place in order]
    found = student.run(priced_on_rank, student.program(NAME).source, asked, world_size=1, forbid=FORBIDDEN)[0]
    said = {place: entry(found, number) for number, place in enumerate(order)}
    seconds = [said[place] for place in range(len(plans))]
    for plan, one in zip(plans, seconds, strict=True):
        if not isinstance(one, float) or not 0 < one < math.inf:
            raise CheckFailed(f"step_s of {plan}: seconds, above 0", f"{one!r:.40}")
    return seconds


def longer(plan: Plan) -> Plan:
    return replace(plan, global_batch=2 * plan.global_batch)


@points(6, cell="check_cost")
def check_published(student, rng):
    """The median error over published steps that the course does not show is 20% at most; none from 40%.

    A step that does not follow from its plan, as twice the batch shows, counts as 100% off.
    """
    known = shuffled(rng, published())
    found = priced(student, rng, [one for plan, _ in known for one in (plan, longer(plan))])
    errors, num_deaf = [], 0
    for (plan, theirs_s), own_s, more_s in zip(known, found[::2], found[1::2], strict=True):
        is_alike = abs(math.log(more_s / own_s * judges_s(plan) / judges_s(longer(plan)))) < math.log(ALIKE)
        num_deaf += not is_alike
        errors.append(abs(own_s / theirs_s - 1) if is_alike else WORST)
    median, (_, full) = statistics.median(errors), PUBLISHED
    hint = f"{num_deaf} do not follow from the batch." if num_deaf else "Which part of a step does your cost not have?"
    expected = f"a median error of at most {full:.0%} over {len(errors)} published steps"
    grade(between(median, *PUBLISHED), expected, f"{median:.1%}", hint)


def scenes(rng) -> list[list[Plan]]:
    """For each of three jobs, plans from the fastest to the slowest, by the judge's cost."""
    found = []
    for shape, name, length in (
        (models.shape("llama-3-70b"), "h100-ndr-x16", 8192),
        (models.shape("llama-3-8b"), "a100-100gbe-x8", 4096),
        (gpt(whole(rng, 12, 15) * 4, 8192, 64, 51200, 2048), "a100-hdr-x16", 2048),
    ):
        cluster, batch = hardware.cluster(name), 256 * whole(rng, 1, 2)
        cost = StepTimes(shape, cluster, gradient_bytes=4)
        options = {"micro_batch": (1, 2, 4), "cp": 1, "tp": (1, 2, 4, 8), "num_chunks": (1, 2, 4)}
        ranked = [one.plan for one in plans_of(shape, cluster, cost, global_batch=batch, length=length, **options)]
        found.append(ranked[:: max(1, len(ranked) // NUM_PLANS)])
    return found


@points(8, cell="check_cost")
def check_order(student, rng):
    """Of made-up plans the faster one is the cheaper one: of all pairs that are 10% apart, 90%; none from 65%."""
    jobs = scenes(rng)
    found = iter(priced(student, rng, [plan for plans in jobs for plan in plans]))
    shares = []
    for plans in jobs:
        theirs, own = [judges_s(plan) for plan in plans], [next(found) for _ in plans]
        pairs = [
            own[fast] < own[slow]
            for fast in range(len(plans))
            for slow in range(len(plans))
            if theirs[slow] > APART * theirs[fast]
        ]
        shares.append(sum(pairs) / len(pairs))
    worst = min(shares)
    hint = "Compare two of your plans that differ in one thing: dp or pp, ZeRO-2 or ZeRO-3, a link or another."
    actual = f"{statistics.mean(shares):.0%} in the mean; fewest in job {1 + shares.index(worst)}, {worst:.0%}"
    grade(between(statistics.mean(shares), *ORDER), f"{ORDER[1]:.0%} of the pairs of plans in order", actual, hint)


def changes(rng) -> list[tuple[str, Plan, Plan]]:
    """What changes, a plan of drawn sizes, and the plan with the change."""
    hundred, num_heads, batch = hardware.cluster("h100-ndr-x16"), 16 * whole(rng, 3, 5), 256 * whole(rng, 1, 2)
    sizes = {"num_layers": 16 * whole(rng, 4, 6), "width": 128 * num_heads, "hidden_width": 448 * num_heads}
    model = replace(models.shape("llama-3-70b"), name="a model", num_heads=num_heads, **sizes)
    base = Plan(
        model=model,
        cluster=hundred,
        global_batch=batch,
        length=2048 * whole(rng, 2, 4),
        dp=4,
        tp=8,
        pp=4,
        cp=1,
        micro_batch=1,
        num_chunks=1,
        recompute="none",
        zero_stage=1,
    )
    sharded = replace(base, dp=128, tp=1, pp=1, zero_stage=3, recompute="full")
    sixteenth, twice = replace(base, global_batch=batch // 16), replace(hundred, num_nodes=32)
    rates = {"bandwidth_bytes_per_s": 1e9 * whole(rng, 4, 7), "peak_bytes_per_s": None}
    slow = replace(hundred, inter=replace(hundred.inter, **rates))
    quick = replace(hundred, gpu=replace(hundred.gpu, memory_bandwidth_bytes_per_s=1e12 * whole(rng, 15, 25)))
    twice_as_long = replace(base, length=2 * base.length, global_batch=batch // 2)
    return [
        ("twice dp, on twice the nodes", base, replace(base, dp=8, cluster=twice)),
        ("twice dp and twice the batch", base, replace(base, dp=8, cluster=twice, global_batch=2 * batch)),
        ("half of the micro-batches", base, replace(base, global_batch=batch // 2)),
        ("a sixteenth of the micro-batches", base, sixteenth),
        ("tp 16, beyond a node", base, replace(base, tp=16, pp=2)),
        ("four chunks a stage", sixteenth, replace(sixteenth, num_chunks=4)),
        ("full recomputation", base, replace(base, recompute="full")),
        ("slower links between nodes, ZeRO-3", sharded, replace(sharded, cluster=slow)),
        ("twice the layers", base, replace(base, model=replace(model, num_layers=2 * model.num_layers))),
        ("A100 in place of H100", base, replace(base, cluster=hardware.cluster("a100-hdr-x16"))),
        ("sequences of twice the length, half as many", base, twice_as_long),
        ("faster memory", base, replace(base, cluster=quick)),
    ]


@points(8, cell="check_cost")
def check_scaling(student, rng):
    """A change of a plan changes the step as by the judge's cost, within 20%: 90% of twelve; none from 65%."""
    known = shuffled(rng, changes(rng))
    found = priced(student, rng, [plan for _, *plans in known for plan in plans])
    wrong = []
    for (what, before, after), own_s, then_s in zip(known, found[::2], found[1::2], strict=True):
        own, theirs = then_s / own_s, judges_s(after) / judges_s(before)
        if abs(math.log(own / theirs)) > math.log(ALIKE):
            wrong.append(f"{what}: {own:.2f} times the seconds")
    num_held = len(known) - len(wrong)
    hint = "Change one size by hand and follow each term of your cost."
    said = f"{num_held} of {len(known)} changes within 20%"
    grade(
        between(num_held / len(known), *SCALING),
        f"90% of {len(known)} changes within 20%",
        f"{said}; {sorted(wrong)[:1]}",
        hint,
    )


# the policy

MOST_ASKS = 8000  # of a job: the judge's own is asked 90 to 5,600 times
SAVES = f"A save is whole after `JOB.durable_s` seconds, so none comes sooner; a job has {MOST_ASKS:,} at most."
GOODPUT = (0.9, 0.97)  # of the reference's, without points and with full points


@dataclass(frozen=True)
class Outages:
    """A job, its failures, and the time that it has."""

    what: str
    job: TrainingJob
    failures: tuple[NodeFailure, ...]
    span_s: float


def drawn_outages(rng, what: str, job: TrainingJob, rate: float, away_s: float, span_s: float = 20 * DAY_S) -> Outages:
    causes = [
        replace(one, per_node_hour=one.per_node_hour * rate, away_s=away_s) for one in outages.published("Llama 3")
    ]
    seed = int(torch.randint(1 << 40, (1,), generator=rng))
    return Outages(what, job, tuple(outages.draw(causes, job.num_nodes + job.num_spares, span_s, seed)), span_s)


class TooOften(ValueError):
    """A policy is asked more often than any good one has to be."""


def replayed(decisions: Any) -> Any:
    """The policy that decides as recorded."""
    left = iter(decisions if isinstance(decisions, list) else [])

    def policy(status: Any) -> Any:
        decided = next(left, None)
        after_s, num_nodes = entry(decided, 0), entry(decided, 1)
        if not isinstance(after_s, float):
            raise TooOften(f"no answer, or more than {MOST_ASKS:,} of them")
        return outages.SavePlan(after_s, int(num_nodes) if isinstance(num_nodes, float) and num_nodes >= 1 else None)

    return policy


def decided_on_rank(student, most_asks, source, jobs):
    """On rank 0, where no student code runs, the job; on rank 1 the policy, which is asked over the wire.

    Rank 0 returns what was decided, for the judge to replay.
    """
    import math

    import torch
    import torch.distributed as dist

    from worldsize import outages

    events = ("start", "saved", "failed", "back")
    if dist.get_rank() == 1:
        module, asked = loaded(source), torch.zeros(7, dtype=torch.float64)
        while True:
            dist.recv(asked, 0)
            kind, *values = asked.tolist()
            if kind == 2:
                return None
            if kind == 1:
                num_nodes, stall_s, write_s, start_s, num_spares, _ = values
                module.JOB = outages.TrainingJob(int(num_nodes), stall_s, start_s, write_s, int(num_spares))
                continue
            event, time_s, trained_s, *counts = values
            wanted = module.policy(outages.Status(events[int(event)], time_s, trained_s, *map(int, counts)))
            after_s, num_nodes = (
                (wanted.save_after_s, wanted.num_nodes) if hasattr(wanted, "save_after_s") else (wanted, None)
            )
            try:
                answer = [float(after_s), math.nan if num_nodes is None else float(num_nodes)]
            except (TypeError, ValueError):
                answer = [math.nan, math.nan]
            dist.send(torch.tensor(answer, dtype=torch.float64), 0)
    found = []
    for one in jobs:
        job, decisions = one.job, []
        sizes = [1, job.num_nodes, job.stall_s, job.durable_s, job.start_s, job.num_spares, 0]
        dist.send(torch.tensor(sizes, dtype=torch.float64), 1)

        def ask(status, decisions=decisions):
            if len(decisions) == most_asks:
                raise ValueError("too often")
            counts = [status.num_nodes, status.num_healthy, status.num_failures]
            said = [0, events.index(status.event), status.time_s, status.trained_s, *counts]
            dist.send(torch.tensor(said, dtype=torch.float64), 1)
            answer = torch.zeros(2, dtype=torch.float64)
            dist.recv(answer, 1)
            decisions.append(answer.tolist())
            after_s, num_nodes = decisions[-1]
            return outages.SavePlan(after_s, None if math.isnan(num_nodes) else int(num_nodes))

        found.append(decisions)
        try:
            outages.endure(ask, job, one.failures, one.span_s, job.durable_s)
        except (ValueError, OverflowError):
            break  # the judge, who replays it, says what was wrong; the other jobs would earn nothing more
    dist.send(torch.full((7,), 2, dtype=torch.float64), 1)
    return found


def reference(job: TrainingJob) -> Any:
    """The judge's own policy: Young's interval, at the rate seen so far; it grows only where it starts anyway."""
    usual_s = 3600 / sum(one.per_node_hour for one in outages.published("Llama 3")) / job.num_nodes

    def policy(status: Any) -> outages.SavePlan:
        mean_s = (usual_s + status.time_s) / (1 + status.num_failures)
        every_s = max(math.sqrt(2 * max(job.stall_s, 1.0) * mean_s), job.durable_s)
        num_nodes = status.num_nodes if status.event == "saved" else min(job.num_nodes, status.num_healthy)
        return outages.SavePlan(every_s, num_nodes)

    return policy


def decided(student, jobs: list[Outages]) -> list[Any]:
    """What the student's policy decided in each job."""
    each = [(None, jobs), (student.program(NAME).source, None)]
    with hinted(f"`policy` is asked up to {MOST_ASKS:,} times in a job: an answer may take a few milliseconds."):
        values = student.run(decided_on_rank, MOST_ASKS, world_size=2, each=each, student_ranks=[1])
    return [entry(values, 0, place) for place in range(len(jobs))]


def grade_policy(student, jobs: list[Outages]) -> None:
    shares = []
    for one, decisions in zip(jobs, decided(student, jobs), strict=True):
        best = outages.endure(reference(one.job), one.job, one.failures, one.span_s).goodput
        try:
            own = outages.endure(replayed(decisions), one.job, one.failures, one.span_s, one.job.durable_s).goodput
        except ValueError as error:
            raise CheckFailed(f"{one.what}: a plan that can be followed", f"{error}"[:300], SAVES) from None
        shares.append((min(1.0, max(0.0, between(own / best, *GOODPUT))), one, own, best))
    share, one, own, best = min(shares, key=lambda found: found[0])  # no one plan is good in both
    hint = "What do a save and a failure cost here, and how often does a node fail?"
    expected = f"{one.what}: at least {GOODPUT[1]:.0%} of the reference's goodput, {best:.1%}"
    grade(share, expected, f"{own:.1%}", hint)


@points(8, cell="check_policy")
def check_usual(student, rng):
    """At Llama 3's rates, with quick saves and with slow ones, goodput is that of the reference, within 3%, in both."""
    grade_policy(
        student,
        [
            drawn_outages(rng, "1,024 nodes, quick saves", TrainingJob(1024, 5, 600, 60, 30), 1, DAY_S),
            drawn_outages(rng, "64 nodes, saves of five minutes", TrainingJob(64, 300, 600, 300, 4), 1, DAY_S),
        ],
    )


@points(8, cell="check_policy")
def check_others(student, rng):
    """So it is where nodes fail ten times as often, and where there is no spare: with the nodes that are left."""
    grade_policy(
        student,
        [
            drawn_outages(rng, "256 nodes that fail ten times as often", TrainingJob(256, 5, 120, 20, 30), 10, DAY_S),
            drawn_outages(rng, "512 nodes, no spare, slow saves", TrainingJob(512, 120, 600, 120, 0), 2, 2 * DAY_S),
        ],
    )


def answers_on_rank(student, source, job, statuses):
    module = loaded(source)
    module.JOB, found = job, []
    for status in statuses:
        wanted = module.policy(status)
        found.append([getattr(wanted, "save_after_s", wanted), getattr(wanted, "num_nodes", None)])
    return found


def is_same_number(before: float, after: Any) -> bool:
    """Whether a number of nodes is the one that was recorded; NaN was recorded for None."""
    try:
        after = math.nan if after is None else float(after)
    except (TypeError, ValueError, OverflowError):
        return False
    return before == after or (math.isnan(before) and math.isnan(after))


@points(4, cell="check_policy", needs=["check_usual"])
def check_begins_anew(student, rng):
    """The same status gets the same answer from a program that has just begun, in whatever order it is asked."""
    one = drawn_outages(rng, "a job", TrainingJob(256, 30, 600, 60, 8), 3, DAY_S)
    decisions, statuses = decided(student, [one])[0], []
    recorded = replayed(decisions)

    def policy(status: Any) -> Any:
        statuses.append(status)
        return recorded(status)

    try:
        outages.endure(policy, one.job, one.failures, one.span_s, one.job.durable_s)
    except ValueError as error:
        raise CheckFailed("a plan that can be followed", f"{error}"[:300], SAVES) from None
    places = shuffled(rng, list(range(len(statuses))))[:300]
    source = student.program(NAME).source
    again = student.run(answers_on_rank, source, one.job, [statuses[place] for place in places], world_size=1)[0]
    for number, place in enumerate(places):
        (before_s, before), (after_s, after) = (
            (entry(values, at, 0), entry(values, at, 1)) for values, at in ((decisions, place), (again, number))
        )
        hint = "After a failure the program begins anew, and all that it remembers is gone."
        if not isinstance(after_s, float | int) or not math.isclose(before_s, after_s, rel_tol=1e-9):
            said = f"{before_s:.6g} s, and {after_s!r:.20} when asked anew"
            raise CheckFailed("the same answer to the same status", said, hint)
        if not is_same_number(before, after):
            said = f"{before:g} nodes, and {after!r:.20} when asked anew"
            raise CheckFailed("the same answer to the same status", said, hint)


# the train step

LARGE_RANKS = 64
LEAST_BYTES = 1 << 20  # of a message between parts of the large model; a loss is smaller
WAY = 2e-3  # of the way of a step, that weights may be off
LEARNING_RATE, EPS = 3e-3, 1e-3


def plan_of(shape: Shape, name: str, **sizes: Any) -> Plan:
    options = {"pp": 1, "cp": 1, "num_chunks": 1, "zero_stage": 3, "recompute": "full", **sizes}
    return Plan(model=shape, cluster=hardware.cluster(name), **options)


def small_plan(rng, **sizes: Any) -> Plan:
    """A plan for 4 ranks of a small model with sizes of its own."""
    width = 32 * whole(rng, 2, 3)
    shape = Shape(
        name="a small model",
        num_layers=2,
        width=width,
        num_heads=4,
        num_kv_heads=2,
        hidden_width=2 * width,
        vocab_size=4 * whole(rng, 20, 40),
        context_length=64,
        source="drawn by the judge, 2026",
    )
    options = {"dp": 2, "tp": 2, "micro_batch": 2, "global_batch": 8, "length": 16, **sizes}
    return plan_of(shape, "h100-ndr-x1", **options)


LARGE = plan_of(
    replace(models.shape("llama-3-8b"), num_layers=4, vocab_size=32_768),
    "h100-ndr-x8",
    global_batch=128,
    length=4096,
    dp=32,
    tp=2,
    micro_batch=2,
)


def trained_on_rank(student, source, plan, tokens, targets):
    """The weights after a step, in the order of the model's own; only rank 0 returns them."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    module = loaded(source)
    found = module.whole_weights(plan, module.train(plan, tokens, targets))
    return None if dist.get_rank() else {name: one.detach().clone() for name, one in dict(found).items()}


def step_on_rank(student, source, plan):
    """A step on tokens that nobody looks at, so that it also runs on paper."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokens = torch.randint(plan.model.vocab_size, (2, plan.global_batch, plan.length))
    loaded(source).train(plan, tokens[0], tokens[1])


def one_process(plan: Plan, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
    """The weights before and after a step of a single process."""
    model = models.Transformer(plan.model, seed=0)
    before = {name: one.detach().clone() for name, one in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=EPS)
    torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    optimizer.step()
    return before, model.state_dict()


def own_sequences(plan: Plan, rng, tokens: torch.Tensor, targets: torch.Tensor) -> list[Any]:
    """For each rank the batch, with noise in place of the sequences of other replicas."""
    share, found = plan.global_batch // plan.dp, []
    for rank in range(plan.dp * plan.tp):
        own = slice(rank // plan.tp * share, (rank // plan.tp + 1) * share)
        noise = torch.randint(plan.model.vocab_size, (2, *tokens.shape), generator=rng)
        noise[0, own], noise[1, own] = tokens[own], targets[own]
        found.append((noise[0], noise[1]))
    return found


def expect_weights_of(student, rng, plan: Plan, what: str, hint: str) -> None:
    """Raise CheckFailed unless a step on 4 emulated ranks gives the weights of one process."""
    tokens, targets = torch.randint(plan.model.vocab_size, (2, plan.global_batch, plan.length), generator=rng)
    source = student.program(NAME).source
    each = own_sequences(plan, rng, tokens, targets)
    run = student.emulated(trained_on_rank, source, plan, world_size=4, each=each, cluster=plan.cluster)
    before, after = one_process(plan, tokens, targets)
    way = off = 0.0
    for name, wanted in after.items():
        own = entry(run.values, 0, name)
        if not isinstance(own, torch.Tensor) or own.shape != wanted.shape or own.dtype != wanted.dtype:
            raise CheckFailed(
                f"{what}: `whole_weights` gives {name}, a tensor of shape {tuple(wanted.shape)}",
                f"a {type(own).__name__}",
            )
        way += float((wanted - before[name]).square().sum())
        off += float((own - wanted).square().sum())
    error = math.sqrt(off / way)
    if not error <= WAY:
        raise CheckFailed(f"{what}: the weights of one process", f"others, by {error:.2g} of the way", hint)
    if plan.tp > 1:
        seen["small"] = plan, run.timeline


@points(4, cell="check_train")
def check_weights(student, rng):
    """On 4 emulated ranks, dp 2 by tp 2, a step of two micro-batches gives the weights of one process."""
    hint = (
        "Is each gradient the mean over the global batch, also over micro-batches? Is it summed over tp where it must?"
    )
    expect_weights_of(student, rng, small_plan(rng), "dp 2 x tp 2, full recomputation", hint)


@points(2, cell="check_train")
def check_replicas(student, rng):
    """On 4 emulated ranks, dp 4, without recomputation, too."""
    plan = small_plan(rng, dp=4, tp=1, recompute="none", micro_batch=1)
    expect_weights_of(student, rng, plan, "dp 4", "Each replica takes its own sequences, and gradients are averaged.")


def large(student) -> PaperRun:
    """The step on 64 GPUs on paper, borne out by a small run with data."""
    if "paper" not in seen:
        source = student.program(NAME).source
        small = small_plan(torch.Generator().manual_seed(0))
        options = {"world_size": LARGE_RANKS, "cluster": LARGE.cluster, "small_world_size": 4}
        seen["paper"] = student.on_paper(step_on_rank, source, LARGE, small=(source, small), **options)
    return seen["paper"]


def sent_by_ranks(run: PaperRun) -> dict[tuple[int, ...], int]:
    """Bytes of rank 0's calls on paper, by who takes part; without small ones, such as a loss."""
    found: dict[tuple[int, ...], int] = {}
    for one in run.timeline.of(0):
        if one.peers and (one.size_bytes or 0) >= LEAST_BYTES:
            ranks = tuple(sorted({0, *one.peers}))
            found[ranks] = found.get(ranks, 0) + (one.size_bytes or 0)
    return found


def least_bytes() -> dict[str, float]:
    """What a step sends at least along each axis: activations four times a layer; weights once, and gradients once."""
    num_tokens = LARGE.num_micro_batches * LARGE.num_micro_batch_tokens
    return {
        "tp": 4 * LARGE.model.num_layers * 2 * num_tokens * LARGE.model.width,
        "dp": 2 * 2 * LARGE.model.num_parameters / LARGE.tp,
    }


def expect_activations_with_data(student, rng) -> None:
    """Raise CheckFailed unless activations went along tp in the run whose weights were right, too."""
    if "small" not in seen:
        check_weights(student, rng)
    plan, timeline = seen["small"]
    tp_ranks = {*plan.tp_ranks}
    sent = sum(one.size_bytes or 0 for one in timeline.of(0) if one.peers and {0, *one.peers} == tp_ranks)
    num_tokens = plan.num_micro_batches * plan.num_micro_batch_tokens
    least = 4 * plan.model.num_layers * 4 * num_tokens * plan.model.width
    if sent < least:
        hint = "What the run on paper sends, the run with data has to send as well."
        raise CheckFailed(f"{least:,} bytes or more along tp, on 4 ranks with data", f"{sent:,}", hint)


@points(7, cell="check_train", needs=["check_weights"])
def check_wire(student, rng):
    """On 64 GPUs on paper, activations go along tp and parts of the model along dp, and nothing elsewhere."""
    expect_activations_with_data(student, rng)
    sent = sent_by_ranks(large(student))
    groups = {"tp": tuple(LARGE.tp_ranks), "dp": tuple(LARGE.shard_ranks)}
    for axis, least in least_bytes().items():
        if (size := sent.get(groups[axis], 0)) < least:
            ranks = format_ranks(groups[axis])
            raise CheckFailed(f"{least / 1e9:.2g} GB or more along {axis}, among {ranks}", f"{size / 1e9:.2g} GB")
    if others := sorted(sent.keys() - {*groups.values()}):
        raise CheckFailed("messages along dp and tp alone", f"{sent[others[0]] / 1e9:.2g} GB among {others[0]}"[:120])


FLOPS = (0.9, 1.15)  # of a step's operations over a rank's share of what the judge counts, without what is done again
LEAST_AGAIN = 1.1  # with full recomputation, all operations over those
MOST_PEAK = 9e9  # right answers 6.2e9; without recomputation 10.8e9, with whole states on each replica 12.0e9


@points(7, cell="check_train", needs=["check_weights"])
def check_share(student, rng):
    """On 64 GPUs on paper, a rank computes its share, layers once more, and holds a share of the states."""
    expect_activations_with_data(student, rng)
    run = large(student)
    share = LARGE.model.flops(LARGE.num_tokens, LARGE.length) / LARGE_RANKS
    done, again = run.flops() / share, run.flops(is_useful=False) / run.flops()
    if not FLOPS[0] <= done <= FLOPS[1]:
        hint = "Ranks along tp share every product, and those along dp take sequences of their own."
        raise CheckFailed(f"{FLOPS[0]:.0%} to {FLOPS[1]:.0%} of a rank's share of operations", f"{done:.0%}", hint)
    if again < LEAST_AGAIN:
        raise CheckFailed("layers are computed again in backward", f"{again:.2f} times the operations of a step")
    if run.peak_bytes > MOST_PEAK:
        hint = "The optimizer's states are cut by dp and tp, and a layer keeps only its input."
        raise CheckFailed(f"at most {MOST_PEAK / 1e9:.0f} GB at the peak", f"{run.peak_bytes / 1e9:.1f} GB", hint)
