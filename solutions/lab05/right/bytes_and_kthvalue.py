# Another top_k by kthvalue, a basis by SVD, vectors and P in one all-reduce, entries as bytes.


# %% top_k
def top_k(vector, k):
    sizes = vector.abs()
    threshold = sizes.kthvalue(len(vector) - k + 1).values
    above = (sizes > threshold).nonzero().flatten()
    equal = (sizes == threshold).nonzero().flatten()[: k - len(above)]
    places = torch.cat([above, equal])
    return vector.index_select(0, places), places.to(torch.int32)


# %% orthogonalise
def orthogonalise(matrix):
    return torch.linalg.svd(matrix, full_matrices=False).U.contiguous()


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

    def summed(tensors):
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]

    if plain:
        pass
    if plain and not matrices:
        for gradient, total in zip(plain, summed(plain), strict=True):
            gradient.copy_(total / world_size)
    if matrices:
        totals = summed(
            [*plain, *(matrix @ state.q[parameter] for parameter, _, matrix in matrices)]
        )
        for gradient, total in zip(plain, totals, strict=False):
            gradient.copy_(total / world_size)
        ps = [orthogonalise(p) for p in totals[len(plain) :]]
        qs = summed([matrix.t() @ p for (_, _, matrix), p in zip(matrices, ps, strict=True)])
        for (parameter, gradient, matrix), p, q in zip(matrices, ps, qs, strict=True):
            state.q[parameter] = q / world_size
            result = p @ state.q[parameter].t()
            state.memory[parameter] = gradient - result.view_as(gradient)
            matrix.copy_(result)
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


# %% top_k_hook
def top_k_hook(state, bucket):
    world_size, tensors = dist.get_world_size(), list(bucket.parameters())
    kept = torch.cat(
        [
            state.memory[one].flatten() if one in state.memory else torch.zeros(one.numel())
            for one in tensors
        ]
    )
    total = bucket.buffer() + kept
    k = state.num_sent(total.numel())
    values, places = top_k(total, k)
    message = torch.cat(
        [values.contiguous().view(torch.uint8), places.contiguous().view(torch.uint8)]
    )
    inboxes = [torch.empty_like(message) for _ in range(world_size)]
    work = dist.all_gather(inboxes, message, async_op=True)
    rest = total.clone()
    rest[places.long()] = 0
    at = 0
    for one in tensors:
        state.memory[one] = rest[at : at + one.numel()].clone().reshape(one.shape)
        at += one.numel()

    def unpack(_):
        mean = torch.zeros_like(total)
        for inbox in inboxes:
            theirs, where = (
                inbox[: 4 * k].clone().view(torch.float32),
                inbox[4 * k :].clone().view(torch.int32),
            )
            mean[where.long()] += theirs / world_size
        return mean

    return work.get_future().then(unpack)
