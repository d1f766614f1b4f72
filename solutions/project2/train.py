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


# %% my_plan tags=["solution"]
def my_plan(world_size: int) -> dict[str, int]:
    """The axes of the mesh, outermost first, and the number of micro-batches: {"dp": 2, "tp": 2, "micro_batches": 1}.

    The axes' names are among "dp", "fsdp", "tp" and "pp"; their sizes multiply to `world_size`. On 4 and on 8
    ranks, at least two axes are larger than 1. The micro-batches are those that each replica does in a step.

    - 1, 2, 4 and 8 ranks: the model of the flags' defaults, two ranks on each machine.
    - 64 ranks: the large job of section 6, eight GPUs on each machine.
    """
    ### BEGIN SOLUTION
    tp = min(2, world_size)
    return {"dp": world_size // tp, "tp": tp, "micro_batches": 4 if world_size == 64 else 1}
    ### END SOLUTION


# %% Trainer tags=["solution"]
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
        ### BEGIN SOLUTION
        from torch.distributed import device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            ParallelStyle,
            PrepareModuleInput,
            RowwiseParallel,
            SequenceParallel,
            parallelize_module,
        )

        self.flags, world_size = flags, dist.get_world_size()
        plan = my_plan(world_size)
        self.dp, self.num_pieces = plan["dp"], plan["micro_batches"]
        mesh = device_mesh.init_device_mesh("cpu", (plan["dp"], plan["tp"]), mesh_dim_names=("dp", "tp"))
        self.replicas, place = mesh.get_group("dp"), mesh.get_local_rank("dp")
        share = flags.batch // self.dp
        self.sequences = (place * share, (place + 1) * share)
        self.model: Any = Transformer(flags.shape, seed=flags.seed)
        if plan["tp"] > 1:  # Megatron's cuts; between the layers, each rank has a part of the tokens
            gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
            columns = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
            cuts: dict[str, ParallelStyle] = dict.fromkeys(columns, ColwiseParallel())
            cuts |= dict.fromkeys(("attention.output", "mlp.down"), RowwiseParallel(output_layouts=Shard(1)))
            cuts |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
            cuts |= {"attention": gather, "mlp": gather}
            for block in self.model.layers.values():
                parallelize_module(block, mesh["tp"], cuts)
            ends: dict[str, ParallelStyle] = {
                "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "norm": SequenceParallel(),
                "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
            }
            parallelize_module(self.model, mesh["tp"], ends)
        self.is_sharded = world_size > 1
        if self.is_sharded:
            for part in (*self.model.layers.values(), self.model):
                fully_shard(part, mesh=mesh["dp"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=flags.lr, eps=1e-3, foreach=True)
        ### END SOLUTION

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """Take one step, and return the mean loss of the whole global batch before it.

        Shapes:
            tokens, targets: (n, T), where n is the number of this rank's sequences.
        """
        ### BEGIN SOLUTION
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor.parallel import loss_parallel

        total, pieces = torch.zeros(()), (tokens.chunk(self.num_pieces), targets.chunk(self.num_pieces))
        for number, (piece, wanted) in enumerate(zip(*pieces, strict=True), start=1):
            if self.is_sharded:  # gradients of micro-batches add up, and are averaged once
                self.model.set_requires_gradient_sync(number == self.num_pieces)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.flags.bf16):
                logits = self.model(piece)
            with loss_parallel():
                loss = functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten()) / self.num_pieces
                loss.backward()
            total += loss.full_tensor().detach() if isinstance(loss, DTensor) else loss.detach()
        total /= self.dp
        dist.all_reduce(total, group=self.replicas)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.item()
        ### END SOLUTION

    def whole_model(self) -> Transformer:
        """The model in one piece, on rank 0; every rank calls this together. What other ranks return is not used."""
        ### BEGIN SOLUTION
        from torch.distributed.tensor import DTensor

        weights = self.model.state_dict()
        whole = {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in weights.items()}
        model = Transformer(self.flags.shape)
        model.load_state_dict(whole)
        return model
        ### END SOLUTION


# %% save_checkpoint tags=["solution"]
def save_checkpoint(folder: Path, step: int, trainer: Trainer) -> None:
    """Save to `folder` everything that training needs to go on after `step` steps; every rank calls this together.

    Once a checkpoint has been saved, `folder` always holds a whole one, even if the program dies
    inside this function; once two have been saved, even if the newest file is cut in half
    afterwards. So write to another name and rename, and keep the previous checkpoint.
    """
    ### BEGIN SOLUTION
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
    unfinished, rank = folder / "unfinished", dist.get_rank()
    state_dict_saver.save({"model": model, "optimizer": optimizer}, checkpoint_id=unfinished)
    if rank == 0:
        shutil.rmtree(folder / f"{step:08d}", ignore_errors=True)  # one that was cut off, and passed over
        os.rename(unfinished, folder / f"{step:08d}")
        for old in sorted(folder.glob("0*"))[:-2]:
            shutil.rmtree(old)
    dist.barrier()
    ### END SOLUTION


# %% load_checkpoint tags=["solution"]
def load_checkpoint(folder: Path, trainer: Trainer) -> int:
    """Restore the newest whole checkpoint in `folder`, and return its number of steps; without one, 0.

    It may have been saved by another number of ranks, on another mesh. A file that was cut off is
    skipped, and on every rank alike. Every rank calls this together.
    """
    ### BEGIN SOLUTION
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.api import CheckpointException  # it derives from BaseException
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    for path in sorted(folder.glob("0*"), reverse=True):
        model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
        try:
            state_dict_loader.load({"model": model, "optimizer": optimizer}, checkpoint_id=path)
        except (Exception, CheckpointException):  # cut off; torch raises on all ranks where one of them cannot read
            continue
        set_state_dict(trainer.model, trainer.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        return int(path.name)
    return 0
    ### END SOLUTION


# %% main tags=["solution"]
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
    ### BEGIN SOLUTION
    dist.init_process_group(timeout=timedelta(seconds=flags.timeout))
    samples = bench.open_text(flags.batch, flags.length, flags.seed)
    trainer, rank = Trainer(flags), dist.get_rank()
    first = load_checkpoint(flags.checkpoints, trainer) if flags.resume else 0
    for step in range(first, flags.steps):
        loss = trainer.step(*samples.take(step, *trainer.sequences))
        if rank == 0:
            print(json.dumps({"step": step, "loss": loss}), flush=True)
        if flags.checkpoint_every and (step + 1) % flags.checkpoint_every == 0:
            save_checkpoint(flags.checkpoints, step + 1, trainer)
    whole = trainer.whole_model()
    if rank == 0:
        samples.hand_in(whole)
    dist.destroy_process_group()
    ### END SOLUTION


if __name__ == "__main__":
    main()
