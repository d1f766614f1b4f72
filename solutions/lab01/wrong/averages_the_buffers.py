# score: 20
# hint: All buffers take the values of rank 0: no average
# The buffers become the mean over the ranks, and integers are rounded.


# %% synchronise_buffers
def synchronise_buffers(model):
    for buffer in model.buffers():
        total = buffer.double()
        dist.all_reduce(total)
        buffer.copy_(total / dist.get_world_size())
