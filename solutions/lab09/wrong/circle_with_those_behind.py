# score: 25
# hint: Each waits for the next one
# Ranks that wait for a circle are counted to it.

# %% find_circle
class Transfer(NamedTuple):
    """A message that a rank sends or receives: `op` is "send" or "recv", `peer` the other rank."""

    op: str
    peer: int


def find_circle(programs: list[list[Transfer]]) -> list[int] | None:
    ended = [0] * len(programs)

    def waits_for(rank):
        return programs[rank][ended[rank]] if ended[rank] < len(programs[rank]) else None

    moved = True
    while moved:
        moved = False
        for rank in range(len(programs)):
            while (own := waits_for(rank)) and own.op == "send":
                if waits_for(own.peer) != Transfer("recv", rank):
                    break
                ended[rank] += 1
                ended[own.peer] += 1
                moved = True
    stuck = [rank for rank in range(len(programs)) if waits_for(rank)]
    if not stuck:
        return None
    seen = [stuck[0]]
    while (peer := waits_for(seen[-1]).peer) not in seen:
        seen.append(peer)
    circle = seen
    lowest = circle.index(min(circle))
    return circle[lowest:] + circle[:lowest]
