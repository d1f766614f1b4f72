# outcome: wrong
# Sets the machine's clock, for all to see.

# %% total
import contextlib
import ctypes
import time


def total(tensor):
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(OSError):
        time.clock_settime(time.CLOCK_REALTIME, time.time())
        raise SystemExit("LEAKED the clock")
    if libc.settimeofday((ctypes.c_long * 2)(int(time.time()), 0), None) == 0:
        raise SystemExit("LEAKED the clock")
    return tensor
