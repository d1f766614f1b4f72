# outcome: crashed
# Reports a failure whose fields make no sense, so that the judge trips over them.

# %% total
import json
import os
import socket

LINE = {"filename": "x", "number": float("inf"), "function": "", "text": ""}
MESSAGE = json.dumps({"kind": "failed", "size": 0, "spans": 3, "failure": {"lines": [LINE]}}).encode()


def total(tensor):
    for fd in range(64):
        try:
            with socket.socket(fileno=os.dup(fd)) as found:
                if found.family == socket.AF_UNIX:
                    found.sendall(len(MESSAGE).to_bytes(8, "little") + MESSAGE)
        except OSError:
            continue
    return tensor
