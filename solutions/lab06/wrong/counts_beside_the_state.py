# score: 26.5
# The row of good steps is kept in a dictionary, so that a loaded state begins anew.


# %% update
_rows = {}


def update(state, is_finite):
    if not is_finite:
        state.scale = max(state.scale / 2, state.min_scale)
        state.num_skipped += 1
        _rows[id(state)] = 0
        return
    _rows[id(state)] = _rows.get(id(state), 0) + 1
    if _rows[id(state)] == state.growth_interval:
        state.scale = min(state.scale * 2, state.max_scale)
        _rows[id(state)] = 0
