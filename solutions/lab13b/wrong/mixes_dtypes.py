# score: 25
# hint: all-reduces of
# A buffer of the widest dtype that is in it.

# %% fused_sum
def fused_sum(comm, tensors: dict[str, torch.Tensor], fusion_bytes: int) -> None:
    """Replace each tensor by its sum over all ranks, in place, in few all-reduces.

    - All ranks have the same names with the same shapes and dtypes; the order of the dict may
      differ from rank to rank.
    - Tensors go in the order of their **names**, sorted. A buffer takes the next tensor if it has
      the same dtype and if all of the buffer is then `fusion_bytes` or less; otherwise the next
      buffer begins with it. So a tensor that is larger than `fusion_bytes` goes alone.
    - One all-reduce for each buffer. It holds the tensors' elements one after the other, each
      tensor row by row, in their dtype, and nothing else.
    - Tensors may have any shape, and need not be contiguous. Without tensors, nothing is sent.
    """
    buffers, left_bytes = [], 0
    for name in sorted(tensors):
        tensor = tensors[name]
        if not buffers or tensor.nbytes > left_bytes:
            buffers.append([])
            left_bytes = fusion_bytes
        buffers[-1].append(name)
        left_bytes -= tensor.nbytes
    for names in buffers:
        buffer = torch.cat([tensors[name].flatten() for name in names])
        comm.Allreduce(buffer)
        parts = buffer.split([tensors[name].numel() for name in names])
        for name, part in zip(names, parts, strict=True):
            tensors[name].copy_(part.view_as(tensors[name]))
