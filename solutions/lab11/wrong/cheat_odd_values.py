# score: 0
# Everything returns something odd.

# %% terms
def terms(timeline, rank):
    names = ("compute", "communication", "late", "input", "storage", "idle")
    return dict.fromkeys(names, float("nan"))


# %% find_bottleneck
def find_bottleneck(step):
    return {"cause": ["input"] * 3}, 10**400, torch.ones(3)


# %% read_ahead
def read_ahead(load, num_batches):
    return [{"batch": float("inf")}] * num_batches


# %% save_aside
def save_aside(state, path):
    class Odd:
        def result(self):
            torch.save(dict.fromkeys(state, "odd"), path)

    return Odd()


# %% accumulate
def accumulate(parallel, rows, most):
    for one in parallel.parameters():
        one.grad = torch.full_like(one, float("nan"))
    return 10**400


# %% cut_into_buckets
def cut_into_buckets(sizes_bytes, ready_s, latency_s, bytes_per_s):
    return [True, float("nan"), -1, 10**30]
