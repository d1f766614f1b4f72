# score: 22
# hint: 12 / dp
# Every rank holds 16 bytes a parameter: nothing is sharded along dp.

# %% rank_bytes
def rank_bytes(job: Job, plan: Plan) -> float:
    states = 16 * num_parameters(job, plan)
    numbers = plan.micro_batch * job.length * job.width / plan.tp
    in_flight = min(num_micro_batches(job, plan), plan.pp)
    layers = in_flight * job.num_layers // plan.pp
    return states + numbers * (2 * layers + 34 if plan.recompute else 34 * layers)
