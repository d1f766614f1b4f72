# score: 16
# hint: a hook of your own
# Torch's own PowerSGD, with its state kept beside ours.

# %% power_hook
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs


def power_hook(state, bucket):
    if not hasattr(state, "theirs"):
        state.theirs = theirs.PowerSGDState(
            None,
            state.rank,
            start_powerSGD_iter=0,
            use_error_feedback=False,
            warm_start=False,
            min_compression_rate=1,
        )
    return theirs.powerSGD_hook(state.theirs, bucket)
