# score: 18.5
# hint: eps is added to the square root of v
# eps is added to v before the root is taken: with small gradients that is a thousand times as much.


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
        for w, g, m, v in zip(parameters, gradients, first_moments, second_moments, strict=True):
            m.mul_(beta_1).add_(g, alpha=1 - beta_1)
            v.mul_(beta_2).add_(g * g, alpha=1 - beta_2)
            r = m / (1 - beta_1**step) / (v / (1 - beta_2**step) + eps).sqrt() + weight_decay * w
            above, below = w.norm().item(), r.norm().item()
            ratio = above / below if above and below else 1.0
            w.sub_(learning_rate * ratio * r)
            ratios.append(ratio)
    return ratios
