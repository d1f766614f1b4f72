# score: 23
# hint: Leaderboard
# 1F1B whose B is cut into I and W, one right behind the other.

# %% shortest
def shortest(num_ranks, num_micro_batches, max_in_flight, time_s):
    schedule = []
    for rank in range(num_ranks):
        ahead = min(num_ranks - 1 - rank, num_micro_batches, max_in_flight - 1)
        numbers = list(range(num_micro_batches))
        actions = [Action("F", rank, number) for number in numbers[:ahead]]
        for number in numbers:
            if number + ahead < num_micro_batches:
                actions.append(Action("F", rank, number + ahead))
            actions += [Action("I", rank, number), Action("W", rank, number)]
        schedule.append(actions)
    return schedule
