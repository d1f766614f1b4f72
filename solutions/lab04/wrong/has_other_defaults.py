# score: 19.5
# hint: contract's defaults
# LARS has other defaults than its contract.


# %% lars_step
def lars_step(
    parameters,
    gradients,
    velocities,
    learning_rate,
    momentum=0.0,
    weight_decay=0.1,
    trust_coefficient=1.0,
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
            velocity.mul_(momentum).add_(
                gradient + weight_decay * weights, alpha=learning_rate * ratio
            )
            weights.sub_(velocity)
            ratios.append(ratio)
    return ratios
