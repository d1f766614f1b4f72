# A dummy argument where a parameter needs one, and backward called in backward.


# %% checkpointed
class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, segment, tensor, dummy):
        ctx.segment, ctx.tensor, ctx.state = segment, tensor.detach(), torch.get_rng_state()
        ctx.is_cast = torch.is_autocast_enabled("cpu")
        ctx.cast_to = torch.get_autocast_dtype("cpu")
        return segment(tensor)

    @staticmethod
    def backward(ctx, gradient):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            tensor = ctx.tensor.clone().requires_grad_(ctx.needs_input_grad[1])
            cast = torch.amp.autocast("cpu", dtype=ctx.cast_to, enabled=ctx.is_cast)
            with torch.enable_grad(), cast:
                output = ctx.segment(tensor)
        output.backward(gradient)
        return None, tensor.grad, None


def checkpointed(segments, tensor):
    for segment in segments:
        needs = any(parameter.requires_grad for parameter in segment.parameters())
        tensor = Again.apply(segment, tensor, torch.empty(0, requires_grad=needs))
    return tensor


# %% update
def update(state, is_finite):
    if is_finite:
        state.num_good_steps += 1
    else:
        state.num_good_steps, state.num_skipped = 0, state.num_skipped + 1
    is_complete = state.num_good_steps >= state.growth_interval
    if is_complete:
        state.num_good_steps = 0
    factor = 2.0 if is_complete else 1.0 if is_finite else 0.5
    state.scale = min(max(state.scale * factor, state.min_scale), state.max_scale)
