# outcome: crashed
# Reports a failure whose fields are of no known kind, so that the judge trips over them.

# %% total
import json
import os

TRAPS = [
    {"kind": "failed", "failure": {"lines": [{"filename": "x", "number": float("inf"), "function": "", "text": ""}]}},
    {"kind": "failed", "failure": ["no", "fields"], "spans": []},
    {"kind": "done", "spans": [1, 2, 3]},
    {"kind": "done", "spans": [["a", "b", "c", "d"]]},
    {"kind": "where", "lines": {"a": 1}},
    {"kind": ["unhashable"], "failure": None},
]


def total(tensor):
    for trap in (*TRAPS, None):
        header = json.dumps({"size": 0, **trap}).encode() if trap else b"[" * 100_000
        for name in os.listdir("/proc/self/fd"):
            if os.path.lexists(path := f"/proc/self/fd/{name}") and "socket" in os.readlink(path):
                os.write(int(name), len(header).to_bytes(8, "little") + header)
    return tensor
