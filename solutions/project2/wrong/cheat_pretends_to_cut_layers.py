# score: 40
# hint: share its arithmetic
# Both ranks of a pair compute the same, and send each other what nobody needs, so that tp is on the wire.


# %% Trainer
class Trainer:
    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags, rank, num_ranks = flags, dist.get_rank(), dist.get_world_size()
        plan = my_plan(num_ranks)
        self.dp, tp = plan["dp"], plan["tp"]
        lines = [list(range(first, first + tp)) for first in range(0, num_ranks, tp)]
        self.pair = dist.new_subgroups_by_enumeration(lines)[0]
        self.replicas = dist.new_subgroups_by_enumeration([list(one) for one in zip(*lines, strict=True)])[0]
        share = flags.batch // self.dp
        self.sequences = (rank // tp * share, (rank // tp + 1) * share)
        self.model = Transformer(flags.shape, seed=flags.seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=flags.lr, eps=1e-3)

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        loss = functional.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten()) / self.dp
        loss.backward()
        total = loss.detach()
        for one in (total, *(weight.grad for weight in self.model.parameters())):
            dist.all_reduce(one, group=self.replicas)
        dist.all_reduce(torch.zeros(1 << 20), group=self.pair)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.item()

    def whole_model(self) -> Transformer:
        return self.model
