# score: 25
# hint: not always best
# Each stage is filled up until it has the mean cost.

# %% balance
def balance(costs, num_stages):
    mean, lengths, held = sum(costs) / num_stages, [0], 0.0
    for place, cost in enumerate(costs):
        layers_left, stages_left = len(costs) - place, num_stages - len(lengths)
        is_full = lengths[-1] and (held + cost / 2 > mean or layers_left <= stages_left)
        if is_full and stages_left:
            lengths.append(0)
            held = 0.0
        lengths[-1] += 1
        held += cost
    return lengths
