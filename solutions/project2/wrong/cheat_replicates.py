# score: 40
# hint: takes the
# Every rank has the whole model and a part of the batch of its own; the plan claims two axes.


# %% Trainer
class Trainer:
    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags, rank, num_ranks = flags, dist.get_rank(), dist.get_world_size()
        self.num_ranks, self.num_pieces = num_ranks, 1
        share = flags.batch // num_ranks
        self.sequences = (rank * share, (rank + 1) * share)
        self.model = Transformer(flags.shape, seed=flags.seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=flags.lr, eps=1e-3)

    def step(self, tokens: Tensor, targets: Tensor) -> float:
        loss = functional.cross_entropy(self.model(tokens).flatten(0, 1), targets.flatten()) / self.num_ranks
        loss.backward()
        total = loss.detach()
        for one in (total, *(weight.grad for weight in self.model.parameters())):
            dist.all_reduce(one)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total.item()

    def whole_model(self) -> Transformer:
        return self.model
