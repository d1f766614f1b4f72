# score: 19
# hint: keeps the statistics of its own samples
# Each rank keeps the running statistics of its own samples.


# %% synchronise_buffers
def synchronise_buffers(model):
    pass
