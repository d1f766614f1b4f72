"""Small real images as tensors, from files that are already on the machine."""

from __future__ import annotations

import torch


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1797 handwritten digits as float32 pixels (1797, 1, 8, 8), mean 0 and deviation 1, and int64 labels (1797,).

    Source: UCI Optical Recognition of Handwritten Digits (test part), as shipped with scikit-learn.
    """
    from sklearn.datasets import load_digits as read  # takes a second to import: only those who call it pay

    pixels, labels = read(return_X_y=True)
    images = torch.as_tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return (images - images.mean()) / images.std(), torch.as_tensor(labels, dtype=torch.int64)
