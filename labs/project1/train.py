"""Data-parallel training of a small residual network; report.ipynb tells the contract and measures this program.

Try it: torchrun --nproc-per-node 2 train.py --steps 10
"""


# %% setup
import argparse
import json
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from worldsize import bench, models


def read_flags() -> argparse.Namespace:
    """The flags of the contract: the first six say what is trained, the others come where they are needed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=128, help="samples in a global batch")
    parser.add_argument("--width", type=int, default=16, help="channels of the model's first layer")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--no-sync", action="store_true", help="exchange nothing in a step; for timing only")
    parser.add_argument("--checkpoints", type=Path, help="folder for checkpoints")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps between checkpoints; 0: none")
    parser.add_argument("--resume", action="store_true", help="go on from the newest whole checkpoint, if any")
    parser.add_argument("--bucket-mb", type=float, help="MB of gradients in a bucket; without it, your own choice")
    parser.add_argument("--timeout", type=float, default=60, help="seconds that a rank waits for another one")
    parser.add_argument("--images", choices=["digits", "cifar10"], default="digits")
    parser.add_argument("--amp", action="store_true", help="bfloat16 where torch.autocast thinks it safe")
    parser.add_argument("--channels-last", action="store_true", help="store a pixel's channels side by side")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    flags = parser.parse_args()
    flags.channels = 3 if flags.images == "cifar10" else 1
    return flags


# %% my_samples
def my_samples(batch: int, rank: int, world_size: int) -> tuple[int, int]:
    """The `start` and `stop` of this rank's samples in the global batch, which has samples 0 to `batch` - 1.

    They are those from `start` up to, and without, `stop`. Every sample is exactly one rank's, also where `world_size`
    does not divide `batch`; shares then differ by one sample at most: 46 on 3 ranks are 15, 15 and 16, in any order.
    """
    raise NotImplementedError("Replace this line with your own code.")


# %% Replica
class Replica:
    """One rank's model and all that its training needs.

    The model is `models.small_resnet(flags.width, seed=flags.seed, channels=flags.channels)`.

    - After every `step`, each rank has the weights that one process has which trains on the whole global batches with
      `torch.optim.SGD(model.parameters(), lr=flags.lr, momentum=flags.momentum)`.
    - It lives on the GPU of this rank (`LOCAL_RANK`) where there is one for every rank of the machine, else on the CPU.
    - A step sends what an all-reduce of the gradients in float32 sends, and no more than 5% above.
    - With `flags.no_sync` a step computes as before and sends nothing: neither gradients nor losses.
    - `flags.amp`, `flags.channels_last` and `flags.compile` are there to explore; no grade depends on them.
    """

    def __init__(self, flags: argparse.Namespace) -> None:
        raise NotImplementedError("Replace this line with your own code.")

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """The loss of the whole global batch before this step, a mean over its samples; afterwards the step is done.

        Shapes:
            images: (n, 1, 8, 8), of CIFAR-10 (n, 3, 32, 32), and labels: (n,), this rank's samples of the global batch.
        """
        raise NotImplementedError("Replace this line with your own code.")


# %% save_checkpoint
def save_checkpoint(folder: Path, step: int, replica: "Replica") -> None:
    """Nothing; afterwards `folder` holds all that training needs to go on after `step` steps.

    Whenever the program dies, also in here, a whole checkpoint stays behind, and also when the newest file of the
    folder is then cut in half: an older one is kept beside it.
    """
    raise NotImplementedError("Replace this line with your own code.")


# %% load_checkpoint
def load_checkpoint(folder: Path, replica: "Replica") -> int:
    """The number of steps that the newest whole checkpoint in `folder` holds; 0 where there is none.

    Afterwards `replica` is, on every rank, as it was when that was saved. A file that was cut off is passed over.
    """
    raise NotImplementedError("Replace this line with your own code.")


# %% main
def main() -> None:
    """Nothing; the whole program, on one rank of those that torchrun started.

    - It joins the group, with `--timeout` as its timeout: a rank that waits longer for another one ends with an error.
    - Samples come from `samples = bench.open_samples(flags.batch, flags.seed, flags.images)`: there
      `samples.take(step, start, stop)` gives images and labels. A rank takes its own samples, step by step.
    - After each step rank 0 prints one line of JSON, `{"step": 0, "loss": 2.31, "sent_bytes": 309736}`, flushed: the
      loss of the global batch before the step, and the bytes that this rank sent for its gradients in it, as a ring
      all-reduce of them would: 2(N - 1)/N of their size.
    - After every `--checkpoint-every` steps a checkpoint is in `--checkpoints`. With `--resume` training goes on from
      the newest whole one, so that the weights are in the end those of a run that nothing disturbed.
    - At the end rank 0 calls `samples.hand_in(model)`.
    """
    flags = read_flags()
    raise NotImplementedError("Replace this line with your own code.")


if __name__ == "__main__":
    main()
