# outcome: time limit
# Blocks every signal and sleeps in C without letting other threads run.

# %% total
import ctypes
import signal


def total(tensor):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    ctypes.PyDLL(None).sleep(1000)
    return tensor
