# outcome: crashed
# Claims more steps than the conductor could hold.

# %% ring
import torch.distributed as dist


def ring(tensor):
    from worldsize import framing
    from worldsize.emulate.protocol.messages import Left
    from worldsize.emulate.protocol.record import Step
    from worldsize.emulate.worker import backend

    while dist.get_rank() == 0:
        backend.client()._sock.sendall(framing.pack_header(Left([Step("compute")] * 90_000).to_bytes()))
    return tensor
