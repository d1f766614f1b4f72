# score: 23
# hint: bytes of state or some more
# Only parameters are broadcast: neither buffers nor the optimizer.

# %% broadcast_state
def broadcast_state(comm, model, optimizer, root=0):
    for one in model.parameters():
        comm.Bcast(one.data, root)
