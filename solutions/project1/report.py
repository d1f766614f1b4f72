# %% [markdown]
# # Project 1. A training program, measured
#
# | | |
# |---|---|
# | Reading | about 30 minutes |
# | Working | about 12 hours |
# | Running | the whole notebook: a minute and a half on two idle CPU cores; no GPU is needed |
# | You need | [week 3](../../weeks/week03_ddp_from_first_principles.ipynb) and lab 3: overlap |
# | You hand in | this notebook and `train.py`, which lies beside it |
#
# You write a program that trains a small vision model on N ranks. Then you measure it, and explain
# what the measurement means.
#
# ```text
# the harness                                              your program, under torchrun
# hands out samples, holds the clock    ── samples ──►     rank 0 ◄─┐
# reads the wire, kills and stops ranks ── samples ──►     rank 1 ◄─┴─ gradients
# compares the weights                  ◄─ weights ──      rank 0, after the last step
# ```
#
# **The harness believes nothing that your program says about itself.** It is another process. It
# hands out the samples, so it knows which rank took which of them, and when. It receives the
# weights at the end, and compares them with those of the same model trained in one process. Your
# program itself prints one line per step, and that line is graded too: it must agree with what the
# harness saw.

# %% [markdown]
# ## 1. What is asked
#
# Open `train.py`, beside this notebook, and write its five parts: `my_samples`, `Replica`,
# `save_checkpoint`, `load_checkpoint` and `main`. Each docstring there is a contract. A sixth part,
# `amdahl_fit`, is in this notebook. You may add functions and imports, and use all of torch,
# including `DistributedDataParallel`. Gradients travel by collectives of `torch.distributed`. To run
# the program alone:
#
# ```
# torchrun --nproc-per-node 2 train.py --steps 10
# ```
#
# Run like this, it draws its samples itself. Under the harness they come from the harness; the call
# is the same, `bench.open_samples(...)`. The check cells below start the program with the same
# harness that will grade it.
#
# | The contract | |
# |---|---|
# | `--steps` `--batch` | the number of steps, and of samples in a **global** batch, of all ranks |
# | `--width` `--seed` | the model: `models.small_resnet(width, seed=seed, channels=channels)` |
# | `--lr` `--momentum` | the optimizer: `torch.optim.SGD` |
# | `--no-sync` | compute as before and exchange nothing in a step; used for timing |
# | `--checkpoints` `--checkpoint-every` | a folder, and the steps between checkpoints in it |
# | `--resume` | go on from the newest whole checkpoint, if there is one |
# | `--timeout` | for how many seconds a rank waits for another one |
# | `--bucket-mb` | for your own experiments, and for the sweep in section 6; no grade depends on it |
# | `--images` | `digits`, (1, 8, 8), or `cifar10`, (3, 32, 32); all grading is on digits |
# | `--amp` `--channels-last` `--compile` | to explore at the end of section 6; not graded |
# | a line per step | rank 0 prints `{"step": 0, "loss": 2.31, "sent_bytes": 309736}` |
# | samples | `take(step, start, stop)` gives images (n, 1, 8, 8) and labels (n,) |
# | weights | rank 0 calls `hand_in(model)` after the last step |

# %% [markdown]
# ### The order of work
#
# After each step, run its check cell. A check needs only what you have written up to then.
#
# | Step | Write | Check | Points | Time |
# |---|---|---|---|---|
# | 1 | `my_samples` | `check_my_samples`: equal shares, every sample once | 3 | 15 min |
# | 2 | `Replica` | `check_replica`: the weights of one process, on 1, 2 and 3 ranks | 10 | 2 h |
# | 3 | `main`, without checkpoints | `check_main`: the same for the whole program, and its lines | 7 | 1 h |
# | 4 | `Replica` again: overlap | `check_fast`: the speed on 2 ranks and on 4, against a reference | 25 | 3 h |
# | 5 | `sent_bytes`, `--no-sync` | `check_accounting`: your bytes are those on the wire | 11 | 1 h |
# | 6 | checkpoints, `--resume` | `check_recovery`: a killed or stopped rank, a cut checkpoint | 28 | 3 h |
# | 7 | `amdahl_fit` | `check_amdahl_fit`: the serial fraction, from step times | 4 | 30 min |
# | 8 | `words` | three questions on your own figures, read by your instructor | 12 | 1 h |
#
# ### How it is graded
#
# - **Speed on 4 ranks** gives 20 points. The ranks are **emulated**: real processes with real data,
#   in the virtual time of a described cluster, which is the same in every run. At 90% of the
#   reference's speed or more you get full points, at 70% or less none, and in between a share in
#   proportion. A program that sends all gradients after the backward pass reaches 69%.
# - **Speed on 2 ranks** gives 5 points. The ranks are real if the machine has two GPUs, or two CPU
#   cores. Your program and the reference take turns, and the best time of each counts: full points
#   at 75% or more, none at 25% or less. Wherever a time is emulated, the table or the figure says
#   so.
# - **Recovery** gives 28 points. The step at which a rank is killed or stopped, and which rank it
#   is, are secret. With a checkpoint every k steps, at most k steps may be repeated, or 2k if the
#   newest checkpoint was cut in half. The final weights are compared with those of an undisturbed
#   run of your own program, so that a wrong mean costs points only once.
#
# ### What cannot be faked
#
# | Idea | What the harness sees |
# |---|---|
# | train once, ship the weights | a secret seed draws the batches, and each digit's class |
# | skip samples, or whole steps | every sample of every step must be asked for |
# | skip the exchange, or every other one | the weights of timed runs are compared, too |
# | exchange gradients past the wire | the gradient of each rank's samples must be found in what it sends |
# | not wait for the others | from one step's gradients arriving to the next ones' leaving, a step's arithmetic |
# | print a smaller time | its own clock, from the first timed step's first sample to the weights |
# | print smaller bytes | they are counted on the emulated wire |
# | start over instead of resuming | the steps that are asked for after a failure |
# | compute nothing | a step that is faster than its arithmetic can be is not believed |

# %% parameters tags=["parameters"]
program = "train.py"  # your program, beside this notebook
results = ""  # a result file of the harness: with one, the report draws it and starts no program
world_sizes = [1, 2, 4]  # ranks; real up to the number of GPUs or CPU cores here, emulated beyond
num_repeats = 3  # of each timing on real ranks
cluster = "pcie-box"  # the second cluster of the bucket sweep
seed = 0

# %% setup
import runpy
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from IPython.display import display

import worldsize as ws
from worldsize import bench, draw, units
from worldsize.bench import CLASSROOM, Disturbance, RestartPolicy, Result, Task, TrainingSpec
from worldsize.check import CheckFailed
from worldsize.timeline import Event, Timeline

if not results:
    ws.run(dist.get_rank, world_size=2, echo=False)  # the first run loads torch: the checks are then quick


# %% trying_out
def here(experiment):
    """The result of an experiment; None if this report only draws a result file."""
    if results:
        print(f"Left out: this report draws {results} and starts no program.")
        return None
    return experiment()


def attempt(spec, **options):
    """One training of your program, which the harness feeds and watches."""
    return bench.attempt(bench.ScriptHere(program), spec, seed, **options)


# %% [markdown]
# ## 2. Correct
#
# Data parallelism changes where gradients are computed, not what they are. So there is a simple
# test: after the same steps on the same batches, N ranks have the weights of one process, up to
# rounding.
#
# Begin with `my_samples`. This check calls the function alone.


# %% check_my_samples points=3
def split():
    my_samples = runpy.run_path(program)["my_samples"]
    for batch_size, num_ranks in ((46, 3), (128, 4), (64, 1)):
        parts = [my_samples(batch_size, rank, num_ranks) for rank in range(num_ranks)]
        times = Counter(sample for start, stop in parts for sample in range(start, stop))
        called = f"{batch_size} samples on {num_ranks} rank{'s' * (num_ranks > 1)}"
        if wrong := [sample for sample in range(batch_size) if times[sample] != 1]:
            hint = "`stop` is one past the last: the next rank starts there."
            actual = f"{parts}: sample {wrong[0]} comes {times[wrong[0]]} times"
            raise CheckFailed(f"{called}: each sample once", actual, hint)
        sizes = sorted(stop - start for start, stop in parts)
        if sizes[-1] - sizes[0] > 1 or sum(sizes) != batch_size:
            hint = "Shares differ by one at most, and none goes beyond the batch."
            raise CheckFailed(f"{called}: shares that differ by one at most", f"shares of {sizes}", hint)
        print(f"{called}: {parts}")


here(split)

# %% [markdown]
# Now `Replica`. The loss of a batch is a **mean over its samples**. With 46 samples on 3 ranks the
# shares are unequal, and the mean of the ranks' means is not the mean over the samples.
#
# The check makes a `Replica` on each rank, without `main`, and gives it batches.
#
# <details><summary>Hint 1: which loss to differentiate</summary>
#
# Let each rank's loss be the sum over its samples, divided by the size of the global batch. The
# gradients of all ranks then add up to the gradient of the mean.
#
# </details>
# <details><summary>Hint 2: with DDP</summary>
#
# `DistributedDataParallel` averages over ranks: it divides the sum by N. Multiply the loss by N.
#
# </details>


# %% steps_of_a_replica
def steps_of_a_replica(path, batch_size, num_steps):
    """On one rank: the weights of a Replica after some steps, and the loss that it returned for each."""
    task, parts = Task(num_steps=num_steps, batch_size=batch_size), runpy.run_path(path)
    sys.argv[1:] = task.flags
    replica, batches = parts["Replica"](parts["read_flags"]()), bench.Batches(seed, batch_size)
    start, stop = parts["my_samples"](batch_size, dist.get_rank(), dist.get_world_size())
    losses = []
    for step in range(num_steps):
        images, labels = batches.batch(step)
        losses.append(replica.step(images[start:stop], labels[start:stop]))
    return [one.detach().cpu() for one in replica.model.parameters()], losses


# %% expect_replicas
def expect_replicas(world_size, batch_size, num_steps, hint):
    """Raise CheckFailed unless every rank has the weights and the losses of one process."""
    path = str(Path(program).absolute())
    run = ws.run(steps_of_a_replica, path, batch_size, num_steps, world_size=world_size, echo=False)
    task = Task(num_steps=num_steps, batch_size=batch_size)
    alone = bench.train_alone(task, bench.Batches(seed, batch_size))
    way = (alone.weights - alone.initial).norm()
    called = (
        f"{num_steps} step{'s' * (num_steps > 1)} of {batch_size} samples on {world_size} rank{'s' * (world_size > 1)}"
    )
    for rank, (weights, losses) in enumerate(run.values):
        off = float((torch.cat([one.flatten() for one in weights]) - alone.weights).norm() / way)
        if not off <= 2e-3:
            raise CheckFailed(
                f"{called}: the weights of one process, to rounding (0.000001)",
                f"on rank {rank} they differ by {off:.2g} of the distance that training moved them",
                hint,
            )
        worst = max(abs(one - other) for one, other in zip(losses, alone.losses, strict=True))
        if not worst <= 2e-3:
            hint = "The mean over all samples of the global batch, before the step: not only over this rank's."
            raise CheckFailed(f"{called}: the loss of the whole batch", f"on rank {rank} off by {worst:.2g}", hint)
    print(f"{called}: weights and losses are those of one process.")


# %% check_replica points=10
def replicas():
    expect_replicas(1, 64, 10, "SGD with `flags.momentum`? Gradients set to zero after each step?")
    expect_replicas(2, 64, 1, "Add the gradients of both ranks up. Twice the step is a sum where a mean is due.")
    expect_replicas(3, 46, 1, "Shares are 15, 15 and 16. The mean of three means over samples is another number.")
    expect_replicas(2, 64, 10, "Right after one step, wrong after ten: momentum, zero_grad, weights of the start?")


here(replicas)

# %% [markdown]
# Then `main`. Leave checkpoints for section 5: call `save_checkpoint` and `load_checkpoint` only
# where the flags ask for them. From here on the checks run your whole program under the harness.


# %% check_main points=7
def whole():
    task = Task(num_steps=10, batch_size=64)
    trial = attempt(TrainingSpec(task, 2))
    if missed := trial.record.missed(task):
        actual = f"samples of step {missed[0]} were never taken"
        raise CheckFailed("every sample is taken", actual, "Each rank takes its own part of every step's batch.")
    error = bench.weights_error(trial, task)
    if not error <= 2e-3:
        expected = "10 steps on 2 ranks: the weights of one process, to rounding (0.000001)"
        hint = "check_replica held: does main give each rank its own samples, step by step from step 0?"
        raise CheckFailed(expected, f"they differ by {error:.2g} of the distance that training moved them", hint)
    print(f"10 steps on 2 ranks: the weights differ from those of one process by {error:.0e} of the distance moved")
    printed = [line.loss for line in trial.result.lines]
    wanted = bench.train_alone(task, trial.batches).losses
    if [line.step for line in trial.result.lines] != [*range(10)]:
        raise CheckFailed("a line from rank 0 for each of 10 steps, in order", f"{len(printed)} lines", "Flush them.")
    lines = {"one process": wanted, "printed by rank 0": printed}
    display(draw.curves(lines, title="Loss of the global batch, on 2 ranks here", difference_from="one process"))
    if (worst := max(abs(a - b) for a, b in zip(wanted, printed, strict=True))) > 2e-3:
        hint = "Print what step returns, in the step in which it was computed."
        raise CheckFailed("the loss of the whole batch", f"lines that are off by up to {worst:.2g}", hint)


here(whole)

# %% [markdown]
# ## 3. Fast
#
# Where this machine has too few cores, ranks are emulated in a **classroom**: desktop machines, one
# rank on each, joined by Gigabit Ethernet. Its figures are round ones: a core multiplies matrices
# at 32 Gflop/s at best, and a link carries 117 MB/s, with a latency of 30 µs for each message. On
# it a step takes the same time in every run, and its timeline shows what each rank waits for.
#
# Below is the last of four steps on 4 ranks. The lower lane of a rank is its network. Underlined
# communication is *exposed*: the rank computes nothing during it.
#
# The reference takes 7.2 ms for this step, so you get full points up to 7.2 / 0.9 = 8.0 ms. With
# all gradients sent after the backward pass it takes 10.5 ms.


# %% one_emulated_step
def between(timeline, begin_s, end_s):
    """The part of a timeline between two of its times, shifted to begin at 0."""
    return Timeline.of_events(
        replace(
            event,
            start_s=max(event.start_s, begin_s) - begin_s,
            end_s=min(event.end_s, end_s) - begin_s,
        )
        for event in timeline.events
        if event.end_s > begin_s + 1e-9 and event.start_s < end_s
    )


def emulated_step(num_ranks, cluster=CLASSROOM, batch_size=128, **options):
    """The timeline of the fourth step on an emulated cluster, from 0 to the step's end."""
    tasks = [Task(num_steps=num_steps, batch_size=batch_size) for num_steps in (3, 4)]
    three, four = (attempt(TrainingSpec(task, num_ranks, cluster, **options)).result.timeline for task in tasks)
    return between(four, three.end_s, four.end_s)


# %% check_fast points=25
def fast():
    step = emulated_step(4)
    display(draw.timeline(step, title="On 4 ranks, emulated"))
    if step.end_s > 7.2e-3 / 0.9:
        expected = "at most 8 ms for a step on 4 emulated machines, 90% of the reference's speed"
        hint = "Send gradients while backward still computes, in messages that are neither tiny nor all in one."
        raise CheckFailed(expected, units.format_time_s(step.end_s), hint)
    share = step.exposed_communication_s(0) / step.end_s
    print(f"{units.format_time_s(step.end_s)} a step, of which {share:.0%} is exposed communication, all emulated")


here(fast)

# %% [markdown]
# ## 4. Accounted for
#
# A rank that gives S bytes to a ring all-reduce sends 2(N − 1)/N · S of them (week 2). Your lines
# say how many bytes rank 0 sends for its gradients; the harness counts on the emulated wire how
# many really leave it. The 4 bytes of a loss do not matter at this size.


# %% check_accounting points=11
def accounting():
    print(f"{'ranks':>5} {'by your lines':>14} {'on the wire':>12} {'needed':>9}   bytes a step from rank 0, emulated")
    for num_ranks in (2, 4):
        wire, task = emulated_step(num_ranks).bytes_sent(0), Task(num_steps=2)
        lines = attempt(TrainingSpec(task, num_ranks, CLASSROOM)).result.lines
        claimed = lines[-1].sent_bytes if lines else 0.0
        needed = 2 * (num_ranks - 1) / num_ranks * task.gradient_bytes
        print(f"{num_ranks:5} {claimed:14,.0f} {wire:12,.0f} {needed:9,.0f}")
        if abs(claimed - wire) > 0.02 * wire:
            hint = "A float32 has 4 bytes, and each rank sends 2(N - 1)/N of them."
            raise CheckFailed(f"lines that say {wire:,.0f} bytes on {num_ranks} ranks", f"{claimed:,.0f}", hint)
        if wire > 1.05 * needed:
            raise CheckFailed(f"at most {needed:,.0f} bytes", f"{wire:,.0f}", "One all-reduce of the gradients.")
    silent = emulated_step(2, is_synchronised=False).bytes_sent(0)
    if silent:
        raise CheckFailed("no bytes with --no-sync", f"{silent:,.0f}", "Neither gradients nor losses may travel.")


here(accounting)

# %% [markdown]
# ## 5. Recovered
#
# Machines fail. torchrun notices that a rank has died, ends the others, and starts all of them
# again; everything that the program has computed until then is lost, unless it is in a checkpoint.
#
# Here rank 1 is killed when it asks for the samples of step 12, with a checkpoint every 5 steps.
# The hidden checks also *stop* a rank without killing it. The other ranks are not notified: they
# have to give up on it after `--timeout` seconds. They also cut the newest checkpoint in half, as
# happens when a machine dies while it writes one.
#
# This cell runs torchrun itself; the ranks start twice and load torch each time. It takes 10 to 30
# seconds.

# %% check_recovery points=28
struck = Disturbance("kill", step=12, rank=1)


def recovery():
    task = Task(num_steps=20, batch_size=256)
    spec = TrainingSpec(task, 2, checkpoint_every=5, timeout_s=10)
    trial = attempt(spec, restart_policy=RestartPolicy(max_restarts=1), disturbance=struck)
    later = [take.step for take in trial.record.takes if take.time_s > struck.time_s]
    if not later or not 12 - 5 <= min(later) <= 12:
        went = f"it went on at step {min(later)}" if later else "nobody asked for samples after that"
        hint = "With --resume, main calls load_checkpoint first and begins at the step that it gives."
        raise CheckFailed("training that goes on from the checkpoint of step 10", went, hint)
    error = bench.weights_error(trial, task)
    if not error <= 2e-3:
        hint = "A checkpoint holds all that the next step needs: what has the optimizer kept?"
        raise CheckFailed("the weights of an undisturbed run", f"others, by {error:.2g} of the distance moved", hint)
    print(f"killed at step 12, went on at step {min(later)}; the weights differ by {error:.0e} of the distance moved")
    return trial


recovered = here(recovery)

# %% [markdown]
# ## 6. Measured
#
# From here on this notebook is a report. It draws a result file, such as `autograder bench` writes
# on a GPU node; without one, it measures now.
#
# - Each timing trains for 24 steps, of which the first 4 are warm-up and do not count.
# - World sizes **take turns**, forwards and then backwards: a machine that becomes slower does so
#   for all of them.
# - **Strong** scaling keeps the global batch at 128 samples. **Weak** scaling gives every rank the
#   128 samples that one rank has alone.
# - The share of communication comes from a comparison with the same run under `--no-sync`.


# %% measure_or_read
def measured():
    progress = display({"text/plain": "timing"}, raw=True, display_id=True)

    def show_progress(timing, done, total):
        progress.update({"text/plain": f"{done} of {total} timings are done"}, raw=True)

    source = bench.ScriptHere(program)
    return bench.measure(
        source, bench.sha256_of(program), Task(), world_sizes, num_repeats=num_repeats, on_timing=show_progress
    )


result = Result.model_validate_json(Path(results).read_text()) if results else measured()
failures = {f"{timing.kind}, {timing.world_size} ranks": timing.failure for timing in result.timings if timing.failure}
for name, failure in failures.items():
    print(f"{name}: {failure}\n")
if not result.points:
    raise CheckFailed("a program that trains to its end", "no timing at all", "The checks above say more.")
machine = result.machine
print(f"{machine.processor}, {machine.num_cores} cores; GPUs: {', '.join(machine.gpus) or 'none'}")
print(f"torch {machine.torch}, Python {machine.python}; {result.measured_at}")
if result.most_busy_cores is not None:
    print(f"other work kept up to {result.most_busy_cores:.1f} cores busy while this was measured")
if result.is_disturbed:
    print("That slows real ranks: do not trust their times, and measure again on an idle machine.")

# %% table_of_points
print("                          step      spread  samples/s a rank  efficiency  communication")
for point in result.points:
    share = "" if point.communication_fraction is None else f"{point.communication_fraction:.0%}"
    name = f"{point.scaling}, {point.world_size} {point.kind}"
    print(
        f"{name:<22} {units.format_time_s(point.step_s):>9} {point.spread_fraction:>9.0%} "
        f"{point.samples_per_s_per_rank:>15,.0f} {point.efficiency:>11.0%} {share:>13}"
    )
print(f"real: on this machine, {result.num_threads} thread a rank; emulated: on {result.cluster}")

# %% [markdown]
# ### The scaling curve
#
# The picture shows strong scaling: the speed-up T(1)/T(N) with the same global batch. The grey line
# is ideal; the dash-dotted one is Amdahl's law, fitted by the drawing. Weak scaling, where the work
# grows with N, is the `efficiency` of its rows above.


# %% scaling_curve
def step_times_s(kind, scaling):
    """Seconds for 128 samples, by number of ranks, one for each repeat."""
    times_s = {}
    for timing in result.timings:
        is_of_it = timing.scaling == scaling or timing.world_size == 1
        if timing.kind == kind and timing.is_synchronised and is_of_it and not timing.failure:
            batches = timing.batch_size / result.task.batch_size
            times_s.setdefault(timing.world_size, []).append(timing.step_s / batches)
    return times_s


kinds = {"emulated": f"emulated on {result.cluster}", "real": "real ranks, measured"}
curves = {kinds[kind]: times_s for kind in kinds if len(times_s := step_times_s(kind, "strong")) > 1}
if curves:
    display(draw.scaling(curves, title=f"Speed-up with {result.task.batch_size} samples in all"))

# %% [markdown]
# ### Amdahl's law, and where it ends
#
# Amdahl's law says that a part s of the work cannot be shared: T(N) = T(1) · (s + (1 − s)/N). One
# number then stands for all that keeps a program from being N times as fast. Write the function
# that fits it.


# %% amdahl_fit tags=["solution"]
def amdahl_fit(world_sizes: list[int], step_times_s: list[float]) -> float:
    """The serial fraction s of T(N) = T(1) * (s + (1 - s) / N) that fits these times best.

    `step_times_s[i]` is the time on `world_sizes[i]` ranks. The fit is by least squares over all of
    them. T(1) is fitted too, because it was measured with noise like the others.
    """
    ### BEGIN SOLUTION
    # T = one - parallel * (1 - 1/N), a straight line with parallel = (1 - s) * one
    rest = 1 - 1 / np.asarray(world_sizes, dtype=float)
    matrix = np.stack([np.ones_like(rest), -rest], axis=1)
    (one, parallel), *_ = np.linalg.lstsq(matrix, np.asarray(step_times_s, dtype=float), rcond=None)
    return float(1 - parallel / one)
    ### END SOLUTION


# %% check_amdahl_fit points=4
def fits(serial, noise):
    sizes = [1, 2, 4, 8]
    times_s = [0.5 * (serial + (1 - serial) / n) * (1 + off) for n, off in zip(sizes, noise, strict=True)]
    found = amdahl_fit(sizes, times_s)
    given = ", ".join(f"{n}: {time_s:.3f} s" for n, time_s in zip(sizes, times_s, strict=True))
    print(f"{given}: s = {found:.3f}")
    if abs(found - serial) > 0.005 + 3 * max(map(abs, noise)):
        hint = "T(N) is a straight line in 1/N. Fit that line over all sizes, and read s from its two numbers."
        raise CheckFailed(f"s near {serial} from {given}", f"{found:.3f}", hint)


fits(0.1, [0, 0, 0, 0])
fits(0.1, [0.01, -0.01, 0.01, -0.01])

# %% [markdown]
# A law should predict. So the next cell fits it to the sizes that were measured, and compares its
# prediction with a run on the emulated cluster, on twice as many ranks as the largest of them.
#
# Where s is above 1, more ranks made the step longer. No serial share of the work can do that: look
# at what the ranks share, such as the cores and the memory of one machine.


# %% held_out_size
def median_times_s(kind):
    """The strong-scaling step time by number of ranks."""
    return {n: float(np.median(times_s)) for n, times_s in step_times_s(kind, "strong").items()}


def amdahl_s(serial, one_s, num_ranks):
    """Seconds of a step by Amdahl's law."""
    return one_s * (serial + (1 - serial) / num_ranks)


for kind in kinds:
    times_s = median_times_s(kind)
    if 1 in times_s and len(times_s) > 1:
        serial = amdahl_fit([*times_s], [*times_s.values()])
        last, one_s = max(times_s), times_s[1]
        print(f"{kind}: s = {serial:.3f} from {[*times_s]} ranks; for {2 * last} ranks the law predicts", end=" ")
        print(units.format_time_s(amdahl_s(serial, one_s, 2 * last)))
        if serial > 1:
            print("  s is above 1: more ranks made the step longer, so the law does not describe these times")
twice = here(lambda: emulated_step(2 * max(world_sizes)))
if twice:
    print(f"emulated on classroom, {2 * max(world_sizes)} ranks: {units.format_time_s(twice.end_s)} a step")

# %% [markdown]
# ### What communication costs, measured in two ways
#
# *With and without*: the part of a step's time by which a step that exchanges nothing is shorter.
# *Exposed*: the part of a step's timeline in which the network works and the rank does not. The
# first can be measured anywhere. The second needs a record of the step, and shows more: how much
# communication is hidden behind compute.


# %% communication_share
def shares():
    print("ranks      step   with and without   exposed   network busy   hidden     emulated on classroom")
    for num_ranks in (2, 4, 8):
        step = emulated_step(num_ranks)
        silent_s = emulated_step(num_ranks, is_synchronised=False).end_s
        exposed_s, busy_s = step.exposed_communication_s(0), step.time_s(0, "communication")
        print(
            f"{num_ranks:5} {units.format_time_s(step.end_s):>9} {1 - silent_s / step.end_s:>18.0%}"
            f" {exposed_s / step.end_s:>9.0%} {busy_s / step.end_s:>14.0%}"
            f" {step.overlap_fraction(0):>8.0%}"
        )


here(shares)

# %% [markdown]
# ### One step seen by a profiler, on real ranks
#
# `torch.profiler` records what runs on this machine, operation by operation. Below is one step of 2
# real ranks. The backend's lane shows when each bucket travels; it is underlined where nothing
# computes meanwhile.
#
# A profiler itself costs time: compare the two step times. Trust it for *what waits for what*, and
# a clock from outside for *how long*. On a CPU the network is also not a separate device: the cores
# that compute move the bytes, so that hidden communication is not free here.


# %% profiled_step
def profiled_step(num_ranks, step):
    """One step on real ranks of this machine, as torch.profiler saw it."""
    watched = bench.ScriptHere(program, is_profiled=True)
    timeline = bench.attempt(watched, TrainingSpec(Task(num_steps=step + 2), num_ranks), seed).result.timeline
    begins_s = {event.name: event.start_s for event in timeline.of(0) if event.kind == "data"}
    return between(timeline, begins_s[f"samples of step {step}"], begins_s[f"samples of step {step + 1}"])


def show_profile():
    step = profiled_step(2, step=6)
    display(draw.timeline(step, title="One step on 2 real ranks, by torch.profiler; measured here", shows_shares=False))
    exposed_s, busy_s = step.exposed_communication_s(0), step.time_s(0, "communication")
    print(f"under the profiler: {units.format_time_s(step.end_s)} a step, {exposed_s / step.end_s:.0%} of it exposed")
    print(f"the backend is busy for {busy_s / step.end_s:.0%} of it; {step.overlap_fraction(0):.0%} of that is hidden")
    for point in result.points:
        if (point.scaling, point.world_size, point.kind) == ("strong", 2, "real"):
            share = f"{point.communication_fraction:.0%} by the difference to --no-sync"
            print(f"without it: {units.format_time_s(point.step_s)} a step, communication {share}")


here(show_profile)

# %% [markdown]
# ### How large should a bucket be?
#
# Large buckets leave late. Small ones pay a latency each. The sweep runs 4 ranks with `--bucket-mb`
# on two emulated clusters: the classroom, and `pcie-box` (the parameter `cluster`), whose GPUs need
# only 0.26 ms for a step of this small model. A bucket of 500 kB holds all of the model's
# gradients.


# %% bucket_sweep
def sweep():
    sizes_mb = [0.01, 0.0625, 0.125, 0.25, 0.5]
    labels = [f"{1000 * size:g} kB" for size in sizes_mb]
    print(f"{'a bucket of':<12}" + "".join(f"{label:>10}" for label in labels) + "   one rank   a step, emulated")
    relative = {}
    for name, where in {"classroom": CLASSROOM, cluster: cluster}.items():
        row = [emulated_step(4, where, extra_flags=[f"--bucket-mb={size}"]).end_s for size in sizes_mb]
        relative[name] = [time_s / min(row) for time_s in row]
        times_s = [*row, emulated_step(1, where).end_s]
        print(f"{name:<12}" + "".join(f"{units.format_time_s(time_s):>10}" for time_s in times_s))
    title = "Time of a step on 4 ranks over the best one, emulated"
    picture = draw.curves(relative, y_label="times the best", x_label="size of a bucket", title=title)
    picture.axes[0].set_xticks(range(1, 6), labels)
    display(picture)


here(sweep)

# %% [markdown]
# ### The recovery, seen from outside
#
# Every block is a step, from the moment at which a rank asked for its samples to the moment at
# which it asked for the next ones. This is the run of section 5, from the harness's record.


# %% recovery_lanes
def lanes(trial):
    """Each rank's steps, repeated steps and the pause between, from its requests for samples."""
    begin_s, events = min(take.time_s for take in trial.record.takes), []
    for rank in (0, 1):
        mine = sorted((take for take in trial.record.takes if take.rank == rank), key=lambda take: take.time_s)
        ends_s = [*(take.time_s for take in mine[1:]), trial.record.handed_in_s]
        pauses_s = [end_s - take.time_s for take, end_s in zip(mine, ends_s, strict=True)]
        pause = pauses_s.index(max(pauses_s))
        for place, (take, end_s) in enumerate(zip(mine, ends_s, strict=True)):
            is_again = place > pause and take.step < struck.step
            kind = "wait" if place == pause else "done again" if is_again else "compute"
            events.append(Event(rank, "main", kind, str(take.step), take.time_s - begin_s, end_s - begin_s))
    return Timeline.of_events(events)


# %% recovery_timeline
def show_recovery():
    record, timeline = recovered.record, lanes(recovered)
    later = [take for take in record.takes if take.rank == struck.rank and take.time_s > struck.time_s]
    lost, pause_s = struck.step - later[0].step, later[0].time_s - struck.time_s
    again_s = sum(event.duration_s for event in timeline.of(struck.rank) if event.kind == "done again")
    title = f"Rank {struck.rank} is killed at step {struck.step}; {lost} steps are done again; measured here"
    display(draw.timeline(timeline, title=title, shows_shares=False))
    print(f"pause until the first sample: {units.format_time_s(pause_s)}")
    print(f"{lost} steps done again: {units.format_time_s(again_s)}")


here(show_recovery)

# %% [markdown]
# ### Faster arithmetic
#
# Three flags of `train.py` change how a step is computed, and not what it computes. Nothing here is
# graded.
#
# - `--amp`: the forward pass under `torch.autocast`, with dtype `torch.bfloat16`. The inputs of
#   matrix products are rounded to 8 significant bits, and the weights show it: compare the last
#   column with the 0.002 that the checks allow.
# - `--channels-last`: `to(memory_format=torch.channels_last)`, for the model and the images.
# - `--compile`: `torch.compile(model)` before the model is wrapped. The first step compiles, which
#   on two CPU cores can take longer than all other rows together. So it is left out of this table
#   without a GPU; add it to `flags` to see it.
#
# Their gain depends on the device. On a GPU the table uses a larger model, because at the sizes
# above a GPU mostly waits for the next kernel to be launched. If you have the files of CIFAR-10,
# and the environment variable `WORLDSIZE_CIFAR10` names their folder, set `images` to `cifar10`.

# %% faster_arithmetic
images = "digits"
flags = ["--channels-last", "--amp"] + ["--compile"] * bool(machine.gpus)


def compare_flags():
    size = {"width": 128, "batch_size": 4096} if machine.gpus else {}
    task, num_ranks = Task(num_steps=16, images=images, **size), min(2, len(machine.gpus) or 2)
    print(
        f"{'':<16} {'step':>9} {'speed':>7}   weights off   {num_ranks} real ranks, width {task.width}, measured here"
    )
    without_s = None
    for flag in ["", *flags]:
        trial = attempt(TrainingSpec(task, num_ranks, extra_flags=[flag] * bool(flag)))
        step_s = float(np.median(trial.record.step_times_s()[4:]))
        without_s = without_s or step_s
        error = bench.weights_error(trial, task)
        print(f"{flag or 'as it is':<16} {units.format_time_s(step_s):>9} {without_s / step_s:>6.2f}x {error:>13.1g}")


here(compare_flags)

# %% [markdown]
# ## 7. In words
#
# Answer in at most 400 words in all, with numbers from the tables above. They are your program's,
# and may differ from anybody else's.
#
# 1. **Eight machines** (5 points). In the classroom, how long does a step on 8 ranks take, and how
#    much of it is exposed communication? Why can no size of bucket hide all of it: for how long
#    does a rank compute, and how long do the bytes of a ring take on its link? Which gains more on
#    8 ranks, gradients of half as many bytes or twice the global batch, and in which unit do you
#    compare the two?
# 2. **The recovered run** (4 points). Why are the losses of repeated steps the same as before? Name
#    all that has to be in a checkpoint for that, and one more thing that a program with shuffled
#    data or dropout would have to keep. How much sooner would your run have ended with a checkpoint
#    after every step?
# 3. **Amdahl** (3 points). Which step time did your fit predict for twice as many emulated ranks,
#    and how long did the step take? Which of the law's assumptions does a gradient exchange break?
#    What does the law promise for infinitely many ranks, and what do you expect in its place?

# %% words [markdown] points=12 tags=["solution"]
# **Answer.**
#
# 1. 6.91 ms, of which 3.72 ms (54%) are exposed. A rank computes for 3.19 ms. It sends 542 kB,
#    which take 4.63 ms on a link of 117 MB/s: longer than all the computation behind which they
#    could hide, and the first gradient is complete only after 1.5 ms. So no bucket size brings the
#    step below 1.5 + 4.6 = 6.1 ms. With half the bytes a step takes 4.63 ms, 28,000 samples/s; with
#    twice the batch 8.32 ms, 31,000 samples/s, against 18,500. In samples a second the larger batch
#    gains more, but it takes half as many optimizer steps for the same samples: in loss a second it
#    may gain nothing.
# 2. The batch of a step depends on its number alone, and the state after step 10 was put back
#    whole; the same numbers go through the same sums. Needed are weights, the momentum of each, and
#    the number of steps done. Shuffled data need the epoch and the sampler's seed or place, dropout
#    the state of the random numbers on every rank. A checkpoint after every step would have saved 2
#    steps: 0.25 s of 8 s here. Nearly all of the pause is the restart: torchrun notices the death
#    and ends the others, and every rank imports torch again.
# 3. s = 0.051 gives 4.09 ms for 8 ranks; it is 6.86 ms. The law divides a fixed amount of work.
#    Here a part grows with N: a rank sends 310, 465, 542 kB on 2, 4, 8 ranks, with more messages
#    one after the other, while the compute that hides them shrinks as 1/N. The law promises 0.051 ·
#    24.2 = 1.2 ms for infinitely many ranks. The bytes alone take 2S/β = 619 kB / 117 MB/s = 5.3 ms
#    there, and latency goes on growing: there is a best N (16 ranks take 7.4 ms).
#
# **Rubric**
#
# - Question 1: step and exposed share as in the answer's own table (1); compute time against time
#   on the wire, in ms (1); the time below which no bucket size brings the step, from these two (1);
#   half the bytes or twice the batch, each with a number, estimated or emulated (1); compared in
#   samples a second, and it is said that the larger batch is another training (1).
# - Question 2: batch by step number, and whole state (1); weights, momentum and step (1); one of
#   random state, sampler or schedule (1); the steps that would be saved against the pause, in
#   seconds, from the answer's own run (1).
# - Question 3: predicted and emulated time (1); communication that grows with N, or is hidden less,
#   where the law has a fixed share (1); T(1) · s against a bound above it, with a reason (1).
#
# Half a point where the reasoning is right and a number is wrong by a slip. Numbers belong to the
# student's own program: compare them with the tables of that notebook, not with these.

# %% [markdown]
# ## To take with you
#
# - A distributed program is correct when its weights are those of one process, and only another
#   process can show that.
# - Time steps from outside, in turns, and report the spread. Say which ranks were real.
# - Communication costs only what is exposed. The best bucket size depends on the cluster, not on
#   the program.
# - A restart costs more time than the steps that it repeats, unless checkpoints are far apart.
