"""What every program of the benchmark trains: the model, the batches and the step that the contract names."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

from worldsize import models

Count = Annotated[int, Field(gt=0)]
Images = Literal["digits", "cifar10"]
CHANNELS = {"digits": 1, "cifar10": 3}  # of an image


class Task(BaseModel):
    """What one training is: `batch_size` is the global batch, `width` the model's first layer, `seed` its weights'.

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
        """The task as flags of the program."""
        return [
            f"--{name.replace('_', '-')}={value}"
            for name, value in {
                "steps": self.num_steps,
                "batch": self.batch_size,
                "width": self.width,
                "seed": self.seed,
                "lr": self.lr,
                "momentum": self.momentum,
                "images": self.images,
            }.items()
        ]

    def model(self) -> nn.Module:
        """The model before its first step, the same in every process."""
        return models.small_resnet(self.width, seed=self.seed, channels=CHANNELS[self.images])

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the contract: SGD with momentum."""
        return torch.optim.SGD(model.parameters(), lr=self.lr, momentum=self.momentum)

    @property
    def gradient_bytes(self) -> int:
        """The size of all gradients in float32."""
        return 4 * sum(parameter.numel() for parameter in self.model().parameters())
