"""Encoder and classifier trained together under DDP; the features of the last batch are kept for a plot.

KIND: 22
RANKS: 2
NAME: module.encoder.weight
SOURCE:
RIGHT: The features are detached before the classifier, so the encoder gets no gradient and never changes.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(12, 24)
        self.classifier = nn.Linear(24, 3)

    def forward(self, x):
        features = torch.relu(self.encoder(x))
        self.kept = features = features.detach()  # FAULT
        return self.classifier(features)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Net(), find_unused_parameters=True)
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    gen = torch.Generator().manual_seed(rank)
    for step in range(6):
        x = torch.randn(16, 12, generator=gen)
        loss = nn.functional.cross_entropy(model(x), x[:, :3].argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            spread = model.module.kept.std().item()
            print(f"step {step} loss {loss.item():.4f} feature spread {spread:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
