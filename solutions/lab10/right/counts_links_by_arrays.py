# The order of the axes by arrays of ranks, rolled along each axis; work by parts; memory by
# classes.

# %% arrange
def arrange(sizes, sent_bytes, gpus_per_node):
    best = None
    for order in itertools.permutations(sizes):
        nodes = torch.arange(math.prod(sizes.values())).view(*[sizes[axis] for axis in order])
        nodes = nodes // gpus_per_node
        leaving = 0.0
        for dim, axis in enumerate(order):
            leaving += sent_bytes[axis] * (nodes != nodes.roll(-1, dim)).sum().item()
        if best is None or leaving < best[0]:
            best = leaving, list(order)
    return best[1]


# %% work_s
def work_s(job, machine, plan):
    tokens = plan.micro_batch * job.length
    attention = 8 * job.width**2 + 4 * job.length * job.width
    mlp = 4 * job.width * job.hidden_width
    layers = (attention + mlp) * job.num_layers / plan.pp
    forward_s = tokens * layers / (plan.tp * machine.flops_per_s)
    head_s = tokens * 2 * job.width * job.vocab_size / (plan.tp * machine.flops_per_s)
    return (3 + plan.recompute) * forward_s + 3 * head_s


# %% step_time
def step_s(job, machine, plan):
    args = job, machine, plan
    turn_s = work_s(*args) + tp_s(*args) + pp_s(*args)
    steady_s = num_micro_batches(job, plan) * turn_s
    return steady_s + (plan.pp - 1) * turn_s + dp_s(*args)


def bubble_fraction(job, plan):
    return 1 - num_micro_batches(job, plan) / (num_micro_batches(job, plan) + plan.pp - 1)


# %% rank_bytes
def rank_bytes(job, plan):
    number = num_parameters(job, plan)
    weights, gradients, state = 2 * number, 2 * number, 12 * number / plan.dp
    layers = job.num_layers // plan.pp
    flying = min(plan.pp, num_micro_batches(job, plan))
    one = plan.micro_batch * job.length * job.width / plan.tp
    if plan.recompute:
        return weights + gradients + state + 2 * one * layers * flying + 34 * one
    return weights + gradients + state + 34 * one * layers * flying
