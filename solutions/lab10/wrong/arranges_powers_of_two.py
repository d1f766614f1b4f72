# score: 23
# hint: Try every order
# What leaves a node is counted from strides, which is right if all sizes are powers of two.

# %% arrange
def arrange(sizes, sent_bytes, gpus_per_node):
    num_ranks = math.prod(sizes.values())

    def leaving(order):
        total, stride = 0.0, 1
        for axis in reversed(order):
            span = stride * sizes[axis]
            if span > gpus_per_node and sizes[axis] > 1:
                num_nodes = min(sizes[axis], span // gpus_per_node)
                total += sent_bytes[axis] * num_nodes * (num_ranks // sizes[axis])
            stride = span
        return total

    return list(min(itertools.permutations(sizes), key=leaving))
