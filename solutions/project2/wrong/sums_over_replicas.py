# score: 80
# hint: the mean over all sequences
# Gradients are summed over replicas, where a mean is due: N times too large.


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
        from torch.distributed.device_mesh import init_device_mesh
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
        mesh = init_device_mesh("cpu", (plan["dp"], plan["tp"]), mesh_dim_names=("dp", "tp"))
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

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        """Take one step, and return the mean loss of the whole global batch before it.

        Shapes:
            tokens, targets: (n, T), where n is the number of this rank's sequences.
        """
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
                (loss * self.dp).backward()
            total += loss.full_tensor().detach() if isinstance(loss, DTensor) else loss.detach()
        total /= self.dp
        dist.all_reduce(total, group=self.replicas)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.item()

    def whole_model(self) -> Transformer:
        """The model in one piece, on rank 0; every rank calls this together. What other ranks return is not used."""
        from torch.distributed.tensor import DTensor

        weights = self.model.state_dict()
        whole = {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in weights.items()}
        model = Transformer(self.flags.shape)
        model.load_state_dict(whole)
        return model
