# score: 23.25
# hint: frees what nobody has used
# `drop` does not free a unit whose gather is under way.

# %% Prefetching
class Prefetching:
    def __init__(self, blocks):
        self.blocks, self.handles = blocks, {}

    def use(self, place, is_backward):
        for one in (place, place - 1 if is_backward else place + 1):
            for unit in self.blocks[one].units if 0 <= one < len(self.blocks) else ():
                if not unit.is_gathered:
                    self.handles[unit] = gather(unit)
        for unit in self.blocks[place].units:
            if unit in self.handles:
                self.handles.pop(unit).wait()

    def drop(self, place):
        for unit in self.blocks[place].units:
            if unit not in self.handles:
                free(unit)
