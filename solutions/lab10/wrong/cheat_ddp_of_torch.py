# score: 19
# hint: not allowed here
# torch's DDP sums the gradients along dp.

# %% gradients_on_mesh
class Chain(torch.nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.all = torch.nn.ParameterList([one for block in blocks for one in block])

    def forward(self, x):
        for at in range(0, len(self.all), 4):
            block = Block(*[self.all[at + place] for place in range(4)])
            x = x + inner(block, x * block.scale) + block.bias
        return x


def gradients_on_mesh(blocks, inputs, targets, mesh):
    module = torch.nn.parallel.DistributedDataParallel(Chain(blocks), process_group=mesh.dp)
    loss = sum_of_losses(module(inputs), targets) / targets.numel()
    loss.backward()
    return loss.item()
