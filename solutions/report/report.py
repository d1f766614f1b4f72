# %% [markdown]
# # Report. The performance of a published system
#
# | | |
# |---|---|
# | Working | about eight hours |
# | Points | twenty-seven: five by hidden checks, twenty-two by your instructor |
# | You need | weeks 11, 12 and 14, and lab 10 |
# | You hand in | this notebook, run from the top and saved |
#
# You choose a system that somebody has built and described, and write what you would give to its
# owners: what binds it, how it scales beyond its size, and what you would change, with the cost
# beside the benefit.
#
# **Every number in your text is computed or cited.** Computed: an output of this notebook shows
# it, to the digits that you write. Cited: a link, a DOI, an arXiv id, or a reference such as
# `[1]`, which your sources define, stands in the same sentence or table row. Check that before
# you hand it in:
#
# ```sh
# python -m worldsize.course.reporting check report.ipynb
# ```
#
# It looks numbers up and understands none. Your grader runs it too, and reads your cells: a `print`
# of a number that was not computed is no evidence. The command itself gives no points.
# Counts of up to two, names such as A100, years, formulas' factors and `code` need no source.
#
# Add cells of code wherever you like. The rubric of each answer comes before it.

# %% setup
from pathlib import Path

from worldsize import capstone, draw, pricing
from worldsize.capstone import report
from worldsize.course import published_runs
from worldsize.operators import Operator, time_s

# %% [markdown]
# ## 1. The system and the question
#
# Five published systems ship as design files; `published_runs.rows()` has steps of more. Or write
# the design of another one, from its paper. Choose one of which more than one step is published:
# sections 3 and 4 ask for a second measurement.
# `{run.model for run in published_runs.rows()}` lists some. Ask one question that a number can
# answer.
#
# Rubric: names the system, its size and the source (1); asks a question whose answer is a number,
# and says who would act on it (1).

# %% the_question [markdown] points=2 tags=["solution"]
# **BLOOM 176B on 384 A100.** The model was trained from March to July 2022; its log and its model
# card are public [1, 2]. A step took 105.22 s [1]. How much shorter could the step have been on
# the same GPUs, by which one change, and what would that have saved? Somebody who rents such a
# machine for months would act on it.

# %% [markdown]
# ## 2. The design, as a file
#
# `design_file` returns the text of a design file. Start from
# `print((capstone.EXAMPLES / "gpt_530b.toml").read_text())`; `worldsize/capstone/design.py`
# explains each section and key. The design must add up, and its section `[published]` names the
# source and the step. What the source does not say is your assumption: mark it by a comment.
#
# Rubric, by hidden checks: it is a design, and adds up (2); it says what was published (1).


# %% design_file tags=["solution"]
def design_file() -> str:
    """The text of a design's file, with what was published of it."""
    ### BEGIN SOLUTION
    return (capstone.EXAMPLES / "bloom_176b.toml").read_text(encoding="utf-8")
    ### END SOLUTION


# %% check_design_file points=3
path = Path("design.toml")
path.write_text(design_file(), encoding="utf-8")
design = capstone.load(path)
assert not capstone.check(design), report.verdict(design, capstone.check(design))
assert design.published is not None, "[published] names the source and step_s"
plan, published_s = design.layout, design.published.step_s
print(f"{design.name}: {plan}, {plan.cluster.world_size} GPUs")
print(f"published: a step of {published_s} s. {design.published.source}")

# %% [markdown]
# ## 3. The step, by parts
#
# Write a cost of your own that names its parts, as in week 14 or lab 10, and hold it against what
# was published: the step, and if you can find them, steps under another plan.
#
# Rubric, by hidden checks: for any design and batch, at least three parts, whose sum is one to six
# times the arithmetic at the peak of all GPUs (2). Print the error against the published step, and
# against another measurement that nothing was fitted to: section 4 asks for both.


# %% step_parts tags=["solution"]
def step_parts(plan) -> dict[str, float]:
    """The seconds of a step by what takes them: at least three parts, none below 0.

    For any `Plan`, not only that of your design: hidden checks ask for four systems and other
    batches. Use `plan` and your own functions; `design`, `published_s` and `step_s` of the check
    cells do not exist there.
    """
    ### BEGIN SOLUTION
    model, gpu, tp = plan.model, plan.cluster.gpu, plan.tp
    tokens, num = plan.num_micro_batch_tokens, plan.num_micro_batches
    weights = model.num_active_layer_weights / tp
    moved = 2 * weights + 16 * tokens * model.width
    scores = tokens * plan.length * model.num_heads / tp
    flops = 2 * tokens * plan.length * model.width / tp
    of_products_s = time_s(Operator("matmul", "bfloat16", 2 * tokens * weights, moved), gpu)
    of_attention_s = 2 * time_s(Operator("matmul", "bfloat16", flops, 2 * scores), gpu)
    of_softmax_s = time_s(Operator("elementwise", "bfloat16", 0, 9 * scores), gpu)
    passes = tokens * (20 * model.width + 6 * model.hidden_width) / tp
    of_passes_s = time_s(Operator("elementwise", "bfloat16", 0, passes), gpu)
    times = 4 if plan.recompute == "full" else 3  # forward, twice in backward, and again
    times_attention = 3 if plan.recompute == "none" else 4
    activation_bytes = 2 * tokens * model.width
    pair_s = sum(
        pricing.price(op, activation_bytes, plan.tp_ranks, plan.cluster).time_s
        for op in ("all_gather", "reduce_scatter")
    )
    tp_s = 2 * (times - 1) * pair_s if tp > 1 else 0.0
    products_s = times * of_products_s + times_attention * of_attention_s
    passes_s = times * of_passes_s + times_attention * of_softmax_s
    layers = max(plan.num_stage_layers)
    micro_s = layers * (products_s + passes_s + tp_s)
    parts = {
        "products": num * layers * products_s,
        "passes over memory": num * layers * passes_s,
        "tensor parallelism": num * layers * tp_s,
        "bubble": (plan.pp - 1) / plan.num_chunks * micro_s,
    }
    if plan.pp > 1:
        size_bytes = activation_bytes / tp
        send_s = pricing.price("send", size_bytes, plan.pp_ranks[:2], plan.cluster).time_s
        parts["stages' messages"] = 2 * num * plan.num_chunks * send_s
    if plan.num_shards > 1:
        sizes = {"reduce_scatter": 4 * plan.most_parameters, "all_gather": 2 * plan.most_parameters}
        parts["gradients and weights"] = sum(
            pricing.price(op, size, plan.shard_ranks, plan.cluster).time_s
            for op, size in sizes.items()
        )
    return parts


def experiments():
    """Print what the answers rest on."""
    each_s = other_plans()
    ideal()
    sizes()
    changes(each_s)


def measured(row):
    """The plan of a published row, on the GPUs of this design."""
    model = {
        "num_layers": row.num_layers,
        "num_heads": row.num_heads,
        "num_kv_heads": row.num_heads,
    }
    return capstone.changed(
        design,
        model=design.model.model_dump(exclude_none=True) | model,
        plan={"dp": row.dp, "tp": row.tp, "pp": row.pp, "micro_batch": row.micro_batch}
        | {"recompute": row.recompute, "zero_stage": row.zero_stage},
    ).layout


def other_plans():
    """Seconds that each pass misses, after printing steps that were measured before the launch."""
    missing, computed = {}, []
    for row in published_runs.rows():
        if row.name.startswith("bloom_pre"):
            other = measured(row)
            computed_s = sum(step_parts(other).values())
            computed.append(computed_s)
            num_passes = 4 * other.num_micro_batches * max(other.num_stage_layers)
            missing[row.name] = num_passes, row.step_s - computed_s
            print(f"{other}: measured {row.step_s} s, computed {computed_s:.1f} s")
            print(
                f"  missing {row.step_s - computed_s:.1f} s; {num_passes:,} passes through a layer"
            )
    (few, least_s), (some, middle_s), (many, most_s) = (
        missing[f"bloom_pre_{number}"] for number in ("057", "079", "034")
    )
    three = [
        row.step_s
        for row in published_runs.rows()
        if row.name in ("bloom_pre_034", "bloom_pre_057")
    ]
    print(f"measured steps differ by {max(three) - min(three):.0f} s,")
    print(f"computed ones by {max(computed) - min(computed):.0f} s")
    print(f"each pass misses {1e3 * (middle_s - least_s) / (some - few):.2f} ms from 4 to 2,")
    each_s = (most_s - middle_s) / (many - some)
    print(f"and {1e3 * each_s:.2f} ms from 2 to 1")
    own = 4 * plan.num_micro_batches * max(plan.num_stage_layers)
    rest_s = published_s - step_s - own * each_s
    print(f"published: {own:,} passes, {own * each_s:.1f} s; {rest_s:.1f} s besides")
    return each_s


def ideal():
    """What no change of the plan can go below, and what the published step left."""
    flops = plan.model.flops(plan.num_tokens, plan.length)
    peak = plan.cluster.world_size * plan.cluster.gpu.peak_flops_per_s["bfloat16"]
    print(f"MFU published {flops / published_s / peak:.1%}, computed {flops / step_s / peak:.1%}")
    print(
        f"not in the computed parts: {published_s - step_s:.1f} s, {1 - step_s / published_s:.1%}"
    )
    rows = {row.name: row.step_s for row in published_runs.rows()}
    print(
        f"tp 8 to tp 2, measured: {1 - rows['bloom_pre_090'] / rows['bloom_pre_079']:.1%} shorter"
    )
    fewer = rows["bloom_pre_057"] / rows["bloom_pre_034"]
    print(f"micro-batch 4 in place of 1, measured: {1 - fewer:.1%} shorter")


def sizes():
    """Replicas added at the same global batch: the step, and the efficiency of the added GPUs."""
    for dp in (4, 8, 16, 32, 64):
        larger = capstone.changed(design, plan__dp=dp, nodes__num_nodes=6 * dp).layout
        found = step_parts(larger)
        now_s = sum(found.values())
        efficiency = step_s * plan.dp / (now_s * dp)
        growing = ("bubble", "gradients and weights")
        shares = ", ".join(f"{name} {found[name] / now_s:.1%}" for name in growing)
        print(f"dp {dp}, {48 * dp:,} GPUs: {now_s:.1f} s, efficiency {efficiency:.1%}; {shares}")
        print(f"  GPU-seconds of a step, times those of the design: {1 / efficiency:.1f}")


def changes(each_s):
    """Changes, each alone: the step, its memory, and what a run of all tokens would cost."""
    base = capstone.run(design, step_parts)
    dollars_per_hour = base.usd / (base.days * 24 * plan.cluster.world_size)
    hours = published_s * design.num_steps * plan.cluster.world_size / 3600
    print(f"{design.num_steps:,.0f} steps; {hours:,.0f} GPU-hours at the published step")
    run_usd = hours * dollars_per_hour
    print(f"{design.rent.usd_per_hour:.2f} dollars an hour, {design.rent.source};")
    print(f"with spares {dollars_per_hour:.2f}, {run_usd / 1e6:.2f} million dollars")
    tried = {"as published": {}, "selective recomputation": {"plan__recompute": "selective"}}
    tried |= {
        "tp 2, dp 16": {"plan__tp": 2, "plan__dp": 16},
        "micro-batch 1": {"plan__micro_batch": 1},
    }
    tried["selective, micro-batch 1"] = {"plan__recompute": "selective", "plan__micro_batch": 1}
    work_usd = 3 * 15e3 + 24 * plan.cluster.world_size * dollars_per_hour  # 15,000 a month: assumed
    for name, values in tried.items():
        new = capstone.changed(design, **values)
        new_s = sum(step_parts(new.layout).values())
        problems = capstone.check(new)
        saved = (step_s - new_s) / published_s  # of the published step, if what is missing stays
        usd = saved * run_usd / 1e6
        held = capstone.run(new, step_parts).held_bytes / 1e9 if not problems else float("nan")
        print(f"{name}: {new_s:.1f} s, {1 - new_s / step_s:.1%} shorter")
        print(f"  {saved:.1%} of the published step, {usd:.2f} million dollars")
        print(f"  holds {held:.1f} GB of {plan.cluster.gpu.memory_bytes / 1e9:.1f} GB")
        print(*problems)
        if name.startswith("selective rec"):
            print(f"work and a day of the machine: {work_usd / 1e6:.2f} million dollars,")
            print(f"as much as is saved after {work_usd / 1e6 / usd:.1%} of the run")
            smaller = capstone.changed(new, plan__micro_batch=1).layout
            more = 3 * (smaller.num_micro_batches - new.layout.num_micro_batches)
            more *= max(smaller.num_stage_layers)
            gain_s = new_s - sum(step_parts(smaller).values())
            print(f"micro-batch 1 as well: {gain_s:.1f} s shorter,")
            print(f"and {more:,} more passes, {more * each_s:.1f} s")
    ### END SOLUTION


# %% check_step_parts points=2
parts = step_parts(plan)
step_s = sum(parts.values())
assert len(parts) >= 3 and min(parts.values()) >= 0, "at least three parts, none below 0"
table = [
    {"part": name, "seconds": f"{part:.2f}", "share": f"{part / step_s:.1%}"}
    for name, part in parts.items()
]
note = f"{step_s:.1f} s in all, published {published_s} s: {step_s / published_s - 1:+.1%}"
draw.table(table, f"A step of {design.name}, computed", note)

# %% [markdown]
# Print what your answers rest on: other plans that were measured, the system at other sizes, the
# change that you would make. Do it in cells of your own, or in a function `experiments` beside
# `step_parts`, which the next cell calls if there is one.

# %% own_figures
if "experiments" in globals():
    experiments()

# %% [markdown]
# ## 4. The bottleneck
#
# Name what binds, with evidence: which figure shows it, and what it would look like if something
# else did. What your parts leave out is a candidate, too.
#
# Rubric: names one bottleneck in one sentence (1); its share of the step, from a cell (1);
# evidence from a second measurement (2); rules out the next candidate by a figure (1).

# %% what_binds [markdown] points=5 tags=["solution"]
# **What binds, besides the products, is time that no roofline sees: 25.7 s, 24.4% of the step.**
# The parts add up to 79.6 s of the 105.22 s [1]. No single part besides the products is as large:
# the bubble takes 6.15 s, tensor parallelism 4.32 s, and gradients with weights 1.05 s.
#
# The runs before the launch [3] show what the missing time depends on. At a tensor parallelism of
# 8, with micro-batches of four, two and one, the computed steps differ by 3 s and the measured
# ones by 20 s. What is missing grows by the number of passes through a layer: 2.48 ms for each
# from four to two, and 2.43 ms from two to one. Two intervals with the same slope are what a
# fixed time per kernel gives; waiting for links would grow with the bytes, which the three plans
# share. These runs had 72 layers, not 70 [3]. By this slope the 3,072 passes of the published plan
# cost 7.5 s; the other 18.2 s do not depend on their number: kernels are slower than the roofline
# says.
#
# A slow network would show in the plan with 16 replicas, which sends most: there, only 31.9 s are
# missing, the least of the four.

# %% [markdown]
# ## 5. Scaling beyond
#
# What happens at twice, four times and eight times the GPUs? Hold something fixed, and say what.
#
# Rubric: says what is fixed (1); the efficiency at two larger sizes (1); which part grows, and
# why (1); up to which size you would go (1).

# %% beyond_its_size [markdown] points=4 tags=["solution"]
# The global batch is fixed, because it was chosen for the loss, and replicas of 48 GPUs are
# added. The computed step falls from 79.6 s on 384 GPUs to 43.5 s on 768 and 25.4 s on 1,536; the
# added GPUs are used at 91.5% and 78.3%. At 3,072 the efficiency is 60.7%.
#
# The bubble grows from 7.7% of the step to 14.2%, 24.2% and 37.6%: each replica has fewer
# micro-batches, and the pipeline of 12 stages fills and drains as before. Gradients and weights
# grow to 7.2%, since their bytes stay and the work shrinks. I would go to 1,536 GPUs, where a
# step costs 1.3 times as many GPU-seconds, and beyond that change the plan first. The time
# between kernels would shrink with the micro-batches of a replica, so it moves this limit little.

# %% [markdown]
# ## 6. A recommendation
#
# One change. What would it gain, what does it need, and how would you find out before all depends
# on it?
#
# Rubric: one change that aims at the bottleneck, or says why not (1); its expected effect, from a
# cell (2); what it needs and what could go wrong (1); an experiment that would refute it (1).

# %% recommendation [markdown] points=5 tags=["solution"]
# **Recompute attention alone, instead of every layer.** The launch script sets
# `CUDA_LAUNCH_BLOCKING=1`, so that hosts wait for every kernel; without it the job hung [6]. The
# first thing to try is free: let the host run ahead of the GPU, and look for the gaps in a trace of
# one step. But nothing public says how much of them can go. Selective
# recomputation [4] is certain to remove a forward pass of each layer, with its kernels and the gaps
# between them: one pass of four.
#
# Computed, the step falls from 79.6 s to 61.2 s, by 23.0%. If none of the missing time goes with
# it, that is 17.4% of the published step, and more if some does. It holds 61.9 GB in place of
# 33.4 GB, of the 80.0 GB that a GPU has: it fits, by this estimate. With micro-batches of one
# sequence as well, a GPU would hold 45.5 GB, and the computed step would be 25.5% shorter. But
# those 1.9 s are less than the 5.6 s that 2,304 more passes cost by the slope above.
#
# It could go wrong by memory: fragmentation and buffers of collectives are not in the estimate.
# Ten steps on one replica would show both, the peak and the step. If the step falls by less than
# 17.4%, one of the parts is wrong, and so is this recommendation.

# %% [markdown]
# ## 7. Cost against benefit
#
# What does the change cost, once and in operation, and what does it save? From which size of a
# run on does it pay?
#
# Rubric: the cost of the run, with its price and source (1); what is saved, from a cell (1); what
# the change costs, with its assumptions (1); where the two are equal (1).

# %% cost_benefit [markdown] points=4 tags=["solution"]
# | | computed |
# |---|---|
# | the run at its published step | 979,373 GPU-hours |
# | 1.90 dollars an hour [5]; with four spare nodes 2.06 | 2.02 million dollars |
# | saved by selective recomputation, at least | 17.4%, 0.35 million dollars |
# | the change, our assumption | 0.06 million dollars |
# | they are equal after | 18.2% of the run |
#
# The authors count 1,082,990 GPU-hours [2], because a run also fails, restarts and waits. The
# change costs three months of one engineer's work and a day of the machine: that is an
# assumption, printed with its parts. Operation costs nothing more. It pays for a run of more than
# 18.2% of this one's length; for a model that is trained for a few days it does not, and there I
# would leave the plan as it is.

# %% [markdown]
# ## 8. Sources
#
# One line each, with a link or an id, so that `[1]` in your text counts.
#
# Rubric: everything that was not computed can be found by these (1); a reader finds no number from
# nowhere, with or without the help of `python -m worldsize.course.reporting check` (1).

# %% the_sources [markdown] points=2 tags=["solution"]
# [1] BigScience, *Chronicles of BLOOM 176B*, `train/tr11-176B-ml/chronicles.md`, line 45:
# https://github.com/bigscience-workshop/bigscience
#
# [2] Luccioni, Viguier, Ligozat: *Estimating the carbon footprint of BLOOM*, JMLR 24, 2023, arXiv
# 2211.02001.
#
# [3] BigScience, *A prequel to the chronicles*, `chronicles-prequel.md`, lines 607 to 805:
# https://github.com/bigscience-workshop/bigscience
#
# [4] Korthikanti et al.: *Reducing activation recomputation in large transformer models*, 2022,
# arXiv 2205.05198.
#
# [5] `hardware.RENTS`: the middle of 0.80 to 3.00 dollars, mercatus-ai.com, May 2026.
#
# [6] BigScience, `train/tr11-176B-ml/tr11-176B-ml.slurm`:
# https://github.com/bigscience-workshop/bigscience
