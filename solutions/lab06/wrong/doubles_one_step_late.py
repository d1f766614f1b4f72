# score: 25
# The scale is doubled in the step after the row is complete.


# %% update
def update(state, is_finite):
    if not is_finite:
        state.scale = max(state.scale / 2, state.min_scale)
        state.num_skipped += 1
        state.num_good_steps = 0
    elif state.num_good_steps == state.growth_interval:
        state.scale = min(state.scale * 2, state.max_scale)
        state.num_good_steps = 0
    else:
        state.num_good_steps += 1
