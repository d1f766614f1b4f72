# All gradients travel as one vector, and so do all buffers of one dtype.


# %% average_gradients
def average_gradients(model, num_local_samples):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    pieces = []
    for parameter in parameters:
        is_missing = num_local_samples == 0 or parameter.grad is None
        pieces.append(
            torch.zeros_like(parameter).flatten() if is_missing else parameter.grad.flatten()
        )
    flat = torch.cat([*pieces, pieces[0].new_ones(1)]) * num_local_samples
    dist.all_reduce(flat)
    flat[:-1] /= flat[-1].clone()
    for parameter, piece in zip(
        parameters, flat[:-1].split([p.numel() for p in parameters]), strict=True
    ):
        parameter.grad = piece.view_as(parameter)


# %% synchronise_buffers
def synchronise_buffers(model):
    by_dtype = {}
    for buffer in model.buffers():
        by_dtype.setdefault(buffer.dtype, []).append(buffer)
    for buffers in by_dtype.values():
        flat = torch.cat([buffer.flatten() for buffer in buffers])
        dist.broadcast(flat, src=0)
        for buffer, piece in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
            buffer.copy_(piece.view_as(buffer))
