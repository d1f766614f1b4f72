"""Hidden checks of lab 12: real jobs that are killed and stopped, and go on from what they saved.

The samples come from the judge's side, which sees which process takes which samples when, damages
the checkpoints through a folder that was lent to it, and compares the weights that are handed in
with a training of its own. A job runs the student's functions that a check names, and ours in place
of the others. Those that save, choose and load a checkpoint share a format, so they are the
student's together.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autograder.checks import (
    PartlyHeld,
    StudentFailed,
    between,
    entries,
    entry,
    expect_in_order,
    expect_whole,
    hinted,
    integer,
    points,
    whole,
)
from worldsize import bench
from worldsize.bench import Disturbance, RestartPolicy, Task, TrainingSpec, Trial
from worldsize.check import CheckFailed

TASK = Task(num_steps=12, batch_size=12, width=16)  # its states have 620 kB
EVERY = 3  # steps between saves
STORE = ("save_checkpoint", "newest_whole", "load_checkpoint")
PATIENT_S, HASTY_S = (
    60.0,
    3.0,
)  # deadlines of jobs in which nobody hangs, and in which somebody does
TOLERANCE = 2e-3  # of the way that the weights went; sums in another order differ by 1e-6 to 1e-4
LOST = 0.5  # an error of this part of the way: a training that begins with other weights
REST_BYTES = 4096  # that may be left of a save that failed: a list, an empty folder
TWO = 2.5  # the size of two checkpoints, and some lists
SLOWER, START_S = (
    3.0,
    2.0,
)  # how many times the reference's time to recover a program may take, and more

seen: dict[
    str, Any
] = {}  # what more than one check looks at; every submission has a judge of its own


# ours, in place of what a check does not judge: simple, for nothing damages what they write


def our_share_of(rank, world_size, batch_size):
    return rank * batch_size // world_size, (rank + 1) * batch_size // world_size


def our_save(failing, hanging, folder, step, shard):
    if step in failing:
        return False
    hung = Path(folder, "hung")
    if step == hanging and dist.get_rank() == 1 and not hung.exists():
        hung.touch()
        time.sleep(10 * HASTY_S)
    num_ranks = dist.get_world_size()
    torch.save(shard, f"{folder}/{step}.{num_ranks}.{dist.get_rank()}")
    dist.barrier()
    if dist.get_rank() == 0:
        open(f"{folder}/{step}.{num_ranks}.done", "w").close()
    return True


def our_newest_whole(folder):
    done = [name.split(".") for name in os.listdir(folder) if name.endswith(".done")]
    return max((int(step) for step, _, _ in done), default=None)


def our_load(folder, step, rank, world_size):
    (done,) = [
        name for name in os.listdir(folder) if name.startswith(f"{step}.") and "done" in name
    ]
    num_ranks = int(done.split(".")[1])
    parts = [torch.load(f"{folder}/{step}.{num_ranks}.{one}") for one in range(num_ranks)]
    both = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return {key: torch.tensor_split(one, world_size)[rank].clone() for key, one in both.items()}


@contextlib.contextmanager
def our_deadline(seconds):
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    yield
    faulthandler.cancel_dump_traceback_later()


def our_train(student, limit, training, folder, every, timeout_s):
    place = training.rank, training.world_size
    first = student.newest_whole(folder) or 0
    if first:
        training.shard = student.load_checkpoint(folder, first, *place)
    for number in range(first, training.num_steps):
        with student.deadline(timeout_s):
            training.step(number, *student.share_of(*place, training.batch_size))
        if (number + 1) % every == 0:
            is_limited = limit is not None and (number + 1, first) == (limit.step, 0)
            if is_limited and training.rank == limit.rank:
                limit_files(limit.num_bytes, is_full=False)
            with student.deadline(timeout_s):
                student.save_checkpoint(folder, number + 1, training.shard)
            if is_limited:
                limit_files(0, is_full=False)


@dataclass
class Limit:
    """A size that one rank's files may not outgrow in the first save after a step."""

    step: int
    rank: int
    num_bytes: int


def limit_files(num_bytes, is_full):
    """Have this process end where a file outgrows so many bytes, or get an OSError."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN if is_full else signal.SIG_DFL)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes or most, most))


def train_on_rank(student, folder, spec, own, failing, hanging, limit):
    """A training by these functions of the student's, and ours; our save fails after some steps,
    and once hangs after one.
    """
    ours = {
        "share_of": our_share_of,
        "save_checkpoint": partial(our_save, failing, hanging),
        "load_checkpoint": our_load,
    }
    ours |= {"newest_whole": our_newest_whole, "deadline": our_deadline}
    ours |= {"train": partial(our_train, student, limit)}
    for name in ours.keys() - set(own):
        setattr(student, name, ours[name])
    training = student.Training(spec.task)
    student.train(training, folder, spec.checkpoint_every, spec.timeout_s)
    training.hand_in()


# saves and loads without a job, in a folder that these ranks share


def shared_folder():
    made = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    return made[0]


def shard_of(number, dtypes=None, num=100_001):
    """A rank's slices, which differ from number to number and from rank to rank."""
    dtypes = dtypes or {"weights": torch.float32, "momentum": torch.float32}
    wholes = {
        key: (torch.arange(num) + number + 1000 * at).to(dtype)
        for at, (key, dtype) in enumerate(dtypes.items())
    }
    rank, size = dist.get_rank(), dist.get_world_size()
    return {key: torch.tensor_split(one, size)[rank].clone() for key, one in wholes.items()}


def saved(student, folder, step, shard):
    """What a save returned, once all ranks are back."""
    returned = student.save_checkpoint(folder, step, shard)
    dist.barrier()
    return returned


def files_of(folder):
    """The content of every file, by path, once all ranks have come so far."""
    dist.barrier()
    found = {str(one): one.read_bytes() for one in Path(folder).rglob("*") if one.is_file()}
    dist.barrier()
    return found


def changed_files(before, folder):
    return {path: body for path, body in files_of(folder).items() if before.get(path) != body}


def newest_with(student, folder, bodies):
    """What `newest_whole` says while these files have other bodies, or are missing."""
    before = files_of(folder)
    if dist.get_rank() == 0:
        put_files(bodies)
    dist.barrier()
    newest = student.newest_whole(folder)
    dist.barrier()
    if dist.get_rank() == 0:
        put_files({path: before[path] for path in bodies})
    dist.barrier()
    return newest


def put_files(bodies):
    for path, body in bodies.items():
        os.unlink(path) if body is None else Path(path).write_bytes(body)


def kept_on_rank(student):
    """What saves return, the calls of fsync, the newest checkpoint where all files of the last one
    are missing, and what is loaded after the same step was saved again.
    """
    folder, fsync, synced = shared_folder(), os.fsync, []
    os.fsync = lambda fd: (synced.append(fd), fsync(fd))[1]
    returned = [saved(student, folder, step, shard_of(step)) for step in (3, 6)]
    before = files_of(folder)
    returned.append(saved(student, folder, 9, shard_of(9)))
    newest = newest_with(student, folder, dict.fromkeys(changed_files(before, folder)))
    saved(student, folder, 9, shard_of(10))
    loaded = student.load_checkpoint(folder, 9, dist.get_rank(), dist.get_world_size())
    is_old = is_like({"weights": loaded.get("weights")}, {"weights": shard_of(9)["weights"]})
    return [returned, len(synced), newest, is_old]


def is_like(loaded, due):
    """Whether these are the slices that are due, with their keys, types and numbers."""
    return loaded.keys() == due.keys() and all(
        isinstance(one, torch.Tensor) and one.dtype == due[key].dtype and torch.equal(one, due[key])
        for key, one in loaded.items()
    )


def full_on_rank(student, num_bytes):
    """A save in which rank 0's disk is full, and one in which rank 1's is: what it returned, what
    is the newest checkpoint, and whether all files stayed that there were.
    """
    folder, found = shared_folder(), []
    for step in (3, 6):
        saved(student, folder, step, shard_of(step))
    for step, rank in ((9, 0), (12, 1)):
        before = files_of(folder)
        if dist.get_rank() == rank:
            limit_files(num_bytes, is_full=True)
        returned = student.save_checkpoint(folder, step, shard_of(step))
        limit_files(0, is_full=False)
        is_kept = before.items() <= files_of(folder).items()
        found.append([returned, student.newest_whole(folder), is_kept])
    return found


def damaged_on_rank(student, shares, bit):
    """What is the newest checkpoint, by what was done to one file of the last one."""
    folder = shared_folder()
    saved(student, folder, 3, shard_of(3))
    before = files_of(folder)
    saved(student, folder, 6, shard_of(6))
    new, found = changed_files(before, folder), []
    for path, body in sorted(new.items()):
        damages = [("is missing", None)]
        if 2 * len(body) >= max(map(len, new.values())):
            for place in [int(share * len(body)) for share in shares]:
                flipped = body[:place] + bytes([body[place] ^ bit]) + body[place + 1 :]
                damages += [("was cut", body[:place]), ("has one other bit", flipped)]
        for what, damaged_body in damages:
            found.append([what, newest_with(student, folder, {path: damaged_body})])
    return found


def loaded_on_rank(student, dtypes):
    """Whether ranks load their own slices again."""
    folder = shared_folder()
    saved(student, folder, 3, shard_of(3, dtypes, num=1001))
    loaded = student.load_checkpoint(folder, 3, dist.get_rank(), dist.get_world_size())
    dist.barrier()
    return is_like(loaded, shard_of(3, dtypes, num=1001))


# a job, and what must be seen of it


def job(
    student,
    rng,
    own: Sequence[str],
    *struck: Disturbance,
    world_sizes: Sequence[int] = (2,),
    timeout_s: float = PATIENT_S,
    failing: Sequence[int] = (),
    hanging: int | None = None,
    limit: Limit | None = None,
) -> Trial:
    """A training with these disturbances, started again after each that ends it.

    Raises:
        CheckFailed: a disturbance did not happen, for no rank came so far.
        StudentFailed: the job did not recover.
    """
    task = TASK.model_copy(update={"seed": whole(rng, 0, 1 << 20)})
    num_ends = sum(one.kind != "full_disk" for one in struck)
    num_ends += (limit is not None) + (hanging is not None)
    policy = RestartPolicy(num_ends, next_world_sizes=world_sizes[1:])
    spec = TrainingSpec(task, world_sizes[0], checkpoint_every=EVERY, timeout_s=timeout_s)
    program = student.restarted(train_on_rank, list(own), list(failing), hanging, limit)
    try:
        trial = bench.attempt(program, spec, whole(rng, 0, 1 << 40), policy, struck)
    except StudentFailed as failed:
        happened = [one for one in struck if one.time_s is not None]
        what = "The job failed"
        if happened:
            what = f"When {described(happened[-1])}, the job did not recover"
        elif limit is not None:
            what = "When a save was ended at a byte on rank 1 alone, the job did not recover"
        raise StudentFailed(failed.outcome, f"{what}. {failed}", failed.may_be_external) from None
    if due := [one for one in struck if one.time_s is None]:
        raise CheckFailed(
            "every rank asks for its samples", f"no rank asked for those of step {due[0].step}"
        )
    expect_whole(trial, task, f"{task.num_steps} steps")
    seen["task"] = task
    return trial


def described(struck: Disturbance) -> str:
    """What happened, in words."""
    return {
        "kill": f"rank {struck.rank} was killed at step {struck.step}",
        "truncate": f"the files of the newest checkpoint were cut in half at step {struck.step}",
        "corrupt": f"bits in the files of the newest checkpoint were flipped at step {struck.step}",
        "stall": f"rank {struck.rank} was stopped at step {struck.step}",
        "mid_save": f"the save after step {struck.step} was ended at one of its bytes",
        "full_disk": f"the disk was full from step {struck.step} on",
    }[struck.kind]


def killed(rng, least: int, kind: Any = "kill", num_ranks: int = 2) -> Disturbance:
    """What happens to a rank at one of two steps, neither of which comes right after a save."""
    return Disturbance(kind, whole(rng, least, least + 1), whole(rng, 0, num_ranks - 1))


def expect_resumed(trial: Trial, struck: Disturbance, due: int, hint: str) -> None:
    """Raise CheckFailed unless the processes that were started after it went on at this step."""
    assert struck.time_s is not None
    before = {take.process for take in trial.record.takes if take.time_s <= struck.time_s}
    again = [take.step for take in trial.record.takes if take.process not in before]
    first = again[0] if again else None
    if first != due:
        raise CheckFailed(
            f"training goes on at step {due}",
            f"{described(struck)}, and it went on at step {first}",
            hint,
        )
    expect_in_order(trial, described(struck))


def expect_weights(trial: Trial, what: str, hint: str) -> None:
    """Raise CheckFailed unless the weights are those of an undisturbed training."""
    error = bench.weights_error(trial, seen["task"])
    if not error <= TOLERANCE:
        raise CheckFailed(
            "the weights of an undisturbed run, to rounding",
            f"{what}: they differ by {error:.2g} of the way that training went (rounding: 1e-6)",
            hint,
        )


def expect_same_weights(student, rng, trial: Trial, what: str, hint: str) -> None:
    """The same, where a plain restart gives them; otherwise that has cost its points already.

    What goes on with other weights altogether, as from a checkpoint of zeros, earns half.
    """
    task = seen["task"]
    with contextlib.suppress(CheckFailed, StudentFailed):
        restarted(student, rng)
    seen["task"] = task
    error = seen.get("error")
    if error is None:
        return
    if error <= TOLERANCE:
        expect_weights(trial, what, hint)
    elif not error < LOST:
        raise PartlyHeld(
            0.5,
            "a training that goes on with its own weights",
            f"{what}, and they were others: after a plain restart, too",
            "Print a few weights before a save and after the load.",
        )


def restarted(student, rng) -> tuple[Trial, Disturbance]:
    """A training of which a rank is killed between two saves, for several checks."""
    if "restarted" not in seen:
        struck = killed(rng, 7)
        trial = job(student, rng, STORE, struck)
        seen["error"] = bench.weights_error(trial, seen["task"])
        seen["restarted"] = trial, struck
    return seen["restarted"]


@points(1, cell="check_share_of")
def check_shares(student, rng):
    """All samples of a batch are shared, each once, evenly, on 1 to 9 ranks."""
    cases = [(world_size, whole(rng, 2 * world_size, 40)) for world_size in range(1, 10)]
    found = entries(student.run(shares_on_rank, cases, world_size=1)[0], len(cases))
    for (world_size, batch_size), given in zip(cases, found, strict=True):
        pairs = [entries(one, 2) for one in entries(given, world_size)]
        bounds = [(integer(start) or 0, integer(stop) or 0) for start, stop in pairs]
        sizes = [stop - start for start, stop in bounds]
        taken = sorted(one for start, stop in bounds for one in range(max(0, start), min(stop, 64)))
        if taken != list(range(batch_size)) or max(sizes) - min(sizes) > 1:
            expected = f"{batch_size} samples on {world_size} ranks, each on one, evenly"
            raise CheckFailed(expected, f"{bounds}", "Rank r ends where rank r + 1 begins.")


def shares_on_rank(student, cases):
    return [[list(student.share_of(rank, num, size)) for rank in range(num)] for num, size in cases]


@points(2, cell="check_save_checkpoint")
def check_restarted(student, rng):
    """After a rank was killed training goes on at the newest checkpoint, to the same weights."""
    trial, struck = restarted(student, rng)
    expect_resumed(
        trial,
        struck,
        6,
        "Save after the steps' updates; resume with the first step that is not saved.",
    )
    hint = "A checkpoint holds the slices of all ranks, of weights and momentum."
    expect_weights(trial, described(struck), hint)


@points(1, cell="check_save_checkpoint")
def check_kept(student, rng):
    """The two newest checkpoints are kept, and older ones deleted. A save returns True, calls
    `os.fsync`, and replaces a checkpoint of the same step.
    """
    trial, _ = restarted(student, rng)
    one, now = trial.record.held_bytes.get(4, 0), trial.record.held_bytes.get(10, 0)
    if not 1.5 * one <= now <= TWO * one:
        raise CheckFailed(
            f"two checkpoints on the disk after steps 3, 6 and 9: about {2 * one:,} bytes",
            f"{now:,} bytes",
            "Keep the two newest ones, and delete the others once the new one is whole."
            " Is a slice that was loaded a view of the whole? Then all of it is saved.",
        )
    values = student.run(kept_on_rank, world_size=2)
    returned, num_synced, newest, is_old = zip(*[entries(one, 4) for one in values], strict=True)
    if returned != ([True] * 3,) * 2:
        raise CheckFailed("True on every rank from a save that went well", "other values")
    if not any(map(integer, num_synced)):
        raise CheckFailed("os.fsync of each file that is written", "no rank called it")
    if newest != (6, 6):
        raise CheckFailed(
            "6 from newest_whole after steps 3, 6 and 9, where the files of step 9 are missing",
            f"{list(newest)}",
            "The one to be kept with the newest is the one before it.",
        )
    if True in is_old:
        raise CheckFailed(
            "the slices of the last save, after step 9 was saved twice",
            "those of the save before it",
            "A checkpoint of the same step is replaced, whole or not.",
        )


@points(2, cell="check_save_checkpoint")
def check_mid_save(student, rng):
    """A save that is ended at one of its bytes, on all ranks or on one, leaves the one before."""
    struck = Disturbance("mid_save", 4, whole(rng, 0, 1))
    trial = job(student, rng, STORE, struck)
    hint = "Write under another name; a checkpoint begins to exist when its last file is renamed."
    has_files_small_enough = outlived(trial, struck, 6) and 6 in firsts(trial)
    expect_resumed(trial, struck, 6 if has_files_small_enough else 3, hint)
    expect_same_weights(student, rng, trial, described(struck), hint)
    held = trial.record.held_bytes.get(10, 0)
    limit = Limit(6, 1, 1000 * whole(rng, 100, 300))
    trial = job(student, rng, STORE, limit=limit)
    what = "the save after step 6 was ended at a byte on rank 1 alone"
    resumed = firsts(trial)
    if trial.result.restarts and 3 not in resumed:  # where rank 0 writes for all, nothing ends
        raise CheckFailed(
            "training goes on at step 3", f"{what}, and ranks began at {resumed}", hint
        )
    expect_in_order(trial, what)
    hint = "Count on another rank's file only when that rank has reported that it is there."
    expect_same_weights(student, rng, trial, what, hint)
    plain = restarted(student, rng)[0].record.held_bytes
    if plain.get(10, 0) + REST_BYTES < held and plain.get(10, 0) <= TWO * plain.get(4, 0):
        raise PartlyHeld(
            0.5,
            "nothing is left of a save that was killed, after two more saves",
            f"{held - plain.get(10, 0):,} bytes more than after a plain restart",
            "Once a checkpoint is whole, delete all files that belong to none.",
        )


def outlived(trial: Trial, struck: Disturbance, step: int) -> bool:
    """Whether a process that may write small files only came to this step, after its save."""
    assert struck.time_s is not None
    before = {take.process for take in trial.record.takes if take.time_s <= struck.time_s}
    return any(take.step == step and take.process in before for take in trial.record.takes)


def firsts(trial: Trial) -> list[int]:
    """The steps at which processes began."""
    first: dict[int, int] = {}
    for take in trial.record.takes:
        first.setdefault(take.process, take.step)
    return sorted(set(first.values()))


@points(2, cell="check_save_checkpoint")
def check_full_disk(student, rng):
    """A full disk costs a checkpoint and no step: the one before stays, and the next save works."""
    full = Disturbance("full_disk", whole(rng, 4, 5), 0, free_step=7)
    first, second = Disturbance("kill", 8, whole(rng, 0, 1)), killed(rng, 10)
    trial = job(student, rng, STORE, full, first, second)
    hint = "A failed write is an OSError: every rank removes this checkpoint's files, and goes on."
    expect_resumed(trial, first, 3, hint)
    before, after = trial.record.held_bytes[4], trial.record.held_bytes[7]
    expect_resumed(trial, second, 9, "Once there is room again, a save works as before.")
    if after > before + REST_BYTES:
        left = f"{after - before:,} bytes more than before"
        raise CheckFailed("nothing is left of a save on a full disk", left, hint)
    expect_same_weights(student, rng, trial, described(full), hint)
    expect_false_on_every_rank(student)


def expect_false_on_every_rank(student) -> None:
    """Raise CheckFailed unless a save fails on all ranks where one disk is full, and harms nothing.

    Where no file is too large for the limit, the checkpoint may be whole as well.
    """
    values = student.run(full_on_rank, 100_000, world_size=2)
    newest_due = 6
    for at, step in enumerate((9, 12)):
        of_ranks = [entries(entry(value, at), 3) for value in values]
        returned, newest, is_kept = (list(one) for one in zip(*of_ranks, strict=True))
        if returned == [True] * 2 and newest == [step] * 2:
            newest_due = step
            continue
        if any(one is not False for one in returned):
            raise CheckFailed(
                f"save_checkpoint returns False on every rank where the disk of rank {at} is full",
                "others than [False, False]",
                "Let all ranks know how it went on each of them.",
            )
        if newest != [newest_due] * 2 or is_kept != [True] * 2:
            raise CheckFailed(
                "the two checkpoints that there were, as they were, after a save on a full disk",
                "one of them is another, or gone",
                "Delete an older checkpoint once the new one is whole, and no earlier.",
            )


@points(2, cell="check_newest_whole")
def check_truncated(student, rng):
    """Where the newest checkpoint was cut in half, training goes on from the one before."""
    damaged(student, rng, "truncate")


@points(2, cell="check_newest_whole")
def check_corrupt(student, rng):
    """Where bits of the newest checkpoint have flipped, training goes on from the one before; also
    where one of its files is missing, cut, or has one other bit.
    """
    damaged(student, rng, "corrupt")
    shares = [between(rng, low, low + 0.15) for low in (0.1, 0.3, 0.55, 0.8)]
    for rank, found in enumerate(
        student.run(damaged_on_rank, shares, 1 << whole(rng, 0, 7), world_size=2)
    ):
        for what, newest in (entries(one, 2) for one in found):
            if newest != 3:
                raise CheckFailed(
                    f"3 from newest_whole where one file of step 6 {what}",
                    f"{newest} on rank {rank}",
                    "Compare all of each file with a digest that was noted when it was written.",
                )


def damaged(student, rng, kind: str) -> None:
    struck, again = killed(rng, 7, kind), killed(rng, 10)
    trial = job(student, rng, STORE, struck, again)
    hint = "Compare a digest of each file with the one that was noted when it was written."
    expect_resumed(trial, struck, 3, hint)
    expect_resumed(
        trial, again, 9, "A damaged checkpoint is in the way of none that is saved after it."
    )
    expect_same_weights(student, rng, trial, described(struck), hint)


@points(3, cell="check_load_checkpoint")
def check_worlds(student, rng):
    """On 4 ranks, then 2, then 4: each goes on at the newest checkpoint, to the same weights. Ranks
    are in the order of their numbers also where there are 11. Half where other keys and types than
    the training's do not come back.
    """
    first, second = killed(rng, 4, num_ranks=4), killed(rng, 7)
    trial = job(student, rng, STORE, first, second, world_sizes=(4, 2, 4))
    hint = "Put the slices of all files together in the order of ranks, and cut them anew."
    expect_resumed(trial, first, 3, hint)
    expect_resumed(trial, second, 6, hint)
    expect_weights(trial, "on 4 ranks, then 2, then 4", hint)
    if student.run(loaded_on_rank, None, world_size=11) != [True] * 11:
        raise CheckFailed("each of 11 ranks loads the slices that it saved", "others", hint)
    dtypes = {"weights": torch.float32, "counts": torch.int64, "means": torch.float64}
    try:
        values = student.run(loaded_on_rank, dtypes, world_size=2)
    except StudentFailed as failed:
        values = [f"{failed}"]
    if values != [True] * 2:
        raise PartlyHeld(
            0.5,
            f"the keys and the types that were saved: {', '.join(dtypes)}",
            "others" if len(values) == 2 else values[0],
            "Save whatever keys the shard has, each in its own type.",
        )


@points(1, cell="check_deadline")
def check_in_time(student, rng):
    """Work that is done in time is not ended, nor what comes after it."""
    with hinted("Stop the clock when the block is left, also by an exception."):
        values = student.run(in_time_on_rank, world_size=1)
    if values != [[1, 2]]:
        raise CheckFailed(
            "blocks that were left in time, one of them by an exception, which is passed on",
            "not so",
        )


def in_time_on_rank(student):
    left = []
    with student.deadline(0.4):
        left.append(1)
    try:
        with student.deadline(0.4):
            raise KeyError
    except KeyError:
        left.append(2)
    time.sleep(0.8)
    return left


@points(1, cell="check_deadline")
def check_deadline(student, rng):
    """A rank that waits in a collective for a stopped one ends itself, and the job starts again."""
    expect_given_up(
        student, rng, ["deadline"], "Something outside the waiting thread has to end the process."
    )
    if student.run(late_on_rank, world_size=1) == [0]:
        raise CheckFailed(
            "a process that is late ends by a signal or with an exit code other than 0",
            "exit code 0",
            "For torchrun exit code 0 means that a rank has done its work.",
        )


def late_on_rank(student):
    """How a child ends that works for longer than it may."""
    child = os.fork()
    if not child:
        try:
            with student.deadline(0.2):
                time.sleep(10 * HASTY_S)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def expect_given_up(student, rng, own: Sequence[str], hint: str) -> None:
    struck = Disturbance("stall", whole(rng, 4, 5), whole(rng, 0, 1), patience_s=6 * HASTY_S)
    job(student, rng, own, struck, timeout_s=HASTY_S)
    if not struck.is_given_up:
        raise CheckFailed(
            f"the other rank ends itself after {HASTY_S:g} s",
            f"{described(struck)}, and {struck.patience_s:g} s later the other one still waited",
            hint,
        )


@points(1, cell="check_train")
def check_train(student, rng):
    """Training goes on at the first step that is not saved, and saves when it is due, alone."""
    struck = killed(rng, 7)
    trial = job(student, rng, ["train"], struck, failing=[3])
    expect_saves(trial, [6, 9])
    expect_resumed(trial, struck, 6, "After 6 steps the next one has the number 6.")
    expect_weights(trial, described(struck), "Give the training its slices before its first step.")


def expect_saves(trial: Trial, due: list[int]) -> None:
    """Raise CheckFailed unless files were written after these steps alone."""
    if (saved := list(trial.record.saved_before)) != due:
        raise CheckFailed(
            f"a save after steps {', '.join(map(str, due))}, every {EVERY} steps",
            f"files were written after steps {', '.join(map(str, saved)) or 'none'}",
            "Every save stops all ranks: save when one is due, and at no other time.",
        )


@points(1, cell="check_train")
def check_hang(student, rng):
    """A step in which a rank is stopped ends by the deadline, and the job starts again; so does a
    save in which a rank hangs.
    """
    expect_given_up(student, rng, ["train"], "Each step is within `deadline(timeout_s)`.")
    trial = job(student, rng, ["train"], timeout_s=HASTY_S, hanging=6)
    if not trial.result.restarts:
        raise CheckFailed(
            f"a save that hangs is ended after {HASTY_S:g} s",
            f"{10 * HASTY_S:g} s later the other rank still waited",
            "Each save is within `deadline(timeout_s)`, as each step is.",
        )


@points(1, cell="check_train")
def check_whole(student, rng):
    """The student's whole program recovers about as fast as the reference's, in one sandbox."""
    own = ["share_of", *STORE, "deadline", "train"]
    theirs, ours = killed(rng, 7), killed(rng, 7)
    trial = job(student, rng, own, theirs)
    expect_resumed(trial, theirs, 6, "Resume from the newest checkpoint that is whole.")
    expect_saves(trial, [3, 6, 9])
    expect_same_weights(student, rng, trial, described(theirs), "Train in every step.")
    taken_s = trial.recovery_s(theirs)
    due_s = job(student, rng, [], ours).recovery_s(ours)
    assert taken_s is not None and due_s is not None
    if taken_s > SLOWER * due_s + START_S:
        raise CheckFailed(
            f"training again at most {SLOWER * due_s + START_S:.1f} s after a rank was killed",
            f"{taken_s:.1f} s (the reference: {due_s:.1f} s)",
            "Load only the newest checkpoint, and wait for nothing.",
        )
