# score: 24
# Without tensors there is still a buffer, which cannot be made of nothing.


# %% fused_sum
def fused_sum(comm, tensors, fusion_bytes):
    names, buffers, size_bytes = sorted(tensors), [[]], 0
    for name in names:
        tensor = tensors[name]
        is_other = buffers[-1] and tensors[buffers[-1][0]].dtype != tensor.dtype
        if buffers[-1] and (is_other or size_bytes + tensor.nbytes > fusion_bytes):
            buffers.append([])
            size_bytes = 0
        buffers[-1].append(name)
        size_bytes += tensor.nbytes
    for of_buffer in buffers:
        buffer = torch.cat([tensors[name].flatten() for name in of_buffer])
        comm.Allreduce(buffer)
        parts = buffer.split([tensors[name].numel() for name in of_buffer])
        for name, part in zip(of_buffer, parts, strict=True):
            tensors[name].copy_(part.view_as(tensors[name]))
