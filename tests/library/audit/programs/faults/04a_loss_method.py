"""A small autoencoder under DDP. The model has a method that returns the loss of a batch.

KIND: 4
RANKS: 2
NAME: encoder.weight
SOURCE: https://github.com/jingyaogong/minimind/issues/854
RIGHT: The forward goes through ddp.module, past DDP, so no gradient is ever reduced.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class AutoEncoder(nn.Module):
    def __init__(self, width=20, code=4):
        super().__init__()
        self.encoder = nn.Linear(width, code)
        self.decoder = nn.Linear(code, width)

    def forward(self, x):
        return self.decoder(torch.tanh(self.encoder(x)))

    def compute_loss(self, x):
        return (self(x) - x).square().mean()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(48, 20))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    ddp = DistributedDataParallel(AutoEncoder())
    opt = torch.optim.SGD(ddp.parameters(), lr=0.5)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            loss = ddp.module.compute_loss(x)  # FAULT
            opt.zero_grad()
            loss.backward()
            opt.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
