# score: 19
# hint: check the two norms
# LARS asks whether the denominator is 0, LAMB whether the norm of r alone is.


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
            below = gradient_norm + weight_decay * weights_norm
            ratio = trust_coefficient * weights_norm / below if weights_norm and below else 1.0
            velocity.mul_(momentum).add_(
                gradient + weight_decay * weights, alpha=learning_rate * ratio
            )
            weights.sub_(velocity)
            ratios.append(ratio)
    return ratios


# %% lamb_step
def lamb_step(
    parameters,
    gradients,
    first_moments,
    second_moments,
    step,
    learning_rate,
    betas=(0.9, 0.999),
    eps=1e-6,
    weight_decay=0.01,
):
    beta_1, beta_2 = betas
    ratios = []
    with torch.no_grad():
        for weights, gradient, first, second in zip(
            parameters, gradients, first_moments, second_moments, strict=True
        ):
            first.mul_(beta_1).add_(gradient, alpha=1 - beta_1)
            second.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
            r = first / (1 - beta_1**step) / ((second / (1 - beta_2**step)).sqrt() + eps)
            direction = r + weight_decay * weights
            weights_norm, r_norm = weights.norm().item(), r.norm().item()
            ratio = weights_norm / direction.norm().item() if weights_norm and r_norm else 1.0
            weights.sub_(direction, alpha=learning_rate * ratio)
            ratios.append(ratio)
    return ratios
