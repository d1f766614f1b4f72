# outcome: crashed
# Writes the forbidden operation as bytes onto the wire, by ctypes.

# %% ring
import ctypes
import json


def ring(tensor):
    from worldsize.emulate.worker import backend

    client = backend.client()
    fields = {"number": 1, "op": "all_reduce", "group": "0", "ranks": [0, 1, 2, 3], "dtype": "float32"}
    fields |= {"num_items": tensor.numel(), "reduction": "SUM", "steps": []}
    body = tensor.numpy().tobytes()
    header = json.dumps({"kind": "posted", "size": len(body), **fields}).encode()
    data = len(header).to_bytes(8, "little") + header + body
    ctypes.CDLL(None).send(client._sock.fileno(), data, len(data), 0)
    answer = ctypes.create_string_buffer(4096)
    ctypes.CDLL(None).recv(client._sock.fileno(), answer, 4096, 0)
    return tensor
