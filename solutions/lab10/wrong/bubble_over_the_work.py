# score: 23
# hint: Idle over all
# The bubble is (pp - 1)/m, and a step has no fill and drain.

# %% step_time
def step_s(job: Job, machine: Machine, plan: Plan) -> float:
    num = num_micro_batches(job, plan)
    each_s = sum(part(job, machine, plan) for part in (work_s, tp_s, pp_s))
    return num * each_s + dp_s(job, machine, plan)


def bubble_fraction(job: Job, plan: Plan) -> float:
    return (plan.pp - 1) / num_micro_batches(job, plan)
