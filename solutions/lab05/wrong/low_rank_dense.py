# score: 23
# hint: Of a matrix only P and Q travel
# The whole matrix is all-reduced, and factored after that.

# %% low_rank
def low_rank(matrix: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    (total,) = summed([matrix])
    p = orthogonalise(total @ q)
    new_q = total.t() @ p
    return p, new_q / dist.get_world_size()
