# %% [markdown]
# # Project 3. A training system, designed and defended
#
# | | |
# |---|---|
# | Reading | about 30 minutes |
# | Working | about 15 hours |
# | Running | the whole notebook: a few minutes on two idle CPU cores; no GPU is needed |
# | You need | weeks 10, 12 and 14, and [Project 2](../project2/report.ipynb) |
# | You hand in | this notebook and `programs.py`, which lies beside it |
#
# Somebody pays for 45 days of training a model of 70 billion parameters. You decide what is bought:
# how many nodes, which network, which plan, how often to save. You bring three programs of your own:
# a **cost** of a step, on which the decision rests; a **policy** for failures; and the **train step**
# itself, which runs on paper on GPUs that you do not have.
#
# ```text
# the brief ─► design (this notebook) ──► adds up? in time? how many dollars?   the judge's own cost
#              step_s(plan) ────────────► published steps, order, changes       programs.py
#              policy(status) ──────────► months of failures of other jobs      programs.py
#              train(plan) ─────────────► 64 GPUs on paper, 4 ranks with data   programs.py
# ```
#
# What a program says about itself earns nothing: the judge has a cost of its own, draws the failures,
# and looks at the wire.

# %% [markdown]
# ## 1. What is asked
#
# | Step | Write | Hidden checks look at | Points | Time |
# |---|---|---|---|---|
# | 1 | `step_s` in `programs.py` | `check_cost`: published steps, the order of plans, changes | 22 | 4 h |
# | 2 | `design` | `check_design`: adds up, in time, within the budget, cheap | 24 | 3 h |
# | 3 | `policy` | `check_policy`: goodput over months of failures | 20 | 2 h |
# | 4 | `train`, `whole_weights` | `check_train`: weights, bytes by axis, work and memory of a rank | 20 | 5 h |
# | 5 | `words` | three questions on your own figures, read by your instructor | 14 | 1 h |
#
# ### How it is graded
#
# - **The design** is read as data. The judge checks it, runs it by its own cost of a step, with saves
#   and failures, and never by yours. So leave room for what your cost does not know. It must be a
#   design of the brief: one for another model, or with other prices, gets nothing.
# - **`step_s`** is asked for published steps that the course does not show: full points for a median
#   error of 20%. They are few, so the judge also asks for made-up plans. Is the faster one the
#   cheaper one? Does a change, such as twice the dp, half the micro-batches or a tp beyond a node,
#   change the step by the same factor as in the judge's cost, within 20%?
# - **`policy`** decides for hidden jobs, with other nodes, other costs of a save and other rates of
#   failure. Its goodput is compared with that of the judge's policy in the same failures; of two
#   jobs the worse one counts. It does not see failures before they come, and remembers nothing:
#   after a failure the program itself begins anew.
# - **`train`** runs with data on 4 emulated ranks, where its weights must be those of one process,
#   and on paper on 64 GPUs. The record on paper counts only if the same program makes the calls
#   that paper says when it runs with data. With data each rank is given its replica's own
#   sequences, and noise in place of all others.
#
# Between these bounds points are in proportion, in steps of a tenth:
#
# | | No points | All points |
# |---|---|---|
# | median error on published steps; one that does not follow its batch counts as 100% off | 40% | 20% |
# | pairs of plans in the right order; changes within 20% | 65% | 90% |
# | dollars by the judge's cost, in time | 3.23 million | 2.43 million |
# | goodput over that of the judge's policy, in the worse of two jobs | 90% | 97% |
#
# A design that is late or too dear keeps 4 of the 8 points of the budget, and gets none of the 8 for
# dollars. A rank of the 64 on paper holds 9 GB at most, or gets no points for its share.

# %% parameters tags=["parameters"]
program = "programs.py"  # your programs, beside this notebook
seed = 0

# %% setup
import math
import runpy
import statistics
import tomllib
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.tensor.parallel  # loaded once here, and not on every rank
from IPython.display import display

import worldsize as ws
from worldsize import capstone, draw, hardware, models, outages
from worldsize.capstone import report, saves
from worldsize.check import CheckFailed
from worldsize.course import published_runs
from worldsize.outages import TrainingJob
from worldsize.planning import Plan

DAY_S = 86400
ws.run(dist.get_rank, world_size=2, echo=False)  # the first run loads torch: the checks are then quick


def parts_of_program():
    """The functions of your programs, by name."""
    return runpy.run_path(str(Path(program).absolute()), run_name="programs")


# %% [markdown]
# ## 2. The cost of a step
#
# `step_s(plan)` gets a `worldsize.planning.Plan` and returns seconds, or named parts of them. You may
# use `worldsize.operators` for kernels and `worldsize.pricing` for messages. `plan` knows how many
# parameters, layers and tokens a rank has, and which ranks share what: `help(Plan)`. The cost that
# `ws.plan` has without yours, `worldsize.planning.serial`, is not allowed in your program.
#
# A single constant, every GPU at half of its peak with what is computed again, is within 15% of half
# of the published steps below: people publish what works. It says nothing about a plan that does not.
# So look at **changes** too. The check below prints two.
#
# <details><summary>Hint: what a step consists of</summary>
#
# Work of a micro-batch on the fullest stage, with what is computed again; tp's messages, which wait;
# the bubble; messages between stages; gradients and gathered weights, less what work hides.
#
# </details>

# %% known_steps
HALF = Plan(
    model=models.shape("llama-3-70b"),
    cluster=hardware.cluster("h100-ndr-x16"),
    global_batch=256,
    length=8192,
    dp=4,
    tp=8,
    pp=4,
    cp=1,
    micro_batch=1,
    num_chunks=1,
    recompute="none",
    zero_stage=1,
)


def published_plans():
    """Plans of published Megatron runs on A100, with their seconds."""
    found = []
    for run in published_runs.rows():
        if not run.gpu.startswith("A100-SXM4-80GB") or run.zero_stage > 1 or "Zoo" in run.gpu or run.has_flash:
            continue
        sizes = {
            name: getattr(run, name) for name in ("num_layers", "width", "num_heads", "hidden_width", "vocab_size")
        }
        sizes |= {"num_kv_heads": run.num_heads, "context_length": run.length}
        shape = replace(models.shape("gpt-1t"), name=run.name, **sizes)
        cluster = replace(hardware.cluster("a100-hdr"), num_nodes=max(1, run.num_gpus // 8))
        plan = {name: getattr(run, name) for name in ("tp", "pp", "dp", "micro_batch", "num_chunks", "recompute")}
        plan |= {"global_batch": run.global_batch, "length": run.length, "zero_stage": run.zero_stage}
        found.append((run.name, Plan(model=shape, cluster=cluster, cp=1, **plan), run.step_s))
    return [one for one in found if "(Jean Zay)" not in one[0]]


def seconds_of(cost, plan):
    said = cost(plan)
    return float(sum(said.values()) if hasattr(said, "values") else said)


# %% check_cost points=22
def check_the_cost():
    step_s, rows, errors = parts_of_program()["step_s"], [], []
    for name, plan, theirs_s in published_plans():
        own_s = seconds_of(step_s, plan)
        errors.append(abs(own_s / theirs_s - 1))
        rows.append(
            {"run": name, "plan": str(plan), "published_s": theirs_s, "yours_s": own_s, "off_fraction": errors[-1]}
        )
    display(draw.table(rows, "Published steps and yours"))
    if (median := statistics.median(errors)) > 0.2:
        num_short = sum(row["yours_s"] < row["published_s"] for row in rows)
        raise CheckFailed(
            "a median error of at most 20%", f"{median:.0%}; {num_short} of {len(rows)} steps are too short"
        )
    halved, node = replace(HALF, global_batch=128), replace(HALF, tp=16, pp=2)
    before, fewer, beyond = (seconds_of(step_s, plan) for plan in (HALF, halved, node))
    print(f"half of the micro-batches: {fewer / before:.2f} times the seconds; tp 16: {beyond / before:.2f} times")
    if not 0.5 < fewer / before < 0.6:
        raise CheckFailed("half of the micro-batches: a little more than half of the time", f"{fewer / before:.2f}")
    if beyond < 1.2 * before:
        raise CheckFailed("tp beyond a node is slower by a fifth at least", f"{beyond / before:.2f} times")


check_the_cost()

# %% [markdown]
# ## 3. The design
#
# The brief says what is trained, in which building, at which prices, and what the store can do. Yours
# are the nodes (`a100-hdr` or `h100-ndr`), the switches, the batch (at most 2,048 sequences), the
# plan, the software and the saves. Two halves of your network exchange 20 TB/s or more
# (`network.bisection_bytes_per_s`), which its cables must carry. Of the shipped designs,
# `capstone.example("ten_thousand_h100")` is one for another model and another building: its numbers
# do not help, its form does.
#
# Find the plan by `ws.plan` with your own cost, for several numbers of nodes. Then count switches:
# a leaf of 64 ports has 32 of them down, and rails need a leaf for each NIC of 32 nodes.
# Spare nodes are cabled too: 163 nodes need 6 * 8 leaves.

# %% brief
BRIEF = """
[model]
shape = "llama-3-70b"

[data]
num_tokens = 6e12
dataset_tokens = 15e12
bytes_per_token = 4
length = 8192

[storage]
read_bytes_per_s = 200e9
write_bytes_per_s = 100e9
node_read_bytes_per_s = 10e9
node_write_bytes_per_s = 5e9
capacity_bytes = 1e15

[failures]
rates = "Llama 3"
away_s = 86_400
restart_s = 600

[site]
power_w = 6e6
pue = 1.25
rack_power_w = 45e3
nodes_per_rack = 4

[prices]
storage_usd = 5e6
years = 4
operation_fraction = 0.1

[budget]
days = 45
usd = 3.2e6
pays = "own"
"""

# %% design tags=["solution"]
# your design: the brief with a name and data.global_batch; [nodes], [network], [plan], [software], [checkpoint]
### BEGIN SOLUTION
design = (
    BRIEF.replace("length = 8192", "length = 8192\nglobal_batch = 1920").replace("[model]", 'name = "70B"\n\n[model]')
    + """
[nodes]
cluster = "h100-ndr"
num_nodes = 240
num_spares = 3

[network]
switch = "quantum-2"
is_rail = true
bisection_bytes_per_s = 30e12
levels = [
    { name = "leaf", num_switches = 64, num_down = 32, num_up = 32, num_nodes = 32 },
    { name = "spine", num_switches = 32, num_down = 64, num_up = 0 },
]

[plan]
dp = 960
tp = 2
micro_batch = 1
recompute = "selective"
zero_stage = 3

[software]
schedule = "none"
gradients = "float32"

[checkpoint]
every_s = 600
is_async = true
num_kept = 10
"""
)
### END SOLUTION


# %% check_design points=24
def expect_asked(found):
    """Raise CheckFailed unless the design is one of the brief's system, and chooses nothing that is not yours."""
    own = found.model_dump(exclude_unset=True)
    for section, values in tomllib.loads(BRIEF).items():
        if other := [key for key, value in values.items() if own.get(section, {}).get(key) != value]:
            raise CheckFailed(f"[{section}] as in the brief", f"another {other[0]}, or none")
        if section != "data" and (more := sorted(own[section].keys() - values.keys())):
            raise CheckFailed(f"[{section}] as in the brief", f"{more[0]} as well", "That is not yours to choose.")
    if (nodes := found.nodes).cluster not in ("a100-hdr", "h100-ndr"):
        raise CheckFailed("nodes.cluster: a100-hdr or h100-ndr, without -x", nodes.cluster)
    if nodes.nics_per_node is not None or nodes.nic_bytes_per_s is not None:
        raise CheckFailed("[nodes] without nics_per_node and nic_bytes_per_s", "one of them")
    if found.network is None:
        raise CheckFailed("a [network] with its switches counted", "none")
    if found.network.bisection_bytes_per_s < 20e12:
        raise CheckFailed(
            "network.bisection_bytes_per_s of 20e12 or more", f"{found.network.bisection_bytes_per_s:.3g}"
        )
    if found.data.global_batch > 2048:
        raise CheckFailed("a global_batch of at most 2,048", f"{found.data.global_batch:,}")


def check_the_design():
    found, step_s = capstone.loads(design), parts_of_program()["step_s"]
    expect_asked(found)
    problems = capstone.check(found, step_s)
    print(report.verdict(found, problems))
    if problems:
        raise CheckFailed("a design that adds up", problems[0])
    of = capstone.run(found, step_s)
    display(report.summary(of), report.time_picture(of))


check_the_design()

# %% [markdown]
# ## 4. The policy
#
# A job saves, fails and starts again. `policy(status)` says after how many seconds of training it
# saves next, and on how many nodes it goes on. `JOB` in `programs.py` has the costs of a save and of
# a start; the judge puts other jobs in its place. How often nodes fail, you see only in the status.
# `help(outages.Status)` and `help(outages.SavePlan)` list the fields.
#
# A save must be whole before the next one begins, so `JOB.durable_s` seconds are the least; a sooner
# save is refused. In 20 days a policy is asked 8,000 times at most, once in 216 s; the judge's own is
# asked 90 to 5,600 times.
#
# <details><summary>Hint</summary>
#
# Young's interval needs the mean time to a failure. Before the first one, guess; afterwards
# `status.time_s` and `status.num_failures` say. And what does a job do that waits for more nodes than
# are healthy?
#
# </details>


# %% check_policy points=20
def check_the_policy():
    parts, found = parts_of_program(), {}
    policy = parts["policy"]
    for what, job, rate in (
        ("256 nodes", TrainingJob(256, 5, 600, 60, 8), 1),
        ("128 nodes that fail ten times as often", TrainingJob(128, 60, 300, 60, 30), 10),
    ):
        policy.__globals__["JOB"] = job
        causes = [
            replace(one, per_node_hour=rate * one.per_node_hour, away_s=DAY_S) for one in outages.published("Llama 3")
        ]
        failures = outages.draw(causes, job.num_nodes + job.num_spares, 20 * DAY_S, seed)
        own = outages.endure(policy, job, failures, 20 * DAY_S, least_s=job.durable_s)
        hourly = outages.endure(3600, job, failures, 20 * DAY_S)
        print(
            f"{what}: goodput {own.goodput:.1%} with {own.num_saves:,} saves; a save an hour gives {hourly.goodput:.1%}"
        )
        if own.goodput < hourly.goodput:
            raise CheckFailed("more goodput than a save an hour gives", f"{own.goodput:.1%}")
        found[what] = own.seconds
    names = [*next(iter(found.values()))]
    display(draw.table([{"seconds": name} | {what: of[name] for what, of in found.items()} for name in names]))


check_the_policy()

# %% [markdown]
# ## 5. The train step
#
# `train(plan)` is a whole step: forward, backward and update, on a mesh of dp and tp. Project 2's
# `Trainer` is a good start. Begin with 4 emulated ranks and data. On paper the same function runs on
# 64 GPUs: what it sends along each axis, computes and holds is read from the record.

# %% small_and_large
SMALL = replace(
    HALF,
    model=replace(
        models.shape("llama-3-8b"),
        num_layers=2,
        width=64,
        num_heads=4,
        num_kv_heads=2,
        hidden_width=128,
        vocab_size=96,
        context_length=64,
    ),
    cluster=hardware.cluster("h100-ndr-x1"),
    **{"global_batch": 8, "length": 16, "dp": 2, "tp": 2, "pp": 1, "micro_batch": 2},
    **{"recompute": "full", "zero_stage": 3},
)
LARGE = replace(
    SMALL,
    model=replace(models.shape("llama-3-8b"), num_layers=4, vocab_size=32_768),
    cluster=hardware.cluster("h100-ndr-x8"),
    **{"global_batch": 128, "length": 4096, "dp": 32, "tp": 2, "micro_batch": 2},
)


def trained(path, plan, tokens, targets):
    """On one rank: the whole model's weights after a step."""
    parts = runpy.run_path(path, run_name="programs")
    weights = parts["whole_weights"](plan, parts["train"](plan, tokens, targets))
    return None if dist.get_rank() else {name: one.detach().clone() for name, one in weights.items()}


def on_zeros(path, plan):
    runpy.run_path(path, run_name="programs")["train"](plan)


# %% check_train points=20
def check_the_step():
    path = str(Path(program).absolute())
    chance = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(SMALL.model.vocab_size, (2, SMALL.global_batch, SMALL.length), generator=chance)
    options = {"world_size": 4, "cluster": SMALL.cluster, "echo": False}
    weights = ws.run(trained, path, SMALL, tokens, targets, **options).values[0]
    model = models.Transformer(SMALL.model, seed=0)
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-3)
    torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    optimizer.step()
    after = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    own = torch.cat([weights[name].flatten() for name, _ in model.named_parameters()])
    off = float((own - after).norm() / (after - before).norm())
    print(f"after a step on 4 ranks the weights differ from those of one process by {off:.1g} of the way")
    if not off <= 2e-3:
        raise CheckFailed("the weights of one process", f"others, by {off:.2g} of the way", "Which weights are off?")
    run = ws.paper(on_zeros, path, LARGE, world_size=64, cluster=LARGE.cluster, echo=False)
    share = LARGE.model.flops(LARGE.num_tokens, LARGE.length) / 64
    print(f"on 64 GPUs on paper: {run.step_s:.2f} s, {run.peak_bytes / 1e9:.1f} GB, {run.mfu_fraction:.0%} MFU")
    if not 0.9 < run.flops() / share < 1.15:
        raise CheckFailed("a rank's share of the operations", f"{run.flops() / share:.0%} of it")


check_the_step()

# %% [markdown]
# ## 6. In words
#
# Answer in at most 500 words in all, with figures from the tables above. They are your own, and may
# differ from anybody else's.
#
# 1. **Why this design** (5 points). Give its days and dollars, and those of two others that you
#    tried, with other nodes or another plan. What rules each of them out?
# 2. **What binds** (5 points). Where does the time of your design go? The bill may be 100,000 dollars
#    larger: what would you change, and how many days would it save? Run the changed design. For rates,
#    `step_s = parts_of_program()["step_s"]` and
#    `capstone.gains(capstone.run(capstone.loads(design), step_s), step_s)` show what 10% more of each
#    would save, without its price.
# 3. **What you do not know** (4 points). Where is your cost most likely wrong for this design, by how
#    much, and what in the design leaves room for it? Which single measurement on two nodes would you
#    make first?
#
# **Rubric.** Numbers are those of your own design, and are compared with the tables of this notebook.
# Half a point where the reasoning is right and a number is wrong by a slip.
#
# - Question 1: own days and dollars (1); two others with theirs (2); what rules each out, by a term
#   or a line of the bill (2).
# - Question 2: the shares of the time (2); the changed design, with its days and dollars (2); that
#   the answer follows from the shares (1).
# - Question 3: a term that the cost lacks or guesses (1); its size, from the published table (1); the
#   room in days or dollars (1); a measurement that would show it (1).

# %% words [markdown] points=14 tags=["solution"]
# **Answer.**
#
# 1. 240 nodes of H100, ZeRO-3 over 960 ranks by tp 2: 25 days and 2.26 million dollars by the judge's
#    cost. 160 nodes take 37 days and 2.37 million: equipment is paid by the day, and the store's price
#    then counts for more days. 192 nodes with tp 4 take 34 days and 2.53 million, since tp 4 adds
#    messages to every layer. 400 nodes of A100 take 44 days and 4.50 million: over the budget.
# 2. By the judge's cost 93% of the time are kernels, 4.7% tp's collectives, 1.0% gathers that nothing
#    hides, 0.8% restarts and lost work. A node costs about 9,400 dollars of this bill, so 100,000 are
#    ten of them: 250 nodes, with a batch of 2,000, take 23.7 days, a day less, and the bill is no
#    larger (2.25 million).
# 3. My cost knows no stragglers and no time between kernels: it was 7 to 36% below published steps, 16%
#    in the median. 24.7 days / (1 - 0.16) are 29, and at the worst 39: within 45. I would first measure
#    a layer with ZeRO-3's gathers on two nodes, because all of the plan rests on their being hidden.

# %% [markdown]
# ## To take with you
#
# - A cost is tested by changes and by order, not by the runs that people publish.
# - Days and dollars of an owner fall together as long as a step shrinks with its nodes. What ends
#   that is the batch, the power and the network.
# - A policy needs the rate of failures, and the rate is in what it has seen.
