# score: 0
# hint: a list of actions
# Everything returns something odd.

# %% gpipe
def gpipe(num_ranks, num_micro_batches):
    return {"rank": float("nan")}


# %% one_f_one_b
def one_f_one_b(num_ranks, num_micro_batches):
    return [[(10**30, "F", None), torch.zeros(3)]] * num_ranks


# %% interleaved
def interleaved(num_ranks, num_micro_batches, num_chunks):
    return [[["F", float("inf"), True]] for _ in range(num_ranks)]


# %% find_circle
class Transfer(NamedTuple):
    op: str
    peer: int


def find_circle(programs):
    return [float("nan"), {"rank": 0}]


# %% run_schedule
def run_schedule(schedule, pipeline, micro_batches):
    for stage in pipeline.stages.values():
        for one in stage.parameters():
            one.grad = torch.full_like(one, float("nan"))
    return float("nan")


# %% balance
def balance(costs, num_stages):
    return [-1, len(costs) + 1, *[0] * (num_stages - 2)]


# %% shortest
def shortest(num_ranks, num_micro_batches, max_in_flight, time_s):
    return [[("W", rank, 0)] * 3 for rank in range(num_ranks)]
