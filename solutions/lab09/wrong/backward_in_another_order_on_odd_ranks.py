# score: 25
# hint: in one order in B
# Odd ranks take the backward passes of GPipe from the last micro-batch to the first.

# %% gpipe
def gpipe(num_ranks, num_micro_batches):
    numbers = list(range(num_micro_batches))
    schedule = []
    for rank in range(num_ranks):
        backward = numbers[::-1] if rank % 2 else numbers
        first = [Action("F", rank, number) for number in numbers]
        schedule.append(first + [Action("B", rank, number) for number in backward])
    return schedule
