# score: 22
# hint: min(m, pp)
# All micro-batches are in flight, as in GPipe.

# %% rank_bytes
def rank_bytes(job: Job, plan: Plan) -> float:
    states = (2 + 2 + 12 / plan.dp) * num_parameters(job, plan)
    numbers = plan.micro_batch * job.length * job.width / plan.tp
    in_flight = num_micro_batches(job, plan)
    layers = in_flight * job.num_layers // plan.pp
    return states + numbers * (2 * layers + 34 if plan.recompute else 34 * layers)
