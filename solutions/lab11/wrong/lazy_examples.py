# score: 3.5 to 3.9
# What the text shows, and the slow program as it is given.

# %% terms
def terms(timeline, rank):
    names = ("compute", "communication", "late", "input", "storage", "idle")
    return dict.fromkeys(names, timeline.end_s / 6)


# %% find_bottleneck
def find_bottleneck(step):
    return Diagnosis("input", None, 0.8 * step.timeline.end_s)


# %% read_ahead
def read_ahead(load, num_batches):
    return map(load, range(num_batches))


# %% save_aside
def save_aside(state, path):
    torch.save(state, path)
    done = Future()
    done.set_result(None)
    return done


# %% accumulate
def accumulate(parallel, rows, most):
    total = 0.0
    for row in rows.split(1):
        loss = loss_of(parallel, row) / len(rows)
        loss.backward()
        total += loss.item()
    return total


# %% cut_into_buckets
def cut_into_buckets(sizes_bytes, ready_s, latency_s, bytes_per_s):
    return [1, 2]
