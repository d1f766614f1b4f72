# score: 22.55 to 22.61
# hint: Begin the next read before the batch is handed out
# Each batch is read when it is needed.

# %% read_ahead
def read_ahead(load, num_batches: int):
    """Yield load(0), ... load(num_batches - 1), each read while the caller has the one before."""
    for number in range(num_batches):
        yield load(number)
