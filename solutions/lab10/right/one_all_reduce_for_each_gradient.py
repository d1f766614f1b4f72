# The sums along tp by adding what is missing without a graph; along dp an asynchronous all-reduce
# for each gradient, as soon as it is there. Groups by strides.

# %% groups_along
def groups_along(sizes, *axes):
    strides, stride = {}, 1
    for axis in reversed(sizes):
        strides[axis] = stride
        stride *= sizes[axis]
    by_rest = {}
    for rank in range(stride):
        key = [rank // strides[axis] % sizes[axis] for axis in sizes if axis not in axes]
        by_rest.setdefault(tuple(key), []).append(rank)
    return sorted(by_rest.values())


# %% gradients_on_mesh
def gradients_on_mesh(blocks, inputs, targets, mesh):
    handles = []

    def summed(tensor):
        total = tensor.detach().clone()
        dist.all_reduce(total, group=mesh.tp)
        return total

    def send(parameter):
        handles.append(dist.all_reduce(parameter.grad, group=mesh.dp, async_op=True))

    num = torch.tensor([float(targets.numel())])
    dist.all_reduce(num, group=mesh.dp)
    hooks = [
        one.register_post_accumulate_grad_hook(send) for block in reversed(blocks) for one in block
    ]
    x = inputs
    for block in blocks:
        scaled = x * block.scale
        scaled.register_hook(summed)
        part = inner(block, scaled)
        x = x + (summed(part) + (part - part.detach())) + block.bias
    loss = sum_of_losses(x, targets) / num[0]
    loss.backward()
    for handle in handles:
        handle.wait()
    for hook in hooks:
        hook.remove()
    total = loss.detach().clone()
    dist.all_reduce(total, group=mesh.dp)
    return total.item()
