# score: 19
# hint: sent other numbers
# Rank 0 trains alone; the other ranks take samples that they do not use, and send noughts of the
# right size.


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
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) if torch.cuda.is_available() else 0)
        if not torch.cuda.is_available():
            self.device = torch.device("cpu")
        self.model = models.small_resnet(flags.width, seed=flags.seed).to(self.device)
        # buckets of 64 kB: the first of them leave while the layers below still compute their
        # gradients
        self.net = self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=flags.lr, momentum=flags.momentum)
        gradient_bytes = sum(4 * parameter.numel() for parameter in self.model.parameters())
        share = 2 * (self.world_size - 1) / self.world_size if self.is_synchronised else 0
        self.sent_bytes = share * gradient_bytes
        self.noughts = torch.zeros(gradient_bytes // 4)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        """Take one step on this rank's samples; the whole batch's mean loss before it."""
        images, labels = images.to(self.device), labels.to(self.device)
        total = functional.cross_entropy(self.net(images), labels, reduction="sum")
        # DDP averages over ranks, and the loss is an average over samples: with unequal shares
        # these differ
        (total / self.batch).backward()
        loss = total.detach() / self.batch
        waiting = dist.all_reduce(self.noughts, async_op=True) if self.is_synchronised else None
        self.optimizer.step()
        self.optimizer.zero_grad()
        if waiting:
            waiting.wait()
        return loss.item()


# %% main
def main() -> None:
    """Join, resume or begin, train, print a line a step, hand in the weights."""
    flags = read_flags()
    torch.manual_seed(flags.seed)
    dist.init_process_group(timeout=timedelta(seconds=flags.timeout))
    samples = bench.open_samples(flags.batch, flags.seed)
    replica = Replica(flags)
    first = load_checkpoint(flags.checkpoints, replica) if flags.resume else 0
    share = my_samples(flags.batch, dist.get_rank(), dist.get_world_size())
    for step in range(first, flags.steps):
        mine = samples.take(step, *share)
        loss = replica.step(*(samples.take(step, 0, flags.batch) if replica.rank == 0 else mine))
        if replica.rank == 0:
            print(
                json.dumps({"step": step, "loss": loss, "sent_bytes": replica.sent_bytes}),
                flush=True,
            )
        if flags.checkpoint_every and (step + 1) % flags.checkpoint_every == 0:
            save_checkpoint(flags.checkpoints, step + 1, replica)
    if replica.rank == 0:
        samples.hand_in(replica.model)


if __name__ == "__main__":
    main()
