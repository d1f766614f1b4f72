# score: 26
# Good steps are counted on after an overflow.


# %% update
def update(state: ScalerState, is_finite: bool) -> None:
    if not is_finite:
        state.scale = max(state.scale / 2, state.min_scale)
        state.num_skipped += 1
        return
    state.num_good_steps += 1
    if state.num_good_steps == state.growth_interval:
        state.scale = min(state.scale * 2, state.max_scale)
        state.num_good_steps = 0
