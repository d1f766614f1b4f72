# score: 23
# hint: made orthonormal after it was summed
# Each rank makes its own P orthonormal before P is summed.

# %% low_rank
def low_rank(matrix: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    (p,) = summed([orthogonalise(matrix @ q)])
    (new_q,) = summed([matrix.t() @ p])
    return p, new_q / dist.get_world_size()
