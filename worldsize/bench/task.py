"""What a program of the benchmark trains: the model, the batches and the step that the contract names."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional

from worldsize import models
from worldsize.bench.batches import Batches, Images, TextBatches
from worldsize.models import Shape

Count = Annotated[int, Field(gt=0)]
_EPS = 1e-3  # of the order of a gradient's elements
CHANNELS = {"digits": 1, "cifar10": 3}  # of an image


class Task(BaseModel):
    """One training: `batch_size` is the global batch, `width` that of the model's first layer, `seed` its weights'.

    `images` are digits, which are always there, or CIFAR-10, whose files `worldsize.images.load_cifar10` has to find.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_steps: Count = 24
    batch_size: Count = 128
    width: Count = 16
    seed: int = 0
    lr: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    images: Images = "digits"

    @property
    def flags(self) -> list[str]:
        """The task as command-line flags of the program."""
        return _flags(self)

    def batches(self, seed: int) -> Batches:
        """Make the batches of a training, drawn from a seed."""
        return Batches(seed, self.batch_size, self.images)

    def model(self) -> nn.Module:
        """Make the model before its first step, the same in every process."""
        return models.small_resnet(self.width, seed=self.seed, channels=CHANNELS[self.images])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Make the optimizer of the contract: SGD with momentum."""
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=self.momentum)

    @property
    def gradient_bytes(self) -> int:
        """The size of all gradients in float32."""
        return 4 * sum(parameter.numel() for parameter in self.model().parameters())


class TextTask(BaseModel):
    """The training of a small transformer on a real text: `batch_size` sequences of `length` tokens a step.

    `model_name` is a shape of `worldsize.models`; `layers` and `width`, unless 0, replace its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    num_steps: Count = 10
    batch_size: Count = 8
    length: Count = 32
    model_name: str = "small"
    layers: int = Field(default=0, ge=0)
    width: int = Field(default=0, ge=0)
    seed: int = 0
    lr: float = Field(default=0.003, gt=0)

    @property
    def flags(self) -> list[str]:
        """The task as command-line flags of the program."""
        return _flags(self)

    @property
    def shape(self) -> Shape:
        """The sizes of the model."""
        return text_shape(self.model_name, self.layers, self.width)

    def batches(self, seed: int) -> TextBatches:
        """Make the batches of a training, drawn from a seed."""
        return TextBatches(seed, self.batch_size, self.length)

    def model(self) -> nn.Module:
        """Make the model before its first step, the same in every process."""
        return models.Transformer(self.shape, seed=self.seed)

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Make the optimizer of the contract: AdamW, whose `eps` is so large that the scale of a gradient matters."""
        return torch.optim.AdamW(model.parameters(), lr=self.lr, eps=_EPS)

    @property
    def gradient_bytes(self) -> int:
        """The size of all gradients in float32."""
        return 4 * self.shape.num_parameters


def text_shape(model_name: str, layers: int = 0, width: int = 0) -> Shape:
    """A shape of `worldsize.models`, with a different number of layers or width unless these are 0."""
    shape = models.shape(model_name)
    width = width or shape.width
    hidden_width = shape.hidden_width * width // shape.width
    return replace(shape, num_layers=layers or shape.num_layers, width=width, hidden_width=hidden_width)


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy over all targets: (..., C) against (...)."""
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def _flags(task: Task | TextTask) -> list[str]:
    names = {"num_steps": "steps", "batch_size": "batch", "model_name": "model"}
    return [f"--{names.get(name, name)}={value}" for name, value in task]
