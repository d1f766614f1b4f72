# The ratios are kept in one float32 tensor, which rounds them: as good as what float32 weights can
# hold.


# %% lars_step
@torch.no_grad()
def lars_step(
    parameters,
    gradients,
    velocities,
    learning_rate,
    momentum=0.9,
    weight_decay=0.0,
    trust_coefficient=0.001,
):
    ratios = torch.ones(len(parameters))
    for place, (w, g, v) in enumerate(zip(parameters, gradients, velocities, strict=True)):
        w_norm, g_norm = w.norm(), g.norm()
        if w_norm > 0 and g_norm > 0:
            ratios[place] = trust_coefficient * w_norm / (g_norm + weight_decay * w_norm)
        v.copy_(momentum * v + learning_rate * ratios[place].item() * (g + weight_decay * w))
        w -= v
    return ratios.tolist()


# %% lamb_step
@torch.no_grad()
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
    ratios = torch.ones(len(parameters))
    for place, (w, g, m, v) in enumerate(
        zip(parameters, gradients, first_moments, second_moments, strict=True)
    ):
        m.copy_(betas[0] * m + (1 - betas[0]) * g)
        v.copy_(betas[1] * v + (1 - betas[1]) * g * g)
        update = (
            m / (1 - betas[0] ** step) / ((v / (1 - betas[1] ** step)).sqrt() + eps)
            + weight_decay * w
        )
        if w.norm() > 0 and update.norm() > 0:
            ratios[place] = w.norm() / update.norm()
        w -= learning_rate * ratios[place].item() * update
    return ratios.tolist()
