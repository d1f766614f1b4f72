# score: 22.05
# hint: GB
# The fastest plan, whether or not it fits.

# %% choose
def choose(job: Job, machine: Machine) -> Plan | None:
    found = []
    for tp, pp in itertools.product(range(1, machine.num_gpus + 1), repeat=2):
        dp = machine.num_gpus // (tp * pp)
        if dp * tp * pp != machine.num_gpus or job.num_layers % pp:
            continue
        if job.num_heads % tp or job.hidden_width % tp or job.global_batch % dp:
            continue
        for micro_batch in range(1, job.global_batch // dp + 1):
            if job.global_batch // dp % micro_batch == 0:
                found += [Plan(dp, tp, pp, micro_batch, recompute) for recompute in (False, True)]
    fitting = found
    return min(fitting, key=lambda plan: step_s(job, machine, plan), default=None)
