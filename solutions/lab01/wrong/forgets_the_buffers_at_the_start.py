# score: 21.5
# hint: All of model.buffers()
# Only the parameters are broadcast.


# %% broadcast_model
def broadcast_model(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
