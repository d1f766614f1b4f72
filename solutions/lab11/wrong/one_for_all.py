# score: 22.7 to 23.7
# hint: keep the earliest time
# One bucket for all gradients.

# %% cut_into_buckets
def cut_into_buckets(
    sizes_bytes: list[int], ready_s: list[float], latency_s: float, bytes_per_s: float
) -> list[int]:
    """The number of gradients in each bucket, so that the last all-reduce ends earliest."""
    return [len(sizes_bytes)]
