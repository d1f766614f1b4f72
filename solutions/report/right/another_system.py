# Llama 3 in place of BLOOM, and a cost by one rate of work.

# %% design_file
def design_file() -> str:
    return (capstone.EXAMPLES / "llama_3_405b.toml").read_text(encoding="utf-8")


# %% step_parts
def step_parts(plan) -> dict[str, float]:
    peak = plan.cluster.world_size * plan.cluster.gpu.peak_flops_per_s["bfloat16"]
    work_s = plan.model.flops(plan.num_tokens, plan.length) / (0.5 * peak)
    again_s = work_s / 3 if plan.recompute == "full" else 0.0
    micro_s = (work_s + again_s) / plan.num_micro_batches
    return {
        "work": work_s,
        "again": again_s,
        "bubble": (plan.pp - 1) / plan.num_chunks * micro_s,
    }
