# The module's own forward is replaced; no hooks of modules.

# %% FullyShard
class FullyShard:
    def __init__(self, blocks, gathers):
        self.blocks, self.gathers, self.waiting = blocks, gathers, []
        for place, block in enumerate(blocks):
            block.module.forward = partial(self.run, place, block.module.forward)

    def run(self, place, forward, *inputs):
        self.gathers.use(place, is_backward=False)
        output = forward(*call_after_backward(inputs, lambda: self.reduce(place)))
        self.gathers.drop(place)
        if output.requires_grad:
            output.register_hook(lambda _: self.gathers.use(place, is_backward=True))
        return output

    def reduce(self, place):
        for unit in self.blocks[place].units:
            if all(one.grad is None for one in unit.parameters):
                continue
            while self.waiting:
                self.waiting.pop()()
            self.waiting.append(reduce_gradients(unit))
        self.gathers.drop(place)

    def finish(self):
        for place in reversed(range(len(self.blocks))):
            self.reduce(place)
        while self.waiting:
            self.waiting.pop()()
