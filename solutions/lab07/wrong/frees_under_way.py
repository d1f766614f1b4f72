# score: 23.25
# hint: wait for the unit's handle
# `drop` frees memory into which a gather still writes.

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
            self.handles.pop(unit, None)
            free(unit)
