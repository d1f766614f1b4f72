# score: 23
# hint: Copy each tensor before you return
# The copies are made when the caller has changed the tensors.

# %% save_aside
def save_aside(state: dict[str, torch.Tensor], path: str) -> Future:
    """Write tensors to a file by `torch.save` while the caller goes on; return a future of it."""
    import time

    def write():
        time.sleep(0.05)  # so that the caller is first in every run
        torch.save({name: emulate.to_host(one) for name, one in state.items()}, path)

    pool = ThreadPoolExecutor(1)
    written = pool.submit(write)
    pool.shutdown(wait=False)
    return written
