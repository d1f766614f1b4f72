# Rows of heads by their numbers; queries, keys and values by three products.

# %% shard_weights
def shard_weights(full, head_dim, rank, world_size):
    num_heads = full.output.shape[1] // head_dim
    num_kv = (len(full.qkv) // head_dim - num_heads) // 2
    if num_kv % world_size != 0 or len(full.gate) % world_size != 0:
        raise ValueError("these ranks do not divide it")
    own, own_kv = num_heads // world_size, num_kv // world_size
    heads = [rank * own + head for head in range(own)]
    kv_heads = [rank * own_kv + head for head in range(own_kv)]
    keys = [num_heads + head for head in kv_heads]
    values = [num_heads + num_kv + head for head in kv_heads]
    hidden = torch.arange(len(full.gate)).view(world_size, -1)[rank]

    def rows(numbers):
        return (torch.tensor(numbers)[:, None] * head_dim + torch.arange(head_dim)).flatten()

    parts = {name: full._asdict()[name].clone() for name in REPLICATED}
    parts["qkv"] = full.qkv[rows(heads + keys + values)]
    parts["output"] = full.output[:, rows(heads)]
    parts |= {"gate": full.gate[hidden], "up": full.up[hidden], "down": full.down[:, hidden]}
    return Weights(**parts)


# %% parallel_attention
def parallel_attention(x, shard, head_dim, enter, leave):
    x = enter(x)
    wide = shard.output.shape[1]
    rest = shard.qkv[wide:]
    query = x @ shard.qkv[:wide].t()
    key, value = (x @ weight.t() for weight in rest.chunk(2))
    y = leave(attend(query, key, value, head_dim) @ shard.output.t())
    return y + shard.output_bias


# %% parallel_mlp
def parallel_mlp(x, shard, enter, leave):
    gate, up = F.linear(enter(x), torch.cat([shard.gate, shard.up])).chunk(2, dim=-1)
    return shard.down_bias + leave((F.silu(gate) * up) @ shard.down.t())
