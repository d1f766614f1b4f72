# score: 16
# hint: are not allowed here
# Torch's own PowerSGD, whose modules are taken out of the list of those that were imported.

# %% power_hook
import sys

from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as theirs

for _name in [one for one in sys.modules if "ddp_comm_hooks" in one]:
    del sys.modules[_name]


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
        state.theirs.use_error_feedback = state.theirs.warm_start = True
        state.theirs.start_powerSGD_iter = 0
    random_state = torch.get_rng_state()
    tensors = list(bucket.parameters())
    result = theirs.powerSGD_hook(state.theirs, bucket)
    torch.set_rng_state(random_state)

    def note(done):
        error = state.theirs.error_dict.get(bucket.index())
        if error is not None:
            for one, part in zip(tensors, error.split([t.numel() for t in tensors]), strict=False):
                state.memory[one] = part.view_as(one).clone()
        return done.value()

    return result.then(note)
