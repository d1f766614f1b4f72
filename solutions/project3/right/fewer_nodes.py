# 144 nodes: four days before the end of the budget, for 5% more dollars. A policy that grows only at a start.


# %% design
design = (
    BRIEF.replace("length = 8192", "length = 8192\nglobal_batch = 1728").replace("[model]", 'name = "70B"\n\n[model]')
    + """
[nodes]
cluster = "h100-ndr"
num_nodes = 144
num_spares = 3

[network]
switch = "quantum-2"
is_rail = true
bisection_bytes_per_s = 25e12
levels = [
    { name = "leaf", num_switches = 40, num_down = 32, num_up = 32, num_nodes = 32 },
    { name = "spine", num_switches = 20, num_down = 64, num_up = 0 },
]

[plan]
dp = 576
tp = 2
micro_batch = 1
recompute = "selective"
zero_stage = 3

[software]
schedule = "none"
gradients = "float32"

[checkpoint]
every_s = 900
is_async = true
num_kept = 10
"""
)


# %% policy
def policy(status: Status) -> outages.Plan | float:
    """The seconds of training until the next save, or an `outages.Plan` that also says on how many nodes to train.

    It decides for `JOB`, which is read anew at each call. Only the status shows how often nodes fail: `num_failures` in
    `time_s`. How long they stay away it does not say; `num_healthy` are those that can be used now. The answer follows
    from `status` and `JOB` alone: after a failure the program itself begins anew.
    """
    # failures are a Poisson process: its rate by what was seen, and before that by Llama 3's
    usual_s = 3600 / sum(one.per_node_hour for one in outages.published("Llama 3")) / JOB.num_nodes
    mean_s = (usual_s + status.time_s) / (1 + status.num_failures)
    every_s = math.sqrt(2 * max(JOB.stall_s, 1.0) * mean_s)  # Young 1974
    return outages.Plan(
        max(every_s, JOB.durable_s),
        status.num_nodes if status.event == "saved" else min(JOB.num_nodes, status.num_healthy),
    )
