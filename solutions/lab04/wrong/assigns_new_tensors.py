# score: 16.5
# hint: write into it
# Names are bound to new tensors; those in the lists stay as they were.


# %% lars_step
def lars_step(
    parameters,
    gradients,
    velocities,
    learning_rate,
    momentum=0.9,
    weight_decay=0.0,
    trust_coefficient=0.001,
):
    ratios = []
    for w, g, v in zip(parameters, gradients, velocities, strict=True):
        above, below = w.norm().item(), g.norm().item()
        is_usual = above and below
        ratio = trust_coefficient * above / (below + weight_decay * above) if is_usual else 1.0
        v = momentum * v + learning_rate * ratio * (g + weight_decay * w)
        w = w - v
        ratios.append(ratio)
    return ratios
