# score: 21.75
# hint: has no .grad yet
# A block counts as done after its first pass in backward: the second is lost.

# %% FullyShard
class FullyShard:
    def __init__(self, blocks, gathers):
        self.blocks, self.gathers, self.take_in = blocks, gathers, None
        self.done = set()
        for place, block in enumerate(blocks):
            block.module.register_forward_pre_hook(partial(self.before_forward, place))
            block.module.register_forward_hook(partial(self.after_forward, place))

    def before_forward(self, place, module, inputs):
        self.gathers.use(place, is_backward=False)
        return call_after_backward(inputs, partial(self.after_backward, place))

    def after_forward(self, place, module, inputs, output):
        self.gathers.drop(place)
        if output.requires_grad:
            output.register_hook(lambda _: self.gathers.use(place, is_backward=True))

    def after_backward(self, place):
        for unit in self.blocks[place].units:
            if place in self.done:
                for one in unit.parameters:
                    one.grad = None
            elif unit.requires_grad:
                if self.take_in:
                    self.take_in()
                self.take_in = reduce_gradients(unit)
        self.done.add(place)
        self.gathers.drop(place)

    def finish(self):
        for place in range(len(self.blocks)):
            self.after_backward(place)
        if self.take_in:
            self.take_in()
        self.take_in = None
        self.done = set()
