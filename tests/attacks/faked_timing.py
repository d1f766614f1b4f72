# outcome: crashed
# Turns every clock back and claims spans of negative and endless time.

# %% total
import math
import time

from worldsize.launch.worker import spans


def total(tensor):
    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, lambda: -1e300)
        setattr(time, f"{name}_ns", lambda: -(10**300))
    claims = [("fast", "compute", 0.0, -1e308), ("x" * 10**6, "y" * 10**6, math.nan, math.inf)]
    spans._spans.extend(claims)
    return tensor
