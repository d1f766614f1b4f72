# score: 29.5
# hint: All buffers count
# Only parameters are broadcast.


# %% broadcast_state
def broadcast_state(module):
    for parameter in module.parameters():
        dist.broadcast(parameter.data, src=0)
