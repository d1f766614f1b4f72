# score: 26
# hint: Rounds of micro-batches
# Rounds of p micro-batches, and what is left in a last one: right for multiples of p alone.

# %% interleaved
def interleaved(num_ranks: int, num_micro_batches: int, num_chunks: int) -> list[list[Action]]:
    every = range(num_micro_batches)
    rounds = [every[start : start + num_ranks] for start in range(0, len(every), num_ranks)]
    schedule = []
    for rank in range(num_ranks):
        stages = range(rank, num_chunks * num_ranks, num_ranks)
        for_each_behind = 1 if num_chunks == 1 else 2
        ahead = (num_chunks - 1) * len(rounds[0]) + for_each_behind * (num_ranks - 1 - rank)
        ahead = min(ahead, num_chunks * num_micro_batches)
        forward = [Action("F", s, one) for turn in rounds for s in stages for one in turn]
        backward = [Action("B", s, one) for turn in rounds for s in stages[::-1] for one in turn]
        in_turn = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
        left = backward[len(forward) - ahead :]
        schedule.append([*forward[:ahead], *in_turn, *left])
    return schedule
