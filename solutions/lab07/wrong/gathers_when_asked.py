# score: 21.75
# hint: start the next block's gather
# Prefetching is OnDemand under another name.

# %% Prefetching
class Prefetching:
    def __init__(self, blocks):
        self.blocks, self.handles = blocks, {}

    def use(self, place, is_backward):
        for one in (place,):
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
