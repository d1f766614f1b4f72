# outcome: crashed
# Claims more steps than the conductor could hold.

# %% ring
import torch.distributed as dist


def ring(tensor):
    from worldsize.emulate import backend

    wire = backend.wire()
    while dist.get_rank() == 0:
        wire._steps = [("compute", 0, 0, "", "")] * 90_000
        wire._send("nothing")
    return tensor
