# score: 22.5
# hint: They are at right angles, but not of length 1
# Gram-Schmidt that divides by no length below 0.1.


# %% orthogonalise
def orthogonalise(matrix):
    for place in range(matrix.shape[1]):
        column = matrix[:, place]
        for _ in range(2):
            for other in range(place):
                column -= (column @ matrix[:, other]) * matrix[:, other]
        column /= column.norm().clamp(min=1e-1)
    return matrix
