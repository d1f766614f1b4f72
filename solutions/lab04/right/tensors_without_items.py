# The optimizers stay in tensors, by torch.where and foreach operations.


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
    ratios = []
    for w, g in zip(parameters, gradients, strict=True):
        w_norm, g_norm = torch.linalg.vector_norm(w), torch.linalg.vector_norm(g)
        ratio = trust_coefficient * w_norm / (g_norm + weight_decay * w_norm)
        ratios.append(torch.where((w_norm > 0) & (g_norm > 0), ratio, torch.ones_like(ratio)))
    torch._foreach_mul_(velocities, momentum)
    for velocity, w, g, ratio in zip(velocities, parameters, gradients, ratios, strict=True):
        velocity += learning_rate * ratio * (g + weight_decay * w)
    torch._foreach_sub_(parameters, velocities)
    return [ratio.item() for ratio in ratios]


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
    torch._foreach_lerp_(first_moments, gradients, 1 - betas[0])
    torch._foreach_mul_(second_moments, betas[1])
    torch._foreach_addcmul_(second_moments, gradients, gradients, 1 - betas[1])
    ratios = []
    for w, m, v in zip(parameters, first_moments, second_moments, strict=True):
        r = (m / (1 - betas[0] ** step)) / (
            v.div(1 - betas[1] ** step).sqrt() + eps
        ) + weight_decay * w
        above, below = w.norm(), r.norm()
        ratio = (above / below).item() if above > 0 and below > 0 else 1.0
        w -= learning_rate * ratio * r
        ratios.append(ratio)
    return ratios
