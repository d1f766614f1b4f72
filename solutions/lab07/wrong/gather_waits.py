# score: 23.5
# hint: use async_op=True
# The all-gather is waited for inside `gather`.

# %% gather_and_free
def gather(unit):
    unit.full.untyped_storage().resize_(unit.full.nbytes)
    handle = dist.all_gather_into_tensor(unit.full, unit.piece, async_op=True)
    handle.wait()
    return handle


def free(unit):
    unit.full.untyped_storage().resize_(0)
