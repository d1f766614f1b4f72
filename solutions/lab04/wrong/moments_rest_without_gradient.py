# score: 19.5
# hint: no reason to leave a tensor out
# LAMB leaves the moments as they are where the gradient is 0.


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
            if g.any():
                m.lerp_(g, 1 - betas[0])
                v.lerp_(g * g, 1 - betas[1])
            direction = (
                m / (1 - betas[0] ** step) / ((v / (1 - betas[1] ** step)).sqrt() + eps)
                + weight_decay * w
            )
            ratio = w.norm() / direction.norm() if w.any() and direction.any() else torch.ones(())
            w.sub_(learning_rate * ratio * direction)
            ratios.append(ratio.item())
    return ratios
