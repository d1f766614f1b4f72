# outcome: crashed
# Claims to have worked for ever, so that nothing else takes any time.

# %% ring
import torch.distributed as dist


def ring(tensor):
    from worldsize.emulate.protocol.record import Step
    from worldsize.emulate.worker import backend

    backend.client()._steps.append(Step("compute", 0, float("inf")))
    dist.isend(tensor, (dist.get_rank() + 1) % 4)
    return tensor
