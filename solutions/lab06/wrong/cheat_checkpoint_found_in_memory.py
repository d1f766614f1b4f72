# score: 18
# Torch's own checkpoint, found among all objects in memory.


# %% checkpointed
def checkpointed(segments, tensor):
    import gc

    kind = next(o for o in gc.get_objects() if getattr(o, "__name__", "") == "CheckpointFunction")
    for segment in segments:
        needs = any(parameter.requires_grad for parameter in segment.parameters())
        dummy = torch.zeros(0, requires_grad=needs)
        tensor = kind.apply(lambda one, _, segment=segment: segment(one), True, tensor, dummy)
    return tensor
