# What they get must be the notebook's `Unit` and `Block`.

# %% gather_and_free
def gather(unit):
    if not isinstance(unit, Unit):
        raise TypeError(f"gather takes a Unit, not {type(unit).__name__}")
    unit.full.untyped_storage().resize_(unit.full.numel() * unit.full.element_size())
    return dist.all_gather(list(unit.full.chunk(dist.get_world_size())), unit.piece, async_op=True)


def free(unit):
    if not isinstance(unit, Unit):
        raise TypeError(f"free takes a Unit, not {type(unit).__name__}")
    unit.full.untyped_storage().resize_(0)


# %% Prefetching
class Prefetching(OnDemand):
    def __init__(self, blocks):
        if not all(isinstance(block, Block) for block in blocks):
            raise TypeError("Prefetching takes Blocks")
        super().__init__(blocks)
        self.under_way = []

    def start(self, place):
        if place in range(len(self.blocks)):
            for unit in self.blocks[place].units:
                if not unit.is_gathered:
                    self.under_way.append((unit, gather(unit)))

    def settle(self, units):
        left = []
        for unit, handle in self.under_way:
            if any(unit is own for own in units):
                handle.wait()
            else:
                left.append((unit, handle))
        self.under_way = left

    def use(self, place, is_backward):
        self.start(place)
        self.start(place + (-1 if is_backward else 1))
        self.settle(self.blocks[place].units)

    def drop(self, place):
        self.settle(self.blocks[place].units)
        super().drop(place)
