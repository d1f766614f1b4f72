# outcome: crashed
# Reports a failure whose fields make no sense, so that the judge trips over them.

# %% total
import json
import os
import socket
import struct

LINE = {"filename": "x", "number": float("inf"), "function": "", "text": ""}
MESSAGE = json.dumps({"kind": "failed", "spans": 3, "failure": {"lines": [LINE]}}).encode()


def total(tensor):
    for fd in range(64):
        try:
            with socket.socket(fileno=os.dup(fd)) as found:
                if found.family == socket.AF_UNIX:
                    found.sendall(struct.pack("<IQ", len(MESSAGE), 0) + MESSAGE)
        except OSError:
            continue
    return tensor
