# score: 29.5
# hint: in the dtype of its gradients
# The class sends every bucket in float32, whatever the dtype of its gradients.


# %% DataParallel
class DataParallel:
    def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
        broadcast_state(module)
        self.module, self.is_syncing = module, True
        self.buckets = make_buckets(list(module.parameters()), bucket_bytes)
        self.place_of = {
            parameter: place for place, bucket in enumerate(self.buckets) for parameter in bucket
        }
        self.begin()
        for parameter in self.place_of:
            parameter.register_post_accumulate_grad_hook(self.on_gradient)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def finish(self) -> None:
        while len(self.sent) < len(self.buckets):
            self.send_next()
        for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
            work.wait()
            flat /= dist.get_world_size()
            means = flat.split([one.numel() for one in bucket])
            for parameter, mean in zip(bucket, means, strict=True):
                parameter.grad = mean.view_as(parameter).to(parameter.dtype)
        self.begin()

    @contextmanager
    def no_sync(self):
        self.is_syncing = False
        try:
            yield
        finally:
            self.is_syncing = True

    def begin(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.sent = []

    def on_gradient(self, parameter):
        if self.is_syncing:
            self.missing[self.place_of[parameter]] -= 1
            while len(self.sent) < len(self.buckets) and self.missing[len(self.sent)] == 0:
                self.send_next()

    def send_next(self):
        bucket = self.buckets[len(self.sent)]
        flat = torch.zeros(sum(one.numel() for one in bucket))
        for part, one in zip(flat.split([one.numel() for one in bucket]), bucket, strict=True):
            if one.grad is not None:
                part.copy_(one.grad.flatten())
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))
