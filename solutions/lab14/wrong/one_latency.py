# score: 23
# hint: with its own latency
# The messages of a ring share one latency.

# %% ring_link
def all_reduce_s(size_bytes, num_ranks, latency_s, bytes_per_s):
    if num_ranks == 1:
        return 0.0
    return latency_s + 2 * (num_ranks - 1) / num_ranks * size_bytes / bytes_per_s


def alpha_beta(links, num_ranks):
    floor_s, rate = line([(one["size_bytes"], best_s(one["times_s"])) for one in links])
    steps = 2 * (num_ranks - 1)
    return floor_s / steps, rate * steps / num_ranks
