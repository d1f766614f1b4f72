# score: 19.5
# hint: still has its own values
# The model is never broadcast: every rank trains from where it happened to start.


# %% broadcast_model
def broadcast_model(model):
    pass
