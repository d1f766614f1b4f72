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


# %% seconds_of_a_step
def step_s(plan: Plan) -> float | dict[str, float]:
    """The seconds of a step under a plan, or named parts whose sum they are.

    `plan` is any legal `worldsize.planning.Plan` without experts, of a "llama" or a "gpt". Use the model's sizes and
    the cluster's rates; the names are changed. Gradients are summed in float32.
    """
    raise NotImplementedError("Replace this line with your own code.")


# %% policy
def policy(status: Status) -> outages.SavePlan | float:
    """The seconds of training until the next save, or an `outages.SavePlan` that also says on how many nodes to train.

    It decides for `JOB`, which is read anew at each call. Only the status shows how often nodes fail: `num_failures` in
    `time_s`. How long they stay away it does not say; `num_healthy` are those that can be used now. The answer follows
    from `status` and `JOB` alone: after a failure the program itself begins anew.
    Until the next save it trains for `JOB.durable_s` or more: a save must be whole before another one begins.
    """
    raise NotImplementedError("Replace this line with your own code.")


# %% train
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
    raise NotImplementedError("Replace this line with your own code.")


# %% whole_weights
def whole_weights(plan: Plan, part: Any) -> dict[str, Tensor]:
    """The weights of the whole model by their names in `Transformer(plan.model)`; every rank calls this together.

    `part` is what `train` returned. Only what rank 0 returns is used.
    """
    raise NotImplementedError("Replace this line with your own code.")


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
