# score: 23.5
# hint: Do not divide a column by a length of 0
# Gram-Schmidt without an epsilon: nan for columns without length.


# %% orthogonalise
def orthogonalise(matrix):
    columns = []
    for column in matrix.t():
        for other in columns:
            column = column - (column @ other) * other
        columns.append(column / column.norm())
    return torch.stack(columns, dim=1)
