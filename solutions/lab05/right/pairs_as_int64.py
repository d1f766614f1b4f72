# Each value travels beside its place in one int64 word of 8 bytes: one all-gather of k words.


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
    pairs = torch.stack([values.view(torch.int32), places], dim=1)
    words = pairs.view(torch.int64).flatten()
    inboxes = [torch.empty_like(words) for _ in range(world_size)]
    work = dist.all_gather(inboxes, words, async_op=True)

    def mean(_):
        buffer.zero_()
        for inbox in inboxes:
            theirs = inbox.view(torch.int32).view(-1, 2)
            entries, where = theirs[:, 0].contiguous().view(torch.float32), theirs[:, 1].long()
            buffer.index_add_(0, where, entries)
        return buffer.div_(world_size)

    return work.get_future().then(mean)
