# The squares of all kinds travel as one vector, an operation for each axis, in which the other
# kinds are zero; the cost model is written with one helper for rings; the search is recursive
# over factors.

# %% clip
def clip(tensors, max_norm, groups):
    kinds = sorted({tuple(sorted(axes)) for _, axes in tensors})
    squares = torch.zeros(len(kinds), dtype=torch.float64)
    for tensor, axes in tensors:
        squares[kinds.index(tuple(sorted(axes)))] += tensor.float().square().sum().double()
    for axis in sorted(groups):
        of_axis = torch.tensor([float(axis in kind) for kind in kinds], dtype=torch.float64)
        if not of_axis.any():
            continue
        total = squares * of_axis
        dist.all_reduce(total, group=groups[axis])
        squares = torch.where(of_axis > 0, total, squares)
    norm = squares.sum().sqrt().item()
    factor = min(1.0, max_norm / norm) if norm else 1.0
    if factor < 1:
        for tensor, _ in tensors:
            tensor.copy_((tensor.float() * factor).to(tensor.dtype))
    return norm


# %% communication
def ring_s(num_bytes, num_ranks, span, machine):
    rate = machine.network_bytes_per_s
    if span <= machine.gpus_per_node:
        rate = machine.node_bytes_per_s
    return (2 - 2 / num_ranks) * num_bytes / rate


def tp_s(job, machine, plan):
    size = plan.micro_batch * job.length * job.width * 2
    halves = 2 * job.num_layers / plan.pp
    return halves * (2 + plan.recompute) * ring_s(size, plan.tp, plan.tp, machine)


def pp_s(job, machine, plan):
    inside = machine.num_gpus <= machine.gpus_per_node
    rate = machine.node_bytes_per_s if inside else machine.network_bytes_per_s
    size = plan.micro_batch * job.length * job.width * 2 / plan.tp
    return (plan.pp > 1) * 2 * size / rate


def dp_s(job, machine, plan):
    total = ring_s(2 * num_parameters(job, plan), plan.dp, plan.tp * plan.dp, machine)
    hidden = work_s(job, machine, plan) * (9 if plan.recompute else 8) / 12
    return max(total - hidden, total * plan.pp / job.num_layers)


# %% choose
def choose(job, machine):
    best, best_s = None, math.inf

    def divisors(number):
        return [one for one in range(1, number + 1) if number % one == 0]

    for pp in divisors(math.gcd(machine.num_gpus, job.num_layers)):
        for tp in divisors(math.gcd(machine.num_gpus // pp, job.num_heads, job.hidden_width)):
            dp = machine.num_gpus // pp // tp
            if job.global_batch % dp:
                continue
            for micro_batch in reversed(divisors(job.global_batch // dp)):
                for recompute in (True, False):
                    plan = Plan(dp=dp, tp=tp, pp=pp, micro_batch=micro_batch, recompute=recompute)
                    if rank_bytes(job, plan) > machine.memory_bytes:
                        continue
                    time_s = step_s(job, machine, plan)
                    if time_s < best_s:
                        best, best_s = plan, time_s
    return best
