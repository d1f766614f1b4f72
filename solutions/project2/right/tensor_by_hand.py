# Megatron's cuts by hand: columns, then rows, with a conjugate pair of functions; replicas have whole moments.
# A checkpoint is one file with whole tensors, which any mesh can read.


# %% my_plan
def my_plan(world_size: int) -> dict[str, int]:
    tp = {1: 1, 64: 4}.get(world_size, 2)
    return {"dp": world_size // tp, "tp": tp, "micro_batches": 16 if world_size == 64 else 1}


# %% Trainer
from typing import Any

COLUMNS = ("query", "key", "value", "gate", "up")
ROWS = ("output", "down")


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def cut_dim(name: str) -> int | None:
    """The dim along which a weight of this name is cut; None where every rank has it whole."""
    part = name.split(".")[-2]
    return 0 if part in COLUMNS else 1 if part in ROWS else None


class Trainer:
    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags, rank, num_ranks = flags, dist.get_rank(), dist.get_world_size()
        plan = my_plan(num_ranks)
        self.dp, self.tp, self.num_pieces = plan["dp"], plan["tp"], plan["micro_batches"]
        self.replica, self.place = divmod(rank, self.tp)
        lines = [list(range(first, first + self.tp)) for first in range(0, num_ranks, self.tp)]
        self.layer_group = dist.new_subgroups_by_enumeration(lines)[0]
        self.replicas = dist.new_subgroups_by_enumeration([list(one) for one in zip(*lines, strict=True)])[0]
        share = flags.batch // self.dp
        self.sequences = (self.replica * share, (self.replica + 1) * share)
        self.model = Transformer(flags.shape, seed=flags.seed)
        for name, weight in self.model.named_parameters():
            weight.data = self.part(name, weight.data)
        if self.tp > 1:
            for block in self.model.layers.values():
                self.bind(block)
            # each rank takes the logits and losses of its part of the tokens alone
            self.model.norm.register_forward_pre_hook(
                lambda _, args: self.tokens(Enter.apply(args[0], self.layer_group))
            )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=flags.lr, eps=1e-3, foreach=False)

    def part(self, name: str, tensor: Tensor) -> Tensor:
        dim = cut_dim(name)
        return tensor if dim is None else tensor.chunk(self.tp, dim)[self.place].clone()

    def bind(self, block: Any) -> None:
        for module in (block.attention, block.mlp):
            module.register_forward_pre_hook(lambda _, args: (Enter.apply(args[0], self.layer_group),))
            module.register_forward_hook(lambda _, args, x: Leave.apply(x, self.layer_group))

    def tokens(self, x: Tensor) -> Tensor:
        return x.chunk(self.tp, 1)[self.place]

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        total, chunks = torch.zeros(()), (tokens.chunk(self.num_pieces), targets.chunk(self.num_pieces))
        for piece, wanted in zip(*chunks, strict=True):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.flags.bf16):
                logits = self.model(piece)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), self.tokens(wanted).flatten())
            loss = loss / (self.num_pieces * self.dp * self.tp)
            loss.backward()
            total += loss.detach()
        for part in (total, self.model.norm.weight.grad, self.model.head.weight.grad):
            dist.all_reduce(part, group=self.layer_group)
        works = [dist.all_reduce(total, group=self.replicas, async_op=True)]
        for weight in reversed(list(self.model.parameters())):
            works.append(dist.all_reduce(weight.grad, group=self.replicas, async_op=True))
        for work in works:
            work.wait()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.item()

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        dim = cut_dim(name)
        if dim is None or tensor.dim() == 0:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.tp)]
        dist.all_gather(parts, tensor.contiguous(), group=self.layer_group)
        return torch.cat(parts, dim)

    def whole_model(self) -> Transformer:
        model, weights = Transformer(self.flags.shape), self.model.state_dict()
        model.load_state_dict({name: self.whole(name, one) for name, one in weights.items()})
        return model


# %% save_checkpoint
def save_checkpoint(folder: Path, step: int, trainer: Trainer) -> None:
    names = [name for name, _ in trainer.model.named_parameters()]
    own = trainer.optimizer.state_dict()["state"]
    moments = {
        name: {kind: trainer.whole(name, one) for kind, one in own[number].items()} for number, name in enumerate(names)
    }
    weights = {name: trainer.whole(name, one) for name, one in trainer.model.state_dict().items()}
    if dist.get_rank() == 0:
        unfinished = folder / "unfinished"
        torch.save({"step": step, "weights": weights, "moments": moments}, unfinished)
        os.replace(unfinished, folder / f"{step:08d}.pt")
        for old in sorted(folder.glob("*.pt"))[:-2]:
            old.unlink()
    dist.barrier()


# %% load_checkpoint
def load_checkpoint(folder: Path, trainer: Trainer) -> int:
    for path in sorted(folder.glob("*.pt"), reverse=True):
        try:
            saved = torch.load(path, weights_only=True)
        except Exception:  # cut off; every rank reads the same file
            continue
        trainer.model.load_state_dict({name: trainer.part(name, one) for name, one in saved["weights"].items()})
        state = {
            number: {kind: trainer.part(name, one) if one.dim() else one for kind, one in moments.items()}
            for number, (name, moments) in enumerate(saved["moments"].items())
        }
        trainer.optimizer.load_state_dict({**trainer.optimizer.state_dict(), "state": state})
        return saved["step"]
    return 0


# %% figures
figures = {
    "emulated_step_s": 0.035,
    "emulated_tokens_per_s": 7314,
    "emulated_sent_bytes": 3.28193e6,
    "paper_step_s": 2.789,
    "paper_mfu_fraction": 0.2925,
    "paper_peak_bytes": 7.819e10,
}
