# score: 23.25
# hint: give it all inputs
# A block counts as passed when backward has the gradient of its first input: the weights that the
# second one needs may be gone by then, and where only the second has a gradient nothing is reduced.


# %% FullyShard
class FullyShard:
    def __init__(self, blocks, gathers):
        self.blocks, self.gathers, self.take_in = blocks, gathers, None
        for place, block in enumerate(blocks):
            block.module.register_forward_pre_hook(partial(self.before_forward, place))
            block.module.register_forward_hook(partial(self.after_forward, place))

    def before_forward(self, place, module, inputs):
        self.gathers.use(place, is_backward=False)
        first, *others = inputs
        (first,) = call_after_backward((first,), partial(self.after_backward, place))
        return (first, *others)

    def after_forward(self, place, module, inputs, output):
        self.gathers.drop(place)
        if output.requires_grad:
            output.register_hook(lambda _: self.gathers.use(place, is_backward=True))

    def reduce(self, units):
        for unit in units:
            if any(one.grad is not None for one in unit.parameters):
                if self.take_in:
                    self.take_in()
                self.take_in = reduce_gradients(unit)

    def after_backward(self, place):
        self.reduce(self.blocks[place].units)
        self.gathers.drop(place)

    def finish(self):
        for place in range(len(self.blocks)):
            self.after_backward(place)
        if self.take_in:
            self.take_in()
        self.take_in = None
