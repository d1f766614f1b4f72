# outcome: wrong or output limit
# Leaves a process that holds the output open and fills it.

# %% total
import os


def total(tensor):
    if os.fork() == 0:
        os.setsid()
        while True:
            os.write(1, b"x" * 65536)
    return tensor
