# score: 23
# hint: That is the sum over the ranks
# Q is summed over the ranks, and not averaged.

# %% low_rank
def low_rank(matrix: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    (p,) = summed([matrix @ q])
    p = orthogonalise(p)
    (new_q,) = summed([matrix.t() @ p])
    return p, new_q
