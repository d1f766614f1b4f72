# score: 21
# hint: Until they are recomputed
# A plain loop: nothing is recomputed.


# %% checkpointed
def checkpointed(segments, tensor):
    for segment in segments:
        tensor = segment(tensor)
    return tensor
