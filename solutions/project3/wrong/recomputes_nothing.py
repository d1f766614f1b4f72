# score: 79
# hint: computed again
# `plan.recompute` is not read.


# %% train
def train(plan: Plan, tokens: Tensor | None = None, targets: Tensor | None = None) -> Any:
    """Take one step on this rank as the plan says, and return the rank's part of the model, for `whole_weights`.

    - The model is `Transformer(plan.model, seed=0)`. After the step, the parts of all ranks together are the weights
      of a single process that trains on the whole global batch with `torch.optim.AdamW(model.parameters(),
      lr=LEARNING_RATE, eps=EPS)`, by the mean loss of all its tokens.
    - `plan.pp`, `plan.cp` and `plan.ep` are 1. The ranks are a mesh of dp and tp, tp the innermost. tp ranks share
      every product of a layer, dp ranks take sequences of their own. With `plan.zero_stage` 3, dp ranks also share
      weights, gradients and moments. With `plan.recompute` "full", layers keep only their inputs.
    - Each replica takes its sequences in `plan.num_micro_batches` parts.
    - Forward passes run under `torch.autocast("cpu", torch.bfloat16)` if `plan.model.width` is 1,024 or more.
    - The same program runs with data and on paper: what a tensor holds decides nothing.

    Shapes:
        tokens, targets: (plan.global_batch, plan.length); without them, zeros. Replica d reads its own rows,
            d * share to (d + 1) * share; in the others, a rank may be given anything.
    """
    from torch.distributed import device_mesh
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        loss_parallel,
        parallelize_module,
    )

    if tokens is None or targets is None:
        tokens = targets = torch.zeros(plan.global_batch, plan.length, dtype=torch.long)
    mesh = device_mesh.init_device_mesh("cpu", (plan.dp, plan.tp), mesh_dim_names=("dp", "tp"))
    model: Any = Transformer(plan.model, seed=0)
    if plan.tp > 1:  # Megatron's cuts; between the layers, each rank has a part of the tokens
        gather = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        columns = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
        cuts: dict[str, ParallelStyle] = dict.fromkeys(columns, ColwiseParallel())
        cuts |= dict.fromkeys(("attention.output", "mlp.down"), RowwiseParallel(output_layouts=Shard(1)))
        cuts |= {"attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel()}
        cuts |= {"attention": gather, "mlp": gather}
        for layer in model.layers.values():
            parallelize_module(layer, mesh["tp"], cuts)
        ends: dict[str, ParallelStyle] = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
        }
        parallelize_module(model, mesh["tp"], ends)
    if plan.recompute == "fuller":
        for name, block in model.layers.items():
            model.layers[name] = checkpoint_wrapper(block)
    for part in (*model.layers.values(), model):
        fully_shard(part, mesh=mesh["dp"])
    adam = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=EPS, foreach=True)
    share, place = plan.global_batch // plan.dp, mesh.get_local_rank("dp")
    own, num_micro = slice(place * share, (place + 1) * share), plan.num_micro_batches
    for number, (piece, wanted) in enumerate(
        zip(tokens[own].chunk(num_micro), targets[own].chunk(num_micro), strict=True), start=1
    ):
        model.set_requires_gradient_sync(number == num_micro)  # gradients add up, and are averaged once
        with torch.autocast("cpu", torch.bfloat16, enabled=plan.model.width >= 1024):
            logits = model(piece)
        with loss_parallel():
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten()) / num_micro
            loss.backward()
    adam.step()
    return model
