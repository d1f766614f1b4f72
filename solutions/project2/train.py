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
### BEGIN SOLUTION
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


### END SOLUTION
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
        self.flags, world_size = flags, dist.get_world_size()
        plan = my_plan(world_size)
        self.dp, self.num_pieces = plan["dp"], plan["micro_batches"]
        self.mesh = init_device_mesh("cpu", (plan["dp"], plan["tp"]), mesh_dim_names=("dp", "tp"))
        share = flags.batch // self.dp
        place = self.mesh.get_local_rank("dp")
        self.sequences = (place * share, (place + 1) * share)
        self.model = Transformer(flags.shape, seed=flags.seed)
        if plan["tp"] > 1:
            cut_layers(self.model, self.mesh["tp"])
        self.is_sharded = world_size > 1
        if self.is_sharded:
            for part in (*self.model.layers.values(), self.model):
                fully_shard(part, mesh=self.mesh["dp"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=flags.lr, eps=1e-3, foreach=True)
        ### END SOLUTION

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """Take one step, and return the mean loss of the whole global batch before it.

        Shapes:
            tokens, targets: (n, T), where n is the number of this rank's sequences.
        """
        ### BEGIN SOLUTION
        total = torch.zeros(())
        pieces = list(zip(tokens.chunk(self.num_pieces), targets.chunk(self.num_pieces), strict=True))
        for number, (piece, wanted) in enumerate(pieces, start=1):
            if self.is_sharded:
                self.model.set_requires_gradient_sync(number == len(pieces))
            total += self.loss(piece, wanted) / (len(pieces) * self.dp)
        dist.all_reduce(total, group=self.mesh.get_group("dp"))
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.item()
        ### END SOLUTION

    ### BEGIN SOLUTION
    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of some sequences, after its backward pass."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.flags.bf16):
            logits = self.model(tokens)
        with loss_parallel():
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
            (loss / self.num_pieces).backward()
        return whole(loss.detach())

    ### END SOLUTION
    def whole_model(self) -> Transformer:
        """The model in one piece, on rank 0; every rank calls this together. What other ranks return is not used."""
        ### BEGIN SOLUTION
        weights = {name: whole(weight) for name, weight in self.model.state_dict().items()}
        model = Transformer(self.flags.shape)
        model.load_state_dict(weights)
        return model
        ### END SOLUTION


### BEGIN SOLUTION
def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut_layers(model: Transformer, mesh) -> None:
    """Cut each layer over the ranks of a mesh, by Megatron's plan with sequence parallelism."""
    gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    columns = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
    plan = dict.fromkeys(columns, ColwiseParallel())
    plan |= dict.fromkeys(("attention.output", "mlp.down"), RowwiseParallel(output_layouts=Shard(1)))
    plan |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
    plan |= {"attention": gather, "mlp": gather}
    for block in model.layers.values():
        parallelize_module(block, mesh, plan)
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends)


### END SOLUTION
# %% save_checkpoint tags=["solution"]
def save_checkpoint(folder: Path, step: int, trainer: Trainer) -> None:
    """Save to `folder` everything that training needs to go on after `step` steps; every rank calls this together.

    Once a checkpoint has been saved, `folder` always holds a whole one, even if the program dies
    inside this function; once two have been saved, even if the newest file is cut in half
    afterwards. So write to another name and rename, and keep the previous checkpoint.
    """
    ### BEGIN SOLUTION
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
    unfinished = folder / "unfinished"
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=unfinished)
    if dist.get_rank() == 0:
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
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException  # it derives from BaseException
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    for path in sorted(folder.glob("0*"), reverse=True):
        model, optimizer = get_state_dict(trainer.model, trainer.optimizer)
        try:
            dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=path)
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
    trainer = Trainer(flags)
    first = load_checkpoint(flags.checkpoints, trainer) if flags.resume else 0
    for step in range(first, flags.steps):
        loss = trainer.step(*samples.take(step, *trainer.sequences))
        if dist.get_rank() == 0:
            print(json.dumps({"step": step, "loss": loss}), flush=True)
        if flags.checkpoint_every and (step + 1) % flags.checkpoint_every == 0:
            save_checkpoint(flags.checkpoints, step + 1, trainer)
    model = trainer.whole_model()
    if dist.get_rank() == 0:
        samples.hand_in(model)
    dist.destroy_process_group()
    ### END SOLUTION


if __name__ == "__main__":
    main()
