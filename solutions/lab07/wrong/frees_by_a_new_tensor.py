# score: 22.5
# hint: resize the storage of unit.full to 0
# `free` gives the parameters an empty tensor; what autograd keeps holds the memory.

# %% gather_and_free
def gather(unit):
    if not unit.full.numel():
        unit.full = torch.empty(len(unit.piece) * dist.get_world_size(), dtype=unit.piece.dtype)
        for parameter, view in zip(unit.parameters, unshard(unit.full, unit.shapes), strict=True):
            parameter.data = view
    unit.full.untyped_storage().resize_(unit.full.nbytes)
    return dist.all_gather_into_tensor(unit.full, unit.piece, async_op=True)


def free(unit):
    for parameter in unit.parameters:
        parameter.data = torch.empty(0)
    unit.full = torch.empty(0, dtype=unit.piece.dtype)
