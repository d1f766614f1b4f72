# score: 23.5
# hint: Divide before you keep it
# state.q holds the sum over the ranks of all Q, where the mean is promised; the result is right.


# %% power_hook
def power_hook(state, bucket):
    world_size, plain, matrices = dist.get_world_size(), [], []
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
        for gradient, total in zip(plain, summed(plain), strict=True):
            gradient.copy_(total / world_size)
    if matrices:
        ps = summed([matrix @ state.q[parameter] for parameter, _, matrix in matrices])
        ps = [orthogonalise(p) for p in ps]
        qs = summed([matrix.t() @ p for (_, _, matrix), p in zip(matrices, ps, strict=True)])
        for (parameter, gradient, matrix), p, q in zip(matrices, ps, qs, strict=True):
            state.q[parameter] = q
            result = p @ q.t() / world_size
            state.memory[parameter] = gradient - result.view_as(gradient)
            matrix.copy_(result)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
