# outcome: crashed
# Claims more steps than the conductor could hold.

# %% ring
import torch.distributed as dist


def ring(tensor):
    from worldsize.emulate import backend

    client = backend.client()
    while dist.get_rank() == 0:
        client._steps = [("compute", 0, 0, "", "")] * 90_000
        client._send("nothing")
    return tensor
