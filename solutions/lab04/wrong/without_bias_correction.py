# score: 18.5
# hint: not corrected for their start at 0
# The moments are used as they are: in the first steps they are far too small.


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
            direction = m / (v.sqrt() + eps) + weight_decay * w
            w_norm, direction_norm = w.norm().item(), direction.norm().item()
            ratio = w_norm / direction_norm if w_norm and direction_norm else 1.0
            w.sub_(learning_rate * ratio * direction)
            ratios.append(ratio)
    return ratios
