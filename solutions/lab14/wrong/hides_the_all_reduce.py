# score: 22.5
# hint: then one all-reduce
# All of the all-reduce runs beside the work.

# %% prediction
def step_s(program, machine, alone_s):
    alone = sum(alone_s(*one) for one in program.operators)
    work_s = machine.overhead_s * len(program.operators) + machine.slowdown * alone
    link = machine.latency_s, machine.bytes_per_s
    return max(work_s, all_reduce_s(4 * program.num_parameters, program.num_ranks, *link))


def save_s(program, machine):
    size_bytes = 4 * program.num_parameters * (1 + program.num_states)
    return machine.save_floor_s + size_bytes / machine.write_bytes_per_s
