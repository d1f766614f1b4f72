# score: 23
# hint: as it was
# Small files are written before the function returns; large ones later, without a copy.

# %% save_aside
def save_aside(state, path):
    pool = ThreadPoolExecutor(1)
    written = pool.submit(torch.save, state, path)
    if sum(one.nbytes for one in state.values()) < 1_000_000:
        with contextlib.suppress(Exception):
            written.result()
    return written
