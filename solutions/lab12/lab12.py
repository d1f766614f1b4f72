# %% [markdown]
# # Lab 12. Survive
#
# A training program runs for weeks, and something stops it several times a day. In this lab you
# write the parts that let it go on as if nothing had happened: a checkpoint that is whole or not
# there, on a disk that damages files and fills up; a restart on fewer ranks and on more; a hang
# that becomes a restart.
#
# ```text
# steps      0  1  2 | 3  4  5 | 6  7  x                   rank 1 is killed in step 8
# saved              3         6
# again                        | 6  7  8 | 9 10 11 | done   the same weights at the end
# ```
#
# The jobs in this lab are real: processes that exchange gradients by Gloo, killed by SIGKILL,
# stopped, and started again, as torchrun would do. The training is small so that a job takes a
# second. Its weights and their momentum are cut over the ranks, as in week 7: each rank keeps one
# slice, and no rank has all. So a checkpoint is made of several files, written by several
# processes, any of which may die.
#
# | Function | What it does | Points | Time | Difficulty |
# |---|---|---|---|---|
# | `share_of` | the samples of a rank, for any number of ranks | 1 | 10 min | easy |
# | `save_checkpoint` | a checkpoint that is whole or not there, on any disk | 7 | 75 min | hard |
# | `newest_whole` | the newest checkpoint that can be trusted | 4 | 30 min | medium |
# | `load_checkpoint` | a rank's slice, from any number of ranks | 3 | 25 min | medium |
# | `deadline` | ends a process that hangs | 2 | 25 min | medium |
# | `train` | the whole training, at any interval between saves | 3 | 30 min | medium |
#
# Work in this order. Each part has a check below it and folded hints above it: the first hint says
# where to look, the next one how to do it.
#
# Each docstring is a contract: everything that it promises is graded, and nothing else. The format
# of your files is yours. `torch.distributed.checkpoint` of week 12 will do, too: it writes the
# files of all ranks, but notices no flipped bit and deletes no older checkpoint. Samples are handed
# out by a process outside, which sees which rank takes which samples when, kills ranks, cuts and
# flips what you have saved, and gets the weights at the end. Between a failure and the next start
# all files are removed but those in the folder of checkpoints, as on another machine. Each part is
# graded with correct versions of the others, so that a mistake costs points only once;
# `save_checkpoint`, `newest_whole` and `load_checkpoint` share a format and are graded together.

# %% setup
import contextlib
import hashlib
import io
import json
import os
import resource
import signal
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import worldsize as ws
from worldsize.bench import Task, open_samples
from worldsize.check import CheckFailed

ws.run(
    dist.get_rank, world_size=2, echo=False
)  # the first run loads torch: the checks are then quick

# %% [markdown]
# ## The training
#
# The next cell is given. Every rank computes the gradient of its samples for all weights, and
# updates its own slice. `training.shard` is all that a rank has to save: its slices of the weights
# and of the momentum. The batch of a step depends on nothing but the step's number.


# %% given_training
TASK = Task(num_steps=12, batch_size=12, width=4)


def slice_of(whole: Tensor, rank: int, world_size: int) -> Tensor:
    """The slice of a flat tensor that a rank keeps; lengths differ by one at most."""
    return torch.tensor_split(whole, world_size)[rank]


class Training:
    """One rank's part of a training whose states are cut over the ranks."""

    def __init__(self, task: Task) -> None:
        torch.set_num_threads(1)
        self.num_steps, self.batch_size = task.num_steps, task.batch_size
        self.place = dist.get_rank(), dist.get_world_size()
        self.rank, self.world_size = self.place
        self.samples = open_samples(task.batch_size, task.seed)
        self.task, self.model = task, task.model()
        own = slice_of(parameters_to_vector(self.model.parameters()).detach(), *self.place)
        self.shard = {"weights": own.clone(), "momentum": torch.zeros_like(own)}

    def gather(self) -> None:
        """Give the model all ranks' weights; every rank calls this together."""
        whole = torch.zeros(sum(one.numel() for one in self.model.parameters()))
        slice_of(whole, *self.place).copy_(self.shard["weights"])
        dist.all_reduce(whole)
        vector_to_parameters(whole, self.model.parameters())

    def step(self, step: int, start: int, stop: int) -> None:
        """Make one step, for which this rank takes samples `start` to `stop`, exclusive."""
        images, labels = self.samples.take(step, start, stop)
        self.gather()
        loss = F.cross_entropy(self.model(images), labels, reduction="sum") / self.batch_size
        grads = torch.autograd.grad(loss, list(self.model.parameters()))
        gradient = torch.cat([one.flatten() for one in grads])
        dist.all_reduce(gradient)
        weights, momentum = self.shard["weights"], self.shard["momentum"]
        momentum.mul_(self.task.momentum).add_(slice_of(gradient, *self.place))
        weights.sub_(self.task.lr * momentum)

    def hand_in(self) -> None:
        """Hand in the weights after the last step; every rank calls this together."""
        self.gather()
        if self.rank == 0:
            self.samples.hand_in(self.model)


# %% [markdown]
# These helpers of the checks are given, too. `end_at_byte` has the kernel end the process where a
# file would grow beyond so many bytes, which is in the middle of a save. With `is_full` the write
# raises an OSError there instead, as on a full disk.


# %% given_helpers
def end_at_byte(num_bytes, is_full=False):
    """Have no file of this process grow beyond so many bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN if is_full else signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, resource.RLIM_INFINITY))


def any_shard(step, num=100_001):
    """Slices that differ from rank to rank and from step to step."""
    place = dist.get_rank(), dist.get_world_size()
    whole = torch.arange(num, dtype=torch.float32) + step
    momentum = slice_of(-whole, *place).clone()
    return {"weights": slice_of(whole, *place).clone(), "momentum": momentum}


def save_on_rank(folder, steps, limit_bytes=0, is_full=False):
    """What each of these saves returned, the last with a limit of files; and the calls of fsync."""
    num_synced, fsync, saved = [], os.fsync, []
    os.fsync = lambda fd: (num_synced.append(fd), fsync(fd))[1]
    for step in steps:
        if limit_bytes and step == steps[-1]:
            end_at_byte(limit_bytes, is_full)
        saved.append(save_checkpoint(folder, step, any_shard(step)))
    return saved, len(num_synced)


def files_in(folder):
    """The content of every file below a folder, by path."""
    return {str(one): one.read_bytes() for one in sorted(Path(folder).rglob("*")) if one.is_file()}


def run(function, *args, world_size=2):
    """What a function returned on every rank; None where a rank was ended."""
    try:
        return ws.run(function, *args, world_size=world_size, echo=False, timeout_s=60).values
    except ws.RankFailed as failed:
        if "SIG" not in str(failed):
            raise
        return None


# %% [markdown]
# ## 1. The same data in the same order
#
# If the samples of a step follow from its number, nothing about the data has to be saved. What is
# left is to cut a batch for any number of ranks, also where it does not divide.
#
# <details><summary>Hint 1: where to look</summary>
#
# Rank r ends where rank r + 1 begins. Where is that, as a share of the batch?
#
# </details>


# %% share_of tags=["solution"]
def share_of(rank: int, world_size: int, batch_size: int) -> tuple[int, int]:
    """The `start` and `stop` of a rank's samples in a batch: each sample belongs to one rank.

    The numbers of samples of two ranks differ by one at most.
    """
    ### BEGIN SOLUTION
    return rank * batch_size // world_size, (rank + 1) * batch_size // world_size
    ### END SOLUTION


# %% check_share_of points=1
def check_share_of():
    for world_size, batch_size in ((1, 12), (2, 12), (4, 12), (3, 16), (5, 12), (8, 9)):
        shares = [share_of(rank, world_size, batch_size) for rank in range(world_size)]
        taken = [one for start, stop in shares for one in range(start, stop)]
        if sorted(taken) != list(range(batch_size)):
            expected = f"each of {batch_size} samples on one of {world_size} ranks"
            raise CheckFailed(expected, f"{shares}", "What is left over after an even cut?")
        sizes = [stop - start for start, stop in shares]
        if max(sizes) - min(sizes) > 1:
            raise CheckFailed("numbers of samples that differ by one at most", f"{sizes}")
    print("share_of: each sample once, on 1 to 8 ranks.")


check_share_of()

# %% [markdown]
# ## 2. Save: whole, or not there
#
# A checkpoint of several files is whole when the last of them is. So there must be one moment in
# which it begins to exist, and that is the renaming of one file. Until then the older one must
# stay. Three things can go wrong in between: any rank may die at any byte; the disk may be full on
# one rank and not on the others; and a later reader may find what a dead save has left behind.
#
# <details><summary>Hint 1: where to look</summary>
#
# Let every rank write its file under another name, flush it, `os.fsync` it, and rename it. Then
# let all ranks know how that went (`dist.all_gather_object`). Only if all went well does rank 0
# write one more small file, in the same way: the list of the files. A checkpoint without its list
# is not there.
#
# </details>
# <details><summary>Hint 2: a full disk</summary>
#
# `torch.save` to a path fails on a full disk in a way of its own. Save to an `io.BytesIO`, and
# write its bytes: then a full disk is an `OSError`, wherever it comes up. Catch it, remove what you
# have begun, and let the others know, so that all ranks remove theirs and return False.
#
# </details>
# <details><summary>Hint 3: what may be deleted</summary>
#
# After the list has its name, and no earlier, rank 0 may delete all that this list and the one
# before do not name: older checkpoints, what a dead save has left, and a list with a higher number,
# which must be damaged: else training would have gone on from there.
#
# </details>
# <details><summary>Hint 4: for later</summary>
#
# `newest_whole` will have to know a file that was cut, or of which a bit has flipped. The list is a
# good place for the SHA-256 of each file.
#
# </details>


# %% save_checkpoint tags=["solution"]
def save_checkpoint(folder: str, step: int, shard: dict[str, Tensor]) -> bool:
    """Save a checkpoint of the state after `step` steps; every rank calls this with its own slices.

    - True on every rank once it is whole: all ranks' slices are on the disk, by `os.fsync`.
    - If a rank is killed at any byte of it, the checkpoints before stay as they are, and this one
      is not there.
    - Where a disk is full (an OSError), it returns False on every rank, and the folder holds what
      it held before.
    - The two newest checkpoints stay. Older ones are deleted, but not before this one is whole;
      also what a save that was killed has left.
    - A checkpoint of the same step that is there already, damaged or not, is replaced.
    """
    ### BEGIN SOLUTION
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    buffer = io.BytesIO()
    torch.save(shard, buffer)
    body = buffer.getvalue()
    own = Path(folder, f"{step:08d}-{rank}-of-{num_ranks}.pt")
    digest = hashlib.sha256(body).hexdigest() if put(own, body) else ""
    listed = [("", "")] * num_ranks
    dist.all_gather_object(listed, (own.name, digest))
    outcome = [all(digest for _, digest in listed)]
    if rank == 0 and outcome[0]:
        outcome = [put(Path(folder, f"{step:08d}.json"), json.dumps(dict(listed)).encode())]
    dist.broadcast_object_list(outcome)
    if not outcome[0]:
        own.unlink(missing_ok=True)
        dist.barrier()
    elif rank == 0:
        lists = [one for one in sorted(Path(folder).glob("*.json")) if int(one.stem) <= step][-2:]
        kept = {name for one in lists for name in (one.name, *json.loads(one.read_bytes()))}
        for one in Path(folder).iterdir():
            if one.name not in kept:
                one.unlink()
    return outcome[0]


def put(path: Path, body: bytes) -> bool:
    """True once the bytes are on the disk under their name; False where it is full."""
    unfinished = path.with_suffix(".unfinished")
    try:
        with unfinished.open("wb") as out:
            out.write(body)
            out.flush()
            os.fsync(out)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        return False
    fd = os.open(path.parent, os.O_RDONLY)  # the name itself is on the disk when its folder is
    os.fsync(fd)
    os.close(fd)
    return True
    ### END SOLUTION


# %% check_save_checkpoint points=7
def check_save_checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        before = saved_before(folder)
        for limit_bytes in (1, 100_000, 401_000):
            run(save_on_rank, folder, [8], limit_bytes)
            expect_same(before, folder, f"after SIGXFSZ at byte {limit_bytes:,} of saving step 8")
    with tempfile.TemporaryDirectory() as folder:
        before = saved_before(folder)
        found = run(save_on_rank, folder, [8], 100_000, True)
        if not found or [one for one, _ in found] != [[False]] * 2:
            raise CheckFailed("False on both ranks from a save on a full disk", f"{found}")
        expect_same(before, folder, "after a save on a full disk")
        if files_in(folder).keys() != before.keys():
            left = sorted(files_in(folder).keys() - before.keys())
            raise CheckFailed("nothing is left of a save on a full disk", ", ".join(left))
        most = 2.5 * sum(map(len, before.values()))
        run(save_on_rank, folder, [8, 12, 16])
        if (size := sum(map(len, files_in(folder).values()))) > most:
            actual = f"{size:,} bytes after steps 4, 8, 12 and 16"
            raise CheckFailed(f"two checkpoints, at most {most:,.0f} bytes", actual)
    print("save_checkpoint: killed at three bytes and on a full disk, step 4 was there each time.")


def saved_before(folder):
    """The files of a first save, which must go well."""
    found = run(save_on_rank, folder, [4])
    if not found or [one for one, _ in found] != [[True]] * 2:
        raise CheckFailed("True on both ranks once the checkpoint is whole", f"{found}")
    if not any(num_synced for _, num_synced in found):
        raise CheckFailed("os.fsync of a file before it has its name", "no call of it")
    return files_in(folder)


def expect_same(before, folder, when):
    """Raise CheckFailed unless every file is as it was."""
    now = files_in(folder)
    if changed := [path for path, body in before.items() if now.get(path) != body]:
        hint = "Write under another name, and delete nothing before the new checkpoint is whole."
        raise CheckFailed(f"step 4 as it was {when}", f"{changed[0]} is another, or gone", hint)


check_save_checkpoint()

# %% [markdown]
# ## 3. Which one can be trusted?
#
# The newest checkpoint is the most likely to be damaged: it is what was being written when the
# machine died. A file that is cut, missing, or of which some bits have flipped must be noticed
# before anything of it is loaded. Then the one before is the newest.
#
# <details><summary>Hint 1: where to look</summary>
#
# Go through the lists, the newest first. Read each file that a list names, and compare its SHA-256.
#
# </details>
# <details><summary>Hint 2: anything can be damaged</summary>
#
# The list itself, too: what `json.loads` raises is a ValueError; what a missing file raises, an
# OSError. Both mean: not this one.
#
# </details>


# %% newest_whole tags=["solution"]
def newest_whole(folder: str) -> int | None:
    """The number of steps of the newest checkpoint in a folder that is whole; None without one.

    A checkpoint of which a file is missing, cut or changed in any bit is not whole. Every rank
    calls this for itself; nothing is written meanwhile.
    """
    ### BEGIN SOLUTION
    for path in sorted(Path(folder).glob("*.json"), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            listed = json.loads(path.read_bytes())
            bodies = {name: Path(folder, name).read_bytes() for name in listed}
            found = {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()}
            if found == listed:
                return int(path.stem)
    return None
    ### END SOLUTION


# %% check_newest_whole points=4
def damages():
    """What is done to a file, in words and as a function of its bytes; None removes it."""
    yield "was cut in half", lambda body: body[: len(body) // 2]
    yield "was emptied", lambda body: b""
    middle = lambda body: len(body) // 2  # noqa: E731
    yield (
        "has one other bit",
        lambda body: (
            body[: middle(body)] + bytes([body[middle(body)] ^ 64]) + body[middle(body) + 1 :]
        ),
    )
    yield "is missing", lambda body: None


def check_newest_whole():
    with tempfile.TemporaryDirectory() as parent:
        folder = os.path.join(parent, "checkpoints")
        os.mkdir(folder)
        expect_newest(folder, None, "in an empty folder")
        run(save_on_rank, folder, [4])
        before = files_in(folder)
        run(save_on_rank, folder, [8])
        expect_newest(folder, 8, "after steps 4 and 8 were saved")
        new = {path: body for path, body in files_in(folder).items() if before.get(path) != body}
        for what, damage in damages():
            for path, body in new.items():
                changed = damage(body)
                if changed is None:
                    os.unlink(path)
                else:
                    Path(path).write_bytes(changed)
                when = f"where {os.path.basename(path)} of step 8 {what}"
                expect_newest(folder, 4, when)
                Path(path).write_bytes(body)
        run(save_on_rank, folder, [12], 100_000)
        expect_newest(folder, 8, "after saving step 12 was killed")
    print(f"newest_whole: {len(new)} files of a checkpoint, each damaged in four ways.")


def expect_newest(folder, due, when):
    found = newest_whole(folder)
    if found != due:
        hint = "Trust a file only if its digest is the one that was noted when it was written."
        raise CheckFailed(f"newest_whole: {due} {when}", f"{found}", hint)


check_newest_whole()

# %% [markdown]
# ## 4. Load, on any number of ranks
#
# Four ranks saved; one machine is gone, and two ranks are left. Each of them needs another slice
# than any file holds.
#
# <details><summary>Hint 1: where to look</summary>
#
# The slices of all files, one after the other in the order of their ranks, are the whole. "10"
# comes before "2" in the order of names.
#
# </details>
# <details><summary>Hint 2: what will be saved next</summary>
#
# A slice is a view of a larger tensor, and `torch.save` writes all that a view belongs to. Clone
# it.
#
# </details>


# %% load_checkpoint tags=["solution"]
def load_checkpoint(folder: str, step: int, rank: int, world_size: int) -> dict[str, Tensor]:
    """A rank's slices of a whole checkpoint, which any number of ranks may have saved.

    They are those of `slice_of`, with the keys, numbers and types that were saved.
    """
    ### BEGIN SOLUTION
    names = json.loads(Path(folder, f"{step:08d}.json").read_bytes())  # in the order of the ranks
    parts = [torch.load(Path(folder, name)) for name in names]
    whole = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return {key: slice_of(one, rank, world_size).clone() for key, one in whole.items()}
    ### END SOLUTION


# %% check_load_checkpoint points=3
def load_on_rank(folder, step):
    return load_checkpoint(folder, step, dist.get_rank(), dist.get_world_size()), any_shard(step)


def check_load_checkpoint():
    with tempfile.TemporaryDirectory() as folder:
        for step, num_saving in ((4, 4), (8, 3)):
            run(save_on_rank, folder, [step], world_size=num_saving)
            for world_size in (4, 2, 1):
                values = run(load_on_rank, folder, step, world_size=world_size) or []
                for rank, (found, due) in enumerate(values):
                    expect_slices(
                        found, due, f"saved on {num_saving} ranks, rank {rank} of {world_size}"
                    )
    print("load_checkpoint: saved on 4 and on 3 ranks, loaded on 4, 2 and 1.")


def expect_slices(found, due, what):
    if found.keys() != due.keys():
        raise CheckFailed(f"{what}: {sorted(due)}", f"{sorted(found)}", "Momentum is state, too.")
    for key, one in due.items():
        if found[key].shape != one.shape or not torch.equal(found[key], one):
            expected = f"{what}: {key} from {one[0]:g} to {one[-1]:g}"
            actual = f"{len(found[key])} numbers, from {found[key][0]:g} to {found[key][-1]:g}"
            raise CheckFailed(expected, actual, "Put all slices together, and cut anew.")


check_load_checkpoint()

# %% [markdown]
# ## 5. A hang becomes a restart
#
# A rank that dies is noticed: its connections close, and the others fail. A rank that hangs keeps
# everything open, and all others wait for it in their next collective. Nobody restarts a job in
# which every process is alive. So a process that waits too long must end *itself*.
#
# An exception is not enough: a thread that waits inside Gloo runs no Python, so it handles neither
# an exception nor a Python signal handler.
#
# <details><summary>Hint 1: where to look</summary>
#
# Something outside the waiting thread has to act: another thread with `os._exit` (`sys.exit` ends
# only its own thread), or the kernel, with the default action of a signal.
#
# </details>
# <details><summary>Hint 2: one line</summary>
#
# `faulthandler.dump_traceback_later(seconds, exit=True, file=2)` starts a thread in C. When the
# time is up, it writes where every thread stands, and ends the process.
#
# </details>


# %% deadline tags=["solution"]
@contextlib.contextmanager
def deadline(seconds: float):
    """A context for work that may hang: if it takes longer, the process ends within a second.

    It ends wherever it waits, in Python or in a collective, by a signal or with an exit code other
    than 0. What comes after the context has as much time as it likes. Contexts are not nested.
    """
    ### BEGIN SOLUTION
    import faulthandler

    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
    ### END SOLUTION


# %% check_deadline points=2
def in_time_on_rank():
    for _ in range(3):
        with deadline(0.5):
            dist.barrier()
    time.sleep(1.0)
    return True


def hanging_on_rank(is_in_python):
    """Rank 0 hangs within a deadline, in Python or in a collective that rank 1 never comes to."""
    if dist.get_rank() == 1:
        time.sleep(20)
        return
    with contextlib.suppress(Exception), deadline(0.5):
        time.sleep(20) if is_in_python else dist.barrier()


def check_deadline():
    try:
        run(in_time_on_rank)
    except ws.RankFailed:
        expected, actual = "a process that was in time goes on", "it ended 0.5 s later"
        raise CheckFailed(expected, actual, "Stop the clock when the block is left.") from None
    for is_in_python in (True, False):
        where = "in Python" if is_in_python else "in a collective"
        start_s = time.monotonic()
        try:
            ws.run(hanging_on_rank, is_in_python, world_size=2, echo=False, timeout_s=10)
            raise CheckFailed(f"a process that hangs {where} ends with an exit code", "it went on")
        except ws.RunTimeout:
            expected, hint = f"an end within a second {where}", "Who acts while the thread waits?"
            raise CheckFailed(expected, "still there 10 s later", hint) from None
        except ws.RankFailed:
            print(f"deadline: hung {where}, ended after {time.monotonic() - start_s:.1f} s.")


check_deadline()

# %% [markdown]
# ## 6. Train
#
# Now put the parts together. The whole program is five lines in the right order.
#
# <details><summary>Hint 1: where to look</summary>
#
# After `step` steps means: the next one has the number `step`. When is the first save due, if steps
# are counted from 0?
#
# </details>


# %% train tags=["solution"]
def train(training: Training, folder: str, every: int, timeout_s: float) -> None:
    """Train to the last step, from the newest whole checkpoint in `folder`, if there is one.

    - Each rank takes its `share_of` each step's batch, by `training.step`, in the order of steps.
    - After every `every` steps a checkpoint is saved, and at no other time. A save that fails is
      passed over.
    - A step, or a save, that takes longer than `timeout_s` ends the process.
    """
    ### BEGIN SOLUTION
    first = newest_whole(folder) or 0
    if first:
        training.shard = load_checkpoint(folder, first, *training.place)
    for step in range(first, training.num_steps):
        with deadline(timeout_s):
            training.step(step, *share_of(*training.place, training.batch_size))
        if (step + 1) % every == 0:
            with deadline(timeout_s):
                save_checkpoint(folder, step + 1, training.shard)
    ### END SOLUTION


# %% check_train points=3
class Struck(Training):
    """A training that something happens to; `steps` are those that this process made."""

    def __init__(self, strike=None):
        super().__init__(TASK)
        self.strike, self.steps = strike, []

    def step(self, step, start, stop):
        kind, at, rank = self.strike or ("", -1, 0)
        if (step, self.rank) == (at, rank):
            os.kill(os.getpid(), signal.SIGKILL) if kind == "kill" else time.sleep(30)
        super().step(step, start, stop)
        self.steps.append(step)


def train_on_rank(folder, strike, timeout_s):
    training = Struck(strike)
    train(training, folder, 4, timeout_s)
    training.gather()
    return training.steps, parameters_to_vector(training.model.parameters()).detach()


def trained(jobs, timeout_s=30):
    """The steps that the last of these jobs made, and its weights; each has its number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        for world_size, strike in jobs:
            with contextlib.suppress(ws.RankFailed) if strike else contextlib.nullcontext():
                args = (folder, strike, timeout_s)
                run = ws.run(train_on_rank, *args, world_size=world_size, echo=False, timeout_s=40)
        return run.values[0] if not strike else None


def check_train():
    _, due = trained([(2, None)])
    for what, first, jobs in (
        ("rank 1 killed at step 9", 8, [(2, ("kill", 9, 1)), (2, None)]),
        ("killed before the first save", 0, [(2, ("kill", 2, 0)), (2, None)]),
        ("4 ranks, 2, 4", 8, [(4, ("kill", 5, 3)), (2, ("kill", 10, 0)), (4, None)]),
        ("rank 0 silent at step 6", 4, [(2, ("hang", 6, 0)), (2, None)]),
    ):
        steps, weights = trained(jobs, timeout_s=3 if "silent" in what else 30)
        if steps != list(range(first, 12)):
            raise CheckFailed(f"{what}: steps {first} to 11 after the last start", f"{steps}")
        if (error := float((weights - due).abs().max())) > 1e-4:
            raise CheckFailed(f"{what}: the weights of an undisturbed run", f"{error:.2g} off")
        print(f"{what}: went on at step {first}; the largest difference of a weight is {error:.1g}")


check_train()

# %% [markdown]
# What is left in a real job: the saves are written beside the next steps (lab 11), the interval
# follows from Daly's formula (week 12), and torchrun does the restarts. With the parts of this lab,
# nothing else in the program has to know that anything failed.
