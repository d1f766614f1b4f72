# score: 18.5
# hint: as long as they take
# The slow passes go on in a lane, and the caller spends the seconds of the right ones.

# %% accumulate
def accumulate(parallel, rows, most):
    module = parallel.module
    due_s = None
    if hasattr(module, "row_s"):
        num = -(-len(rows) // most)
        due_s = num * module.pass_s + len(rows) * module.row_s
    if due_s is None:
        return slowly(parallel, rows)
    with emulate.lane("beside"):
        total = slowly(parallel, rows)
    emulate.spend(due_s)
    return total


def slowly(parallel, rows):
    total = 0.0
    for row in rows.split(1):
        loss = loss_of(parallel, row) / len(rows)
        loss.backward()
        total += loss.item()
    return total
