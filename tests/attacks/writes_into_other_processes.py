# outcome: wrong
# Writes into the memory of the other rank and of all other processes.

# %% total
import contextlib
import ctypes
import os

import torch.distributed as dist


def total(tensor):
    libc = ctypes.CDLL(None, use_errno=True)
    dist.barrier()
    got = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        if pid == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{pid}/mem", "r+b"):
            got.append(f"mem {pid}")
        if libc.ptrace(16, pid, 0, 0) == 0:  # PTRACE_ATTACH
            got.append(f"ptrace {pid}")
        word = ctypes.create_string_buffer(16)
        here = (ctypes.c_void_p * 2)(ctypes.addressof(word), 8)
        if libc.process_vm_readv(pid, here, 1, here, 1, 0) > 0:
            got.append(f"vm {pid}")
    dist.barrier()
    if got:
        raise SystemExit(f"LEAKED {got}")
    return tensor
