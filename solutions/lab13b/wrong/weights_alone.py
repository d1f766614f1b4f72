# score: 23
# hint: the root's weights and buffers
# Only parameters are broadcast: neither buffers nor the optimizer.

# %% broadcast_state
def broadcast_state(comm, model, optimizer, root=0):
    for one in model.parameters():
        comm.Bcast(one.data, root)
