# No DDP: hooks put gradients into buckets of our own, each of which leaves when its last gradient
# is there.


# %% Replica
class Replica:
    def __init__(self, flags: argparse.Namespace) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.batch, self.is_synchronised = flags.batch, self.world_size > 1 and not flags.no_sync
        self.device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu")
        self.model = models.small_resnet(flags.width, seed=flags.seed).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=flags.lr, momentum=flags.momentum)
        self.flats, self.bucket_of, self.works = [], {}, []
        self.sent_bytes = 0.0
        if self.is_synchronised:
            self.make_buckets([*self.model.parameters()][::-1], bucket_bytes=1 << 16)

    def make_buckets(self, parameters: list[nn.Parameter], bucket_bytes: int) -> None:
        buckets, size_bytes = [[]], 0
        for parameter in parameters:
            if buckets[-1] and size_bytes + parameter.nbytes > bucket_bytes:
                buckets.append([])
                size_bytes = 0
            buckets[-1].append(parameter)
            size_bytes += parameter.nbytes
        for number, bucket in enumerate(buckets):
            flat = torch.zeros(sum(one.numel() for one in bucket), device=self.device)
            start = 0
            for parameter in bucket:
                parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
                start += parameter.numel()
                self.bucket_of[parameter] = number
                parameter.register_post_accumulate_grad_hook(self.note)
            self.flats.append(flat)
            self.sent_bytes += 2 * (self.world_size - 1) / self.world_size * flat.nbytes
        self.sizes = [len(bucket) for bucket in buckets]

    def note(self, parameter: nn.Parameter) -> None:
        number = self.bucket_of[parameter]
        self.missing[number] -= 1
        if self.missing[number] == 0:
            self.works.append(dist.all_reduce(self.flats[number], async_op=True))

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        for flat in self.flats:
            flat.zero_()
        if self.is_synchronised:
            self.missing, self.works = list(self.sizes), []
        loss = functional.cross_entropy(self.model(images.to(self.device)), labels.to(self.device), reduction="sum")
        loss = loss / self.batch
        loss.backward()
        loss = loss.detach()
        if self.is_synchronised:
            self.works.append(dist.all_reduce(loss, async_op=True))
        for work in self.works:
            work.wait()
        self.optimizer.step()
        if not self.is_synchronised:
            self.optimizer.zero_grad()
        return float(loss)
