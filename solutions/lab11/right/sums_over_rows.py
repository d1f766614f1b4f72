# The loss of a pass as a sum over its tokens; batches read by a pool of which the generator asks
# for one result at a time; the cut from the end to the start is found by trying all last buckets.

# %% read_ahead
def read_ahead(load, num_batches):
    pool = ThreadPoolExecutor(max_workers=4)
    try:
        future = pool.submit(load, 0) if num_batches else None
        number = 1
        while future is not None:
            batch = future.result()
            future = pool.submit(load, number) if number < num_batches else None
            number += 1
            yield batch
    finally:
        pool.shutdown()


# %% accumulate
def accumulate(parallel, rows, most):
    total = torch.zeros(())
    num_passes = (len(rows) + most - 1) // most
    for number, part in enumerate(torch.tensor_split(rows, num_passes)):
        context = parallel.no_sync if number + 1 < num_passes else contextlib.nullcontext
        with context():
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(parallel, part)
            weighted = loss * part.shape[0]
            (weighted / rows.shape[0]).backward()
        total += weighted.detach()
    return (total / len(rows)).item()


# %% cut_into_buckets
def cut_into_buckets(sizes_bytes, ready_s, latency_s, bytes_per_s):
    num = len(sizes_bytes)
    sums = [0, *itertools.accumulate(sizes_bytes)]
    end_s, last = [0.0] * (num + 1), [0] * (num + 1)
    for at in range(1, num + 1):
        tries = {
            start: max(end_s[start], ready_s[at - 1])
            + latency_s
            + (sums[at] - sums[start]) / bytes_per_s
            for start in range(at)
        }
        last[at] = min(tries, key=tries.get)
        end_s[at] = tries[last[at]]
    cut, at = [], num
    while at:
        cut.append(at - last[at])
        at = last[at]
    return cut[::-1]
