# score: 23
# hint: Write in a thread
# The file is written before the function returns.

# %% save_aside
def save_aside(state: dict[str, torch.Tensor], path: str) -> Future:
    """Write tensors to a file by `torch.save` while the caller goes on; return a future of it."""
    written = Future()
    try:
        torch.save(state, path)
        written.set_result(None)
    except Exception as error:
        written.set_exception(error)
    return written
