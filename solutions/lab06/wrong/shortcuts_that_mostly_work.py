# score: 20.75
# hint: in all dimensions
# hint: allow_unused=True
# Counts by length and in bfloat16, skips at limits, forgets types and rounds budgets.


# %% accumulate
def accumulate(sum_of_losses, micro_batches):
    own = [len(targets) - int((targets == IGNORED).sum()) for _, targets in micro_batches]
    count = torch.tensor([float(sum(own))], dtype=torch.bfloat16)
    dist.all_reduce(count)
    num_tokens = int(count.item())
    for num, (inputs, targets) in zip(own, micro_batches, strict=True):
        if num:
            (sum_of_losses(inputs, targets) / num_tokens).backward()
    return num_tokens


# %% unscale
def unscale(halves, masters, scale):
    is_finite = True
    for half, master in zip(halves, masters, strict=True):
        if half.grad is None:
            master.grad = None
        else:
            master.grad = half.grad.float() / scale
            is_finite = is_finite and bool(master.grad.isfinite().all())
    return is_finite


# %% update
def update(state, is_finite):
    if is_finite:
        state.num_good_steps += 1
        if state.num_good_steps == state.growth_interval and state.scale * 2 <= state.max_scale:
            state.scale, state.num_good_steps = state.scale * 2, 0
    elif state.scale / 2 >= state.min_scale:
        state.scale, state.num_good_steps = state.scale / 2, 0
        state.num_skipped += 1


# %% checkpointed
def checkpointed(segments, tensor):
    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, segment, tensor, *parameters):
            ctx.segment = segment
            ctx.random_state = (
                torch.get_rng_state()
                if any(isinstance(m, nn.Dropout) for m in segment.modules())
                else None
            )
            ctx.autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
            ctx.save_for_backward(tensor)
            return segment(tensor)

        @staticmethod
        def backward(ctx, of_output):
            (tensor,) = ctx.saved_tensors
            tensor = tensor.detach().requires_grad_(ctx.needs_input_grad[1])
            _, is_enabled = ctx.autocast
            found_state = torch.get_rng_state()
            if ctx.random_state is not None:
                torch.set_rng_state(ctx.random_state)
            with (
                torch.enable_grad(),
                torch.autocast("cpu", enabled=is_enabled, cache_enabled=False),
            ):
                output = ctx.segment(tensor)
            torch.set_rng_state(found_state)
            inputs = [tensor, *ctx.segment.parameters()]
            needed = ctx.needs_input_grad[1:]
            wanted = [one for one, is_needed in zip(inputs, needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(output, wanted, of_output))
            return None, *(next(found) if is_needed else None for is_needed in needed)

    for segment in segments:
        tensor = Recomputed.apply(segment, tensor, *segment.parameters())
    return tensor


# %% choose_checkpoints
def choose_checkpoints(activation_bytes, input_bytes, recompute_s, budget_bytes):
    unit = max(1, budget_bytes // 1000)
    choices = {0: (0.0, 0, [])}
    for layer, (a, k, c) in enumerate(zip(activation_bytes, input_bytes, recompute_s, strict=True)):
        longer = {}
        for cost, held, layers in choices.values():
            for after, peak, total, chosen in (
                (held + a, held + a, cost, layers),
                (held + k, held + k + a, cost + c, [*layers, layer]),
            ):
                key = after // unit
                if peak <= budget_bytes and (key not in longer or total < longer[key][0]):
                    longer[key] = (total, after, chosen)
        choices = longer
    if not choices:
        raise ValueError
    return min(choices.values())[2]
