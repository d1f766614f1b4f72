# Gathers that are under way stand in a list, oldest first, and norms are taken in float64.

# %% Prefetching
class Prefetching:
    def __init__(self, blocks):
        self.blocks, self.under_way = blocks, []

    def begin(self, place):
        if place not in range(len(self.blocks)):
            return
        for unit in self.blocks[place].units:
            if not unit.is_gathered:
                self.under_way.append((unit, gather(unit)))

    def end(self, place):
        waiting = [pair for pair in self.under_way if pair[0] in self.blocks[place].units]
        for pair in waiting:
            pair[1].wait()
            self.under_way.remove(pair)

    def use(self, place, is_backward):
        self.begin(place)
        self.begin(place + (-1 if is_backward else 1))
        self.end(place)

    def drop(self, place):
        self.end(place)
        for unit in self.blocks[place].units:
            free(unit)


# %% clip_gradients
def clip_gradients(units, max_norm):
    squares = [unit.gradient.double().square().sum() for unit in units if unit.gradient is not None]
    own = torch.stack([torch.zeros((), dtype=torch.float64), *squares]).sum().float()
    gathered = own.clone().view(1)
    dist.all_reduce(gathered, op=dist.ReduceOp.SUM)
    norm = float(gathered) ** 0.5
    factor = min(1.0, max_norm / norm) if norm else 1.0
    for unit in units:
        if unit.gradient is not None and factor < 1:
            unit.gradient *= factor
    return norm
