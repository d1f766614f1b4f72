# score: 27
# hint: the bias comes n times into the sum
# The bias is part of every partial sum.

# %% parallel_mlp
def parallel_mlp(x, shard, enter, leave):
    x = enter(x)
    hidden = F.silu(F.linear(x, shard.gate)) * F.linear(x, shard.up)
    return leave(F.linear(hidden, shard.down, shard.down_bias))
