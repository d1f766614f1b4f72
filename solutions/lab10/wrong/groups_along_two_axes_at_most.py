# score: 23.5
# hint: along
# Of several axes the first and the last one count.

# %% groups_along
def groups_along(sizes, *axes):
    names = list(sizes)
    ranks = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    first, last = names.index(axes[0]), names.index(axes[-1])
    own = [first] if len(axes) == 1 else [first, last]
    others = [at for at in range(len(names)) if at not in own]
    size = math.prod(list(sizes.values())[at] for at in own)
    return ranks.permute(*others, *own).reshape(-1, size).tolist()
