# score: 24
# hint: Gather embeddings
# Every rank gathers all inputs and trains on all of them.


# %% contrastive_backward
def contrastive_backward(model, inputs: torch.Tensor, partners: torch.Tensor) -> None:
    """Leave in each parameter the gradient of the mean `pair_loss` over the rows of all ranks.

    - On every rank `.grad` is what one rank with the rows of all ranks, in the order of the ranks,
      would have: within 1e-4. Each rank has the same number of rows, and the model is the same on
      every rank, without gradients before the call.
    - A rank runs the model on its own rows only. Its messages hold, at most, its parameters'
      gradients once, its own embeddings once, and all ranks' embeddings once: embeddings are
      smaller than inputs.
    """
    every = []
    for rows in (inputs, partners):
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows)
        every.append(torch.cat(parts))
    pair_loss(model(every[0]), model(every[1]), 0).backward()
