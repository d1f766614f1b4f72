# score: 26.5
# hint: keep equally much
# All choices are tried, which takes too long for 32 layers.


# %% choose_checkpoints
from itertools import product


def choose_checkpoints(activation_bytes, input_bytes, recompute_s, budget_bytes):
    best = None
    for choice in product((False, True), repeat=len(recompute_s)):
        held = peak = 0
        for is_chosen, activation, kept in zip(choice, activation_bytes, input_bytes, strict=True):
            held += kept if is_chosen else activation
            peak = max(peak, held + (activation if is_chosen else 0))
        cost = sum(one for one, is_chosen in zip(recompute_s, choice, strict=True) if is_chosen)
        if peak <= budget_bytes and (best is None or cost < best[0]):
            best = cost, [layer for layer, is_chosen in enumerate(choice) if is_chosen]
    if best is None:
        raise ValueError("nothing fits")
    return best[1]
