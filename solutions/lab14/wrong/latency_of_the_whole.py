# score: 22
# hint: The floor has 2 (n - 1) latencies
# The floor and the rate of the all-reduce are taken for those of the link.

# %% ring_link
def all_reduce_s(size_bytes, num_ranks, latency_s, bytes_per_s):
    return 2 * (num_ranks - 1) * (latency_s + size_bytes / num_ranks / bytes_per_s)


def alpha_beta(links, num_ranks):
    return line([(one["size_bytes"], best_s(one["times_s"])) for one in links])
