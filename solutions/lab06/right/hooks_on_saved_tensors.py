# Checkpointing by hooks on saved tensors, a minimum of flags, and a search with a bound.


# %% accumulate
def accumulate(sum_of_losses, micro_batches):
    counted = [(one, int(one[1].ne(IGNORED).count_nonzero())) for one in micro_batches]
    total = torch.tensor(sum(num for _, num in counted))
    dist.all_reduce(total)
    for (inputs, targets), num in counted:
        if num > 0:
            sum_of_losses(inputs, targets).div(total).backward()
    return total.item()


# %% unscale
def unscale(halves, masters, scale):
    flags = []
    for half, master in zip(halves, masters, strict=True):
        master.grad = None
        if half.grad is not None:
            master.grad = half.grad.to(torch.float32).mul(1.0 / scale)
            flags.append(torch.isfinite(half.grad).all())
    return all(flag.item() for flag in flags)


# %% scaled_step
def scaled_step(state, loss, halves, masters, optimizer):
    gradient = torch.tensor(state.scale, dtype=loss.dtype).expand_as(loss)
    torch.autograd.backward([loss], [gradient])
    is_good = torch.tensor([unscale(halves, masters, state.scale)], dtype=torch.uint8)
    dist.all_reduce(is_good, op=dist.ReduceOp.MIN)
    if is_good:
        optimizer.step()
        for half, master in zip(halves, masters, strict=True):
            half.data.copy_(master.data)
    for half in halves:
        half.grad = None
    optimizer.zero_grad()
    update(state, bool(is_good))
    return bool(is_good)


# %% checkpointed
class Kept:
    """What a segment needs to run again, and what it saved then."""

    def __init__(self, segment, tensor):
        self.segment, self.tensor, self.found = segment, tensor.detach(), None
        self.needs = tensor.requires_grad
        self.random_state = torch.get_rng_state()
        self.autocast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
        self.num = 0

    def pack(self, tensor):
        self.num += 1
        return self.num - 1

    def unpack(self, place):
        if self.found is None:
            self.found = []
            after = torch.get_rng_state()
            torch.set_rng_state(self.random_state)
            dtype, is_enabled = self.autocast
            collect = torch.autograd.graph.saved_tensors_hooks(self.found.append, lambda one: one)
            with collect, torch.enable_grad(), torch.autocast("cpu", dtype, enabled=is_enabled):
                self.segment(self.tensor.requires_grad_(self.needs))
            torch.set_rng_state(after)
        value, self.found[place] = self.found[place], None
        return value.detach()


def checkpointed(segments, tensor):
    for segment in segments:
        kept = Kept(segment, tensor)
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, kept.unpack):
            tensor = segment(tensor)
    return tensor


# %% choose_checkpoints
def choose_checkpoints(activation_bytes, input_bytes, recompute_s, budget_bytes):
    fronts = [(0, 0.0, ())]
    for layer, cost_s in enumerate(recompute_s):
        longer = []
        for held, so_far_s, layers in fronts:
            if held + activation_bytes[layer] <= budget_bytes:
                longer.append((held + activation_bytes[layer], so_far_s, layers))
            if held + input_bytes[layer] + activation_bytes[layer] <= budget_bytes:
                longer.append((held + input_bytes[layer], so_far_s + cost_s, (*layers, layer)))
        longer.sort(key=lambda one: one[:2])
        fronts, least_s = [], float("inf")
        for one in longer:
            if one[1] < least_s:
                fronts.append(one)
                least_s = one[1]
    if not fronts:
        raise ValueError("too little memory")
    return list(fronts[-1][2])
