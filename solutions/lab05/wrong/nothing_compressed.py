# score: 10.75
# hint: Until then, everything else earns half
# Neither hook compresses: the masked bucket is gathered, and matrices are all-reduced.

# %% top_k_hook
def top_k_hook(state, bucket):
    buffer, world_size = bucket.buffer(), dist.get_world_size()
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        gradient += state.memory.get(parameter, 0)
    values, places = top_k(buffer, state.num_sent(buffer.numel()))
    sent = torch.zeros_like(buffer).index_copy(0, places.long(), values)
    buffer -= sent
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        state.memory[parameter] = gradient.clone()
    of_ranks = [torch.empty_like(sent) for _ in range(world_size)]
    work = dist.all_gather(of_ranks, sent, async_op=True)
    return work.get_future().then(lambda _: torch.stack(of_ranks).mean(dim=0))


# %% power_hook
def power_hook(state: PowerState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
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
            state.q[parameter] = torch.randn(num_columns, rank, generator=generator).to(
                gradient.device
            )
        gradient += state.memory.get(parameter, 0)
        matrices.append((parameter, gradient, gradient.view(num_rows, num_columns)))

    whole = summed([matrix for _, _, matrix in matrices]) if matrices else []
    if plain:
        for gradient, total in zip(plain, summed(plain), strict=True):
            gradient.copy_(total / world_size)
    if matrices:
        ps = [
            orthogonalise(total @ state.q[one[0]])
            for total, one in zip(whole, matrices, strict=True)
        ]
        qs = [total.t() @ p for total, p in zip(whole, ps, strict=True)]
        for (parameter, gradient, matrix), p, q in zip(matrices, ps, qs, strict=True):
            state.q[parameter] = q / world_size
            result = p @ state.q[parameter].t()
            state.memory[parameter] = gradient - result.view_as(gradient)
            matrix.copy_(result)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
