# score: 15
# hint: all_reduce is not allowed here
# The small entries are set to 0, and the whole bucket is all-reduced.


# %% top_k_hook
def top_k_hook(state, bucket):
    buffer, world_size = bucket.buffer(), dist.get_world_size()
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        gradient += state.memory.get(parameter, 0)
    values, places = top_k(buffer, state.num_sent(buffer.numel()))
    sent = torch.zeros_like(buffer).index_copy(0, places.long(), values)
    buffer -= sent
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        state.memory[parameter] = gradient.clone()
    work = dist.all_reduce(sent, async_op=True)
    return work.get_future().then(lambda _: sent.div_(world_size))
