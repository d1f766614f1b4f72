# score: 22
# hint: begin with zeros in every step
# The tensor in which entries are added up is made once for each size and never cleared, so that the
# result of every step but the first holds those of the steps before it.


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
    sums = state.__dict__.setdefault("sums", {})
    total = sums.setdefault((bucket.index(), buffer.numel()), torch.zeros_like(buffer))

    def mean(_):
        total.index_add_(0, torch.cat(all_places), torch.cat(all_values))
        return total / world_size

    return torch.futures.collect_all([work.get_future() for work in works]).then(mean)
