# score: 23.5
# hint: of each of its states
# The optimizer's states are not in the checkpoint.

# %% prediction
def step_s(program, machine, alone_s):
    alone = sum(alone_s(*one) for one in program.operators)
    work_s = machine.overhead_s * len(program.operators) + machine.slowdown * alone
    link = machine.latency_s, machine.bytes_per_s
    return work_s + all_reduce_s(4 * program.num_parameters, program.num_ranks, *link)


def save_s(program, machine):
    return machine.save_floor_s + 4 * program.num_parameters / machine.write_bytes_per_s
