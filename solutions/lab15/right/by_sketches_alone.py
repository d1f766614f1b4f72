# The calls are not read: a mixed gradient is found among the sums of local ones.


# %% name_fault
def name_fault(records: list[Record]) -> Fault:
    """The fault of a program, from the records of its ranks: a kind of the table above, or None.

    - `rank` and `parameter` are given where the table says so; otherwise they are None. Where
      several parameters are concerned, like a layer's weight and bias, it is the first of them in
      the order of the records.
    - There are at least three ranks, all parameters are whole on each rank, and a program has one
      fault at most. Relative differences up to ROUNDING are rounding.
    - The records are not changed.

    Seven points for the faults: none for three of ten, all for ten, in proportion between them; the
    right kind with a wrong rank or parameter counts half. Two points for the healthy programs, in
    proportion, where at least half of the faults are named.
    """
    ranks, num_steps = range(len(records)), len(records[0].steps)
    steps = [[record.steps[number] for record in records] for number in range(num_steps)]
    trained = list(steps[0][0].final)

    def total(sketches):
        return [sum(of) for of in zip(*sketches, strict=True)]

    def times(sketch, factor):
        return [factor * one for one in sketch]

    def agree(sketches):
        return all(relative(one, sketches[0]) <= ROUNDING for one in sketches)

    def odd_one(values):
        for rank in ranks:
            others = [values[one] for one in ranks if one != rank]
            if all(one == others[0] for one in others) and values[rank] != others[0]:
                return rank
        return None

    pairs = [(one, other) for one in ranks for other in ranks if one < other]
    if any(all(step[a].batch == step[b].batch for step in steps) for a, b in pairs):
        return Fault("same_batch")
    apart = first_difference(records)
    if apart and apart[0] == 0:
        return Fault("start_differs", None, apart[1])
    for step in steps:
        rank = odd_one([one.settings for one in step])
        if rank is not None:
            return Fault("setting_differs", rank)
        split = [name for name in trained if not agree([one.final[name] for one in step])]
        # is it the sum of one rank's gradient of another parameter and the others' of this one?
        for name in split:
            for rank in ranks:
                rest = [one.local[name] for one in step if one is not step[rank]]
                final = step[rank - 1].final[name]
                for other in trained:
                    mixed = times(total([*rest, step[rank].local[other]]), 1 / len(records))
                    if other != name and relative(final, mixed) <= 100 * ROUNDING:
                        return Fault("mispaired", rank)
        if len(split) == 1:
            return Fault("not_reduced", None, split[0])
        if split:
            return Fault("no_sync")
        ratios = {}  # of the gradient to the mean of the local ones
        for name in trained:
            due = times(total([one.local[name] for one in step]), 1 / len(records))
            square = sum(one * one for one in due)
            if square:
                final = step[0].final[name]
                ratios[name] = sum(a * b for a, b in zip(due, final, strict=True)) / square
        high = [name for name in ratios if ratios[name] > 2]
        if high and len(high) == len(ratios):
            return Fault("not_averaged")
        if high:
            return Fault("reduced_twice", None, high[0])
    for step in steps:
        moved = [one.before != one.after for one in step]
        rank = odd_one(moved)
        if rank is not None and not moved[rank]:
            return Fault("skipped_step", rank)
    for name in trained:
        has_gradient = any(step[0].settings["lr"] * norm(step[0].final[name]) for step in steps)
        if has_gradient and records[0].steps[0].before[name] == records[0].steps[-1].after[name]:
            return Fault("other_tensors", None, name)
    return Fault(None)
