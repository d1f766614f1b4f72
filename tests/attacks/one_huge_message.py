# outcome: crashed
# Announces a message of gigabytes and sends it as long as anyone listens.

# %% ring
import json

import torch.distributed as dist


def ring(tensor):
    from worldsize.emulate.worker import backend

    sock = backend.client()._sock
    header = json.dumps({"kind": "posted", "size": 1 << 33, "steps": []}).encode()
    sock.sendall(len(header).to_bytes(8, "little") + header)
    while dist.get_rank() == 0:
        sock.sendall(bytes(1 << 20))
    return tensor
