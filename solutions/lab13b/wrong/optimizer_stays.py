# score: 25
# hint: the root's optimizer state
# The model is broadcast whole, the optimizer not at all.

# %% broadcast_state
def broadcast_state(comm, model, optimizer, root=0):
    for one in model.state_dict().values():
        comm.Bcast(one, root)
