# outcome: crashed
# Lifts the ban in its own process and calls the forbidden operation.

# %% ring
import torch.distributed as dist


def ring(tensor):
    from worldsize.emulate.protocol import operations
    from worldsize.emulate.worker import backend

    backend.client()._allow = None
    operations.refusal = lambda *args: ""
    dist.all_reduce(tensor)
    return tensor
