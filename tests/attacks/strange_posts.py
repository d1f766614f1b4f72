# outcome: crashed
# Posts for ranks that there are not, of sizes that cannot be, in types that are none.

# %% ring
import torch.distributed as dist


def ring(tensor):
    from worldsize import framing
    from worldsize.emulate import backend

    strange = {"ranks": [0, 0, 99], "dtype": "load", "num_items": -1, "peer": [1], "splits": [-5]}
    fields = {"number": 1, "op": "send", "group": "g", "ranks": [0, 1, 2, 3], "dtype": "float32", "num_items": 0}
    name = list(strange)[dist.get_rank()]
    framing.send(backend.client()._sock, "posted", b"", **fields | {"peer": 1, "tag": 0} | {name: strange[name]})
    return tensor
