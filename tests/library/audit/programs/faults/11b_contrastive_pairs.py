"""CLIP-like training: two towers under DDP, and each image is compared with the texts of all ranks.

KIND: 11
RANKS: 2
NAME:
SOURCE: https://github.com/mlfoundations/open_clip/issues/616
RIGHT: dist.all_gather has no gradient, so the towers get no gradient as the negatives of other ranks.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(12, 8)
        self.text = nn.Linear(10, 8)

    def forward(self, image, text):
        return F.normalize(self.image(image), dim=1), F.normalize(self.text(text), dim=1)


def gather(local):
    parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, local)  # FAULT
    return torch.cat(parts)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(TwoTowers())
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    gen = torch.Generator().manual_seed(20 + rank)
    for step in range(5):
        image = torch.randn(6, 12, generator=gen)
        text = image[:, :10] + 0.1 * torch.randn(6, 10, generator=gen)
        im, tx = model(image, text)
        target = torch.arange(6) + 6 * rank
        loss = F.cross_entropy(im @ gather(tx).t() / 0.2, target)
        loss = loss + F.cross_entropy(tx @ gather(im).t() / 0.2, target)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"step {step} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
