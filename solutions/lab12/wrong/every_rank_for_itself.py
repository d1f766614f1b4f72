# score: 18
# hint: cell load
# A checkpoint counts as whole once rank 0's file is there, whatever the others have.

# %% save_checkpoint
def save_checkpoint(folder: str, step: int, shard: dict[str, Tensor]) -> bool:
    """Save a checkpoint of the state after `step` steps; every rank calls this with its own slices.

    - True on every rank once it is whole: all ranks' slices are on the disk, by `os.fsync`.
    - If a rank is killed at any byte of it, the checkpoints before stay as they are, and this one
      is not there.
    - Where a disk is full (an OSError), it returns False on every rank, and the folder holds what
      it held before.
    - The two newest checkpoints stay. Older ones are deleted, but not before this one is whole;
      also what a save that was killed has left.
    - A checkpoint of the same step that is there already, damaged or not, is replaced.
    """
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    buffer = io.BytesIO()
    torch.save(shard, buffer)
    body = buffer.getvalue()
    own = Path(folder, f"{step:08d}-{rank}-of-{num_ranks}.pt")
    digest = hashlib.sha256(body).hexdigest() if put(own, body) else ""
    names = [f"{step:08d}-{one}-of-{num_ranks}.pt" for one in range(num_ranks)]
    outcome = [bool(digest)]
    if outcome[0]:
        Path(folder, f"{own.stem}.sha256").write_text(digest)
    if rank == 0 and outcome[0]:
        outcome = [put(Path(folder, f"{step:08d}.json"), json.dumps(names).encode())]
    dist.broadcast_object_list(outcome)
    if not outcome[0]:
        own.unlink(missing_ok=True)
    dist.barrier()
    if outcome[0] and rank == 0:
        lists = [one for one in sorted(Path(folder).glob("*.json")) if int(one.stem) <= step][-2:]
        kept = {
            name
            for one in lists
            for name in (
                one.name,
                *json.loads(one.read_bytes()),
                *(f"{x[:-3]}.sha256" for x in json.loads(one.read_bytes())),
            )
        }
        for one in Path(folder).iterdir():
            if one.name not in kept:
                one.unlink()
    return outcome[0]


def put(path: Path, body: bytes) -> bool:
    """True once the bytes are on the disk under their name; False where it is full."""
    unfinished = path.with_suffix(".unfinished")
    try:
        with unfinished.open("wb") as out:
            out.write(body)
            out.flush()
            os.fsync(out)
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        return False
    fd = os.open(path.parent, os.O_RDONLY)  # the name itself is on the disk when its folder is
    os.fsync(fd)
    os.close(fd)
    return True


# %% newest_whole
def newest_whole(folder: str) -> int | None:
    """The number of steps of the newest checkpoint in a folder that is whole; None without one.

    A checkpoint of which a file is missing, cut or changed in any bit is not whole. Every rank
    calls this for itself; nothing is written meanwhile.
    """
    for path in sorted(Path(folder).glob("*.json"), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            listed = json.loads(path.read_bytes())
            first = Path(folder, listed[0])
            digest = hashlib.sha256(first.read_bytes()).hexdigest()
            if digest == first.with_suffix(".sha256").read_text():
                return int(path.stem)
    return None
