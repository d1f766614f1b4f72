# The next block's gather starts after this block's has been waited for: no less ahead of the work.

# %% Prefetching
class Prefetching:
    def __init__(self, blocks):
        self.blocks = blocks
        self.handles = {}

    def use(self, place, is_backward):
        self.start(place)
        self.settle(place)
        ahead = place - 1 if is_backward else place + 1
        if 0 <= ahead < len(self.blocks):
            self.start(ahead)

    def start(self, place):
        for unit in self.blocks[place].units:
            if not unit.is_gathered:
                self.handles[id(unit)] = gather(unit)

    def settle(self, place):
        for unit in self.blocks[place].units:
            handle = self.handles.pop(id(unit), None)
            if handle:
                handle.wait()

    def drop(self, place):
        self.settle(place)
        for unit in self.blocks[place].units:
            free(unit)
