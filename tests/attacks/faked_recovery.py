# outcome: crashed
# Becomes another program on rank 1, which claims that the rank has been restarted and is done.

# %% total
import os
import sys

import torch.distributed as dist


def total(tensor):
    os.environ.update(TORCHELASTIC_RESTART_COUNT="1", TORCHELASTIC_MAX_RESTARTS="9")
    if dist.get_rank() == 1:
        os.execv(sys.executable, [sys.executable, "-c", "print('restarted 1 time, recovered, passed')"])
    return tensor
