# score: 22
# hint: bytes between nodes
# The list begins with the innermost axis.

# %% arrange
def arrange(sizes: dict[str, int], sent_bytes: dict[str, float], gpus_per_node: int) -> list[str]:
    def leaving(order):
        """The bytes between nodes."""
        total, ordered = 0.0, {axis: sizes[axis] for axis in order}
        for axis in order:
            for group in groups_along(ordered, axis):
                following = group[1:] + group[:1]
                for one, other in zip(group, following, strict=True):
                    if one // gpus_per_node != other // gpus_per_node:
                        total += sent_bytes[axis]
        return total

    return list(min(itertools.permutations(sizes), key=leaving))[::-1]
