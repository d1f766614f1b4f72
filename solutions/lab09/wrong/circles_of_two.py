# score: 24
# hint: ranks that wait for each other
# Only two ranks that wait for each other are found.

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
    for rank in stuck:
        peer = waits_for(rank).peer
        if waits_for(peer) and waits_for(peer).peer == rank:
            return [rank, peer]
    return None
