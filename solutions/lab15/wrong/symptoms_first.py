# score: 16
# hint: accuses nobody
# Weights that drift are blamed on a gradient, whatever made them drift.


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
    apart = first_difference(records)
    if apart and apart[0] == 0:
        return Fault("start_differs", None, apart[1])
    if apart:
        return Fault("not_reduced", None, apart[1])
    first = records[0].steps[0]
    if all(record.steps[0].batch == first.batch for record in records):
        return Fault("same_batch")
    return Fault(None)
