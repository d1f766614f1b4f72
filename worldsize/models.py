"""Small models in plain torch, quick enough to train several times in one lesson."""

from __future__ import annotations

import torch
from torch import nn


def vision_net(width: int = 16, num_classes: int = 10, seed: int = 0) -> nn.Sequential:
    """A convolutional network for (B, 1, 8, 8) images that gives (B, num_classes) logits.

    The same seed gives the same weights, in every process; the caller's random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, width, kernel_size=3, padding=1),  # (B, W, 8, 8)
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),  # (B, 2W, 8, 8)
            nn.ReLU(),
            nn.MaxPool2d(2),  # (B, 2W, 4, 4)
            nn.Flatten(),
            nn.Linear(2 * width * 16, num_classes),
        )
