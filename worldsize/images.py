"""Small real images as tensors, from local files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

CIFAR10_FOLDER = "WORLDSIZE_CIFAR10"  # the environment variable that names the folder of the files
_CIFAR10_PIXELS = (3, 32, 32)
_DIGITS = Path(__file__).parent / "data" / "digits.csv.gz"  # its licence is in the same folder


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Load 1797 handwritten digits: float32 pixels (1797, 1, 8, 8), mean 0 and deviation 1, and int64 labels (1797,).

    Source: Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits" (test part), UCI Machine Learning
    Repository, 1998.
    """
    records = np.loadtxt(_DIGITS, dtype=np.uint8, delimiter=",")
    images = torch.from_numpy(records[:, :64].astype(np.float32)).reshape(-1, 1, 8, 8)
    return (images - images.mean()) / images.std(), torch.from_numpy(records[:, 64].astype(np.int64))


def load_cifar10(folder: str | os.PathLike[str] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Load CIFAR-10's training images: float32 pixels (50000, 3, 32, 32), mean 0 and deviation 1, and int64 labels.

    `folder` holds `data_batch_1.bin` to `data_batch_5.bin`, the "binary version" of the dataset; the default is the
    folder named by the environment variable WORLDSIZE_CIFAR10. Nothing is ever downloaded. Mean and deviation are per
    channel.

    Raises:
        ValueError: the files do not exist, or one has a different format.

    Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009.
    """
    records = np.concatenate([_cifar10_records(path) for path in cifar10_files(folder)])
    images = torch.from_numpy(records[:, 1:].astype(np.float32)).reshape(-1, *_CIFAR10_PIXELS)
    mean, deviation = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
    return (images - mean) / deviation, torch.from_numpy(records[:, 0].astype(np.int64))


def cifar10_files(folder: str | os.PathLike[str] | None = None) -> list[Path]:
    """Find the files that `load_cifar10` reads.

    Raises:
        ValueError: they do not exist.
    """
    where = folder or os.environ.get(CIFAR10_FOLDER, "")
    paths = sorted(Path(where).glob("data_batch_*.bin")) if where else []
    if not paths:
        raise ValueError(
            f"There are no CIFAR-10 files in {os.fspath(where)!r}: no data_batch_1.bin. Get the binary version from "
            f"www.cs.toronto.edu/~kriz/cifar.html, unpack it, and set {CIFAR10_FOLDER} to its folder."
        )
    return paths


def _cifar10_records(path: Path) -> np.ndarray:
    """Read a file's records, (n, 3073) bytes: a label from 0 to 9, then the red, green and blue of 32 x 32 pixels."""
    num_bytes = 1 + int(np.prod(_CIFAR10_PIXELS))
    values = np.fromfile(path, dtype=np.uint8)
    if not values.size or values.size % num_bytes or values[::num_bytes].max() > 9:
        raise ValueError(
            f"{path} is not a file of CIFAR-10's binary version, whose records are a label and 3,072 pixel bytes."
        )
    return values.reshape(-1, num_bytes)
