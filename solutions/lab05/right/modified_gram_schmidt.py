# Gram-Schmidt by hand, a fresh column where one has no length; a rank keeps M less its own part, P
# times its own Q.


# %% orthogonalise
def orthogonalise(matrix):
    generator = torch.Generator().manual_seed(1)
    for place in range(matrix.shape[1]):
        column = matrix[:, place]
        if column.norm() < 1e-12:
            column.copy_(torch.randn(len(matrix), generator=generator))
        for _ in range(2):
            for other in range(place):
                column -= (column @ matrix[:, other]) * matrix[:, other]
        column /= column.norm().clamp(min=1e-20)
    return matrix


# %% power_hook
def power_hook(state, bucket):
    size, seeds = dist.get_world_size(), torch.Generator()
    compressed, others = [], []
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        n = parameter.shape[0] if parameter.dim() else 1
        m = parameter.numel() // n
        r = min(state.rank, n, m)
        if parameter.dim() >= 2 and r * (n + m) < n * m:
            if parameter in state.memory:
                gradient.add_(state.memory[parameter])
            q = state.q.get(parameter)
            if q is None or q.norm() == 0:
                q = torch.randn(m, r, generator=seeds.manual_seed(state.seed))
            compressed.append((parameter, gradient.reshape(n, m).clone(), q, gradient))
        else:
            others.append(gradient)
    first = torch.cat(
        [(matrix @ q).flatten() for _, matrix, q, _ in compressed]
        + [one.flatten() for one in others]
    )
    dist.all_reduce(first)
    own, ps = [], []
    for _, matrix, q, _ in compressed:
        num = len(matrix) * q.shape[1]
        ps.append(orthogonalise(first[:num].view(len(matrix), -1).clone()))
        own.append(matrix.t() @ ps[-1])
        first = first[num:]
    for gradient in others:
        gradient.copy_(first[: gradient.numel()].view_as(gradient) / size)
        first = first[gradient.numel() :]
    if compressed:
        second = torch.cat([q.flatten() for q in own])
        dist.all_reduce(second)
        for (parameter, matrix, _, gradient), p, q in zip(compressed, ps, own, strict=True):
            state.q[parameter] = second[: q.numel()].view_as(q) / size
            second = second[q.numel() :]
            gradient.copy_((p @ state.q[parameter].t()).view_as(gradient))
            state.memory[parameter] = (matrix - p @ q.t()).view_as(gradient)
    result = torch.futures.Future()
    result.set_result(bucket.buffer())
    return result
