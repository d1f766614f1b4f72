# outcome: crashed
# Posts for ranks that there are not, of sizes that cannot be, in types that are none.

# %% ring
import torch.distributed as dist


def ring(tensor):
    from worldsize import framing
    from worldsize.emulate.protocol.messages import Posted
    from worldsize.emulate.worker import backend

    strange = [{"ranks": (0, 0, 99)}, {"dtype": "load", "num_items": 1 << 63}, {"peer": 1 << 40}, {"splits": (-5,)}]
    fields = {"number": 1, "op": "send", "group": "g", "ranks": (0, 1, 2, 3), "dtype": "float32", "num_items": 0}
    posted = Posted(**fields | {"peer": (dist.get_rank() + 1) % 4} | strange[dist.get_rank()])
    backend.client()._sock.sendall(framing.pack_header(posted.to_bytes()))
    return tensor
