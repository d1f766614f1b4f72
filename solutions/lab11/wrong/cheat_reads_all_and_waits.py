# score: 23
# hint: one batch ahead at most
# All batches are read at once, and handed out at the times at which they would have come.

# %% read_ahead
def read_ahead(load, num_batches):
    if not num_batches:
        return
    batches, lasts_s, error = [], [], None
    begin_s = emulate.elapsed()
    with emulate.lane("loader"):
        before_s = emulate.elapsed()
        for number in range(num_batches):
            try:
                batches.append(load(number))
            except Exception as one:
                error = one
            lasts_s.append(emulate.elapsed() - before_s)
            before_s = emulate.elapsed()
            if error:
                break
    there_s = begin_s + lasts_s[0]
    for number, batch in enumerate(batches):
        now_s = emulate.elapsed()
        if there_s > now_s:
            emulate.spend(there_s - now_s)
        now_s = emulate.elapsed()
        if number + 1 < len(lasts_s):
            there_s = now_s + lasts_s[number + 1]
        yield batch
    if error:
        raise error
