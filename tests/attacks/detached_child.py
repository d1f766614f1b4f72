# outcome: wrong
# Leaves another program running in a session of its own, whose parent is gone.

# %% total
import os


def total(tensor):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv("/bin/sh", ["/bin/sh", "-c", "sleep 1000; :", "MARKER"])
        os._exit(0)
    return tensor
