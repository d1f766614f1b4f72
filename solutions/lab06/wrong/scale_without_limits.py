# score: 26.5
# The scale may fall below its least and rise above its most.


# %% update
def update(state: ScalerState, is_finite: bool) -> None:
    if not is_finite:
        state.scale = state.scale / 2
        state.num_skipped += 1
        state.num_good_steps = 0
        return
    state.num_good_steps += 1
    if state.num_good_steps == state.growth_interval:
        state.scale = state.scale * 2
        state.num_good_steps = 0
