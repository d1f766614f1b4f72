# Reads in a lane of the emulator, which hides nothing for real; a pool that lives as long as the
# process writes checkpoints; the mean as a sum over rows.

# %% read_ahead
def read_ahead(load, num_batches):
    def start(number):
        with emulate.lane("ahead") as reading:
            try:
                return load(number), None, reading
            except Exception as error:
                return None, error, reading

    coming = start(0) if num_batches > 0 else None
    for number in range(num_batches):
        batch, error, reading = coming
        reading.join()
        if error:
            raise error
        if number < num_batches - 1:
            coming = start(number + 1)
        yield batch


# %% save_aside
POOL = []


def save_aside(state, path):
    if not POOL:
        POOL.append(ThreadPoolExecutor(max_workers=1))
    on_host = {}
    for name in state:
        on_host[name] = emulate.to_host(state[name].detach())
    return POOL[0].submit(torch.save, on_host, path)


# %% accumulate
def accumulate(parallel, rows, most):
    num, total = len(rows), 0.0
    for start in range(0, num, most):
        part = rows[start : start + most]
        with contextlib.ExitStack() as stack:
            if start + most < num:
                stack.enter_context(parallel.no_sync())
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = len(part) * loss_of(parallel, part) / num
                total += float(loss)
            loss.backward()
    return total
