# score: 23.5
# hint: Make the moments as zeros like unit.master
# The moments have the piece's dtype: those of a bfloat16 piece are bfloat16, where v never shrinks.


# %% adam_step
def adam_step(unit, learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    if unit.gradient is None:
        return
    if unit.master is None:
        unit.master = unit.piece.float().clone()
        unit.exp_avg = torch.zeros_like(unit.piece)
        unit.exp_avg_sq = torch.zeros_like(unit.piece)
    unit.num_steps += 1
    gradient, unit.gradient = unit.gradient, None
    unit.exp_avg.mul_(betas[0]).add_(gradient, alpha=1 - betas[0])
    unit.exp_avg_sq.mul_(betas[1]).add_(gradient.square(), alpha=1 - betas[1])
    unit.master.mul_(1 - learning_rate * weight_decay)
    mean = unit.exp_avg.float() / (1 - betas[0] ** unit.num_steps)
    square = unit.exp_avg_sq.float() / (1 - betas[1] ** unit.num_steps)
    unit.master.sub_(learning_rate * mean / (square.sqrt() + eps))
    unit.piece.copy_(unit.master)
