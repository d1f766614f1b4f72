# PowerSGD that waits for P alone: Q and what is not compressed are unpacked in the future's
# callback.


# %% power_hook
def start(tensors):
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors]) if tensors else torch.zeros(0)
    future = dist.all_reduce(flat, async_op=True).get_future()

    def parts():
        where = 0
        for tensor in tensors:
            yield flat[where : where + tensor.numel()].view_as(tensor)
            where += tensor.numel()

    return future, parts


def power_hook(state, bucket):
    size, compressed, plain = dist.get_world_size(), {}, []
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        matrix = gradient.flatten(1) if gradient.dim() > 1 else gradient.reshape(1, -1)
        rank = min(state.rank, *matrix.shape)
        if rank * sum(matrix.shape) < matrix.numel():
            if parameter in state.memory:
                matrix += state.memory[parameter].view_as(matrix)
            compressed[parameter] = matrix
            if not state.q.get(parameter, torch.zeros(1)).abs().max() > 0:
                generator = torch.Generator().manual_seed(state.seed)
                state.q[parameter] = torch.randn(matrix.shape[1], rank, generator=generator)
        else:
            plain.append(gradient)
    of_plain, plain_sums = start(plain)
    of_p, p_sums = start([matrix @ state.q[parameter] for parameter, matrix in compressed.items()])
    of_p.wait()
    ps = [orthogonalise(p) for p in p_sums()]
    of_q, q_sums = start(
        [matrix.t() @ p for matrix, p in zip(compressed.values(), ps, strict=True)]
    )

    def unpack(_):
        for gradient, total in zip(plain, plain_sums(), strict=True):
            gradient.copy_(total / size)
        for (parameter, matrix), p, q in zip(compressed.items(), ps, q_sums(), strict=True):
            state.q[parameter] = q / size
            result = p @ state.q[parameter].t()
            state.memory[parameter] = (matrix - result).view(parameter.shape)
            matrix.copy_(result)
        return bucket.buffer()

    return torch.futures.collect_all([of_plain, of_q]).then(unpack)
