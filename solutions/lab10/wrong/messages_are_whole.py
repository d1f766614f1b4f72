# score: 23.5
# hint: each cut by tp
# Every rank of tp receives the whole activation from the stage before.

# %% communication
def tp_s(job: Job, machine: Machine, plan: Plan) -> float:
    rate = machine.node_bytes_per_s
    if plan.tp > machine.gpus_per_node:
        rate = machine.network_bytes_per_s
    size_bytes = 2 * plan.micro_batch * job.length * job.width
    num = job.num_layers // plan.pp * (6 if plan.recompute else 4)
    return num * 2 * (plan.tp - 1) / plan.tp * size_bytes / rate


def pp_s(job: Job, machine: Machine, plan: Plan) -> float:
    if plan.pp == 1:
        return 0.0
    rate = machine.network_bytes_per_s
    if machine.num_gpus <= machine.gpus_per_node:
        rate = machine.node_bytes_per_s
    return 2 * 2 * plan.micro_batch * job.length * job.width / rate


def dp_s(job: Job, machine: Machine, plan: Plan) -> float:
    rate = machine.node_bytes_per_s
    if plan.tp * plan.dp > machine.gpus_per_node:
        rate = machine.network_bytes_per_s
    total_s = 2 * (plan.dp - 1) / plan.dp * 2 * num_parameters(job, plan) / rate
    backward_s = (3 / 4 if plan.recompute else 2 / 3) * work_s(job, machine, plan)
    return max(total_s - backward_s, total_s / (job.num_layers // plan.pp))
