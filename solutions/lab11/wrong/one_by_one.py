# score: 22.2 to 23.2
# hint: keep the earliest time
# A bucket for each gradient.

# %% cut_into_buckets
def cut_into_buckets(
    sizes_bytes: list[int], ready_s: list[float], latency_s: float, bytes_per_s: float
) -> list[int]:
    """The number of gradients in each bucket, so that the last all-reduce ends earliest."""
    return [1] * len(sizes_bytes)
