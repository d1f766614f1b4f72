# score: 18.5
# hint: is added to r, not to the gradient
# The weight decay of plain Adam: it goes through the moments.


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
            decayed = g + weight_decay * w
            m.lerp_(decayed, 1 - betas[0])
            v.lerp_(decayed * decayed, 1 - betas[1])
            direction = m / (1 - betas[0] ** step) / ((v / (1 - betas[1] ** step)).sqrt() + eps)
            w_norm, direction_norm = w.norm().item(), direction.norm().item()
            ratio = w_norm / direction_norm if w_norm and direction_norm else 1.0
            w.sub_(learning_rate * ratio * direction)
            ratios.append(ratio)
    return ratios
