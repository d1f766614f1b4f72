# score: 22.55 to 22.61
# hint: Begin the next read before the batch is handed out
# The next read begins when the next batch is asked for.

# %% read_ahead
def read_ahead(load, num_batches: int):
    """Yield load(0), ... load(num_batches - 1), each read while the caller has the one before."""
    with ThreadPoolExecutor(1) as pool:
        for number in range(num_batches):
            yield pool.submit(load, number).result()
