# score: 12.375
# hint: set .grad to none
# Every rank has everything: all weights, all gradients, and nothing travels ahead.

# %% shard
def shard(tensors, rank, world_size):
    flat = torch.cat([one.flatten() for one in tensors])
    size = -(-len(flat) // world_size)
    flat = nn.functional.pad(flat, (0, size * world_size - len(flat)))
    return flat[rank * size : (rank + 1) * size]


def unshard(flat, shapes):
    sizes = [shape.numel() for shape in shapes]
    parts = flat[: sum(sizes)].split(sizes)
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


# %% gather_and_free
def gather(unit):
    unit.full.untyped_storage().resize_(unit.full.nbytes)
    return dist.all_gather_into_tensor(unit.full, unit.piece, async_op=True)


def free(unit):
    pass


# %% reduce_gradients
def reduce_gradients(unit):
    if not unit.requires_grad:
        return lambda: None
    flat = torch.zeros_like(unit.piece).repeat(dist.get_world_size())
    for parameter, view in zip(unit.parameters, unshard(flat, unit.shapes), strict=True):
        if parameter.grad is not None:
            view.copy_(parameter.grad)
    handle = dist.all_reduce(flat, async_op=True)
    start = dist.get_rank() * len(unit.piece)

    def take_in():
        handle.wait()
        mean = flat[start : start + len(unit.piece)].float() / dist.get_world_size()
        unit.gradient = mean if unit.gradient is None else unit.gradient + mean

    return take_in


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
        if output.requires_grad:
            output.register_hook(lambda _: self.gathers.use(place, is_backward=True))

    def after_backward(self, place):
        for unit in self.blocks[place].units:
            if any(one.grad is not None for one in unit.parameters):
                if self.take_in:
                    self.take_in()
                self.take_in = reduce_gradients(unit)

    def finish(self):
        for place in range(len(self.blocks)):
            self.after_backward(place)
            self.gathers.drop(place)
        if self.take_in:
            self.take_in()
        self.take_in = None


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
