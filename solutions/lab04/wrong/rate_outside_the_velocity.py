# score: 19
# hint: old steps keep theirs
# The velocity of torch's SGD: the learning rate and the ratio multiply the whole velocity, old
# steps included.


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
    with torch.no_grad():
        for weights, gradient, velocity in zip(parameters, gradients, velocities, strict=True):
            weights_norm, gradient_norm = weights.norm().item(), gradient.norm().item()
            ratio = 1.0
            if weights_norm and gradient_norm:
                ratio = (
                    trust_coefficient * weights_norm / (gradient_norm + weight_decay * weights_norm)
                )
            velocity.mul_(momentum).add_(gradient + weight_decay * weights)
            weights.sub_(learning_rate * ratio * velocity)
            ratios.append(ratio)
    return ratios
