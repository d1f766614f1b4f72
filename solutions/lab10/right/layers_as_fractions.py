# Layers of a stage as a fraction; one all-reduce over dp, after which gradients are divided; and
# sums of squares from axis to axis, which kinds with fewer axes join on the way.

# %% rank_bytes
def rank_bytes(job, plan):
    states = (4 + 12 / plan.dp) * num_parameters(job, plan)
    numbers = plan.micro_batch * job.length * job.width / plan.tp
    layers = min(num_micro_batches(job, plan), plan.pp) * (job.num_layers / plan.pp)
    return states + numbers * (2 * layers + 34 if plan.recompute else 34 * layers)


# %% work_s
def work_s(job, machine, plan):
    per_token = (
        2 * (4 * job.width**2 + 2 * job.width * job.hidden_width) + 4 * job.length * job.width
    )
    per_token *= (3 + plan.recompute) * (job.num_layers / plan.pp)
    per_token += 6 * job.vocab_size * job.width
    return plan.micro_batch * job.length * per_token / (plan.tp * machine.flops_per_s)


# %% communication
def tp_s(job, machine, plan):
    rate = (
        machine.node_bytes_per_s
        if plan.tp <= machine.gpus_per_node
        else machine.network_bytes_per_s
    )
    return (
        (4 + 2 * plan.recompute)
        * job.num_layers
        / plan.pp
        * 2
        * (1 - 1 / plan.tp)
        * 2
        * plan.micro_batch
        * job.length
        * job.width
        / rate
    )


def pp_s(job, machine, plan):
    if plan.pp == 1:
        return 0
    rate = (
        machine.node_bytes_per_s
        if machine.num_gpus <= machine.gpus_per_node
        else machine.network_bytes_per_s
    )
    return 4 * plan.micro_batch * job.length * job.width / plan.tp / rate


def dp_s(job, machine, plan):
    if plan.dp == 1:
        return 0
    rate = (
        machine.node_bytes_per_s
        if plan.tp * plan.dp <= machine.gpus_per_node
        else machine.network_bytes_per_s
    )
    all_s = 4 * (1 - 1 / plan.dp) * num_parameters(job, plan) / rate
    hidden = min(
        (0.75 if plan.recompute else 2 / 3) * work_s(job, machine, plan),
        all_s * (1 - plan.pp / job.num_layers),
    )
    return all_s - hidden


# %% gradients_on_mesh
class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, is_in):
        ctx.group, ctx.is_in = group, is_in
        if is_in:
            return x.view_as(x)
        y = x.detach().clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, g):
        if ctx.is_in:
            g = g.clone()
            dist.all_reduce(g, group=ctx.group)
        return g, None, None


def gradients_on_mesh(blocks, inputs, targets, mesh):
    x = inputs
    for block in blocks:
        h = _Pair.apply(x * block.scale, mesh.tp, True)
        x = x + _Pair.apply(inner(block, h), mesh.tp, False) + block.bias
    loss = sum_of_losses(x, targets)
    weights = [one for block in blocks for one in block]
    grads = torch.autograd.grad(loss, weights)
    flat = torch.cat(
        [one.reshape(-1) for one in grads]
        + [loss.detach().view(1), torch.tensor([float(targets.numel())])]
    )
    dist.all_reduce(flat, group=mesh.dp)
    flat = flat / flat[-1]
    for one, g in zip(weights, flat[:-2].split([one.numel() for one in weights]), strict=True):
        one.grad = g.reshape(one.shape)
    return float(flat[-2])


# %% clip
def clip(tensors, max_norm, groups):
    order = sorted(groups)
    pending = {}
    for tensor, axes in tensors:
        kind = frozenset(axes)
        pending[kind] = pending.get(kind, 0) + tensor.float().square().sum()
    for axis in order:
        for kind in sorted([k for k in pending if axis in k and min(k) == axis], key=sorted):
            value = pending.pop(kind)
            value = torch.as_tensor(value, dtype=torch.float32).reshape(1).clone()
            dist.all_reduce(value, group=groups[axis])
            rest = kind - {axis}
            pending[rest] = pending.get(rest, 0) + value[0]
    norm = math.sqrt(sum(float(v) for v in pending.values()))
    if norm > max_norm:
        for tensor, _ in tensors:
            tensor.copy_(tensor.float() * (max_norm / norm))
    return norm


# %% arrange
def arrange(sizes, sent_bytes, gpus_per_node):
    def leaving(order):
        stride, total, n = 1, 0.0, math.prod(sizes.values())
        for axis in reversed(order):
            size = sizes[axis]
            for r in range(n):
                at = r // stride % size
                to = r + stride * ((at + 1) % size - at)
                total += sent_bytes[axis] * (r // gpus_per_node != to // gpus_per_node)
            stride *= size
        return total

    return list(sorted(itertools.permutations(sizes), key=leaving)[0])
