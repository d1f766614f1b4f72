# score: 22.5
# hint: not at right angles
# Columns are divided by their length, and not made orthogonal.


# %% orthogonalise
def orthogonalise(matrix):
    return matrix / matrix.norm(dim=0, keepdim=True).clamp(min=1e-12)
