# score: 23.25
# hint: weights were used while they were freed
# Only the next block is gathered: the order of use is taken for granted.

# %% Prefetching
class Prefetching:
    def __init__(self, blocks):
        self.blocks, self.handles = blocks, {}

    def use(self, place, is_backward):
        for one in (
            *([place] if not self.handles and place in (0, len(self.blocks) - 1) else []),
            place - 1 if is_backward else place + 1,
        ):
            for unit in self.blocks[one].units if 0 <= one < len(self.blocks) else ():
                if not unit.is_gathered:
                    self.handles[unit] = gather(unit)
        for unit in self.blocks[place].units:
            if unit in self.handles:
                self.handles.pop(unit).wait()

    def drop(self, place):
        for unit in self.blocks[place].units:
            if unit in self.handles:
                self.handles.pop(unit).wait()
            free(unit)
