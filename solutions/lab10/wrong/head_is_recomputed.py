# score: 23
# hint: the head 3 times
# With recomputation the head runs forward twice, too.

# %% work_s
def work_s(job: Job, machine: Machine, plan: Plan) -> float:
    weights = 4 * job.width**2 + 2 * job.width * job.hidden_width
    layer = 2 * weights + 4 * job.length * job.width
    passes = 4 if plan.recompute else 3
    head = 2 * job.vocab_size * job.width
    flops = passes * job.num_layers // plan.pp * layer + passes * head
    return plan.micro_batch * job.length * flops / plan.tp / machine.flops_per_s
