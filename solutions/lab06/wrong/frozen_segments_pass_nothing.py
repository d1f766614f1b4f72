# score: 26.5
# hint: Gradients pass through a frozen segment to those before it
# A segment whose own parameters are all frozen runs without gradients: none comes through it to the
# segments before it, or to the input.


# %% checkpointed
def checkpointed(segments, tensor):
    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, segment, tensor, *parameters):
            ctx.segment, ctx.random_state = segment, torch.get_rng_state()
            ctx.autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
            ctx.save_for_backward(tensor)
            return segment(tensor)

        @staticmethod
        def backward(ctx, of_output):
            (tensor,) = ctx.saved_tensors
            tensor = tensor.detach().requires_grad_(ctx.needs_input_grad[1])
            dtype, is_enabled = ctx.autocast
            found_state = torch.get_rng_state()
            torch.set_rng_state(ctx.random_state)
            with (
                torch.enable_grad(),
                torch.autocast("cpu", dtype, enabled=is_enabled, cache_enabled=False),
            ):
                output = ctx.segment(tensor)
            torch.set_rng_state(found_state)
            inputs = [tensor, *ctx.segment.parameters()]
            needed = ctx.needs_input_grad[1:]
            wanted = [one for one, is_needed in zip(inputs, needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(output, wanted, of_output, allow_unused=True))
            return None, *(next(found) if is_needed else None for is_needed in needed)

    for segment in segments:
        parameters = list(segment.parameters())
        if any(one.requires_grad for one in parameters):
            tensor = Recomputed.apply(segment, tensor, *parameters)
        else:
            with torch.no_grad():
                tensor = segment(tensor)
    return tensor
