# score: 22
# hint: Do so in each bucket
# The mean is divided by the number of ranks in DDP's first bucket of a step, and not in the others.


# %% top_k_hook
def top_k_hook(state, bucket):
    buffer, world_size = bucket.buffer(), dist.get_world_size()
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        if parameter in state.memory:
            gradient += state.memory[parameter]
    values, places = top_k(buffer, state.num_sent(buffer.numel()))
    buffer[places.long()] = 0
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        state.memory[parameter] = gradient.clone()
    all_values = [torch.empty_like(values) for _ in range(world_size)]
    all_places = [torch.empty_like(places) for _ in range(world_size)]
    works = [
        dist.all_gather(all_values, values, async_op=True),
        dist.all_gather(all_places, places, async_op=True),
    ]
    is_first = bucket.index() == 0

    def mean(_):
        buffer.zero_().index_add_(0, torch.cat(all_places), torch.cat(all_values))
        return buffer.div_(world_size) if is_first else buffer

    return torch.futures.collect_all([work.get_future() for work in works]).then(mean)
