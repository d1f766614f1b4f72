# Values and places travel as one int32 tensor; memory is kept by masking.


# %% top_k
def top_k(vector, k):
    places = vector.abs().argsort(descending=True, stable=True)[:k]
    return vector.gather(0, places), places.to(torch.int32)


# %% top_k_hook
def top_k_hook(state, bucket):
    before = [state.memory.get(one, torch.zeros_like(one)) for one in bucket.parameters()]
    total = bucket.buffer() + torch.cat([one.flatten() for one in before])
    values, places = top_k(total, state.num_sent(len(total)))
    is_sent = torch.zeros(len(total), dtype=torch.bool).index_fill_(0, places.long(), True)
    left = total.masked_fill(is_sent, 0.0).split([one.numel() for one in before])
    for parameter, part in zip(bucket.parameters(), left, strict=True):
        state.memory[parameter] = part.clone().view(parameter.shape)
    packed = torch.cat([values.view(torch.int32), places])
    gathered = torch.empty(dist.get_world_size() * len(packed), dtype=torch.int32)
    work = dist.all_gather_into_tensor(gathered, packed, async_op=True)

    def unpack(_):
        result = torch.zeros_like(total)
        for of_rank in gathered.chunk(dist.get_world_size()):
            theirs, where = of_rank.chunk(2)
            result.index_add_(0, where, theirs.view(torch.float32))
        return result / dist.get_world_size()

    return work.get_future().then(unpack)
