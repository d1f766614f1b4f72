# score: 24.5 to 26.5
# hint: Leaderboard
# I before F before W, as soon as one can start: no limit, no patience, no search.

# %% shortest
def shortest(
    num_ranks: int, num_micro_batches: int, max_in_flight: int, time_s: dict[str, float]
) -> list[list[Action]]:

    def played(ahead, patience_s):
        """The schedule in which F is at most so far ahead of I, and W waits so long for others."""
        done_s, free_s = {}, [0.0] * num_ranks
        num = [{"F": 0, "I": 0, "W": 0} for _ in range(num_ranks)]
        schedule = [[] for _ in range(num_ranks)]
        for _ in range(3 * num_ranks * num_micro_batches):
            choices = []
            for rank, own in enumerate(num):
                has_room = own["F"] - own["W"] < max_in_flight and own["F"] - own["I"] < ahead[rank]
                for order, kind in enumerate("IFW"):
                    action = Action(kind, rank, own[kind])
                    before = needed_before(action, num_ranks)
                    if own[kind] == num_micro_batches or any(one not in done_s for one in before):
                        continue
                    if kind == "F" and not has_room:
                        continue
                    start_s = max([free_s[rank], *(done_s[one] for one in before)])
                    rated_s = start_s + (patience_s if kind == "W" else 0.0)
                    choices.append((rank, rated_s, order, start_s, action))
            best = {}
            for rank, *rest in choices:
                best[rank] = min(best.get(rank, rest), rest)
            rank = min(best, key=lambda one: (best[one][2], one))
            _, _, start_s, action = best[rank]
            done_s[action] = free_s[rank] = start_s + time_s[action.kind]
            num[rank][action.kind] += 1
            schedule[rank].append(action)
        return max(free_s), schedule

    found = []
    found.append(played([max_in_flight] * num_ranks, 0.0))
    return min(found, key=lambda one: one[0])[1]
