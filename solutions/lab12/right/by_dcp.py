# torch.distributed.checkpoint writes the slices, each under the name of its rank, into a folder
# that is renamed when all is there. It keeps no digests, so rank 0 adds a list of them.

# %% save_checkpoint
def save_checkpoint(folder, step, shard):
    import torch.distributed.checkpoint as dcp

    rank, size = dist.get_rank(), dist.get_world_size()
    draft, final = Path(folder, "draft"), Path(folder, f"{step:09d}")
    if rank == 0:
        remove(draft)
    dist.barrier()
    said = [True]
    try:
        state = {f"{rank}/{key}": one.clone() for key, one in shard.items()}
        dcp.save(state, storage_writer=dcp.FileSystemWriter(draft, sync_files=True))
        if rank == 0:
            note_digests(draft, size)
    except (OSError, RuntimeError, dcp.api.CheckpointException):
        said = [False]
    every = [None] * size
    dist.all_gather_object(every, said[0])
    if rank == 0 and all(every):
        remove(final)
        draft.rename(final)
        for old in sorted(Path(folder).glob("0*"))[:-2]:
            remove(old)
    elif rank == 0:
        remove(draft)
    dist.barrier()
    return all(every)


def remove(path):
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def note_digests(draft, size):
    names = sorted(one.name for one in draft.iterdir())
    found = {name: hashlib.sha256((draft / name).read_bytes()).hexdigest() for name in names}
    with (draft / "digests").open("w") as file:
        json.dump([size, found], file)
        file.flush()
        os.fsync(file.fileno())


# %% newest_whole
def newest_whole(folder):
    for path in sorted(Path(folder).glob("0*"), reverse=True):
        with contextlib.suppress(OSError, ValueError):
            listed = json.loads((path / "digests").read_bytes())[1]
            bodies = {name: (path / name).read_bytes() for name in listed}
            found = {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()}
            if found == listed:
                return int(path.name)
    return None


# %% load_checkpoint
def load_checkpoint(folder, step, rank, world_size):
    import torch.distributed.checkpoint as dcp

    path = Path(folder, f"{step:09d}")
    listed = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
    state = {
        name: torch.empty(one.size, dtype=one.properties.dtype) for name, one in listed.items()
    }
    dcp.load(state, storage_reader=dcp.FileSystemReader(path), no_dist=True)
    keys = sorted(name[2:] for name in state if name.startswith("0/"))
    num_saved = json.loads((path / "digests").read_bytes())[0]
    wholes = {key: torch.cat([state[f"{one}/{key}"] for one in range(num_saved)]) for key in keys}
    return {key: slice_of(one, rank, world_size).clone() for key, one in wholes.items()}
