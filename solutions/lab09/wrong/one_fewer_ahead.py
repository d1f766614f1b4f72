# score: 25.2 to 25.5
# hint: a length of
# One F fewer ahead than it takes: the ranks behind wait.

# %% one_f_one_b
def one_f_one_b(num_ranks: int, num_micro_batches: int) -> list[list[Action]]:
    schedule = []
    for rank in range(num_ranks):
        ahead = min(max(num_ranks - 2 - rank, 0), num_micro_batches)
        forward = [Action("F", rank, number) for number in range(num_micro_batches)]
        backward = [Action("B", rank, number) for number in range(num_micro_batches)]
        in_turn = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
        left = backward[num_micro_batches - ahead :]
        schedule.append([*forward[:ahead], *in_turn, *left])
    return schedule
