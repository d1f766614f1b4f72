# score: 26.5
# A dummy argument makes every result require a gradient, also of a frozen chain.


# %% checkpointed
class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, segment, tensor, dummy):
        ctx.segment, ctx.random_state = segment, torch.get_rng_state()
        ctx.autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
        ctx.save_for_backward(tensor)
        return segment(tensor)

    @staticmethod
    def backward(ctx, gradient):
        tensor = ctx.saved_tensors[0].detach().requires_grad_(ctx.needs_input_grad[1])
        after = torch.get_rng_state()
        torch.set_rng_state(ctx.random_state)
        dtype, is_enabled = ctx.autocast
        with torch.enable_grad(), torch.autocast("cpu", dtype, enabled=is_enabled):
            output = ctx.segment(tensor)
        torch.set_rng_state(after)
        if output.requires_grad:
            torch.autograd.backward(output, gradient)
        return None, tensor.grad, None


def checkpointed(segments, tensor):
    for segment in segments:
        tensor = Recomputed.apply(segment, tensor, torch.zeros(0, requires_grad=True))
    return tensor
