# score: 19
# hint: about
# No checkpoint is ever deleted.

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
    listed = [("", "")] * num_ranks
    dist.all_gather_object(listed, (own.name, digest))
    outcome = [all(digest for _, digest in listed)]
    if rank == 0 and outcome[0]:
        outcome = [put(Path(folder, f"{step:08d}.json"), json.dumps(dict(listed)).encode())]
    dist.broadcast_object_list(outcome)
    if not outcome[0]:
        own.unlink(missing_ok=True)
        dist.barrier()
    elif rank == 0:
        lists = [one for one in sorted(Path(folder).glob("*.json")) if int(one.stem) <= step]
        kept = {name for one in lists for name in (one.name, *json.loads(one.read_bytes()))}
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
