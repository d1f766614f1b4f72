"""Three programs that go with a design of a training system; their contracts are in report.ipynb.

Try them: python programs.py
"""

# %% setup
import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from worldsize import hardware, operators, outages
from worldsize.models import Transformer, shape
from worldsize.outages import Status, TrainingJob
from worldsize.planning import Plan
from worldsize.pricing import price

# the job that `policy` decides for; the judge puts others in its place
JOB = TrainingJob(num_nodes=256, stall_s=5, write_s=60, start_s=600, num_spares=8)
LEARNING_RATE, EPS = 3e-3, 1e-3  # of AdamW in `train`


# %% seconds_of_a_step tags=["solution"]
def step_s(plan: Plan) -> float | dict[str, float]:
    """The seconds of a step under a plan, or named parts whose sum they are.

    `plan` is any legal `worldsize.planning.Plan` without experts, of a "llama" or a "gpt". Use the model's sizes and
    the cluster's rates; the names are changed. Gradients are summed in float32.
    """
    ### BEGIN SOLUTION
    model, gpu, cluster = plan.model, plan.cluster.gpu, plan.cluster
    num_tokens, num_micro, num_layers = plan.num_micro_batch_tokens, plan.num_micro_batches, max(plan.num_stage_layers)

    def collective_s(op: str, size_bytes: float, ranks: range) -> float:
        return price(op, size_bytes, ranks, cluster).time_s if len(ranks) > 1 else 0.0

    def product_s(flops: float) -> float:
        return operators.time_s(operators.Operator("matmul", "bfloat16", flops, 0), gpu)

    def passes_s(num_numbers: float) -> float:
        return operators.time_s(operators.Operator("elementwise", "bfloat16", 0, 2 * num_numbers), gpu)

    is_gpt = model.family == "gpt"
    scores = 4 * plan.length * model.width / (1 if is_gpt else 2)  # of a token; a fused kernel skips what is masked
    # with "gpt" scores are written, and read again by softmax and dropout
    written = 5.5 * plan.length * model.num_heads if is_gpt else 0
    layer_s = 4 * product_s(num_tokens * 2 * model.num_layer_weights / plan.tp / 4)
    attention_s = product_s(num_tokens * scores / plan.tp) + passes_s(num_tokens * written / plan.tp)
    others_s = passes_s(num_tokens * (6 * model.hidden_width + 24 * model.width) / plan.tp)
    forward_s = layer_s + attention_s + others_s
    again_s = {"none": 0.0, "selective": attention_s if is_gpt else others_s, "full": forward_s}[plan.recompute]
    work_s = 3 * forward_s + again_s
    messages = 4 if plan.recompute != "full" else 6  # of attention and MLP, in each pass
    size_bytes = 2 * num_tokens * model.width
    tp_s = messages * sum(collective_s(op, size_bytes, plan.tp_ranks) for op in ("all_gather", "reduce_scatter"))
    cp_s = 3 * collective_s("all_gather", 4 * plan.micro_batch * plan.length * model.kv_width / plan.tp, plan.cp_ranks)
    head_s = 3 * product_s(num_tokens * model.head_flops / plan.tp)
    micro_s = num_layers * (work_s + tp_s + cp_s)
    if plan.num_stage_layers[-1] == num_layers:  # the last stage has the head too
        micro_s += head_s
    stages_s = 0.0
    if plan.pp > 1:
        sends = 2 * num_micro * plan.num_chunks
        stages_s = sends * price("send", size_bytes / plan.tp, plan.pp_ranks[:2], cluster).time_s
    sum_s = gather_s = 0.0
    if plan.num_shards > 1:
        summing = "reduce_scatter" if plan.zero_stage else "all_reduce"
        sum_s = collective_s(summing, 4 * plan.most_parameters, plan.shard_ranks)
        gather_s = collective_s("all_gather", 2 * plan.most_parameters, plan.shard_ranks) if plan.zero_stage else 0.0
    # what comes after the first layer's, or before the last one's, goes on beside the work of one pass
    times = num_micro if plan.zero_stage == 3 else 1
    gathers = times * (2 * gather_s if plan.zero_stage == 3 else gather_s)
    sums = (num_micro if plan.zero_stage >= 2 else 1) * sum_s
    beside_s = (num_micro if plan.zero_stage >= 2 else 1) * micro_s
    exposed_s = max(gathers + sums - beside_s, (gathers + sums) / num_layers)
    return {
        "work_s": num_micro * micro_s,
        "bubble_s": micro_s * (plan.pp - 1) / plan.num_chunks,
        "stages_s": stages_s,
        "dp_s": exposed_s if plan.num_shards > 1 else 0.0,
    }
    ### END SOLUTION


# %% policy tags=["solution"]
def policy(status: Status) -> outages.SavePlan | float:
    """The seconds of training until the next save, or an `outages.SavePlan` that also says on how many nodes to train.

    It decides for `JOB`, which is read anew at each call. Only the status shows how often nodes fail: `num_failures` in
    `time_s`. How long they stay away it does not say; `num_healthy` are those that can be used now. The answer follows
    from `status` and `JOB` alone: after a failure the program itself begins anew.
    Until the next save it trains for `JOB.durable_s` or more: a save must be whole before another one begins.
    """
    ### BEGIN SOLUTION
    # failures are a Poisson process: its rate by what was seen, and before that by Llama 3's
    usual_s = 3600 / sum(one.per_node_hour for one in outages.published("Llama 3")) / JOB.num_nodes
    mean_s = (usual_s + status.time_s) / (1 + status.num_failures)
    every_s = math.sqrt(2 * max(JOB.stall_s, 1.0) * mean_s)  # Young 1974
    return outages.SavePlan(max(every_s, JOB.durable_s), min(JOB.num_nodes, status.num_healthy))
    ### END SOLUTION


# %% train tags=["solution"]
def train(plan: Plan, tokens: Tensor | None = None, targets: Tensor | None = None) -> Any:
    """Take one step on this rank as the plan says, and return the rank's part of the model, for `whole_weights`.

    - The model is `Transformer(plan.model, seed=0)`. After the step, the parts of all ranks together are the weights
      of a single process that trains on the whole global batch with `torch.optim.AdamW(model.parameters(),
      lr=LEARNING_RATE, eps=EPS)`, by the mean loss of all its tokens.
    - `plan.pp`, `plan.cp` and `plan.ep` are 1. The ranks are a mesh of dp and tp, tp the innermost. tp ranks share
      every product of a layer, dp ranks take sequences of their own. With `plan.zero_stage` 3, dp ranks also share
      weights, gradients and moments. With `plan.recompute` "full", layers keep only their inputs.
    - Each replica takes its sequences in `plan.num_micro_batches` parts.
    - Forward passes run under `torch.autocast("cpu", torch.bfloat16)` if `plan.model.width` is 1,024 or more.
    - The same program runs with data and on paper: what a tensor holds decides nothing.

    Shapes:
        tokens, targets: (plan.global_batch, plan.length); without them, zeros. Replica d reads its own rows,
            d * share to (d + 1) * share; in the others, a rank may be given anything.
    """
    ### BEGIN SOLUTION
    from torch.distributed import device_mesh
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    if tokens is None or targets is None:
        tokens = targets = torch.zeros(plan.global_batch, plan.length, dtype=torch.long)
    mesh = device_mesh.init_device_mesh("cpu", (plan.dp, plan.tp), mesh_dim_names=("dp", "tp"))
    model: Any = Transformer(plan.model, seed=0)
    if plan.tp > 1:  # Megatron's cuts; between the layers, each rank has a part of the tokens
        gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        columns = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
        cuts: dict[str, ParallelStyle] = dict.fromkeys(columns, ColwiseParallel())
        cuts |= dict.fromkeys(("attention.output", "mlp.down"), RowwiseParallel(output_layouts=Shard(1)))
        cuts |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
        cuts |= {"attention": gather, "mlp": gather}
        for layer in model.layers.values():
            parallelize_module(layer, mesh["tp"], cuts)
        ends: dict[str, ParallelStyle] = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(model, mesh["tp"], ends)
    if plan.recompute == "full":
        for name, block in model.layers.items():
            model.layers[name] = checkpoint_wrapper(block)
    for part in (*model.layers.values(), model):
        fully_shard(part, mesh=mesh["dp"])
    adam = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=EPS, foreach=True)
    share, place = plan.global_batch // plan.dp, mesh.get_local_rank("dp")
    own, num_micro = slice(place * share, (place + 1) * share), plan.num_micro_batches
    for number, (piece, wanted) in enumerate(
        zip(tokens[own].chunk(num_micro), targets[own].chunk(num_micro), strict=True), start=1
    ):
        model.set_requires_gradient_sync(number == num_micro)  # gradients add up, and are averaged once
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.model.width >= 1024):
            logits = model(piece)
        with loss_parallel():
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten()) / num_micro
            loss.backward()
    adam.step()
    return model
    ### END SOLUTION


# %% whole_weights tags=["solution"]
def whole_weights(plan: Plan, part: Any) -> dict[str, Tensor]:
    """The weights of the whole model by their names in `Transformer(plan.model)`; every rank calls this together.

    `part` is what `train` returned. Only what rank 0 returns is used.
    """
    ### BEGIN SOLUTION
    from torch.distributed.tensor import DTensor

    return {
        key.replace("_checkpoint_wrapped_module.", ""): one.full_tensor() if isinstance(one, DTensor) else one
        for key, one in part.state_dict().items()
    }
    ### END SOLUTION


# %% main
if __name__ == "__main__":
    cluster = hardware.cluster("h100-ndr-x16")
    tried = Plan(
        model=shape("llama-3-70b"),
        cluster=cluster,
        global_batch=256,
        length=8192,
        dp=16,
        tp=8,
        pp=1,
        cp=1,
        micro_batch=1,
        num_chunks=1,
        recompute="full",
        zero_stage=3,
    )
    print(f"step_s: {step_s(tried)}")
    print(f"policy at the start: {policy(Status('start', 0.0, 0.0, 0, JOB.num_nodes + JOB.num_spares, 0))}")
