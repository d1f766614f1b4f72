# score: 9
# hint: own GradScaler is not allowed
# hint: own checkpoint is not allowed
# Torch's own scaler decides and gives the next scale, and torch's own checkpoint recomputes.

# %% update
def update(state, is_finite):
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=state.scale, growth_interval=state.growth_interval
    )
    scaler.scale(torch.ones(1))
    scaler._found_inf_per_device = {"cpu": torch.tensor(float(not is_finite))}
    state.scale = scaler.get_scale()


# %% scaled_step
def scaled_step(state, loss, halves, masters, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=state.scale)
    scaler.scale(loss).backward()
    is_finite = unscale(halves, masters, state.scale)
    flag = torch.tensor([float(not is_finite)])
    dist.all_reduce(flag)
    if not flag.item():
        optimizer.step()
        with torch.no_grad():
            for half, master in zip(halves, masters, strict=True):
                half.copy_(master)
    for one in (*halves, *masters):
        one.grad = None
    update(state, not flag.item())
    return not flag.item()


# %% checkpointed
def checkpointed(segments, tensor):
    from torch.utils.checkpoint import checkpoint

    for segment in segments:
        tensor = checkpoint(segment, tensor, use_reentrant=False)
    return tensor
