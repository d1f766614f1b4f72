# score: 28
# hint: above bucket_bytes
# As in torch: a bucket ends once it has reached the limit, and may be larger.


# %% make_buckets
def make_buckets(parameters, bucket_bytes):
    buckets = [[]]
    for parameter in reversed(parameters):
        if not parameter.requires_grad:
            continue
        if buckets[-1] and buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
        buckets[-1].append(parameter)
        if sum(one.nbytes for one in buckets[-1]) >= bucket_bytes:
            buckets.append([])
    return [bucket for bucket in buckets if bucket]
