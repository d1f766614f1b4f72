# score: 20
# hint: still has its own values
# Each rank keeps the running statistics of its own samples.


# %% synchronise_buffers
def synchronise_buffers(model):
    pass
