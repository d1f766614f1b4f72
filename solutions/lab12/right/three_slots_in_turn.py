# Three slots a rank, written in turn; a slot is whole where all ranks' parts have its step.

# %% save_checkpoint
def save_checkpoint(folder, step, shard):
    rank, size = dist.get_rank(), dist.get_world_size()
    heads = [read_head(folder, slot, 0) for slot in range(3)]
    used = [head[0] if head and head[0] != step else -1 for head in heads]
    slot = [used.index(min(used))]
    dist.broadcast_object_list(slot)
    buffer = io.BytesIO()
    torch.save(shard, buffer)
    body = buffer.getvalue()
    line = json.dumps([step, size, hashlib.md5(body).hexdigest()]).encode() + b"\n"
    path = Path(folder, f"slot{slot[0]}.{rank}")
    draft = Path(folder, f"new.{rank}")
    is_good = True
    try:
        with draft.open("wb") as file:
            file.write(line + body)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        is_good = False
    said = [None] * size
    dist.all_gather_object(said, is_good)
    if all(said):
        if rank == 0:
            for old in Path(folder).glob(f"slot{slot[0]}.*"):
                old.unlink()
        dist.barrier()
        os.replace(draft, path)
        dist.barrier()
        if rank == 0:  # two are enough
            steps = sorted(head[0] for at in range(3) if (head := read_head(folder, at, 0)))
            for at in range(3):
                head = read_head(folder, at, 0)
                if head and head[0] not in steps[-2:]:
                    for old in Path(folder).glob(f"slot{at}.*"):
                        old.unlink()
    else:
        draft.unlink(missing_ok=True)
    dist.barrier()
    return all(said)


def read_head(folder, slot, rank):
    """Step, number of ranks and digest of a part; None where it cannot be read."""
    try:
        with Path(folder, f"slot{slot}.{rank}").open("rb") as file:
            step, size, digest = json.loads(file.readline())
            return step, size, digest
    except (OSError, ValueError):
        return None


# %% newest_whole
def newest_whole(folder):
    found = [step for slot in range(3) if (step := whole_step(folder, slot)) is not None]
    return max(found, default=None)


def whole_step(folder, slot):
    head = read_head(folder, slot, 0)
    if head is None:
        return None
    for rank in range(head[1]):
        own = read_head(folder, slot, rank)
        if own is None or own[:2] != head[:2]:
            return None
        body = Path(folder, f"slot{slot}.{rank}").read_bytes().split(b"\n", 1)[1]
        if hashlib.md5(body).hexdigest() != own[2]:
            return None
    return head[0]


# %% load_checkpoint
def load_checkpoint(folder, step, rank, world_size):
    slot = next(one for one in range(3) if whole_step(folder, one) == step)
    parts = []
    for one in range(read_head(folder, slot, 0)[1]):
        body = Path(folder, f"slot{slot}.{one}").read_bytes().split(b"\n", 1)[1]
        parts.append(torch.load(io.BytesIO(body)))
    return {
        key: torch.tensor_split(torch.cat([one[key] for one in parts]), world_size)[rank].clone()
        for key in parts[0]
    }
