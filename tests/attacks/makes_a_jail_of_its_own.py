# outcome: wrong
# Makes namespaces to become root in, and mounts memory without end.

# %% total
import ctypes


def total(tensor):
    libc = ctypes.CDLL(None)
    if libc.unshare(0x10020000) == 0:  # CLONE_NEWUSER and CLONE_NEWNS
        raise SystemExit("LEAKED capabilities")
    if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
        raise SystemExit("LEAKED a mount")
    return tensor
