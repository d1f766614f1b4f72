# score: 29
# hint: leave out frozen ones
# Frozen parameters get a place in a bucket, and cannot have a hook.


# %% make_buckets
def make_buckets(parameters, bucket_bytes):
    buckets = []
    for parameter in reversed(parameters):
        last = buckets[-1] if buckets else []
        size_bytes = sum(one.nbytes for one in last) + parameter.nbytes
        if last and size_bytes <= bucket_bytes and last[0].dtype == parameter.dtype:
            last.append(parameter)
        else:
            buckets.append([parameter])
    return buckets
