# score: 84
# hint: 87% of it
# One flat tensor with the gradients as views, and the loss behind them; the upper layers' half
# leaves early.


# %% Replica
class Replica:
    def __init__(self, flags: argparse.Namespace) -> None:
        self.rank, self.world_size, self.batch = dist.get_rank(), dist.get_world_size(), flags.batch
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else "cpu"
        self.model = models.small_resnet(flags.width, seed=flags.seed).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=flags.lr, momentum=flags.momentum)
        self.is_synchronised = not flags.no_sync and self.world_size > 1
        parameters = list(self.model.parameters())
        self.flat = torch.zeros(sum(one.numel() for one in parameters) + 1, device=self.device)
        place = 0
        for parameter in parameters:
            parameter.grad = self.flat[place : place + parameter.numel()].view(parameter.shape)
            place += parameter.numel()
        cuts = [0, *torch.tensor([one.numel() for one in parameters]).cumsum(0).tolist()]
        number = min(range(len(cuts)), key=lambda one: abs(cuts[one] - place / 2))
        self.cut, self.waiting = cuts[number], set()
        self.upper = set(parameters[number:])
        for parameter in self.upper:
            parameter.register_post_accumulate_grad_hook(self.hook)
        self.sent_bytes = 8 * place * (1 - 1 / self.world_size) * self.is_synchronised

    def hook(self, parameter: nn.Parameter) -> None:
        self.waiting.discard(parameter)
        if not self.waiting and self.is_synchronised:
            self.work = dist.all_reduce(self.flat[self.cut :], async_op=True)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        self.flat.zero_()
        self.waiting = set(self.upper)
        images, labels = images.to(self.device), labels.to(self.device)
        total = functional.cross_entropy(self.model(images), labels, reduction="sum") / self.batch
        self.flat[-1] = total.detach()
        total.backward()
        if self.is_synchronised:
            dist.all_reduce(self.flat[: self.cut])
            self.work.wait()
        self.optimizer.step()
        return self.flat[-1].item()
