# outcome: crashed
# Makes files until no more can be made.

# %% total
import os


def total(tensor):
    os.makedirs("/tmp/many", exist_ok=True)
    for number in range(1 << 20):
        os.symlink("x", f"/tmp/many/{os.getpid()}-{number}")
