# score: 17.5
# hint: all-reduces alone
# Whole matrices travel by broadcasts, and every rank computes P and Q by itself.

# %% power_hook
def power_hook(state, bucket):
    me, world_size, plain, matrices = dist.get_rank(), dist.get_world_size(), [], []
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        num_rows = parameter.shape[0] if parameter.dim() > 1 else 1
        num_columns = parameter.numel() // num_rows
        rank = min(state.rank, num_rows, num_columns)
        if rank * (num_rows + num_columns) >= parameter.numel():
            plain.append(gradient)
            continue
        if parameter not in state.q or not state.q[parameter].any():
            generator = torch.Generator().manual_seed(state.seed)
            state.q[parameter] = torch.randn(num_columns, rank, generator=generator)
        gradient += state.memory.get(parameter, 0)
        matrices.append((parameter, gradient, gradient.view(num_rows, num_columns)))
    if plain:
        flat = torch.cat([one.flatten() for one in plain])
        dist.all_reduce(flat)
        for gradient, total in zip(plain, flat.split([one.numel() for one in plain]), strict=True):
            gradient.copy_(total.view_as(gradient) / world_size)
    for parameter, gradient, matrix in matrices:
        total = torch.zeros_like(matrix)
        for one in range(world_size):
            theirs = matrix.clone() if one == me else torch.empty_like(matrix)
            dist.broadcast(theirs, src=one)
            total += theirs
        p = orthogonalise(total @ state.q[parameter])
        state.q[parameter] = total.t() @ p / world_size
        result = p @ state.q[parameter].t()
        state.memory[parameter] = gradient - result.view_as(gradient)
        matrix.copy_(result)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
