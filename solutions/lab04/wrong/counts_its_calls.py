# score: 19
# hint: Take t from `step`
# LAMB counts its own calls and ignores step.


# %% lamb_step
CALLS = [0]


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
    CALLS[0] += 1
    beta_1, beta_2 = betas
    ratios = []
    with torch.no_grad():
        for weights, gradient, first, second in zip(
            parameters, gradients, first_moments, second_moments, strict=True
        ):
            first.mul_(beta_1).add_(gradient, alpha=1 - beta_1)
            second.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
            direction = (
                first
                / (1 - beta_1 ** CALLS[0])
                / ((second / (1 - beta_2 ** CALLS[0])).sqrt() + eps)
            )
            direction += weight_decay * weights
            weights_norm, direction_norm = weights.norm().item(), direction.norm().item()
            ratio = weights_norm / direction_norm if weights_norm and direction_norm else 1.0
            weights.sub_(direction, alpha=learning_rate * ratio)
            ratios.append(ratio)
    return ratios
