# score: 23.5
# hint: along
# Of several axes only the first one counts.

# %% groups_along
def groups_along(sizes: dict[str, int], *axes: str) -> list[list[int]]:
    axes = axes[:1]
    names = list(sizes)
    ranks = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    others = [names.index(name) for name in names if name not in axes]
    own = [names.index(name) for name in axes]
    size = math.prod(sizes[name] for name in axes)
    return ranks.permute(*others, *own).reshape(-1, size).tolist()
