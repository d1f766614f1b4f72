# score: 22
# hint: no batch is read two ahead
# One read after the other, without a stop.

# %% read_ahead
def read_ahead(load, num_batches: int):
    """Yield load(0), ... load(num_batches - 1), each read while the caller has the one before."""
    with ThreadPoolExecutor(1) as pool:
        for coming in [pool.submit(load, number) for number in range(num_batches)]:
            yield coming.result()
