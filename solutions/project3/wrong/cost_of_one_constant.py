# score: 69.9 to 70.9
# hint: pairs of plans
# hint: changes within
# Every GPU at 45% of its peak: near most published steps, and blind to the plan.


# %% seconds_of_a_step
def step_s(plan):
    flops = plan.model.flops(plan.num_tokens, plan.length) * (4 / 3 if plan.recompute == "full" else 1)
    return flops / (0.45 * plan.cluster.world_size * plan.cluster.gpu.peak_flops_per_s["bfloat16"])
