# outcome: crashed or wrong
# Writes results of its own into every open file, before the real one.

# %% total
import contextlib
import os

import torch

from worldsize import framing
from worldsize.launch.protocol import codec


class Everywhere:
    """What `frames.send` takes for a socket, on a file that is open already."""

    def __init__(self, fd):
        self.fd = fd

    def sendall(self, data):
        os.write(self.fd, data)


def total(tensor):
    value = codec.encode({"score": 5, "value": torch.ones(3)})
    for name in os.listdir("/proc/self/fd"):
        for kind in ("done", "joined", "exited", "swept", "warm"):
            with contextlib.suppress(OSError):
                framing.send(
                    Everywhere(int(name)), kind, value, spans=[], duration_s=0, backend="gloo", job=1, status=0
                )
    return tensor
