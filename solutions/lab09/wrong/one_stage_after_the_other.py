# score: 24
# hint: Rounds of micro-batches
# All micro-batches go through a stage before the next stage of the rank begins.

# %% interleaved
def interleaved(num_ranks: int, num_micro_batches: int, num_chunks: int) -> list[list[Action]]:
    num_rounds = 1
    num, more = divmod(num_micro_batches, num_rounds)
    numbers = iter(range(num_micro_batches))
    rounds = [[next(numbers) for _ in range(num + (one < more))] for one in range(num_rounds)]
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
