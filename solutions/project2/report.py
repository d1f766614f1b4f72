# %% [markdown]
# # Project 2. A transformer on a mesh
#
# | | |
# |---|---|
# | Reading | about 30 minutes |
# | Working | about 20 hours |
# | Running | the whole notebook: some minutes on two idle CPU cores; no GPU is needed |
# | You need | weeks 7 to 9 and their labs, and [Project 1](../project1/report.ipynb) |
# | You hand in | this notebook and `train.py`, which lies beside it |
#
# You write a program that trains a real transformer on a real text, cut over a mesh of ranks. You
# choose the mesh. Then you defend the choice with figures: from the wire, from an emulated cluster,
# and on paper for a job of 64 GPUs.
#
# ```text
# the harness                                              your program, under torchrun
# hands out sequences, holds the clock  ── tokens ──►      rank 0 ◄─ one axis ─► rank 1
# reads the wire, kills ranks           ── tokens ──►        ▲ the other axis      ▲
# compares the weights                  ◄─ weights ──      rank 2 ◄────────────► rank 3
# ```
#
# As in Project 1, **what your program says about itself earns nothing that the harness has not seen.**

# %% [markdown]
# ## 1. What is asked
#
# Open `train.py`, beside this notebook, and write its five parts: `my_plan`, `Trainer`,
# `save_checkpoint`, `load_checkpoint` and `main`. Each docstring there is a contract. You may use
# all of torch: `fully_shard`, `parallelize_module`, `torch.distributed.pipelining`,
# `torch.distributed.checkpoint`; or cut the model by hand, as in labs 7 to 9. You may add functions
# and imports. To run the program alone:
#
# ```
# torchrun --nproc-per-node 4 train.py --steps 10
# ```
#
# | The contract | |
# |---|---|
# | `--steps` `--batch` `--length` | steps, sequences in a **global** batch, tokens in a sequence |
# | `--model` `--layers` `--width` `--seed` | the model: `Transformer(flags.shape, seed=flags.seed)` |
# | `--lr` | the optimizer: `torch.optim.AdamW` with this rate and `eps=1e-3` |
# | `--bf16` | forward passes under `torch.autocast`, for the large job on paper |
# | `--checkpoints` `--checkpoint-every` | a folder, and the steps between checkpoints in it |
# | `--resume` | go on from the newest whole checkpoint, if there is one, on **any** mesh |
# | `--timeout` | for how many seconds a rank waits for another one |
# | a line per step | rank 0 prints `{"step": 0, "loss": 5.56}` |
# | sequences | `take(step, start, stop)` gives tokens (n, T) and the tokens that follow (n, T) |
# | weights | rank 0 calls `hand_in(trainer.whole_model())` after the last step |
#
# Adam divides a gradient by its own size. With its usual `eps` it would forgive a gradient that is
# N times too large, and you would never hear of the mistake; with `eps=1e-3` the weights show it.

# %% [markdown]
# ### The order of work
#
# After each step, run its check cell. A check needs only what you have written up to then.
#
# | Step | Write | Check | Points | Time |
# |---|---|---|---|---|
# | 1 | `my_plan` | `check_my_plan`: every rank used, the batch cut evenly | 4 | 30 min |
# | 2 | `Trainer` | `check_trainer`: the weights of one process, on 1, 2 and 4 ranks | 14 | 6 h |
# | 3 | `main`, without checkpoints | `check_main`: the same for the whole program, and its lines | 5 | 1 h |
# | 4 | `Trainer` again | `check_mesh`: bytes along both axes, states cut | 19 | 2 h |
# | 5 | `Trainer` again | `check_fast`: the speed on two pairs of machines | 12 | 2 h |
# | 6 | checkpoints, `--resume` | `check_recovery`: killed, on fewer ranks, a cut file | 17 | 4 h |
# | 7 | `my_plan` for 64 GPUs | `check_large`: fits, and is near the best plan | 11 | 2 h |
# | 8 | `figures` | `check_figures`: your report's figures are your program's | 6 | 30 min |
# | 9 | `words` | three questions on your own figures, read by your instructor | 12 | 2 h |
#
# ### How it is graded
#
# - **Emulated** ranks are real processes with real data, in the virtual time of a described cluster.
#   Speed counts on four of them: full points at 80% of the reference's speed, none at 40%. The
#   reference is FSDP2 by tensor parallelism.
# - **Memory** is what the operating system counts. On 4 ranks, a step of a wide model may take up to
#   75% of the states on each rank: half for the rank's share of them, the rest for gathered layers
#   and temporaries. The states are weights, gradients and two moments, 16 bytes a parameter.
# - **Recovery**: the step and the rank that is killed are secret. Only the steps since the newest
#   checkpoint may be repeated, or those since the one before if the newest was cut in half.
# - **On paper**, your program is recorded on 64 GPUs. That record counts only if the same `Trainer`
#   makes the calls that paper says when it runs with data on 4 ranks. The step is compared with the
#   best of the reference's plans that fit: full points at 65% of its speed, none at 40%.
#
# ### What cannot be faked
#
# | Idea | What the harness sees |
# |---|---|
# | train once, ship the weights | a secret seed draws the sequences, and which token stands for which byte |
# | replicate, and claim a mesh | the groups of ranks on the wire, the work and the memory of each rank |
# | let one rank do it all | which process asks for which sequences |
# | start over instead of resuming | the steps that are asked for after a failure |
# | a plan that only stands on paper | the same calls and bytes, with data, on 4 ranks |
# | make up the figures | its own runs of your program |

# %% parameters tags=["parameters"]
program = "train.py"  # your program, beside this notebook
seed = 0

# %% setup
import math
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from IPython.display import display

import worldsize as ws
from worldsize import bench, draw, units
from worldsize.bench import CLASSROOM, Disturbance, RestartPolicy, TextTask, TrainingSpec
from worldsize.check import CheckFailed

TASK = TextTask()  # 8 sequences of 32 tokens a step, of the model "small"
PAIRS = replace(CLASSROOM, name="classroom of pairs", gpus_per_node=2)
ws.run(dist.get_rank, world_size=2, echo=False)  # the first run loads torch: the checks are then quick


# %% trying_out
def attempt(spec, **options):
    """One training of your program, which the harness feeds and watches."""
    return bench.attempt(bench.ScriptHere(program), spec, seed, **options)


def parts_of_program():
    """The functions and classes of your program, by name."""
    return runpy.run_path(str(Path(program).absolute()))


def axes_of(plan):
    """The axes of a plan that are larger than 1, outermost first."""
    return {name: size for name, size in plan.items() if name != "micro_batches" and size > 1}


# %% [markdown]
# ## 2. Correct
#
# `my_plan` gives the sizes of your mesh's axes, **outermost first**: ranks of the innermost axis are
# neighbours, as the two ranks on one machine are. Begin with plans for 1 to 8 ranks; the plan for 64
# comes in section 6.


# %% check_my_plan points=4
def check_plans():
    my_plan = parts_of_program()["my_plan"]
    for num_ranks in (1, 2, 4, 8, 64):
        plan = my_plan(num_ranks)
        called, sizes = f"my_plan({num_ranks})", {k: v for k, v in plan.items() if k != "micro_batches"}
        if unknown := sorted(sizes.keys() - {"dp", "fsdp", "tp", "pp"}):
            raise CheckFailed(f"{called}: axes among dp, fsdp, tp, pp", unknown[0])
        if math.prod(sizes.values()) != num_ranks or "micro_batches" not in plan:
            raise CheckFailed(f"{called}: axes of {num_ranks} ranks in all, and micro_batches", f"{plan}")
        if num_ranks in (4, 8) and len(axes_of(plan)) < 2:
            raise CheckFailed(f"{called}: two axes larger than 1", f"{plan}", "Choose a mesh, not a line.")
        batch_size = 256 if num_ranks == 64 else TASK.batch_size
        share = plan.get("dp", 1) * plan.get("fsdp", 1) * plan["micro_batches"]
        if batch_size % share:
            raise CheckFailed(f"{called}: {batch_size} sequences, cut evenly", f"{share} pieces")
        print(f"{called}: {plan}")


check_plans()

# %% [markdown]
# Now `Trainer`. Four things go wrong most often:
#
# - the mean over micro-batches, replicas and stages is taken twice, or not at all;
# - a weight that several ranks hold whole, such as a norm, has seen other tokens on each;
# - ranks that share a replica take different sequences;
# - the optimizer is made before the model is cut, and so keeps the whole weights.
#
# <details><summary>Hint 1: where to begin</summary>
#
# Get one axis right on 2 ranks, then the other one on 2 ranks, and only then both on 4.
#
# </details>
# <details><summary>Hint 2: two axes by torch</summary>
#
# `init_device_mesh` with two names, `parallelize_module` with the inner axis first, then
# `fully_shard` of each layer and of the model with the outer one. Or a `PipelineStage` whose group
# is one axis, and an average of gradients over the other.
#
# </details>
# <details><summary>Hint 3: the loss of the global batch</summary>
#
# Add the means of all replicas up and divide by their number. In a pipeline only the last stage
# knows a loss: let the others add 0.
#
# </details>


# %% steps_of_a_trainer
def steps_of_a_trainer(path, task):
    """On one rank: the whole model's weights after some steps, the loss that each returned, and the sequences."""
    parts, batches = runpy.run_path(path), task.batches(seed)
    torch.set_num_threads(1)
    sys.argv[1:] = task.flags
    trainer = parts["Trainer"](parts["read_flags"]())
    start, stop = trainer.sequences
    losses = []
    for step in range(task.num_steps):
        tokens, targets = batches.batch(step)
        losses.append(trainer.step(tokens[start:stop], targets[start:stop]))
    model = trainer.whole_model()
    return None if dist.get_rank() else [one.detach() for one in model.parameters()], losses, trainer.sequences


def expect_shares(called, plan, shares):
    """Raise CheckFailed unless there is a share of the batch for each replica, and no more."""
    if len(shares) != (num_replicas := plan.get("dp", 1) * plan.get("fsdp", 1)):
        hint = "`sequences` follow from the rank's place on dp and fsdp: ranks of a replica name the same ones."
        raise CheckFailed(f"{called}: {num_replicas} shares of the batch, one for a replica", f"{shares}", hint)


# %% check_trainer points=14
def check_trainers():
    task = TASK.model_copy(update={"num_steps": 5})
    alone, my_plan = bench.train_alone(task, task.batches(seed)), parts_of_program()["my_plan"]
    way = (alone.weights - alone.initial).norm()
    for num_ranks in (1, 2, 4):
        path = str(Path(program).absolute())
        values = ws.run(steps_of_a_trainer, path, task, world_size=num_ranks, echo=False).values
        weights = torch.cat([one.flatten() for one in values[0][0]])
        off = float((weights - alone.weights).norm() / way)
        called = f"5 steps on {num_ranks} rank{'s' * (num_ranks > 1)}"
        expect_shares(called, my_plan(num_ranks), sorted({tuple(one[2]) for one in values}))
        if not off <= 2e-3:
            hint = "Take one step: which weights' gradients are off, and by which factor?"
            if torch.equal(weights, alone.initial):
                hint = "They have not moved: does the optimizer hold the parameters as they are after the cut?"
            raise CheckFailed(f"{called}: the weights of one process", f"others, by {off:.2g} of the way", hint)
        worst = max(abs(a - b) for a, b in zip(values[0][1], alone.losses, strict=True))
        if not worst <= 2e-3:
            hint = "The mean over all sequences of the global batch: add up over replicas, divide by their number."
            raise CheckFailed(f"{called}: the loss of the whole batch", f"on rank 0 off by {worst:.2g}", hint)
        print(f"{called}: weights and losses are those of one process, to {off:.0e} of the way")


check_trainers()


# %% check_main points=5
def check_whole():
    trial = attempt(TrainingSpec(TASK, 2))
    if missed := trial.record.missed(TASK):
        raise CheckFailed("every sequence is taken", f"those of step {missed[0]} were not", "Look at `sequences`.")
    error = bench.weights_error(trial, TASK)
    if not error <= 2e-3:
        hint = "check_trainer held: does main give each rank its own sequences, step by step from step 0?"
        raise CheckFailed("the weights of one process", f"others, by {error:.2g} of the way", hint)
    printed, wanted = [line.loss for line in trial.result.lines], bench.train_alone(TASK, trial.batches).losses
    if [line.step for line in trial.result.lines] != [*range(TASK.num_steps)]:
        raise CheckFailed("a line for each step, in order", f"{len(printed)} lines", "Flush them.")
    lines = {"one process": wanted, "printed by rank 0": printed}
    display(draw.curves(lines, title="Loss of the global batch, on 2 ranks here", difference_from="one process"))
    if (worst := max(abs(a - b) for a, b in zip(wanted, printed, strict=True))) > 2e-3:
        hint = "Print what `step` returned."
        raise CheckFailed("the loss of the whole batch", f"lines that are off by up to {worst:.2g}", hint)


check_whole()

# %% [markdown]
# ## 3. On a mesh
#
# A model is cut along an axis when ranks exchange parts of it along that axis, and none of them holds
# all of it. The table is read from the emulated wire: what every group of ranks sends in a step. The
# line below it counts the tensors that a rank holds; the judge asks the operating system.


# %% bytes_by_ranks
def bytes_by_ranks(num_steps):
    """What each group of ranks puts on the emulated wire in a whole training."""
    task, found = TASK.model_copy(update={"num_steps": num_steps}), {}
    for one in attempt(TrainingSpec(task, 4, PAIRS, keeps_exchanges=True)).result.exchanges:
        ranks = tuple(sorted(one.ranks))
        found[ranks] = found.get(ranks, 0) + sum(map(len, one.bodies.values()))
    return found


def on_noughts(path, task, *more_flags):
    """Take the task's steps on noughts with a Trainer, without `main`: also on paper."""
    parts = runpy.run_path(path)
    torch.set_num_threads(1)
    sys.argv[1:] = [*task.flags, *more_flags]
    trainer = parts["Trainer"](parts["read_flags"]())
    start, stop = trainer.sequences
    tokens = torch.zeros(stop - start, task.length, dtype=torch.long)
    for _ in range(task.num_steps):
        trainer.step(tokens, tokens)


# %% check_mesh points=19
def check_the_mesh():
    plan = parts_of_program()["my_plan"](4)
    inner, outer = {(0, 1), (2, 3)}, {(0, 2), (1, 3)}
    long, short = bytes_by_ranks(3), bytes_by_ranks(2)
    sent = {ranks: size - short.get(ranks, 0) for ranks, size in long.items()}
    rows = [{"ranks": str(ranks), "sent in a step_bytes": size} for ranks, size in sorted(sent.items())]
    display(draw.table(rows, title=f"By who takes part, on 4 emulated ranks; the plan: {plan}"))
    for ranks in inner | outer:
        if sent.get(ranks, 0) < 16_384:
            raise CheckFailed(f"parts of the model between ranks {ranks}", f"{sent.get(ranks, 0):,} bytes a step")
    if others := [ranks for ranks, size in sent.items() if size > 16_384 and ranks not in inner | outer]:
        raise CheckFailed("no traffic off the axes", f"{sent[others[0]]:,} bytes among ranks {others[0]}")
    wide = TextTask(num_steps=1, batch_size=4, length=16, layers=8, width=512)
    options = {"world_size": 4, "cluster": PAIRS, "memory": True, "timeout_s": 300, "echo": False}
    run = ws.run(on_noughts, str(Path(program).absolute()), wide, **options)
    states, held = 4 * wide.gradient_bytes, max(one.most_bytes for one in run.memory)
    print(f"a wide model's states take {units.format_bytes(states)}; a rank's tensors {units.format_bytes(held)}")
    if held > 0.75 * states:
        hint = "Make the optimizer after the model is cut; do not keep whole weights or gradients."
        raise CheckFailed("at most 75% of the states at the peak", f"{held / states:.0%}", hint)


check_the_mesh()

# %% [markdown]
# ## 4. Fast
#
# The ranks are emulated on **pairs**: two machines with two ranks each. Inside a machine the link is
# PCIe with 12 GB/s, between machines Ethernet with 0.117 GB/s. So it matters which axis is the
# innermost: it has the fast link. Below is the last of three steps.


# %% emulated_step
def emulated_step():
    """Seconds of a step on two pairs, rank 0's bytes in it, and the timeline of the longer run."""
    runs = [attempt(TrainingSpec(TASK.model_copy(update={"num_steps": n}), 4, PAIRS)).result.timeline for n in (3, 6)]
    step_s = (runs[1].end_s - runs[0].end_s) / 3
    return step_s, (runs[1].bytes_sent(0) - runs[0].bytes_sent(0)) / 3, runs[1]


# %% check_fast points=12
def check_speed():
    step_s, sent_bytes, timeline = emulated_step()
    exposed_s = timeline.exposed_communication_s(0) / timeline.end_s * step_s
    print(f"emulated_step_s {step_s:.4g}, of which about {units.format_time_s(exposed_s)} are exposed communication")
    print(f"emulated_tokens_per_s {TASK.batch_size * TASK.length / step_s:.4g}")
    print(f"emulated_sent_bytes {sent_bytes:.6g}, of rank 0 in a step")
    if step_s > 33.7e-3 / 0.8:
        hint = "Which axis has the slow link, and how many bytes go over it? Does it wait, or is it hidden?"
        raise CheckFailed("at most 42 ms a step, 80% of the reference's speed", units.format_time_s(step_s), hint)


check_speed()

# %% [markdown]
# ## 5. Recovered, on fewer ranks
#
# Rank 1 of 4 is killed at step 10, with a checkpoint every 4 steps. Its machine does not come back:
# the same command begins anew on **2** ranks, which have another mesh. A checkpoint must therefore
# be readable by a mesh that did not write it. The hidden checks also restart on the same ranks, and
# cut the newest file in half.
#
# <details><summary>Hint</summary>
#
# `torch.distributed.checkpoint` saves what each rank holds, and cuts it anew when it loads. Its
# `CheckpointException` derives from `BaseException`: `except Exception` does not catch it. Each stage
# of a pipeline holds other parameters, so the states of the optimizers have to be flattened:
# `StateDictOptions(flatten_optimizer_state_dict=True)`.
#
# </details>

# %% check_recovery points=17
struck = Disturbance("kill", step=10, rank=1)


def check_recovered():
    task = TASK.model_copy(update={"num_steps": 12})
    policy = RestartPolicy(1, is_begun_anew=True, is_cut=False, next_world_sizes=[2])
    spec = TrainingSpec(task, 4, checkpoint_every=4, timeout_s=10)
    trial = attempt(spec, restart_policy=policy, disturbance=struck)
    later = [take.step for take in trial.record.takes if take.time_s > struck.time_s]
    if not later or not 10 - 4 <= min(later) <= 10:
        went = f"it went on at step {min(later)}" if later else "nobody asked for sequences after that"
        hint = "With --resume, main calls load_checkpoint first and begins at the step that it gives."
        raise CheckFailed("training that goes on from the checkpoint of step 8", went, hint)
    error = bench.weights_error(trial, task)
    if not error <= 2e-3:
        hint = "Weights, both moments and their step counts, of every rank: is each cut for the new mesh?"
        raise CheckFailed("the weights of an undisturbed run", f"others, by {error:.2g} of the way", hint)
    print(f"killed on 4 ranks at step 10, went on at step {min(later)} on 2; the weights differ by {error:.0e}")


check_recovered()

# %% [markdown]
# ## 6. Large, on paper
#
# The large job has eight layers of Llama 3 70B, 256 sequences of 4,096 tokens a step, and 64 H100s:
# eight machines with eight GPUs each. Your `Trainer` runs there on paper, with `--bf16`. Its states
# take 16 bytes a parameter; activations come on top, and more micro-batches keep fewer of them.
#
# List plans to try in `candidates`, with the axes that your program knows.

# %% on_paper
LARGE = TextTask(num_steps=2, batch_size=256, length=4096, model_name="llama-3-70b", layers=8)
candidates = []  # such as {"dp": 16, "tp": 4, "micro_batches": 4}


def on_paper(plan=None):
    """Your program on 64 GPUs on paper, by my_plan or by another plan."""
    text = Path(program).read_text()
    if plan:
        text = text.replace(
            'if __name__ == "__main__":', f"my_plan = lambda world_size: {plan}\n\nif __name__ == '__main__':"
        )
    path = Path(program).with_name("on_paper.py").absolute()
    path.write_text(text)
    tokens = LARGE.batch_size * LARGE.length
    try:
        options = {"world_size": 64, "cluster": "h100-ndr-x8", "tokens_per_step": tokens, "echo": False}
        return ws.paper(on_noughts, str(path), LARGE, "--bf16", **options)
    finally:
        path.unlink()


for candidate in candidates:
    run = on_paper(candidate)
    print(f"{candidate}: {units.format_time_s(run.step_s)}, {units.format_bytes(run.peak_bytes)}, fits: {run.fits}")


# %% check_large points=11
def check_large_job():
    run = on_paper()
    print(f"paper_step_s {run.step_s:.4g}")
    print(f"paper_mfu_fraction {run.mfu_fraction:.4g}")
    print(f"paper_peak_bytes {run.peak_bytes:.4g}, of {run.cluster.gpu.memory_bytes:.4g}")
    if run.peak_bytes > run.cluster.gpu.memory_bytes:
        hint = "What fills it at the peak: run.memory[0].explain() says. More micro-batches keep fewer activations."
        raise CheckFailed("a plan that fits", units.format_bytes(run.peak_bytes), hint)
    if run.step_s > 1.842 / 0.65:
        hint = "Which term binds: products, gathers across machines, messages within them, or the bubble?"
        raise CheckFailed("at most 2.8 s a step, 65% of the best plan's speed", f"{run.step_s:.2f} s", hint)
    print(run.memory[0].explain())


check_large_job()

# %% [markdown]
# ## 7. Your figures
#
# Copy the six figures that `check_fast` and `check_large` print above. They must be those of the
# program that you hand in: the judge measures it again, and accepts each figure within 3%.


# %% figures tags=["solution"]
figures = {
    ### BEGIN SOLUTION
    "emulated_step_s": 0.03374,
    "emulated_tokens_per_s": 7588,
    "emulated_sent_bytes": 5.52013e6,
    "paper_step_s": 1.842,
    "paper_mfu_fraction": 0.4429,
    "paper_peak_bytes": 5.976e10,
    ### END SOLUTION
}


# %% check_figures points=6
def check_the_figures():
    step_s, sent_bytes, _ = emulated_step()
    run = on_paper()
    tokens = TASK.batch_size * TASK.length
    measured = {
        "emulated_step_s": step_s,
        "emulated_tokens_per_s": tokens / step_s,
        "emulated_sent_bytes": sent_bytes,
        "paper_step_s": run.step_s,
        "paper_mfu_fraction": run.mfu_fraction,
        "paper_peak_bytes": run.peak_bytes,
    }
    for name, found in measured.items():
        if abs(figures[name] - found) > 0.03 * found:
            raise CheckFailed(f"figures[{name!r}] within 3% of {found:.4g}", f"{figures[name]:.4g}")
    print("All six figures are those of the program.")


check_the_figures()


# %% measured_here
def measured_here():
    """Tokens a second on real ranks of this machine, by the harness's clock; not graded."""
    for num_ranks in (1, 2, 4):
        times_s = sorted(attempt(TrainingSpec(TASK, num_ranks)).record.step_times_s()[3:-1])
        median_s = times_s[len(times_s) // 2]
        print(f"{num_ranks} real ranks: {TASK.batch_size * TASK.length / median_s:,.0f} tokens/s, measured here")


measured_here()

# %% [markdown]
# ## 8. In words
#
# Answer in at most 400 words in all, with figures from the tables above. They are your program's,
# and may differ from anybody else's.
#
# 1. **Why this plan** (4 points). Why this mesh and this number of micro-batches for the 64 GPUs?
#    Give the step and the memory of two other plans that you tried, and say what rules each out.
# 2. **Which term binds** (4 points). On two pairs of machines, how many bytes does a step send along
#    each axis, and over which link? Compare the time that they take with the time that a rank
#    computes. What would change if the two axes changed places?
# 3. **Slower links** (4 points). If the links between the machines of the large job had an eighth of
#    their bandwidth, which of your axes would suffer first? Which plan would you choose then, and
#    how would you find out before you rent the machines?

# %% words [markdown] points=12 tags=["solution"]
# **Answer.**
#
# 1. FSDP over 32, tensor parallelism over 2, four micro-batches: 1.84 s and 55.7 GiB. With two
#    micro-batches a step would take 1.66 s, since weights are gathered half as often, but 79.8 GiB
#    do not fit in the 74.5 GiB of an H100. Tensor parallelism over 4 fits, and takes 1.99 s: the
#    layers' messages grow while FSDP's gathers shrink less. Without it, four micro-batches of one
#    sequence need 78.4 GiB.
# 2. On pairs, the ranks of a machine exchange activations and their gradients (tensor parallelism):
#    48 messages a step, 3.6 MB from both ranks together, over PCIe. They take 0.5 ms. Across machines
#    weights are gathered twice and gradients are scattered once (FSDP): 15 messages, 7.5 MB from both,
#    over Ethernet. They take 32.6 ms; a rank computes for 16.5 ms, and 17.3 ms of the 33.7 ms are
#    exposed. Ethernet binds. If the axes changed places, 48 messages that cannot be hidden would go
#    over Ethernet, and the weights, which could hide, over PCIe.
# 3. FSDP is the axis across machines: it gathers every weight in each micro-batch, 4 times in forward
#    and 4 times in backward. With an eighth of the bandwidth these gathers would bind. I would use
#    fewer micro-batches with more tensor parallelism (8 ranks, within a machine), which gathers an
#    eighth of the weights on each rank, or keep gathered weights on a machine (HSDP). The record
#    names no cluster: `run.on(cluster)` with slower links prices each plan again, in milliseconds.
#
# **Rubric**
#
# - Question 1: the plan's own step and memory (1); a plan that is ruled out by memory, with its
#   bytes (1); one that is slower, with its seconds (1); the reason, by a term, not by a rule of
#   thumb (1).
# - Question 2: bytes along each axis from the table of section 3 (1); the link of each (1); the
#   time of these bytes against the compute time, in ms (1); what changes when the axes change
#   places (1).
# - Question 3: the axis that crosses machines, named from the plan (1); its bytes in a step, or how
#   they grow with micro-batches (1); another plan with a reason (1); a way to check it: priced
#   again on paper, or measured on two machines (1).
#
# Half a point where the reasoning is right and a number is wrong by a slip. Numbers belong to the
# student's own program: compare them with the tables of that notebook, not with these.

# %% [markdown]
# ## To take with you
#
# - A mesh is what the wire shows, not what a plan says.
# - Put the axis with many small messages on the fast link, and the one with few large ones, which
#   can be hidden, on the slow one.
# - A checkpoint belongs to the model, not to the mesh that wrote it.
# - The best plan is often the fastest one that still fits: price several before you choose.
