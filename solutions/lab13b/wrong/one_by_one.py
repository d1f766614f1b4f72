# score: 23
# hint: all-reduces of
# An all-reduce for each tensor.

# %% fused_sum
def fused_sum(comm, tensors, fusion_bytes):
    for name in sorted(tensors):
        whole = tensors[name].contiguous()
        comm.Allreduce(whole)
        tensors[name].copy_(whole)
