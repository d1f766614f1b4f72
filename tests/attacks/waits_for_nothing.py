# outcome: crashed
# Claims to have waited for an answer that never came.

# %% ring
import torch
import torch.distributed as dist


def ring(tensor):
    from worldsize.emulate.worker import backend

    client = backend.client()
    work = dist.irecv(torch.empty(3), (dist.get_rank() - 1) % 4)
    client.step("wait", work.number)
    return tensor
