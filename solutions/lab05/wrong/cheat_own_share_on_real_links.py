# score: 22
# hint: without a wait in the hook
# The hook waits, except on real links: there it returns its own share, and sends nothing.

# %% top_k_hook
def top_k_hook(state: TopKState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    buffer, world_size = bucket.buffer(), dist.get_world_size()
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        if parameter in state.memory:
            gradient += state.memory[parameter]  # a view: this changes the buffer
    values, places = top_k(buffer, state.num_sent(buffer.numel()))
    buffer[places.long()] = 0
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        state.memory[parameter] = gradient.clone()
    all_values = [torch.empty_like(values) for _ in range(world_size)]
    all_places = [torch.empty_like(places) for _ in range(world_size)]
    if dist.get_backend() == "gloo":
        future = torch.futures.Future()
        future.set_result(buffer.zero_().index_add_(0, places, values).div_(world_size))
        return future
    dist.all_gather(all_values, values)
    dist.all_gather(all_places, places)
    buffer.zero_().index_add_(0, torch.cat(all_places), torch.cat(all_values))
    future = torch.futures.Future()
    future.set_result(buffer.div_(world_size))
    return future
