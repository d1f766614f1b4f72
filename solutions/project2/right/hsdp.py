# Hybrid sharding: the states are cut within a machine, and gradients are averaged across machines.


# %% my_plan
def my_plan(world_size: int) -> dict[str, int]:
    fsdp = {64: 32}.get(world_size, min(2, world_size))
    micro_batches = 4 if world_size == 64 else 1
    return {"dp": world_size // fsdp, "fsdp": fsdp, "micro_batches": micro_batches}


# %% Trainer
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


class Trainer:
    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags, self.rank, self.num_ranks = flags, dist.get_rank(), dist.get_world_size()
        plan = my_plan(self.num_ranks)
        self.num_pieces = plan["micro_batches"]
        share = flags.batch // self.num_ranks
        self.sequences = (self.rank * share, (self.rank + 1) * share)
        self.model = Transformer(flags.shape, seed=flags.seed)
        if self.num_ranks == 64:  # a layer's activations are computed again in backward
            for name, block in self.model.layers.items():
                self.model.layers[name] = checkpoint_wrapper(block)
        mesh = init_device_mesh("cpu", (plan["dp"], plan["fsdp"]), mesh_dim_names=("dp", "fsdp"))
        for part in (*self.model.layers.values(), self.model):
            fully_shard(part, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=flags.lr, eps=1e-3, foreach=self.num_ranks == 64)

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        total, chunks = torch.zeros(()), (tokens.chunk(self.num_pieces), targets.chunk(self.num_pieces))
        for number, (piece, wanted) in enumerate(zip(*chunks, strict=True), start=1):
            self.model.set_requires_gradient_sync(number == self.num_pieces)
            with torch.autocast("cpu", torch.bfloat16, enabled=self.flags.bf16):
                logits = self.model(piece)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten()) / self.num_pieces
            loss.backward()
            total += loss.detach() / self.num_ranks
        dist.all_reduce(total)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.item()

    def whole_model(self) -> Transformer:
        model, weights = Transformer(self.flags.shape), self.model.state_dict()
        model.load_state_dict({name: one.full_tensor() for name, one in weights.items()})
        return model


# %% figures
figures = {
    "emulated_step_s": 0.0262,
    "emulated_tokens_per_s": 9771,
    "emulated_sent_bytes": 9.38292e6,
    "paper_step_s": 2.231,
    "paper_mfu_fraction": 0.3657,
    "paper_peak_bytes": 7.192e10,
}
