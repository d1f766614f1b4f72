"""The batches of one training, drawn from a seed so that nobody has seen them in this form: images or text."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Literal

import torch

from worldsize import images as files
from worldsize import text

Images = Literal["digits", "cifar10"]
_NOISE = 0.3  # in standard deviations: images stay readable, and no two are the same
Batch = tuple[torch.Tensor, torch.Tensor]


class DrawnBatches(ABC):
    """The batches of a seed; some may be drawn ahead of time, so that handing them out costs little."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn: dict[int, Batch] = {}

    def draw_all(self, num_steps: int) -> None:
        """Draw the batches of these steps ahead of time."""
        for step in range(num_steps):
            self._drawn[step] = self._draw(step)

    def batch(self, step: int) -> Batch:
        """The whole batch of a step."""
        return self._drawn.get(step) or self._draw(step)

    @abstractmethod
    def _draw(self, step: int) -> Batch:
        """Draw the batch of a step, always the same."""

    def _generator(self, step: int) -> torch.Generator:
        return torch.Generator().manual_seed((self._seed * 1_000_003 + step + 1) % (1 << 63))


class Batches(DrawnBatches):
    """The global batch of every step: float32 images (B, 1, 8, 8), of CIFAR-10 (B, 3, 32, 32), and int64 labels (B,).

    The seed decides which images each batch holds, the noise on each image, and the class that every label stands for.
    Weights that were trained on batches of one seed are worth nothing on those of another.
    """

    def __init__(self, seed: int, batch_size: int, images: Images = "digits") -> None:
        super().__init__(seed)
        self.batch_size = batch_size
        self._images, labels = _loaded(images)
        classes = torch.randperm(10, generator=self._generator(-1))
        self._labels = classes[labels]

    def _draw(self, step: int) -> Batch:
        generator = self._generator(step)
        chosen = torch.randint(len(self._images), (self.batch_size,), generator=generator)
        noise = torch.randn((self.batch_size, *self._images.shape[1:]), generator=generator)
        return self._images[chosen] + _NOISE * noise, self._labels[chosen]


class TextBatches(DrawnBatches):
    """The global batch of every step: tokens (B, T) of the course's text, and the token that follows each, both int64.

    The seed decides where each sequence begins, and which token stands for each byte of the text.
    """

    def __init__(self, seed: int, batch_size: int, length: int) -> None:
        super().__init__(seed)
        self.batch_size, self._length = batch_size, length
        tokens = torch.randperm(text.VOCAB_SIZE, generator=self._generator(-1))
        self._tokens = tokens[text.tokens().long()]

    def _draw(self, step: int) -> Batch:
        return text.batch(self._tokens, self.batch_size, self._length, self._generator(step))


@functools.cache
def _loaded(images: Images) -> Batch:
    return files.load_digits() if images == "digits" else files.load_cifar10()
