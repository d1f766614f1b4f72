# score: 29
# hint: would bring it above
# Every number counts 4 bytes, whatever the dtype.


# %% make_buckets
def make_buckets(parameters, bucket_bytes):
    buckets = []
    for parameter in reversed([one for one in parameters if one.requires_grad]):
        last = buckets[-1] if buckets else []
        size_bytes = 4 * sum(one.numel() for one in [*last, parameter])
        if last and size_bytes <= bucket_bytes and last[0].dtype == parameter.dtype:
            last.append(parameter)
        else:
            buckets.append([parameter])
    return buckets
