"""Data-parallel training of a small residual network; the contract is in report.ipynb.

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
    """The flags of the contract: the first six define the training."""
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


# %% my_samples tags=["solution"]
def my_samples(batch: int, rank: int, world_size: int) -> tuple[int, int]:
    """The `start` and `stop` of this rank's samples in a global batch of samples 0 to `batch` - 1.

    They are the samples from `start` to `stop` - 1. Every sample belongs to exactly one rank, even
    if `world_size` does not divide `batch`; shares then differ by one sample at most: 46 samples on
    3 ranks are shares of 15, 15 and 16, in any order.
    """
    ### BEGIN SOLUTION
    return rank * batch // world_size, (rank + 1) * batch // world_size
    ### END SOLUTION


# %% Replica tags=["solution"]
class Replica:
    """One rank's model and everything that its training needs.

    The model, `self.model`, is `models.small_resnet(flags.width, seed=flags.seed,
    channels=flags.channels)`; a wrapper around it is an attribute of another name.

    - After every `step`, each rank has the weights of a single process that trains on the whole
      global batches with `torch.optim.SGD(model.parameters(), lr=flags.lr,
      momentum=flags.momentum)`.
    - The model is on the GPU of this rank (`LOCAL_RANK`) if every rank of the machine has one,
      otherwise on the CPU.
    - Gradients go by collectives of `torch.distributed`, in float32, and in the same way in every
      step. A step sends at most 5% more bytes than a ring all-reduce of the gradients.
    - With `flags.no_sync` a step computes as before and sends nothing: neither gradients nor
      losses.
    - `flags.amp`, `flags.channels_last` and `flags.compile` are there to explore; no grade depends
      on them.
    """

    def __init__(self, flags: argparse.Namespace) -> None:
        ### BEGIN SOLUTION
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.batch, self.is_synchronised = flags.batch, not flags.no_sync and self.world_size > 1
        self.device = torch.device("cpu")
        if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size)):
            self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(self.device)
        self.model = models.small_resnet(flags.width, seed=flags.seed, channels=flags.channels).to(self.device)
        self.layout = torch.channels_last if flags.channels_last else torch.contiguous_format
        self.model.to(memory_format=self.layout)
        self.mixed = torch.autocast(self.device.type, torch.bfloat16, enabled=flags.amp)
        self.net = torch.compile(self.model) if flags.compile else self.model
        if self.is_synchronised:
            # buckets of 64 kB: the first of them leave while the layers below still compute their
            # gradients; torch.compile takes none below DDP's first bucket, 1 MB
            bucket_mb = flags.bucket_mb or (1 if flags.compile else 0.0625)
            self.net = nn.parallel.DistributedDataParallel(self.net, bucket_cap_mb=bucket_mb)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=flags.lr, momentum=flags.momentum)
        gradient_bytes = sum(4 * parameter.numel() for parameter in self.model.parameters())
        share = 2 * (self.world_size - 1) / self.world_size if self.is_synchronised else 0
        self.sent_bytes = share * gradient_bytes
        ### END SOLUTION

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Take one step, and return the mean loss of the whole global batch before it.

        Shapes:
            images: (n, 1, 8, 8), or (n, 3, 32, 32) for CIFAR-10.
            labels: (n,), where n is the number of this rank's samples in the global batch.
        """
        ### BEGIN SOLUTION
        images, labels = images.to(self.device, memory_format=self.layout), labels.to(self.device)
        with self.mixed:
            logits = self.net(images)
        total = functional.cross_entropy(logits.float(), labels, reduction="sum")
        # DDP averages over ranks, and the loss is an average over samples: with unequal shares
        # these differ
        (total * self.world_size / self.batch if self.is_synchronised else total / len(labels)).backward()
        loss = total.detach() / self.batch
        waiting = dist.all_reduce(loss, async_op=True) if self.is_synchronised else None
        self.optimizer.step()
        self.optimizer.zero_grad()
        if waiting:
            waiting.wait()
        return loss.item()
        ### END SOLUTION


# %% save_checkpoint tags=["solution"]
def save_checkpoint(folder: Path, step: int, replica: "Replica") -> None:
    """Save to `folder` everything that training needs to go on after `step` steps.

    Once a checkpoint has been saved, `folder` always holds a whole one, even if the program dies
    inside this function; once two have been saved, even if the newest file is cut in half
    afterwards. So write to another name and rename, and keep the previous checkpoint.
    """
    ### BEGIN SOLUTION
    if replica.rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "step": step,
            "model": replica.model.state_dict(),
            "optimizer": replica.optimizer.state_dict(),
        }
        unfinished = folder / "unfinished"
        torch.save(state, unfinished)
        os.replace(unfinished, folder / f"{step:08d}.pt")
        for old in sorted(folder.glob("*.pt"))[:-2]:
            old.unlink()
    ### END SOLUTION


# %% load_checkpoint tags=["solution"]
def load_checkpoint(folder: Path, replica: "Replica") -> int:
    """Restore the newest whole checkpoint in `folder`, and return its number of steps.

    Without a checkpoint, the number is 0. Afterwards `replica` is, on every rank, as it was when
    the checkpoint was saved. A file that was cut off is skipped.
    """
    ### BEGIN SOLUTION
    for path in sorted(folder.glob("*.pt"), reverse=True):
        try:
            state = torch.load(path, weights_only=True, map_location=replica.device)
        except Exception:  # cut off while it was written, or since
            continue
        replica.model.load_state_dict(state["model"])
        replica.optimizer.load_state_dict(state["optimizer"])
        return state["step"]
    return 0
    ### END SOLUTION


# %% main tags=["solution"]
def main() -> None:
    """Run the whole program on one of the ranks that torchrun started.

    - Join the group, with `--timeout` as its timeout: a rank that waits longer for another one ends
      with an error.
    - Take samples from `samples = bench.open_samples(flags.batch, flags.seed, flags.images)`:
      `samples.take(step, start, stop)` returns images and labels. A rank takes its own samples,
      step by step.
    - After each step rank 0 prints one line of JSON,
      `{"step": 0, "loss": 2.31, "sent_bytes": 309736}`, flushed: the loss of the global batch
      before the step, and the bytes that this rank sent for its gradients in that step, counted as
      a ring all-reduce sends them: 2(N - 1)/N of their size.
    - After every `--checkpoint-every` steps, save a checkpoint in `--checkpoints`. With `--resume`,
      training goes on from the newest whole one, so that the final weights are those of an
      undisturbed run.
    - At the end rank 0 calls `samples.hand_in(replica.model)`, and every rank leaves the group:
      Gloo may abort a program that ends inside it.
    """
    flags = read_flags()
    ### BEGIN SOLUTION
    dist.init_process_group(timeout=timedelta(seconds=flags.timeout))
    samples = bench.open_samples(flags.batch, flags.seed, flags.images)
    replica = Replica(flags)
    first = load_checkpoint(flags.checkpoints, replica) if flags.resume else 0
    share = my_samples(flags.batch, dist.get_rank(), dist.get_world_size())
    for step in range(first, flags.steps):
        loss = replica.step(*samples.take(step, *share))
        if replica.rank == 0:
            print(
                json.dumps({"step": step, "loss": loss, "sent_bytes": replica.sent_bytes}),
                flush=True,
            )
        if flags.checkpoint_every and (step + 1) % flags.checkpoint_every == 0:
            save_checkpoint(flags.checkpoints, step + 1, replica)
    if replica.rank == 0:
        samples.hand_in(replica.model)
    dist.destroy_process_group()
    ### END SOLUTION


if __name__ == "__main__":
    main()
