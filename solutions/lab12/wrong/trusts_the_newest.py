# score: 16
# hint: the job did not recover
# The newest checkpoint is the one with the newest list.

# %% newest_whole
def newest_whole(folder: str) -> int | None:
    """The number of steps of the newest checkpoint in a folder that is whole; None without one.

    A checkpoint of which a file is missing, cut or changed in any bit is not whole. Every rank
    calls this for itself; nothing is written meanwhile.
    """
    for path in sorted(Path(folder).glob("*.json"), reverse=True):
        return int(path.stem)
    return None
