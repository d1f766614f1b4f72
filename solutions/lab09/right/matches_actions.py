# With one chunk it is 1F1B, whose actions must be of the notebook's class, also for `match`.

# %% interleaved
def checked(action):
    if not isinstance(action, Action):
        raise TypeError(f"not an Action: {action}")
    match action:
        case Action("F" | "B" as kind, stage, micro_batch):
            return Action(kind, stage, micro_batch)
        case _:
            raise TypeError(f"not an Action: {action}")


def interleaved(num_ranks, num_micro_batches, num_chunks):
    if num_chunks == 1:
        schedule = one_f_one_b(num_ranks, num_micro_batches)
        return [[checked(action) for action in actions] for actions in schedule]
    num_rounds = num_micro_batches // num_ranks
    num, more = divmod(num_micro_batches, num_rounds)
    sizes = [num + (place < more) for place in range(num_rounds)]
    rounds = [range(sum(sizes[:place]), sum(sizes[: place + 1])) for place in range(num_rounds)]
    schedule = []
    for rank in range(num_ranks):
        stages = range(rank, num_chunks * num_ranks, num_ranks)
        ahead = (num_chunks - 1) * len(rounds[0]) + 2 * (num_ranks - 1 - rank)
        forward = [Action("F", s, one) for turn in rounds for s in stages for one in turn]
        backward = [Action("B", s, one) for turn in rounds for s in stages[::-1] for one in turn]
        schedule.append([])
        while backward:
            is_ahead = len(backward) - len(forward) > ahead
            take_from = backward if is_ahead or not forward else forward
            schedule[-1].append(take_from.pop(0))
    return schedule
