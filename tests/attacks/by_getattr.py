# outcome: forbidden call
# Calls the forbidden operation under a name that no search finds.

# %% ring
import importlib


def ring(tensor):
    module = importlib.import_module("".join(reversed("detubirtsid.hcrot")))
    getattr(module, "all" + chr(95) + "reduce")(tensor)
    return tensor
