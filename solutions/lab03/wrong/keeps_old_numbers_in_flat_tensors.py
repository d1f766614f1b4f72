# score: 29
# hint: must not keep old numbers
# Flat tensors are used again, and keep the last step's numbers where a gradient is missing.


# %% DataParallel
class DataParallel:
    def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
        broadcast_state(module)
        self.module, self.is_syncing = module, True
        self.buckets = make_buckets(list(module.parameters()), bucket_bytes)
        self.place_of = {
            parameter: place for place, bucket in enumerate(self.buckets) for parameter in bucket
        }
        self.flats = [
            torch.cat([one.detach().flatten() * 0 for one in bucket]) for bucket in self.buckets
        ]
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
            unflatten_gradients(flat, bucket)
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
        flat, start = self.flats[len(self.sent)], 0
        for one in self.buckets[len(self.sent)]:
            if one.grad is not None:
                flat[start : start + one.numel()] = one.grad.flatten()
            start += one.numel()
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))
