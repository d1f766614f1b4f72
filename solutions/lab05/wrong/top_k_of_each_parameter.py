# score: 20.5
# hint: largest of the whole bucket
# Each parameter sends its own k largest entries.


# %% top_k_hook
def top_k_hook(state, bucket):
    buffer, world_size = bucket.buffer(), dist.get_world_size()
    all_values, all_places, offset = [], [], 0
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        flat = (gradient + state.memory.get(parameter, 0)).flatten()
        values, places = top_k(flat, state.num_sent(flat.numel()))
        flat[places.long()] = 0
        state.memory[parameter] = flat.view_as(gradient)
        all_values.append(values)
        all_places.append(places + offset)
        offset += flat.numel()
    values, places = torch.cat(all_values), torch.cat(all_places).int()
    values_of = [torch.empty_like(values) for _ in range(world_size)]
    places_of = [torch.empty_like(places) for _ in range(world_size)]
    works = [
        dist.all_gather(values_of, values, async_op=True),
        dist.all_gather(places_of, places, async_op=True),
    ]

    def mean(_):
        return (
            buffer.zero_()
            .index_add_(0, torch.cat(places_of), torch.cat(values_of))
            .div_(world_size)
        )

    return torch.futures.collect_all([work.get_future() for work in works]).then(mean)
