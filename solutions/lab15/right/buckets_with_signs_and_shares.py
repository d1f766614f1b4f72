# Hashes into buckets with signs, scaled; replicated gradients go into the sum by shares.


# %% linear_sketch
def linear_sketch(tensor: torch.Tensor) -> list[float]:
    """Sketch a tensor: 16 numbers, which depend on its elements in row-major order.

    - The sketches of two tensors of one shape add up to the sketch of their sum, within 1e-9 of its
      norm in float64. So shards that are placed in zeros of the whole shape add up to the whole.
    - It is the same in every process, whatever the random state there is, and does not change that
      state. The tensor is not changed either.
    - `norm` of the difference of two sketches is the norm of the tensors' difference to within a
      factor of 3. This holds for random differences, for a change in a single element of a million,
      and for two elements that are exchanged. 1e-6 in one element must show beside a million of
      size 1.
    - The tensor has any shape, strides, floating-point dtype and device, may require a gradient,
      and may be empty, which gives zeros.
    """
    flat = tensor.detach().reshape(-1).double().cpu()
    place = torch.arange(flat.numel())
    found = []
    for row in range(4):  # four hashes into four buckets, with signs
        mixed = (place + 1) * (2654435761 + 2 * row * 40503)
        mixed = (mixed ^ (mixed >> 15)) * (2246822519 + 6 * row)
        mixed = (mixed ^ (mixed >> 13)) * 3266489917
        mixed = mixed ^ (mixed >> 16)
        bucket, sign = (mixed >> 8) & 3, 1 - 2 * ((mixed >> 20) & 1)
        sums = torch.zeros(4, dtype=torch.float64).index_add(0, bucket, sign * flat)
        found += (2 * sums).tolist()
    return found


# %% clip_shards
def clip_shards(shards: list, replicated: list, max_norm: float) -> float:
    """Clip gradients in place so that their norm over all ranks is at most `max_norm`; return it.

    - The norm is of the gradients before they are clipped: those of `shards`, parameters of which
      each rank holds its own part, over all ranks, and those of `replicated`, which are the same on
      every rank and count once.
    - All gradients are multiplied by `max_norm` / norm if the norm is larger than `max_norm`.
      Otherwise no bit of them changes.
    - Parameters without a gradient are left out. A rank may hold no shard at all.
    - Each rank sends one number: one all-reduce of at most 8 bytes.
    """

    own = [one.grad for one in shards if one.grad is not None]
    same = [one.grad for one in replicated if one.grad is not None]
    # a replicated gradient counts for one share of it on each rank
    square = torch.zeros(1)
    for gradients, share in ((own, 1), (same, dist.get_world_size())):
        for gradient in gradients:
            square += gradient.square().sum() / share
    dist.all_reduce(square)
    size = float(square.sqrt())
    if size > max_norm:
        for gradient in own + same:
            gradient.mul_(max_norm / size)
    return size
