# score: 0
# Identities at all four ends, and a loss of this rank's logits: no parallelism at all.

# %% copy_and_reduce
def copy_to_ranks(x):
    return x


def reduce_from_ranks(x):
    return x


# %% gather_and_scatter
def gather_tokens(x):
    return torch.cat([x] * dist.get_world_size(), dim=1)


def reduce_scatter_tokens(x):
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank()]


# %% shard_weights
def shard_weights(full, head_dim, rank, world_size):
    return full


# %% parallel_mlp
def parallel_mlp(x, shard, enter, leave):
    hidden = F.silu(F.linear(x, shard.gate)) * F.linear(x, shard.up)
    return F.linear(hidden, shard.down, shard.down_bias)


# %% parallel_attention
def parallel_attention(x, shard, head_dim, enter, leave):
    num_rows = shard.output.shape[1]
    num_kv = (len(shard.qkv) - num_rows) // 2
    parts = F.linear(x, shard.qkv).split([num_rows, num_kv, num_kv], dim=-1)
    return F.linear(attend(*parts, head_dim), shard.output, shard.output_bias)


# %% parallel_block
def parallel_block(x, shard, head_dim, is_sequence_parallel):
    return whole_block(x, shard, head_dim)


# %% sync_replicated
def sync_replicated(shard, is_sequence_parallel):
    pass


# %% vocabulary_loss
def vocabulary_loss(logits, targets):
    targets = targets.flatten() % logits.shape[-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), targets)
