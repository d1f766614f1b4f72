# Closures for hooks, and torch's multi-grad hook before backward.

# %% FullyShard
class FullyShard:
    def __init__(self, blocks, gathers):
        self.blocks, self.gathers, self.under_way = blocks, gathers, []
        for place, block in enumerate(blocks):
            self.watch(place, block.module)

    def watch(self, place, module):
        def before(_, inputs):
            self.gathers.use(place, False)
            return call_after_backward(inputs, lambda: self.passed(place))

        def after(_, inputs, output):
            self.gathers.drop(place)
            if torch.is_tensor(output) and output.requires_grad:
                torch.autograd.graph.register_multi_grad_hook(
                    [output], lambda _: self.gathers.use(place, True)
                )

        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)

    def passed(self, place):
        self.reduce(self.blocks[place].units)
        self.gathers.drop(place)

    def reduce(self, units):
        for unit in units:
            gradients = [one.grad for one in unit.parameters if one.grad is not None]
            if gradients:
                self.take()
                self.under_way.append(reduce_gradients(unit))

    def take(self):
        while self.under_way:
            self.under_way.pop()()

    def finish(self):
        for block in self.blocks:
            self.reduce(block.units)
        self.take()
        for place in range(len(self.blocks)):
            self.gathers.drop(place)
