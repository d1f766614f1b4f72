# score: 18
# hint: norms of all tensors together
# LARS takes its norms over the whole model, as gradient clipping does.


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
    with torch.no_grad():
        weights_norm = math.sqrt(sum(one.square().sum().item() for one in parameters))
        gradient_norm = math.sqrt(sum(one.square().sum().item() for one in gradients))
        ratio = 1.0
        if weights_norm and gradient_norm:
            ratio = trust_coefficient * weights_norm / (gradient_norm + weight_decay * weights_norm)
        for weights, gradient, velocity in zip(parameters, gradients, velocities, strict=True):
            velocity.mul_(momentum).add_(
                gradient + weight_decay * weights, alpha=learning_rate * ratio
            )
            weights.sub_(velocity)
    return [ratio] * len(parameters)
