"""Hidden checks of project 2: the sample server, the emulated wire and the kernel say what happened."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from autograder.checks import (
    PartlyHeld,
    described,
    disturbed,
    entry,
    expect_grown,
    expect_losses,
    expect_resumed,
    expect_same_way,
    expect_undisturbed_weights,
    expect_weights,
    expect_whole,
    grade_speed,
    is_right,
    points,
    whole,
)
from worldsize import bench, operators
from worldsize.bench import CLASSROOM, Disturbance, RestartPolicy, TextTask, TrainingSpec, Trial
from worldsize.check import CheckFailed
from worldsize.paper import PaperRun
from worldsize.timeline import Timeline

NAME = "train.py"
TASK = TextTask()
LINE = '{"step": 0, "loss": 5.56}'
PAIRS = replace(CLASSROOM, name="classroom of pairs", gpus_per_node=2)
AXES = {"dp", "fsdp", "tp", "pp"}
LEAST_BYTES = 16_384  # of a step on an axis; a loss is smaller
SHORT, LONG = 1, 3  # steps of two emulated trainings, which are compared
REFERENCE_STEP_S = 0.03374  # of our own program; virtual time has no noise, and a test computes it
SPEED = (0.4, 0.8)  # of the reference's, without points and with full points
LEAST_WORK = 0.8  # of a step's arithmetic that all timelines together must hold
MOST_WORK = 2  # times its share that a rank may compute: right answers 1.4 at most, ranks that do the same in pairs 2.3
NEAR = 0.1  # of the way: what a wrong gradient, which has cost its points, may change where another mesh goes on
# its states, 16 bytes a parameter, stand out of what torch itself takes, and a layer is a small part of them, so that
# the gathers of a program that holds half are small too. All ranks' gradients are below the 512 MiB that may be under
# way at a time in a judged run
WIDE = TextTask(batch_size=4, length=16, layers=8, width=512)
# of the states that a rank may take at the peak: half of them, and a quarter for gathers and temporaries. Measured: at
# most 60% by right answers, and 102% by ranks that hold all
HELD_SHARE = 0.75
FRAMEWORK_BYTES = 64 << 20
LARGE = TextTask(num_steps=2, batch_size=256, length=4096, model_name="llama-3-70b", layers=8)
LARGE_RANKS, LARGE_CLUSTER = 64, "h100-ndr-x8"
BEST_STEP_S = 1.842  # of the reference's plans that fit, all of them on paper; a test computes it
PLAN_SPEED = (0.4, 0.65)
FIGURES_TOLERANCE = 0.03
EVERY, TIMEOUT_S = 3, 30.0

MEAN = (
    "Is each gradient the mean over all sequences of the global batch, also over micro-batches, and"
    " is it summed over every axis that needs it? Norms see other tokens on each rank of a sequence-"
    "parallel axis."
)

seen: dict[Any, Any] = {}  # what more than one check looks at; every submission has a judge of its own


def seed_of(rng):
    return int(torch.randint(1 << 40, (1,), generator=rng))


def task_with(rng, **changes):
    return TASK.model_copy(update={"seed": int(torch.randint(1 << 20, (1,), generator=rng)), **changes})


# the student's parts, called on ranks without `main`


def loaded(source: str) -> Any:
    """The program as a module."""
    import sys
    import types

    module = types.ModuleType("train")
    sys.modules["train"] = module
    exec(compile(source, "train.py", "exec"), module.__dict__)
    return module


def plans_on_rank(student, source):
    module = loaded(source)
    return {str(size): module.my_plan(size) for size in (1, 2, 4, 8, 64)}


def steps_on_rank(student, source, flags, num_steps=2):
    """Steps of a Trainer on noughts; nothing is read from them, so they also run on paper."""
    import sys

    import torch

    torch.set_num_threads(1)
    module = loaded(source)
    sys.argv[1:] = flags
    flags = module.read_flags()
    trainer = module.Trainer(flags)
    start, stop = trainer.sequences
    tokens = torch.zeros(stop - start, flags.length, dtype=torch.long)
    for _ in range(num_steps):
        trainer.step(tokens, tokens)


def step_in_memory_on_rank(student, source, flags):
    """One step, while freed memory goes back to the system at once, so that the kernel counts what is held."""
    import ctypes

    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: below the size of a shard
    steps_on_rank(student, source, flags, 1)


def axes_of(plan: Mapping[str, int]) -> dict[str, int]:
    """The axes of a plan that are larger than 1, outermost first."""
    return {name: size for name, size in plan.items() if name in AXES and size > 1}


def num_shares(plan: Mapping[str, int]) -> int:
    """The replicas that take sequences of their own."""
    return plan.get("dp", 1) * plan.get("fsdp", 1)


def plan_of(student, world_size: int) -> dict[str, int]:
    """What `my_plan` says, once it is known to be a plan."""
    if "plans" not in seen:
        seen["plans"] = student.run(plans_on_rank, student.program(NAME).source, world_size=1)[0]
    plan = entry(seen["plans"], str(world_size))
    called = f"my_plan({world_size})"
    if not isinstance(plan, dict) or not all(type(one) is int and one > 0 for one in plan.values()):
        raise CheckFailed(f"{called}: names and whole numbers above 0", f"{plan!r:.80}")
    if unknown := sorted(map(str, plan.keys() - AXES - {"micro_batches"})):
        raise CheckFailed(f"{called}: axes among dp, fsdp, tp, pp, and micro_batches", f"{unknown[0]:.40}")
    size = math.prod(size for name, size in plan.items() if name in AXES)
    if size != world_size or "micro_batches" not in plan:
        raise CheckFailed(f"{called}: axes of {world_size} ranks in all, and micro_batches", f"{plan!r:.80}")
    if world_size in (4, 8) and len(axes_of(plan)) < 2:
        raise CheckFailed(f"{called}: two axes larger than 1", f"{plan!r:.80}", "Choose a mesh, not a line.")
    task = LARGE if world_size == LARGE_RANKS else TASK
    if task.batch_size % (num_shares(plan) * plan["micro_batches"]):
        raise CheckFailed(f"{called}: a batch of {task.batch_size} is cut evenly", f"{plan!r:.80}")
    return plan


@points(4, cell="check_my_plan")
def check_plan(student, rng):
    """The plans for 1, 2, 4, 8 and 64 ranks use all ranks and cut the batch evenly; on 4 and 8 ranks by two axes."""
    for world_size in (1, 2, 4, 8, 64):
        plan_of(student, world_size)


# the same training


@points(2, cell="check_trainer")
def check_alone(student, rng):
    """One rank trains as one process does."""
    expect_same_training(student, rng, 1, "AdamW with `flags.lr` and eps=1e-3, from the seed's weights.")


@points(4, cell="check_trainer")
def check_two(student, rng):
    """On 2 ranks the weights are those of one process."""
    expect_same_training(student, rng, 2, MEAN)


@points(8, cell="check_trainer")
def check_four(student, rng):
    """On 4 ranks, emulated, a mesh of two axes, the weights are those of one process."""
    expect_same_training(student, rng, 4, MEAN)


def expect_same_training(student, rng, world_size: int, hint: str) -> None:
    trial, task = trained(student, rng, world_size)
    expect_weights(trial, task, named(task, world_size), hint)


def named(task: TextTask, world_size: int) -> str:
    return f"{task.num_steps} steps on {world_size} rank{'s' * (world_size > 1)}"


def trained(student, rng, world_size: int) -> tuple[Trial, TextTask]:
    """An undisturbed training, for several checks: on 4 ranks the emulated one, which is looked at anyway."""
    if world_size not in seen:
        if world_size == 4:
            seen[4] = emulated(student, rng).long, emulated(student, rng).task
        else:
            task = task_with(rng, num_steps=whole(rng, 5, 6))
            seen[world_size] = bench.attempt(student.program(NAME), TrainingSpec(task, world_size), seed_of(rng)), task
    return seen[world_size]


@points(5, cell="check_main")
def check_losses(student, rng):
    """Rank 0 prints the loss of the whole global batch before each step, on 2 ranks and on 4."""
    for world_size in (2, 4):
        trial, task = trained(student, rng, world_size)
        # those after the first follow from weights, which have cost their points
        num_steps = task.num_steps if is_right(trial, task, world_size) else 1
        expect_losses(trial, task, named(task, world_size), LINE, num_steps)


# a mesh, on the wire and in memory


@dataclass
class Emulated:
    """The steps by which one training on 4 emulated ranks is longer than another one."""

    task: TextTask
    long: Trial
    step_s: float
    sent_bytes: float  # of rank 0 in a step
    by_ranks: dict[tuple[int, ...], float]  # bytes of a step, by who takes part


def emulated(student, rng) -> Emulated:
    """The student's program on 4 emulated ranks, for several checks."""
    if "emulated" not in seen:
        seen["emulated"] = emulated_steps(student.program(NAME), rng)
    return seen["emulated"]


def emulated_steps(program, rng) -> Emulated:
    seed, task = seed_of(rng), task_with(rng, num_steps=LONG)
    tasks = task, task.model_copy(update={"num_steps": SHORT})
    specs = [TrainingSpec(one, 4, PAIRS, keeps_exchanges=True) for one in tasks]
    long, short = (bench.attempt(program, spec, seed) for spec in specs)
    num, after, before = LONG - SHORT, long.result.timeline, short.result.timeline
    sizes, less = bytes_by_ranks(long), bytes_by_ranks(short)
    by_ranks = {ranks: (size - less.get(ranks, 0)) / num for ranks, size in sizes.items()}
    sent_bytes = (after.bytes_sent(0) - before.bytes_sent(0)) / num
    return Emulated(task, long, (after.end_s - before.end_s) / num, sent_bytes, by_ranks)


def bytes_by_ranks(trial: Trial) -> dict[tuple[int, ...], float]:
    """All bytes that ranks put into messages and collectives, by which ranks take part."""
    found: dict[tuple[int, ...], float] = {}
    for one in trial.result.exchanges:
        ranks = tuple(sorted(one.ranks))
        found[ranks] = found.get(ranks, 0) + sum(map(len, one.bodies.values()))
    return found


def axis_groups(axes: Mapping[str, int]) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
    """Each axis with its groups of ranks; the innermost axis has neighbours."""
    num_ranks = math.prod(axes.values())
    stride = num_ranks
    for name, size in axes.items():
        stride //= size
        firsts = [rank for rank in range(num_ranks) if rank // stride % size == 0]
        yield name, [tuple(range(first, first + stride * size, stride)) for first in firsts]


@points(9, cell="check_mesh", needs=["check_plan"])
def check_axes(student, rng):
    """On 4 emulated ranks bytes go along both axes of the plan, and each replica takes its own sequences."""
    found, plan = emulated(student, rng), plan_of(student, 4)
    what = f"{named(found.task, 4)}, emulated"
    expect_whole(found.long, found.task, what)
    expect_same_way(found.long, found.task, what, MEAN)
    expect_shares(found, plan)
    expect_shared_work(found)
    for name, groups in axis_groups(axes_of(plan)):
        for ranks in groups:
            if found.by_ranks.get(ranks, 0) < LEAST_BYTES:
                raise CheckFailed(
                    f"ranks {', '.join(map(str, ranks))} exchange parts of the model along {name} in every step",
                    f"{max(0, found.by_ranks.get(ranks, 0)):,.0f} bytes a step between them",
                    "`my_plan` names the axes outermost first: ranks of the innermost axis are neighbours.",
                )
    allowed = {ranks for _, groups in axis_groups(axes_of(plan)) for ranks in groups}
    if others := [ranks for ranks, size in found.by_ranks.items() if size > LEAST_BYTES and ranks not in allowed]:
        raise CheckFailed(
            "what travels in a step goes along the axes of my_plan(4)",
            f"{found.by_ranks[others[0]]:,.0f} bytes a step among ranks {', '.join(map(str, others[0]))}",
            "Give the group of an axis to every collective; without one, all ranks take part.",
        )


def expect_shares(found: Emulated, plan: Mapping[str, int]) -> None:
    """Raise CheckFailed unless all four ranks take the sequences of their replica in every step."""
    share = found.task.batch_size // num_shares(plan)
    for step in range(found.task.num_steps):
        takes = [one for one in found.long.record.takes if one.step == step]
        sizes = [one.stop - one.start for one in takes]
        if len({one.process for one in takes}) != 4 or set(sizes) != {share}:
            raise CheckFailed(
                f"each of 4 ranks takes the {share} sequences of its replica in a step",
                f"in step {step}, {len(takes)} ranks took {', '.join(map(str, sorted(sizes)))}",
                "`Trainer.sequences` follows from the rank's place on dp and fsdp alone.",
            )


def expect_shared_work(found: Emulated) -> None:
    """Raise CheckFailed if a rank reports about as much work as if it had its replica's for itself."""
    timeline = found.long.result.timeline
    work_s = max(sum(one.duration_s for one in timeline.of(rank) if one.stream == "compute") for rank in range(4))
    most_s = MOST_WORK * arithmetic_s(found.task) / 4
    if work_s >= most_s:
        raise CheckFailed(
            f"the ranks of a replica share its arithmetic: less than {1e3 * most_s:.3g} ms of work on each rank",
            f"{1e3 * work_s:.3g} ms",
            "On tp each rank computes its part of every layer, on pp its own layers.",
        )


def arithmetic_s(task: TextTask) -> float:
    """Seconds that one rank would take for the products of a training."""
    flops = task.num_steps * task.shape.flops(task.batch_size * task.length, task.length)
    return flops / operators.flops_per_s("matmul", "float32", PAIRS.gpu)


@points(10, cell="check_mesh", needs=["check_axes"])
def check_held(student, rng):
    """On 4 ranks none holds more than half of a wide model's weights, gradients and moments."""
    source = student.program(NAME).source
    run = student.emulated(step_in_memory_on_rank, source, WIDE.flags, world_size=4, cluster=PAIRS, memory=True)
    states_bytes = 4 * WIDE.gradient_bytes
    what = f"half of {states_bytes >> 20} MiB of weights, gradients and moments, temporaries, and torch itself"
    hint = "Make the optimizer after the model is cut, and give whole weights and gradients back."
    expect_grown(run, HELD_SHARE * states_bytes + FRAMEWORK_BYTES, what, hint)


# speed


@points(12, cell="check_fast", needs=["check_axes"])
def check_speed(student, rng):
    """On two pairs of emulated machines a step takes as long as the reference's: full points from 80% of its speed."""
    theirs = emulated(student, rng)
    expect_work(theirs)
    grade_speed(REFERENCE_STEP_S / theirs.step_s, theirs.step_s, "on 4 emulated ranks", SPEED)


def expect_work(found: Emulated) -> None:
    """Raise CheckFailed unless the ranks report the work that a training needs."""
    work_s = sum(one.duration_s for one in found.long.result.timeline.events if one.stream == "compute")
    least_s = LEAST_WORK * arithmetic_s(found.task)
    if work_s < least_s:
        raise CheckFailed(
            f"at least {least_s:.3g} s of work on all ranks, which the arithmetic takes",
            f"{work_s:.3g} s",
            "Every rank computes its part in its own process.",
        )


# recovery


@points(5, cell="check_recovery", needs=["check_two"])
def check_killed(student, rng):
    """A rank of 2 is killed at a secret step: after torchrun's restart training goes on from the newest checkpoint."""
    recover(student, rng, 2, RestartPolicy(max_restarts=1), EVERY)


@points(8, cell="check_recovery", needs=["check_two"])
def check_fewer_ranks(student, rng):
    """A rank of 4 is killed and the job begins anew on 2: it goes on from the newest checkpoint, on another mesh."""
    recover(student, rng, 4, RestartPolicy(1, is_begun_anew=True, is_cut=False, next_world_sizes=[2]), EVERY)


@points(4, cell="check_recovery", needs=["check_two"])
def check_cut(student, rng):
    """The job dies and the newest checkpoint is cut in half: the same command goes on from the one before."""
    recover(student, rng, 2, RestartPolicy(1, is_begun_anew=True), 2 * EVERY)


def recover(student, rng, world_size: int, policy: RestartPolicy, allowed_loss: int) -> None:
    step, rank = whole(rng, 2 * EVERY + 1, 3 * EVERY - 1), whole(rng, 0, world_size - 1)
    struck = Disturbance("kill", step, rank)
    task, seed = task_with(rng, num_steps=3 * EVERY), seed_of(rng)
    spec = TrainingSpec(task, world_size, checkpoint_every=EVERY, timeout_s=TIMEOUT_S)
    what, program = described(struck, policy), student.program(NAME)
    trial = disturbed(program, spec, seed, policy, struck)
    resumed = expect_resumed(trial, task, struck, allowed_loss, what)
    hint = "A checkpoint holds all that the next step needs, of every rank: weights, both moments, step."
    if resumed % EVERY:
        hint = f"It went on at step {resumed}: was a step done twice, or left out?"
    known = seen.get(world_size)  # undisturbed, as one process
    if known and is_right(known[0], known[1], world_size):
        expect_weights(trial, task, what, hint)
    else:
        tolerance = NEAR if policy.next_world_sizes else None
        expect_undisturbed_weights(program, trial, spec, seed, what, (hint, MEAN), tolerance)


# the large job, on paper


def large(student) -> PaperRun:
    """The student's program on 64 GPUs on paper, borne out by a small run with data."""
    if "paper" not in seen:
        source = student.program(NAME).source
        small = TASK.model_copy(update={"num_steps": 2})
        seen["paper"] = student.on_paper(
            steps_on_rank,
            source,
            [*LARGE.flags, "--bf16"],
            world_size=LARGE_RANKS,
            cluster=LARGE_CLUSTER,
            small=(source, small.flags),
            small_world_size=4,
        )
    return seen["paper"]


@points(5, cell="check_large", needs=["check_axes"])
def check_fits(student, rng):
    """The large job runs on paper as my_plan(64) says, with all its arithmetic, and fits in the GPU's memory."""
    run, plan = large(student), plan_of(student, LARGE_RANKS)
    peers = {tuple(sorted(one.peers)) for one in run.timeline.events if one.peers and (one.size_bytes or 0) > 1 << 20}
    for name, (own, *_) in axis_groups(axes_of(plan)):
        # stages exchange messages with their neighbours; on other axes the whole group takes part
        met = [set(one) | {0} for one in peers if set(one) - {0}]
        if not any(one <= set(own) if name == "pp" else one == set(own) for one in met):
            raise CheckFailed(
                f"rank 0 exchanges parts of the model along {name} with ranks {own[1]} to {own[-1]}",
                f"messages of a MiB or more go to other ranks: {sorted(peers)[:4]}"[:200],
                "`Trainer` follows `my_plan` on any number of ranks.",
            )
    if run.peak_bytes > run.cluster.gpu.memory_bytes:
        raise CheckFailed(
            f"a plan that fits in {run.cluster.gpu.memory_bytes / 2**30:.0f} GiB",
            f"{run.peak_bytes / 2**30:.0f} GiB at the peak, on paper",
            "More micro-batches keep fewer activations; more ranks on tp or pp hold less of each layer.",
        )


@points(6, cell="check_large", needs=["check_fits"])
def check_large_speed(student, rng):
    """A step of the large job takes on paper about as long as with the best plan: full points from 65%."""
    step_s = large(student).step_s
    least_s = LARGE.shape.flops(LARGE.batch_size * LARGE.length, 0) / (LARGE_RANKS * 990e12)
    if step_s < least_s:
        raise CheckFailed(f"a step of at least {least_s:.2f} s, which its arithmetic takes", f"{step_s:.2f} s")
    ratio = BEST_STEP_S / step_s
    none, full = PLAN_SPEED
    if ratio < full:
        share = max(0.0, round((ratio - none) / (full - none), 1))
        said = (
            f"on paper, at least {full:.0%} of the speed of the best plan",
            f"{ratio:.0%} of it: {step_s:.2f} s a step",
            "Which term binds: products, gathers across nodes, messages within them, or the bubble?",
        )
        raise PartlyHeld(min(share, 0.9), *said) if share else CheckFailed(*said)


# the report's figures

FIGURES: dict[str, Callable[[Any, Any], float]] = {
    "emulated_step_s": lambda student, rng: emulated(student, rng).step_s,
    "emulated_tokens_per_s": lambda student, rng: TASK.batch_size * TASK.length / emulated(student, rng).step_s,
    "emulated_sent_bytes": lambda student, rng: emulated(student, rng).sent_bytes,
    "paper_step_s": lambda student, rng: large(student).step_s,
    "paper_mfu_fraction": lambda student, rng: large(student).mfu_fraction,
    "paper_peak_bytes": lambda student, rng: large(student).peak_bytes,
}


@points(6, cell="check_figures", needs=["check_axes"])
def check_figures(student, rng):
    """The six figures of the report are those of the program, within 3%: a point for each."""
    claimed = student.run(figures_on_rank, world_size=1)[0]
    wrong = []
    for name, measure in FIGURES.items():
        found, own = measure(student, rng), entry(claimed, name)
        is_number = isinstance(own, (int, float)) and math.isfinite(own)
        if not is_number or abs(own - found) > FIGURES_TOLERANCE * found:
            wrong.append((name, found, own))
    if wrong:
        name, found, own = wrong[0]
        expected, actual = f"figures[{name!r}] within 3% of {found:.4g}", f"{own!r:.40}"
        hint = "Run the cells above with the program that you hand in, and copy what they print."
        if len(wrong) == len(FIGURES):
            raise CheckFailed(expected, actual, hint)
        raise PartlyHeld(1 - len(wrong) / len(FIGURES), expected, actual, hint)


def figures_on_rank(student):
    return dict(student.figures)
