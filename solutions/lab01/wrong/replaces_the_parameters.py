# score: 21.5
# hint: do not put new ones in their place
# New Parameter objects receive the values, so that an optimiser made before moves the old ones.


# %% broadcast_model
def broadcast_model(model):
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            received = parameter.detach().clone()
            dist.broadcast(received, src=0)
            setattr(module, name, nn.Parameter(received, requires_grad=parameter.requires_grad))
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
