# score: 21.475
# hint: Try all legal plans
# tp fills a node, pp is as small as fits, micro-batches are of one sequence: a rule of thumb.

# %% choose
def choose(job, machine):
    tp = math.gcd(math.gcd(machine.gpus_per_node, job.num_heads), machine.num_gpus)
    for pp in range(1, machine.num_gpus // tp + 1):
        dp = machine.num_gpus // (tp * pp)
        if dp * tp * pp != machine.num_gpus or job.num_layers % pp or job.global_batch % dp:
            continue
        for recompute in (False, True):
            plan = Plan(dp, tp, pp, 1, recompute)
            if rank_bytes(job, plan) <= machine.memory_bytes:
                return plan
    return None
