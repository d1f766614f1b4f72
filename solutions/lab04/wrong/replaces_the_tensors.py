# score: 19.5
# hint: in place
# The new tensors take the places in the lists; the caller's own are as they were.


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
    for place, (w, g) in enumerate(zip(parameters, gradients, strict=True)):
        ratio = 1.0
        if w.norm() > 0 and g.norm() > 0:
            ratio = (trust_coefficient * w.norm() / (g.norm() + weight_decay * w.norm())).item()
        velocities[place] = momentum * velocities[place] + learning_rate * ratio * (
            g + weight_decay * w
        )
        parameters[place] = (w - velocities[place]).detach()
        ratios.append(ratio)
    return ratios
