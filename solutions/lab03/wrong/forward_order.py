# score: 29
# hint: Start at the last parameter
# Buckets are filled from the first parameter on: the first one is full when backward is over.


# %% make_buckets
def make_buckets(parameters, bucket_bytes):
    buckets = []
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        last = buckets[-1] if buckets else []
        size_bytes = sum(one.nbytes for one in last) + parameter.nbytes
        if last and size_bytes <= bucket_bytes and last[0].dtype == parameter.dtype:
            last.append(parameter)
        else:
            buckets.append([parameter])
    return buckets
