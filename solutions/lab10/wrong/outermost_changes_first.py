# score: 23
# hint: The innermost axis changes
# Ranks are counted with the outermost axis changing from one to the next.

# %% groups_along
def groups_along(sizes: dict[str, int], *axes: str) -> list[list[int]]:
    names = list(sizes)
    ranks = torch.arange(math.prod(sizes.values()))
    ranks = ranks.view(*list(sizes.values())[::-1])
    ranks = ranks.permute(*reversed(range(len(sizes))))
    others = [names.index(name) for name in names if name not in axes]
    own = [names.index(name) for name in axes]
    size = math.prod(sizes[name] for name in axes)
    return ranks.permute(*others, *own).reshape(-1, size).tolist()
