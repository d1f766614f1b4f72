# score: 24.5
# Layers are recomputed in the order of what they save for a second.


# %% choose_checkpoints
def choose_checkpoints(activation_bytes, input_bytes, recompute_s, budget_bytes):
    def peak_of(layers):
        held = peak = 0
        for layer, (activation, kept) in enumerate(zip(activation_bytes, input_bytes, strict=True)):
            held += kept if layer in layers else activation
            peak = max(peak, held + (activation if layer in layers else 0))
        return peak

    places = sorted(
        range(len(recompute_s)),
        key=lambda one: recompute_s[one] / (activation_bytes[one] - input_bytes[one]),
    )
    chosen = []
    for place in [None, *places]:
        if place is not None:
            chosen.append(place)
        if peak_of(chosen) <= budget_bytes:
            return sorted(chosen)
    raise ValueError("nothing fits")
