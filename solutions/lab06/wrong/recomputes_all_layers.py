# score: 23
# All layers are recomputed unless everything fits.


# %% choose_checkpoints
def choose_checkpoints(activation_bytes, input_bytes, recompute_s, budget_bytes):
    if sum(activation_bytes) <= budget_bytes:
        return []
    layers = range(len(recompute_s))
    if any(sum(input_bytes[: one + 1]) + activation_bytes[one] > budget_bytes for one in layers):
        raise ValueError("nothing fits")
    return list(layers)
