# score: 23.5
# hint: not added to the gradient
# Weight decay is added to the gradient, as in Adam with L2.

# %% adam_step
def adam_step(unit, learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    if unit.gradient is None:
        return
    if unit.master is None:
        unit.master = unit.piece.float().clone()
        unit.exp_avg = torch.zeros_like(unit.master)
        unit.exp_avg_sq = torch.zeros_like(unit.master)
    unit.num_steps += 1
    gradient, unit.gradient = unit.gradient + weight_decay * unit.master, None
    unit.exp_avg.lerp_(gradient, 1 - betas[0])
    unit.exp_avg_sq.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    root = (unit.exp_avg_sq / (1 - betas[1] ** unit.num_steps)).sqrt_().add_(eps)
    rate = learning_rate / (1 - betas[0] ** unit.num_steps)
    unit.master.addcdiv_(unit.exp_avg, root, value=-rate)
    unit.piece.copy_(unit.master)
