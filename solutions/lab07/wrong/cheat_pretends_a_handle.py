# score: 23.5
# hint: use async_op=true
# `gather` waits, behind a handle that does nothing.

# %% gather_and_free
class Done:
    def wait(self):
        return True


def gather(unit):
    unit.full.untyped_storage().resize_(unit.full.nbytes)
    dist.all_gather_into_tensor(unit.full, unit.piece)
    return Done()


def free(unit):
    unit.full.untyped_storage().resize_(0)
