# score: 22
# hint: no batch is read two ahead
# All reads begin at once.

# %% read_ahead
def read_ahead(load, num_batches: int):
    """Yield load(0), ... load(num_batches - 1), each read while the caller has the one before."""
    with ThreadPoolExecutor(max(1, num_batches)) as pool:
        for coming in [pool.submit(load, number) for number in range(num_batches)]:
            yield coming.result()
