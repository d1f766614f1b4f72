"""Training of a transformer on a mesh of ranks; the contract is in report.ipynb.

Try it: torchrun --nproc-per-node 4 train.py --steps 10
"""


# %% setup
import argparse
import json
import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from worldsize import bench
from worldsize.models import Transformer


def read_flags() -> argparse.Namespace:
    """The flags of the contract, and `flags.shape`, the sizes of the model that they name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=8, help="sequences in a global batch")
    parser.add_argument("--length", type=int, default=32, help="tokens in a sequence")
    parser.add_argument("--model", default="small", help="a shape of worldsize.models")
    parser.add_argument("--layers", type=int, default=0, help="in place of the shape's own number")
    parser.add_argument("--width", type=int, default=0, help="in place of the shape's own")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--bf16", action="store_true", help="matrix products in bfloat16, by torch.autocast")
    parser.add_argument("--checkpoints", type=Path, help="folder for checkpoints")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps between checkpoints; 0: none")
    parser.add_argument("--resume", action="store_true", help="go on from the newest whole checkpoint, if any")
    parser.add_argument("--timeout", type=float, default=60, help="seconds that a rank waits for another one")
    flags = parser.parse_args()
    flags.shape = bench.text_shape(flags.model, flags.layers, flags.width)
    return flags


# %% my_plan
def my_plan(world_size: int) -> dict[str, int]:
    """The axes of the mesh, outermost first, and the number of micro-batches: {"dp": 2, "tp": 2, "micro_batches": 1}.

    The axes' names are among "dp", "fsdp", "tp" and "pp"; their sizes multiply to `world_size`. On 4 and on 8
    ranks, at least two axes are larger than 1. The micro-batches are those that each replica does in a step.

    - 1, 2, 4 and 8 ranks: the model of the flags' defaults, two ranks on each machine.
    - 64 ranks: the large job of section 6, eight GPUs on each machine.
    """
    raise NotImplementedError("Replace this line with your own code.")


# %% Trainer
class Trainer:
    """One rank's part of the model, and everything that its training needs.

    - The model is `Transformer(flags.shape, seed=flags.seed)`, cut over the mesh of `my_plan`.
    - After every `step`, the parts of all ranks together are the weights of a single process that
      trains on the whole global batches with `torch.optim.AdamW(model.parameters(), lr=flags.lr,
      eps=1e-3)`. Adam forgives a gradient that is N times too large; with so large an `eps`, it does not.
    - With 4 ranks or more, no rank holds more than half of the weights, gradients and moments.
    - `self.sequences` are the `start` and `stop` of this rank's sequences in a global batch. Ranks
      that share a replica of the model name the same ones.
    - With `flags.bf16`, forward passes run under `torch.autocast("cpu", torch.bfloat16)`.
    - All that travels goes by `torch.distributed`, and in the same way in every step.
    """

    def __init__(self, flags: argparse.Namespace) -> None:
        raise NotImplementedError("Replace this line with your own code.")

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """Take one step, and return the mean loss of the whole global batch before it.

        Shapes:
            tokens, targets: (n, T), where n is the number of this rank's sequences.
        """
        raise NotImplementedError("Replace this line with your own code.")

    def whole_model(self) -> Transformer:
        """The model in one piece, on rank 0; every rank calls this together. What other ranks return is not used."""
        raise NotImplementedError("Replace this line with your own code.")


# %% save_checkpoint
def save_checkpoint(folder: Path, step: int, trainer: Trainer) -> None:
    """Save to `folder` everything that training needs to go on after `step` steps; every rank calls this together.

    Once a checkpoint has been saved, `folder` always holds a whole one, even if the program dies
    inside this function; once two have been saved, even if the newest file is cut in half
    afterwards. So write to another name and rename, and keep the previous checkpoint.
    """
    raise NotImplementedError("Replace this line with your own code.")


# %% load_checkpoint
def load_checkpoint(folder: Path, trainer: Trainer) -> int:
    """Restore the newest whole checkpoint in `folder`, and return its number of steps; without one, 0.

    It may have been saved by another number of ranks, on another mesh. A file that was cut off is
    skipped, and on every rank alike. Every rank calls this together.
    """
    raise NotImplementedError("Replace this line with your own code.")


# %% main
def main() -> None:
    """Run the whole program on one of the ranks that torchrun started.

    - Join the group, with `--timeout` as its timeout: a rank that waits longer for another one ends
      with an error.
    - Take sequences from `samples = bench.open_text(flags.batch, flags.length, flags.seed)`:
      `samples.take(step, start, stop)` returns tokens and targets. A rank takes its own sequences,
      step by step.
    - After each step rank 0 prints one line of JSON, `{"step": 0, "loss": 5.56}`, flushed: the loss
      of the whole global batch before the step.
    - After every `--checkpoint-every` steps, save a checkpoint in `--checkpoints`. With `--resume`,
      training goes on from the newest whole one, so that the final weights are those of an
      undisturbed run.
    - At the end rank 0 calls `samples.hand_in(trainer.whole_model())`, and every rank leaves the
      group.
    """
    flags = read_flags()
    raise NotImplementedError("Replace this line with your own code.")


if __name__ == "__main__":
    main()
