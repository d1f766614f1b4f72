# score: 23
# hint: once 34 more
# With recomputation every layer has its activations again, at once.

# %% rank_bytes
def rank_bytes(job: Job, plan: Plan) -> float:
    states = (2 + 2 + 12 / plan.dp) * num_parameters(job, plan)
    numbers = plan.micro_batch * job.length * job.width / plan.tp
    in_flight = min(num_micro_batches(job, plan), plan.pp)
    layers = in_flight * job.num_layers // plan.pp
    return states + numbers * (36 * layers if plan.recompute else 34 * layers)
