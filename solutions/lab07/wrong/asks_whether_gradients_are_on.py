# score: 23.25
# hint: The output of a frozen block may need no gradient
# An output without a gradient is looked for by `torch.is_grad_enabled()`: a first block that is all
# frozen, such as an embedding, raises an error.


# %% FullyShard
class FullyShard:
    def __init__(self, blocks, gathers):
        self.blocks, self.gathers, self.take_in = blocks, gathers, None
        for place, block in enumerate(blocks):
            block.module.register_forward_pre_hook(partial(self.before_forward, place))
            block.module.register_forward_hook(partial(self.after_forward, place))

    def before_forward(self, place, module, inputs):
        self.gathers.use(place, is_backward=False)
        return call_after_backward(inputs, partial(self.after_backward, place))

    def after_forward(self, place, module, inputs, output):
        self.gathers.drop(place)
        if torch.is_grad_enabled():
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
