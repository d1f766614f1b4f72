# score: 25
# hint: Play it until nothing moves
# Who waits for whom in the first transfers: nothing is played.

# %% find_circle
class Transfer(NamedTuple):
    """A message that a rank sends or receives: `op` is "send" or "recv", `peer` the other rank."""

    op: str
    peer: int


def find_circle(programs: list[list[Transfer]]) -> list[int] | None:
    ended = [0] * len(programs)

    def waits_for(rank):
        return programs[rank][ended[rank]] if ended[rank] < len(programs[rank]) else None

    stuck = [rank for rank in range(len(programs)) if waits_for(rank)]
    if not stuck:
        return None
    for rank in stuck:
        if waits_for(rank).op == "send" and waits_for(waits_for(rank).peer) == Transfer(
            "recv", rank
        ):
            return None
    seen = [stuck[0]]
    while (peer := waits_for(seen[-1]).peer) not in seen:
        seen.append(peer)
    circle = seen[seen.index(peer) :]
    lowest = circle.index(min(circle))
    return circle[lowest:] + circle[:lowest]
