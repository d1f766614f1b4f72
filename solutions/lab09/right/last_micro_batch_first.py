# The micro-batches are taken from the last one to the first one: as short, and as many in flight.

# %% gpipe
def gpipe(num_ranks, num_micro_batches):
    schedule = []
    for rank in range(num_ranks):
        actions = []
        for kind in ("F", "B"):
            for number in reversed(range(num_micro_batches)):
                actions.append(Action(kind, rank, number))
        schedule.append(actions)
    return schedule


# %% one_f_one_b
def one_f_one_b(num_ranks, num_micro_batches):
    schedule = []
    for rank in range(num_ranks):
        actions, num_forward = [], 0
        for num_backward in range(num_micro_batches):
            while num_forward < min(num_backward + num_ranks - rank, num_micro_batches):
                num_forward += 1
                actions.append(Action("F", rank, num_micro_batches - num_forward))
            actions.append(Action("B", rank, num_micro_batches - 1 - num_backward))
        schedule.append(actions)
    return schedule


# %% find_circle
class Transfer(NamedTuple):
    op: str
    peer: int


def find_circle(programs):
    left = [list(reversed(program)) for program in programs]
    ready = list(range(len(left)))
    while ready:
        rank = ready.pop()
        if not left[rank]:
            continue
        op, peer = left[rank][-1]
        wanted = "recv" if op == "send" else "send"
        if left[peer] and tuple(left[peer][-1]) == (wanted, rank):
            left[rank].pop()
            left[peer].pop()
            ready += [rank, peer]
    waits_for = {rank: own[-1].peer for rank, own in enumerate(left) if own}
    for start in sorted(waits_for):
        circle, rank = [start], waits_for[start]
        while rank != start and rank not in circle:
            circle.append(rank)
            rank = waits_for[rank]
        if rank == start:
            return circle
    return None


# %% balance
def balance(costs, num_stages):
    def cut(limit):
        lengths, held = [0], 0
        for cost in costs:
            if lengths[-1] and held + cost > limit * (1 + 1e-12):
                lengths.append(0)
                held = 0
            lengths[-1] += 1
            held += cost
        return lengths if len(lengths) <= num_stages and max(costs) <= limit * (1 + 1e-12) else None

    sums = set()
    for start in range(len(costs)):
        total = 0
        for cost in costs[start:]:
            total += cost
            sums.add(total)
    sums = sorted(sums)
    low, high = 0, len(sums) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cut(sums[middle]) else (middle + 1, high)
    lengths = cut(sums[low])
    while len(lengths) < num_stages:  # a stage in two costs no more
        place = max(range(len(lengths)), key=lengths.__getitem__)
        lengths[place : place + 1] = [1, lengths[place] - 1]
    return lengths
