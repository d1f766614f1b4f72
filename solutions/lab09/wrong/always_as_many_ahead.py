# score: 26
# hint: each once
# The F ahead are as many as there are ranks behind, even where there are fewer micro-batches.

# %% one_f_one_b
def one_f_one_b(num_ranks: int, num_micro_batches: int) -> list[list[Action]]:
    schedule = []
    for rank in range(num_ranks):
        ahead = num_ranks - 1 - rank
        forward = [Action("F", rank, number) for number in range(num_micro_batches)]
        backward = [Action("B", rank, number) for number in range(num_micro_batches)]
        in_turn = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
        left = backward[num_micro_batches - ahead :]
        schedule.append([*forward[:ahead], *in_turn, *left])
    return schedule
