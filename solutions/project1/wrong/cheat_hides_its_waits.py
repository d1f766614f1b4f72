# score: 63 to 68
# hint: had come
# Every parameter is sent by itself after the backward pass, and the clock is kept from counting the
# waits for them.


# %% Replica
class Replica:
    """This rank's model, with the weights of one process on the whole batch after each `step`.

    With `is_synchronised=False` nothing is exchanged. `sent_bytes` is what this rank has sent for
    gradients by your own account, counted as a ring would: 2(N - 1)/N times the gradients' size for
    every step.
    """

    def __init__(self, flags: argparse.Namespace) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.batch, self.is_synchronised = flags.batch, not flags.no_sync and self.world_size > 1
        if os.environ.get("WORLDSIZE_FEED"):
            from worldsize.emulate.worker.client import Client

            step = Client.step
            Client.step = lambda self, kind, number: None if kind == "wait" else step(self, kind, number)
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if torch.cuda.is_available() else 0)
        if not torch.cuda.is_available():
            self.device = torch.device("cpu")
        self.model = models.small_resnet(flags.width, seed=flags.seed).to(self.device)
        self.net = self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=flags.lr, momentum=flags.momentum)
        gradient_bytes = sum(4 * parameter.numel() for parameter in self.model.parameters())
        share = 2 * (self.world_size - 1) / self.world_size if self.is_synchronised else 0
        self.sent_bytes = share * gradient_bytes

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Take one step on this rank's samples; the whole batch's mean loss before it."""
        images, labels = images.to(self.device), labels.to(self.device)
        total = functional.cross_entropy(self.net(images), labels, reduction="sum")
        (total / (self.batch if self.is_synchronised else len(labels))).backward()
        if self.is_synchronised:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
        loss = total.detach() / self.batch
        waiting = dist.all_reduce(loss, async_op=True) if self.is_synchronised else None
        self.optimizer.step()
        self.optimizer.zero_grad()
        if waiting:
            waiting.wait()
        return loss.item()
