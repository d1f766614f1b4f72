# outcome: wrong
# Sets trace, profile, audit and import hooks that would change what the caller sees.

# %% total
import sys
import threading


def total(tensor):
    def hook(frame, event, arg):
        if "expected" in frame.f_locals:
            raise SystemExit("LEAKED expected")
        return hook

    class Finder:
        def find_spec(self, name, path=None, target=None):
            return None

    sys.settrace(hook)
    sys.setprofile(hook)
    threading.settrace(hook)
    sys.addaudithook(lambda *args: None)
    sys.meta_path.insert(0, Finder())
    sys.displayhook = sys.excepthook = lambda *args: None
    return tensor
