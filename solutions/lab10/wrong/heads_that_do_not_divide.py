# score: 22.925
# hint: not legal
# tp need not divide the heads.

# %% choose
def choose(job: Job, machine: Machine) -> Plan | None:
    found = []
    for tp, pp in itertools.product(range(1, machine.num_gpus + 1), repeat=2):
        dp = machine.num_gpus // (tp * pp)
        if dp * tp * pp != machine.num_gpus or job.num_layers % pp:
            continue
        if job.global_batch % dp:
            continue
        for micro_batch in range(1, job.global_batch // dp + 1):
            if job.global_batch // dp % micro_batch == 0:
                found += [Plan(dp, tp, pp, micro_batch, recompute) for recompute in (False, True)]
    fitting = [plan for plan in found if rank_bytes(job, plan) <= machine.memory_bytes]
    return min(fitting, key=lambda plan: step_s(job, machine, plan), default=None)
