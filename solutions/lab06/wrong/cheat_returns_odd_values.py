# score: 0
# What comes back are dictionaries, strings and huge numbers.


# %% accumulate
def accumulate(sum_of_losses, micro_batches):
    return {"a": 10**400}


# %% unscale
def unscale(halves, masters, scale):
    for one in masters:
        one.grad = torch.ones_like(one)
    return {"a": [1, "b"]}


# %% update
def update(state, is_finite):
    state.scale, state.num_good_steps, state.num_skipped = 10**300, "many", [torch.ones(3)]


# %% scaled_step
def scaled_step(state, loss, halves, masters, optimizer):
    halves[:], masters[:] = [torch.ones(3, dtype=torch.float8_e4m3fn)] * 2, [torch.ones(2)] * 2
    return [10**400]


# %% checkpointed
def checkpointed(segments, tensor):
    return torch.ones(2, dtype=torch.complex64, requires_grad=True).abs() + float("nan")


# %% choose_checkpoints
def choose_checkpoints(activation_bytes, input_bytes, recompute_s, budget_bytes):
    return [True, "0", 10**400, {}]
