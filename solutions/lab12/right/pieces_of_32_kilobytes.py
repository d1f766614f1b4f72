# Each rank's slices are written as pieces of at most 32 kB, a file each, which the list names.

# %% save_checkpoint
PIECE_BYTES = 32_000


def save_checkpoint(folder, step, shard):
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    buffer = io.BytesIO()
    torch.save(shard, buffer)
    body, own, is_good = buffer.getvalue(), {}, True
    for start in range(0, len(body), PIECE_BYTES):
        piece = body[start : start + PIECE_BYTES]
        path = Path(folder, f"{step:08d}-{rank}-of-{num_ranks}-{start:08d}.part")
        own[path.name] = hashlib.sha256(piece).hexdigest()
        is_good = is_good and put(path, piece)
    every = [None] * num_ranks
    dist.all_gather_object(every, own if is_good else None)
    outcome = [None not in every]
    if rank == 0 and outcome[0]:
        listed = {name: digest for of_rank in every for name, digest in of_rank.items()}
        outcome = [put(Path(folder, f"{step:08d}.json"), json.dumps(listed).encode())]
    dist.broadcast_object_list(outcome)
    if not outcome[0]:
        for name in own:
            Path(folder, name).unlink(missing_ok=True)
        dist.barrier()
    elif rank == 0:
        lists = [one for one in sorted(Path(folder).glob("*.json")) if int(one.stem) <= step][-2:]
        kept = {name for one in lists for name in (one.name, *json.loads(one.read_bytes()))}
        for one in Path(folder).iterdir():
            if one.name not in kept:
                one.unlink()
    return outcome[0]


def put(path, body):
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
    fd = os.open(path.parent, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return True


# %% load_checkpoint
def load_checkpoint(folder, step, rank, world_size):
    bodies = {}
    for name in json.loads(Path(folder, f"{step:08d}.json").read_bytes()):
        of_rank = int(name.split("-")[1])
        bodies[of_rank] = bodies.get(of_rank, b"") + Path(folder, name).read_bytes()
    parts = [torch.load(io.BytesIO(bodies[one])) for one in range(len(bodies))]
    whole = {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return {key: slice_of(one, rank, world_size).clone() for key, one in whole.items()}
