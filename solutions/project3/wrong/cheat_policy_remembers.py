# score: 82
# hint: asked anew
# It keeps the times between failures in a list, which a program that begins anew has lost.


# %% policy
GAPS = {}


def policy(status: Status) -> outages.SavePlan | float:
    """The seconds of training until the next save, or an `outages.SavePlan` that also says on how many nodes to train.

    It decides for `JOB`, which is read anew at each call. Only the status shows how often nodes fail: `num_failures` in
    `time_s`. How long they stay away it does not say; `num_healthy` are those that can be used now. The answer follows
    from `status` and `JOB` alone: after a failure the program itself begins anew.
    """
    # failures are a Poisson process: its rate by what was seen, and before that by Llama 3's
    usual_s = 3600 / sum(one.per_node_hour for one in outages.published("Llama 3")) / JOB.num_nodes
    gaps = GAPS.setdefault(JOB, set())
    gaps.add(status.num_failures)
    mean_s = (usual_s + status.time_s) / (1 + len(gaps))
    every_s = math.sqrt(2 * max(JOB.stall_s, 1.0) * mean_s)  # Young 1974
    return outages.SavePlan(max(every_s, JOB.durable_s), min(JOB.num_nodes, status.num_healthy))
