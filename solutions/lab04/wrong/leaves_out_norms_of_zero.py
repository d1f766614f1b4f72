# score: 19
# hint: no reason to leave a tensor out
# Where a norm is 0, the ratio is 1 and nothing moves.


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
            if weights.norm() == 0 or gradient.norm() == 0:
                ratios.append(1.0)
                continue
            ratio = (
                trust_coefficient
                * weights.norm()
                / (gradient.norm() + weight_decay * weights.norm())
            )
            velocity.mul_(momentum).add_(
                learning_rate * ratio * (gradient + weight_decay * weights)
            )
            weights.sub_(velocity)
            ratios.append(ratio.item())
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
    ratios = []
    with torch.no_grad():
        for w, g, m, v in zip(parameters, gradients, first_moments, second_moments, strict=True):
            m.lerp_(g, 1 - betas[0])
            v.lerp_(g * g, 1 - betas[1])
            direction = (
                m / (1 - betas[0] ** step) / ((v / (1 - betas[1] ** step)).sqrt() + eps)
                + weight_decay * w
            )
            if w.norm() == 0 or direction.norm() == 0:
                ratios.append(1.0)
                continue
            ratio = w.norm() / direction.norm()
            w.sub_(learning_rate * ratio * direction)
            ratios.append(ratio.item())
    return ratios
