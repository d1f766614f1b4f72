# score: 23.3 to 23.97
# hint: keep the earliest time
# The best size of equal buckets.

# %% cut_into_buckets
def cut_into_buckets(
    sizes_bytes: list[int], ready_s: list[float], latency_s: float, bytes_per_s: float
) -> list[int]:
    """The number of gradients in each bucket, so that the last all-reduce ends earliest."""

    def end_s(cut):
        done_s, place = 0.0, 0
        for num in cut:
            begin_s = max(done_s, ready_s[place + num - 1])
            done_s = begin_s + latency_s + sum(sizes_bytes[place : place + num]) / bytes_per_s
            place += num
        return done_s

    num, cuts = len(sizes_bytes), []
    for size in range(1, num + 1):
        cuts.append([size] * (num // size) + [num % size] * (num % size > 0))
    return min(cuts, key=end_s)
