# score: 19.5
# hint: does not go through float32
# LARS computes in float32, whatever the dtype of the parameters.


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
        for own, gradient, own_velocity in zip(parameters, gradients, velocities, strict=True):
            weights, gradient, velocity = own.float(), gradient.float(), own_velocity.float()
            ratio = (
                trust_coefficient
                * weights.norm()
                / (gradient.norm() + weight_decay * weights.norm())
                if weights.any() and gradient.any()
                else torch.ones(())
            )
            velocity.mul_(momentum).add_(
                learning_rate * ratio * (gradient + weight_decay * weights)
            )
            weights.sub_(velocity)
            own.copy_(weights)
            own_velocity.copy_(velocity)
            ratios.append(ratio.item())
    return ratios
