# score: 26.5
# Where nothing fits, all layers come back instead of an error.


# %% choose_checkpoints
def choose_checkpoints(activation_bytes, input_bytes, recompute_s, budget_bytes: int) -> list[int]:
    choices = {0: (0.0, [])}  # bytes kept so far -> the least cost, and its layers
    for layer, (activation, kept, cost_s) in enumerate(
        zip(activation_bytes, input_bytes, recompute_s, strict=True)
    ):
        longer = {}
        for held, (so_far_s, layers) in choices.items():
            options = [(held + activation, held + activation, so_far_s, layers)]
            options.append(
                (held + kept, held + kept + activation, so_far_s + cost_s, [*layers, layer])
            )
            for after, peak, total_s, chosen in options:
                if peak <= budget_bytes and (after not in longer or total_s < longer[after][0]):
                    longer[after] = (total_s, chosen)
        choices = longer
    if not choices:
        return list(range(len(recompute_s)))
    return min(choices.values())[1]
