"""Small networks for images."""

from __future__ import annotations

import torch
from torch import nn


def vision_net(width: int = 16, num_classes: int = 10, seed: int = 0) -> nn.Sequential:
    """Build a convolutional network from (B, 1, 8, 8) images to (B, num_classes) logits.

    The same seed gives the same weights in every process; the caller's random state is not changed.
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


def small_resnet(width: int = 16, num_classes: int = 10, seed: int = 0, channels: int = 1) -> nn.Sequential:
    """Build a residual network from (B, channels, H, H) images, H a multiple of 4, to (B, num_classes) logits.

    It normalises each sample separately (GroupNorm), so that a batch split over ranks gives the gradients of the whole
    batch. The same seed gives the same weights; the caller's random state is not changed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False),  # (B, W, H, H)
            _Residual(width, width),
            _Residual(width, 2 * width, stride=2),  # (B, 2W, H / 2, H / 2)
            _Residual(2 * width, 4 * width, stride=2),  # (B, 4W, H / 4, H / 4)
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * width, num_classes),
        )


class _Residual(nn.Module):
    """Two convolutions and a shortcut around them (He et al. 2016, "Identity Mappings in Deep Residual Networks").

    Smooth everywhere: at ReLU's kink, rounding differences from a different order of summation grow a thousandfold in
    20 steps.
    """

    def __init__(self, channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(min(4, channels), channels),
            nn.SiLU(),
            nn.Conv2d(channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(min(4, out_channels), out_channels),
            nn.SiLU(),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
        )
        is_same = stride == 1 and channels == out_channels
        self.way_round = nn.Identity() if is_same else nn.Conv2d(channels, out_channels, 1, stride=stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, C, H, H) -> (B, C', H / stride, H / stride)
        return self.body(x) + self.way_round(x)
