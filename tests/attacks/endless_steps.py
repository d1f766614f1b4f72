# outcome: crashed
# Claims more steps than the conductor could hold.

# %% ring
import torch.distributed as dist


def ring(tensor):
    from worldsize import framing
    from worldsize.emulate import backend

    while dist.get_rank() == 0:
        framing.send(backend.client()._sock, "left", steps=[("compute", 0, 0, "", "")] * 90_000)
    return tensor
