# Hooks on gradients, lists of views, heads by index, and a loss of the log-sums that ranks have of
# their own powers.

# %% copy_and_reduce
def copy_to_ranks(x):
    y = x.view_as(x)

    def add_up(gradient):
        total = torch.empty(gradient.shape, dtype=gradient.dtype)
        total.copy_(gradient)
        dist.all_reduce(total)
        return total

    if y.requires_grad:
        y.register_hook(add_up)
    return y


class AddedUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.contiguous().clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def reduce_from_ranks(x):
    return AddedUp.apply(x)


# %% gather_and_scatter
def _join(x):
    n = dist.get_world_size()
    out = torch.empty(n, *x.shape, dtype=x.dtype)
    dist.all_gather(list(out.unbind(0)), x.contiguous(), async_op=True).wait()
    return torch.cat(out.unbind(0), dim=1)


def _split(x):
    n = dist.get_world_size()
    pieces = [one.clone(memory_format=torch.contiguous_format) for one in x.tensor_split(n, dim=1)]
    own = torch.zeros_like(pieces[0])
    dist.reduce_scatter(own, pieces, op=dist.ReduceOp.SUM, async_op=True).wait()
    return own


class _Two(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, is_gather):
        ctx.is_gather = is_gather
        return _join(x) if is_gather else _split(x)

    @staticmethod
    def backward(ctx, g):
        return (_split(g) if ctx.is_gather else _join(g)), None


def gather_tokens(x):
    return _Two.apply(x, True)


def reduce_scatter_tokens(x):
    return _Two.apply(x, False)


# %% shard_weights
def shard_weights(full, head_dim, rank, world_size):
    num_q = full.output.shape[1] // head_dim
    num_kv = full.qkv.shape[0] // head_dim - num_q
    num_kv //= 2
    if num_kv % world_size != 0 or full.gate.shape[0] % world_size != 0:
        raise ValueError("does not go round")
    q, kv = num_q // world_size, num_kv // world_size
    heads = full.qkv.unflatten(0, (-1, head_dim))
    mine = [*range(rank * q, rank * q + q)]
    mine += [num_q + one for one in range(rank * kv, rank * kv + kv)]
    mine += [num_q + num_kv + one for one in range(rank * kv, rank * kv + kv)]
    width = full.gate.shape[0] // world_size
    hidden = torch.arange(rank * width, rank * width + width)
    columns = torch.arange(rank * q * head_dim, (rank + 1) * q * head_dim)
    pick = {
        "qkv": heads.index_select(0, torch.tensor(mine)).flatten(0, 1),
        "output": full.output.index_select(1, columns),
        "gate": full.gate[hidden],
        "up": full.up[hidden],
        "down": full.down[:, hidden],
    }
    return Weights(
        *[
            pick[name] if name in pick else one.detach().clone()
            for name, one in full._asdict().items()
        ]
    )


# %% vocabulary_loss
def vocabulary_loss(logits, targets):
    flat = logits.reshape(-1, logits.shape[-1]).float()
    own = flat.logsumexp(dim=1)
    top = own.detach().clone()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    total = reduce_from_ranks((own - top).exp())
    num_own = flat.shape[1]
    first = dist.get_rank() * num_own
    ids = torch.arange(first, first + num_own)
    hit = (ids[None] == targets.reshape(-1, 1)).float()
    target = reduce_from_ranks((flat * hit).sum(dim=1))
    return (total.log() + top - target).mean()
