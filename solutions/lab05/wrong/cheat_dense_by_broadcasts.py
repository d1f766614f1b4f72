# score: 17.25
# hint: one or two operations for each
# Whole buckets travel by broadcasts, an operation that DDP itself uses, too.

# %% top_k_hook
def top_k_hook(state, bucket):
    buffer, rank, world_size = bucket.buffer(), dist.get_rank(), dist.get_world_size()
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        gradient += state.memory.get(parameter, 0)
    values, places = top_k(buffer, state.num_sent(buffer.numel()))
    sent = torch.zeros_like(buffer).index_copy(0, places.long(), values)
    buffer -= sent
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        state.memory[parameter] = gradient.clone()
    parts = [sent.clone() if one == rank else torch.empty_like(sent) for one in range(world_size)]
    works = [
        dist.broadcast(part, src=one, async_op=True) for one, part in enumerate(parts)
    ]  # dense
    heads = [torch.empty(1) for _ in range(world_size)]
    works.append(
        dist.all_gather(heads, sent[:1].clone(), async_op=True)
    )  # one number, which is used

    def mean(_):
        for part, head in zip(parts, heads, strict=True):
            part[:1] = head
        return torch.stack(parts).mean(dim=0)

    return torch.futures.collect_all([work.get_future() for work in works]).then(mean)
