# score: 20.25
# hint: bfloat16 loses the second
# hint: First the weights shrink
# hint: in any of its parameters
# Sums in bfloat16, decay that comes late, units that wait for all gradients, new tensors.


# %% reduce_gradients
def reduce_gradients(unit):
    if not unit.requires_grad:
        return lambda: None
    flat = torch.zeros_like(unit.piece).repeat(dist.get_world_size())
    for own, view in zip(unit.parameters, unshard(flat, unit.shapes), strict=True):
        if own.grad is not None:
            view.copy_(own.grad)
            own.grad = None
    total = torch.empty_like(unit.piece)
    handle = dist.reduce_scatter_tensor(total, flat, async_op=True)

    def take_in():
        handle.wait()
        mean = total.float() / dist.get_world_size()
        unit.gradient = (
            mean
            if unit.gradient is None
            else (unit.gradient.to(total.dtype) + mean.to(total.dtype)).float()
        )

    return take_in


# %% adam_step
def adam_step(unit, learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0):
    if unit.gradient is None:
        return
    if unit.master is None:
        unit.master = unit.piece.float()
        unit.exp_avg = torch.zeros_like(unit.master)
        unit.exp_avg_sq = torch.zeros_like(unit.master)
    unit.num_steps += 1
    gradient, unit.gradient = unit.gradient, None
    unit.exp_avg.lerp_(gradient, 1 - betas[0])
    unit.exp_avg_sq.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    pass
    root = (unit.exp_avg_sq / (1 - betas[1] ** unit.num_steps)).sqrt_().add_(eps)
    unit.master.addcdiv_(
        unit.exp_avg, root, value=-learning_rate / (1 - betas[0] ** unit.num_steps)
    )
    unit.master.mul_(1 - learning_rate * weight_decay)
    unit.piece.copy_(unit.master)


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
        if torch.is_grad_enabled():
            self.gathers.drop(place)
        if output.requires_grad:
            output.register_hook(lambda _: self.gathers.use(place, is_backward=True))

    def after_backward(self, place):
        for unit in self.blocks[place].units:
            if all(one.grad is not None for one in unit.parameters):
                if self.take_in:
                    self.take_in()
                self.take_in = reduce_gradients(unit)
        self.gathers.drop(place)

    def finish(self):
        for place in range(len(self.blocks)):
            self.after_backward(place)
        if self.take_in:
            self.take_in()
        self.take_in = None


# %% clip_gradients
def clip_gradients(units, max_norm):
    gradients = [unit.gradient for unit in units if unit.gradient is not None]
    total = sum((one.square().sum() for one in gradients), torch.zeros(())).reshape(1)
    dist.all_reduce(total)
    norm = total.sqrt().item()
    for unit in units:
        if unit.gradient is not None and norm > max_norm:
            unit.gradient = unit.gradient * (max_norm / norm)
    return norm
