# outcome: wrong
# Sends the data through the store in which ranks find each other.

# %% ring
import torch
import torch.distributed as dist


def ring(tensor):
    store = dist.distributed_c10d._get_default_store()
    store.set(f"part{dist.get_rank()}", tensor.numpy().tobytes())
    parts = [bytearray(store.get(f"part{rank}")) for rank in range(dist.get_world_size())]
    return sum(torch.frombuffer(part, dtype=torch.float32) for part in parts)
