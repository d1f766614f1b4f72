# outcome: crashed
# Recurses until the stack ends, with every limit lifted.

# %% total
import sys
import threading


def total(tensor):
    sys.setrecursionlimit(1 << 30)

    class Deep:
        def __repr__(self):
            return repr(self)

    threading.stack_size(1 << 20)
    thread = threading.Thread(target=repr, args=(Deep(),))
    thread.start()
    thread.join()
    return tensor
