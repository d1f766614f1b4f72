"""Two towers, one of them pretrained and frozen (LiT): only the text tower trains under DDP.

KIND: 0
RANKS: 2
NAME:
SOURCE: https://arxiv.org/abs/2111.07991
RIGHT: The image tower is frozen before DDP is made, and no optimizer holds it.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8))
        self.text = nn.Linear(10, 8)
        self.image.requires_grad_(False)

    def forward(self, image, text):
        with torch.no_grad():
            target = self.image(image)
        return target, self.text(text)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(Towers())
opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
gen = torch.Generator().manual_seed(rank)
for step in range(5):
    image = torch.randn(16, 12, generator=gen)
    target, guess = model(image, image[:, :10])
    loss = 1 - nn.functional.cosine_similarity(target, guess).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(f"step {step} loss {loss.item():.4f}")
dist.destroy_process_group()
