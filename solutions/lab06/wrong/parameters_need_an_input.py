# score: 25.5
# Parameters get gradients only where the input requires one.


# %% checkpointed
class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, segment, tensor):
        ctx.segment, ctx.random_state = segment, torch.get_rng_state()
        ctx.autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
        ctx.save_for_backward(tensor)
        return segment(tensor)

    @staticmethod
    def backward(ctx, gradient):
        tensor = ctx.saved_tensors[0].detach().requires_grad_()
        after = torch.get_rng_state()
        torch.set_rng_state(ctx.random_state)
        dtype, is_enabled = ctx.autocast
        with torch.enable_grad(), torch.autocast("cpu", dtype, enabled=is_enabled):
            output = ctx.segment(tensor)
        torch.set_rng_state(after)
        torch.autograd.backward(output, gradient)
        return None, tensor.grad


def checkpointed(segments, tensor):
    for segment in segments:
        tensor = Recomputed.apply(segment, tensor)
    return tensor
