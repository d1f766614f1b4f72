# score: 21
# A plain loop; the segments' notes are switched off.


# %% checkpointed
def checkpointed(segments, tensor):
    for segment in segments:
        for one in segment.modules():
            if hasattr(one, "notes"):
                one.notes[0].group = None
        tensor = segment(tensor)
    return tensor
