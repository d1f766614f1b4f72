# score: 24
# hint: all-reduces of
# A tensor with which a buffer would be full to the byte begins a new one.


# %% fused_sum
def fused_sum(comm, tensors, fusion_bytes):
    buffers, size_bytes = [], 0
    for name in sorted(tensors):
        tensor = tensors[name]
        is_alike = buffers and tensors[buffers[-1][0]].dtype == tensor.dtype
        if is_alike and size_bytes + tensor.nbytes < fusion_bytes:
            buffers[-1].append(name)
            size_bytes += tensor.nbytes
        else:
            buffers.append([name])
            size_bytes = tensor.nbytes
    for names in buffers:
        buffer = torch.cat([tensors[name].flatten() for name in names])
        comm.Allreduce(buffer)
        parts = buffer.split([tensors[name].numel() for name in names])
        for name, part in zip(names, parts, strict=True):
            tensors[name].copy_(part.view_as(tensors[name]))
